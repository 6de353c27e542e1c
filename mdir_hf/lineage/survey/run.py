"""Run a survey: read every model once, compare every pair once, and resume after a stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mdir_hf._version import __version__
from mdir_hf.comparison.progress import Progress, Watch, progress_bar
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, sample_name
from mdir_hf.lineage.fingerprints.opening import Pin
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.planning import (
    READERS,
    SAMPLE,
    PlannedRequests,
    Sample,
    choose_sample,
    load_sample,
    planned_requests,
    save_sample,
    writing_into,
)
from mdir_hf.lineage.survey.result_file import (
    DEFAULT_CACHE_BYTES,
    RESULTS,
    FingerprintStore,
    ResultFile,
    read_survey,
)
from mdir_hf.lineage.survey.results import ModelResult, Pair, PairResult, SurveyReport
from mdir_hf.lineage.survey.work import Engine, Taken, compare_tile, compare_with_layers, take
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading

N_TOKENS = 2048
"""Number of rows read from every model. A few hundred are enough for most related pairs."""

TILE_MODELS = 8
"""Models per group. A task compares two groups: 64 pairs, but only 16 models have to be sent or kept in memory."""

FINGERPRINTS = "fingerprints"


@dataclass(frozen=True)
class SurveyPlan:
    """The plan of a survey; for options see :func:`~mdir_hf.lineage.survey.in_memory.survey`.

    Attributes:
        alpha: Significance level of the survey, divided equally among the pairs.
        shard: Index of this shard, and number of shards.
        device: torch device to use on the machine that runs a task.
    """

    names: tuple[str, ...]
    alpha: float = 1e-10
    seed: int = 0
    n_tokens: int = N_TOKENS
    shard: tuple[int, int] = (0, 1)
    reading: Reading = Reading()
    cache_bytes: int = DEFAULT_CACHE_BYTES
    progress: bool = True
    device: str = "cpu"
    layers: bool = False

    @property
    def alpha_of_pair(self) -> float:
        """Significance level for one of the two tests of a pair.

        Half of a pair's share of alpha is spent on the sample, and half on the layers.
        """
        return self.alpha / 2 / max(1, math.comb(len(self.names), 2))

    @property
    def settings_with_layers(self) -> Settings:
        """Settings for a full comparison of one pair."""
        return Settings(alpha=self.alpha_of_pair, seed=self.seed, device=self.device, describes_relatives=True)


def run_survey(plan: SurveyPlan, folder: Path, *, engine: Engine | None = None) -> SurveyReport:
    """Compare every pair of models, and store results and fingerprints in a folder.

    Resumes a survey that was stopped. If there is no engine, models are read in threads.

    Raises:
        InputError: If the list, the shard or the folder is invalid.
        WorkersLostError: If all workers are lost. The survey can be resumed.
    """
    check_plan(plan)
    with writing_into(folder):
        sample, failures = _sample(plan, folder)
        results = ResultFile(folder / RESULTS, settings_of(plan, sample.tokens))
    for name, error in failures.items():
        if name not in results.models or results.models[name].error:
            results.add_model(ModelResult(name, None, error))
    store = FingerprintStore(folder / FINGERPRINTS, sample_name(sample.tokens), max_bytes=plan.cache_bytes)
    tiles = _tiles(plan)
    in_shard = {name for tile in tiles for pair in tile for name in pair}
    wanted_names = [name for name in plan.names if name in in_shard and name not in failures]
    pinned_sample = _read_models(plan, wanted_names, sample, store, results, engine)
    if pinned_sample.pins.keys() != sample.pins.keys():
        save_sample(pinned_sample, folder / SAMPLE, _sample_options(plan))
    _compare_pairs(plan, tiles, pinned_sample, store, results, engine)
    settings = settings_of(plan, sample.tokens)
    if plan.layers:
        _compare_layers(plan, SurveyReport(plan.names, results.models, results.pairs, settings), pinned_sample, results)
        _describe_relatives(
            plan, SurveyReport(plan.names, results.models, results.pairs, settings), pinned_sample, results
        )
    return SurveyReport(plan.names, results.models, results.pairs, settings)


def requests_of(
    plan: SurveyPlan, folder: Path, *, only_sample: bool = False, with_cards: bool = False
) -> PlannedRequests:
    """Plan the Hub requests that :func:`run_survey` still has to send.

    If ``only_sample`` is true, plan only the requests of :func:`prepare_survey`.
    """
    check_plan(plan)
    wanted_names = {name for tile in _tiles(plan) for pair in tile for name in pair}
    finished_names: set[str] = set()
    if (folder / RESULTS).exists() and (folder / SAMPLE).exists():
        report, sample = read_survey([folder / RESULTS]), load_sample(folder / SAMPLE)
        store = FingerprintStore(folder / FINGERPRINTS, sample_name(sample.tokens))
        finished_names = {name for name in report.readable() if sample.key(name) in store}
    return planned_requests(
        plan.reading,
        for_tokens=() if (folder / SAMPLE).exists() else plan.names,
        for_rows=() if only_sample else wanted_names - finished_names,
        for_cards=wanted_names if with_cards else (),
    )


def prepare_survey(plan: SurveyPlan, folder: Path) -> Sample:
    """Choose a survey's tokens, pin its models, and write both to ``sample.json``, which all shards use."""
    check_plan(plan)
    with writing_into(folder):
        return _sample(plan, folder)[0]


def kept_fingerprints(folder: Path) -> tuple[SurveyReport, dict[str, Fingerprint]]:
    """Read a survey, and the fingerprints that are still stored, keyed by name.

    Raises:
        InputError: If the folder contains no survey.
    """
    report = read_survey([folder / RESULTS])
    store = FingerprintStore(folder / FINGERPRINTS, str(report.settings.get("sample")))
    sample = load_sample(folder / SAMPLE)
    fingerprints = {name: store.get(sample.key(name)) for name in report.readable()}
    return report, {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint is not None}


def check_plan(plan: SurveyPlan) -> None:
    """Raise ``InputError`` for an invalid plan."""
    if len(plan.names) < 2:
        raise InputError(f"a survey needs at least two models, got {len(plan.names)}")
    if len(set(plan.names)) != len(plan.names):
        twice = next(name for name in plan.names if plan.names.count(name) > 1)
        raise InputError(f"{twice!r} is in the list twice")
    at, n_shards = plan.shard
    if not 0 <= at < n_shards:
        raise InputError(f"there is no shard {at} of {n_shards}; shards are numbered from 0")
    Settings(alpha=plan.alpha, seed=plan.seed)  # validates alpha and seed
    if plan.layers and n_shards > 1:
        raise InputError("--layers depends on all pairs, so it cannot run in one shard: join the shards first")
    if plan.n_tokens < 16:
        raise InputError(f"a sample of {plan.n_tokens} tokens is too small to show anything; use a few hundred")


def settings_of(plan: SurveyPlan, tokens: Sequence[bytes]) -> dict[str, Any]:
    """Return the settings that a survey's report records."""
    return {
        "names": list(plan.names),
        "alpha": plan.alpha,
        "alpha_of_pair": plan.alpha_of_pair,
        "seed": plan.seed,
        "sampled_tokens": len(tokens),
        "sample": sample_name(tokens),
        "shard": list(plan.shard),
        "version": __version__,
    }


def _sample(plan: SurveyPlan, folder: Path) -> tuple[Sample, dict[str, str]]:
    path = folder / SAMPLE
    if path.exists():
        return load_sample(path, _sample_options(plan)), {}
    ledger = IoLedger()
    with Watch(ledger, Listeners(progress=plan.progress)).listening():
        sample, failures = choose_sample(
            plan.names, n_tokens=plan.n_tokens, seed=plan.seed, reading=plan.reading, ledger=ledger
        )
    save_sample(sample, path, _sample_options(plan))
    return sample, failures


def _sample_options(plan: SurveyPlan) -> dict[str, Any]:
    return {"names": list(plan.names), "n_tokens": plan.n_tokens, "seed": plan.seed}


def _tiles(plan: SurveyPlan) -> list[list[Pair]]:
    """Divide the pairs of this shard into tasks that need few models each."""
    groups = [plan.names[at : at + TILE_MODELS] for at in range(0, len(plan.names), TILE_MODELS)]
    place = {name: at for at, name in enumerate(plan.names)}
    tiles = [list(combinations(group, 2)) for group in groups]
    tiles += [[(a, b) for a in first for b in second] for first, second in combinations(groups, 2)]
    at, n_shards = plan.shard
    # Tiles of the same group go to the same shard if the sizes of shards allow it, so that a shard reads fewer models.
    tiles = sorted((tile for tile in tiles if tile), key=lambda tile: (place[tile[0][0]], place[tile[0][1]]))
    share = -(-len(tiles) // n_shards)
    return tiles[at * share : (at + 1) * share]


def _read_models(
    plan: SurveyPlan,
    wanted_names: Sequence[str],
    sample: Sample,
    store: FingerprintStore,
    results: ResultFile,
    engine: Engine | None,
) -> Sample:
    pinned: dict[str, Pin] = {}
    finished_names = {
        name for name, result in results.models.items() if result.error is None and sample.key(name) in store
    }
    todo = [name for name in wanted_names if name not in finished_names]
    n_done = n_bytes = 0
    with progress_bar(is_wanted=plan.progress) as tell:
        tell(Progress("rows", 0, n_parts=len(todo)))

        def record(outcome: Taken) -> None:
            nonlocal n_done, n_bytes
            if outcome.fingerprint is not None and outcome.pin is not None:
                pinned.setdefault(outcome.name, sample.pins.get(outcome.name, outcome.pin))
                store.put(sample.with_pins(pinned.items()).key(outcome.name), outcome.fingerprint)
            model = None if outcome.fingerprint is None else outcome.fingerprint.model
            results.add_model(ModelResult(outcome.name, model, outcome.error, outcome.bytes_read))
            n_done, n_bytes = n_done + 1, n_bytes + outcome.bytes_read
            tell(Progress("rows", n_bytes, None, n_done, len(todo)))

        tasks = [
            (name, (name, sample.tokens, plan.reading, sample.pins.get(name), sample.neuron_seed)) for name in todo
        ]
        with ThreadPoolExecutor(READERS) as threads:
            used = engine or Engine(threads, lambda: READERS)
            used.run(take, tasks, record, lambda name, why: record(Taken(name, None, why, 0)))
    return sample.with_pins(pinned.items())


def _compare_pairs(
    plan: SurveyPlan,
    tiles: Sequence[Sequence[Pair]],
    sample: Sample,
    store: FingerprintStore,
    results: ResultFile,
    engine: Engine | None,
) -> None:
    readable = {name for name, result in results.models.items() if result.error is None}
    todo = [
        remaining_pairs
        for tile in tiles
        if (remaining_pairs := [p for p in tile if p not in results.pairs and p[0] in readable and p[1] in readable])
    ]

    def fingerprint(name: str) -> Fingerprint:
        stored_fingerprint = store.get(sample.key(name))
        if stored_fingerprint is None:  # deleted, because the rows of all models together exceed the limit
            again = take(name, sample.tokens, plan.reading, sample.pins.get(name), sample.neuron_seed)
            if again.fingerprint is None:
                raise InputError(f"it can no longer be read, unlike before: {again.error}", subject=name)
            store.put(sample.key(name), again.fingerprint)
            stored_fingerprint = again.fingerprint
        return stored_fingerprint

    n_done, n_pairs = 0, sum(map(len, todo))
    with progress_bar(is_wanted=plan.progress) as tell:
        tell(Progress("pairs", 0, n_parts=n_pairs))

        def record(outcome: list[PairResult]) -> None:
            nonlocal n_done
            results.add_pairs(outcome)
            n_done += len(outcome)
            tell(Progress("pairs", 0, None, n_done, n_pairs))

        def arguments(tile: Sequence[Pair]) -> tuple[Any, ...]:
            names = dict.fromkeys(name for pair in tile for name in pair)
            fingerprints = {name: fingerprint(name) for name in names}
            return fingerprints, tile, plan.alpha_of_pair, plan.seed, plan.device, sample.neuron_seed

        if engine is None:
            for tile in todo:
                fingerprints, _, *how = arguments(tile)
                for pair in tile:
                    record(compare_tile(fingerprints, [pair], *how))
            return
        failed: list[Pair] = []
        engine.run(
            compare_tile, ((tile, arguments(tile)) for tile in todo), record, lambda tile, why: failed.extend(tile)
        )
        # A pair may have killed the worker of its tile. Retried alone, it cannot affect other pairs.
        engine.run(
            compare_tile,
            ((pair, arguments([pair])) for pair in failed),
            record,
            lambda pair, why: record([PairResult(*pair, None, error=why)]),
        )


def _compare_layers(plan: SurveyPlan, report: SurveyReport, sample: Sample, results: ResultFile) -> None:
    for pair in report.layers_to_compare():
        ledger = IoLedger()
        watch = Watch(ledger, Listeners(progress=plan.progress), from_start=True)
        with watch.listening():
            watch.enter("opening")
            result = compare_with_layers(
                report.pairs[pair], sample.pins, plan.settings_with_layers, plan.reading, ledger, watch
            )
        results.add_pairs([result])


def _describe_relatives(plan: SurveyPlan, report: SurveyReport, sample: Sample, results: ResultFile) -> None:
    pairs = report.relatives_to_describe()
    ledger = IoLedger()
    watch = Watch(ledger, Listeners(progress=plan.progress), from_start=True)
    with watch.listening():
        watch.enter("layers")
        models = OpenModels(sample.pins, plan.reading, ledger, watch)
        for n_done, result in enumerate(describe_relatives(pairs, report.pairs, models, plan.settings_with_layers)):
            results.add_pairs([result])
            watch.part("layers", n_done + 1, len(pairs))
