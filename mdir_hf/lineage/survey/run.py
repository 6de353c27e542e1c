"""Run a survey: read every model once, compare the pairs that may be related, and resume after a stop.

:func:`run_survey` is the one loop, for folders and for memory. Neurons are compared by number within blocks of pairs.
Other relatives are nominated by prints, and compared in full.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import combinations, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from mdir_hf._version import __version__
from mdir_hf.comparison.api import ReadingOptions, changed, check_keywords
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel
from mdir_hf.lineage.fingerprints.opening import Pin, local_stamp
from mdir_hf.lineage.survey import expect_tokens
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.folder import DEFAULT_CACHE_BYTES, LOCK, SurveyFolder, SurveyState, remove_survey
from mdir_hf.lineage.survey.nominate import Edges, Prints, PrintsOfMany, next_pairs, similar_models
from mdir_hf.lineage.survey.results import (
    MOST_COMPARED,
    MOST_DESCRIBED,
    ModelResult,
    Pair,
    PairResult,
    Stage,
    SurveyReport,
)
from mdir_hf.lineage.survey.sample import OnFailure, Sample, draw_sample
from mdir_hf.lineage.survey.work import (
    PAIRS_AT_ONCE,
    Taken,
    compare_by_number,
    compare_in_full,
    of_neurons,
    run_tasks,
    take,
)
from mdir_hf.model.hub import IoLedger, Repository
from mdir_hf.model.memory import LoadedRepository, load_model
from mdir_hf.model.open import Reading
from mdir_hf.thresholds import ALPHA
from mdir_hf.writing import locked

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Unpack

N_TOKENS = 2048
"""Number of rows of the embedding that are read from every model, for trees."""

READERS = 4
"""Number of models that are read concurrently if there is no executor."""

METHOD = 1
"""Version of the rules by which a survey compares pairs. Results of other versions are not continued."""

MOST_KEPT = 4096
"""Number of models whose neurons are kept in memory: 1 GB, as each has at most 262 kB."""


@dataclass(frozen=True)
class SurveyPlan:
    """The plan of a survey; for options see :func:`survey`.

    Attributes:
        names: All models of the survey.
        part: The models to read now; None for all.
        alpha: Significance level of the survey, divided equally among all pairs, compared or not.
        all_pairs: Whether every pair is compared by number; None for surveys of at most
            :data:`~mdir_hf.lineage.survey.results.MOST_COMPARED` models.
        device: torch device to use on the machine that runs a task.
    """

    names: tuple[str, ...]
    part: tuple[str, ...] | None = None
    alpha: float = ALPHA
    seed: int = 0
    n_tokens: int = N_TOKENS
    all_pairs: bool | None = None
    layers: bool = False
    reading: Reading = Reading()
    cache_bytes: int = DEFAULT_CACHE_BYTES
    progress: bool = True
    device: str = "cpu"

    @property
    def alpha_of_pair(self) -> float:
        """Significance level for one of the two tests of a pair: by number, and in full."""
        return self.alpha / 2 / max(1, math.comb(len(self.names), 2))

    @property
    def compares_all_pairs(self) -> bool:
        """Whether every pair is compared by number."""
        return len(self.names) <= MOST_COMPARED if self.all_pairs is None else self.all_pairs

    def continuing(self, earlier: SurveyState) -> SurveyPlan:
        """Return the plan of the survey that an earlier one prepared or began; the names here are the part to read."""
        how = {key: earlier.settings[key] for key in ("alpha", "seed", "n_tokens") if key in earlier.settings}
        return replace(self, names=earlier.names, part=self.names or None, **how)

    @property
    def settings_in_full(self) -> Settings:
        """Settings for a full comparison of one pair."""
        return Settings(alpha=self.alpha_of_pair, seed=self.seed, device=self.device, describes_relatives=self.layers)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines results, beside the sample and the models."""
        return {
            "alpha": self.alpha,
            "alpha_of_pair": self.alpha_of_pair,
            "seed": self.seed,
            "n_tokens": self.n_tokens,
            "method": METHOD,
            "version": __version__,
        }


def check_plan(plan: SurveyPlan) -> None:
    """Raise ``InputError`` for an invalid plan."""
    if len(plan.names) < 2:
        raise InputError(f"a survey needs at least two models, got {len(plan.names)}")
    if len(set(plan.names)) != len(plan.names):
        twice = next(name for name in plan.names if plan.names.count(name) > 1)
        raise InputError(f"{twice!r} is in the list twice")
    other = next((name for name in plan.part or () if name not in set(plan.names)), None)
    if other is not None:
        raise InputError(f"{other!r} is not among the models of the sample")
    Settings(alpha=plan.alpha, seed=plan.seed)  # validates alpha and seed
    expect_tokens(plan.n_tokens)


@contextmanager
def open_folder(plan: SurveyPlan, folder: Path, *, restart: bool = False) -> Iterator[SurveyFolder]:
    """Lock the folder of a survey, and read its contents or, to restart, remove the results and rows of an earlier one.

    Raises:
        InputError: If another process runs a survey there, or the folder holds another survey.
    """
    check_plan(plan)
    with locked(folder / LOCK, folder):
        if restart:
            remove_survey(folder)
        yield SurveyFolder(folder, plan.names, plan.settings, cache_bytes=plan.cache_bytes)


def run_survey(
    plan: SurveyPlan,
    state: SurveyState | None = None,
    *,
    executor: Executor | None = None,
    max_bytes: int | None = None,
    listeners: Listeners | None = None,
    on_change: Callable[[SurveyReport], None] | None = None,
    on_failure: OnFailure = lambda name, error: None,
) -> SurveyReport:
    """Read the models of a survey, and compare the pairs that may be related.

    Args:
        plan: The plan.
        state: Earlier results, and the place of new ones: a folder from :func:`open_folder`, or memory.
        executor: Runs the tasks; None for this process. Its workers need this package, but not a shared disk.
        max_bytes: Limit on bytes; a model whose reads would exceed it is reported as a failure.
        listeners: Callbacks; by default a progress bar if the plan says so.
        on_change: Called with the report after each step.
        on_failure: Called with each model that cannot be opened, and the error.

    Raises:
        InputError: If the plan is invalid, or no model can be opened.
        WorkersLostError: If all workers are lost. The survey can be resumed.
    """
    check_plan(plan)
    state = SurveyState(plan.names, plan.settings) if state is None else state
    ledger = IoLedger(max_bytes=max_bytes)
    watch = Watch(ledger, Listeners(progress=plan.progress) if listeners is None else listeners, from_start=True)
    with watch.listening():
        is_shared = executor is None and (listeners is not None or max_bytes is not None)
        tell = (lambda: None) if on_change is None else (lambda: on_change(state.report))
        loop = _Loop(plan, state, executor, ledger, watch, tell, is_shared=is_shared)
        loop.open(on_failure)
        loop.read()
        loop.compare_by_number()
        loop.compare_nominated()
        if plan.layers:
            loop.compare_layers()
        if state.earlier_groups is not None:
            loop.read_rows_of(group for group in state.report.groups() if group not in state.earlier_groups)
    return state.report


def prepare_survey(plan: SurveyPlan, state: SurveyState) -> Sample:
    """Open and pin all models and draw the sample, which parts of the survey share; read no rows."""
    ledger = IoLedger()
    watch = Watch(ledger, Listeners(progress=plan.progress), from_start=True)
    with watch.listening():
        _Loop(plan, state, None, ledger, watch, lambda: None, is_shared=False).open(lambda name, error: None)
    return state.sample or Sample(())


class _Loop:
    """One run of a survey. Every step skips what the state already holds."""

    def __init__(
        self,
        plan: SurveyPlan,
        state: SurveyState,
        executor: Executor | None,
        ledger: IoLedger,
        watch: Watch,
        changed: Callable[[], None],
        *,
        is_shared: bool,
    ) -> None:
        self._plan, self._state, self._executor = plan, state, executor
        self._ledger, self._watch, self._changed = ledger, watch, changed
        self._is_shared = is_shared  # whether models are read one by one, because their bytes are counted or limited
        self._neurons: dict[str, Fingerprint] = {}
        self._place = {name: number for number, name in enumerate(plan.names)}
        self._failed_now: frozenset[str] = frozenset()

    @property
    def _sample(self) -> Sample:
        return self._state.sample or Sample(())

    @property
    def _readable(self) -> tuple[str, ...]:
        return self._state.report.readable()

    def open(self, on_failure: OnFailure) -> None:
        """Open and pin all models and draw the sample, unless this was done before."""
        self._watch.enter("opening")
        if self._state.sample is None:
            plan = self._plan
            sample, failures = draw_sample(
                plan.names,
                n_tokens=plan.n_tokens,
                seed=plan.seed,
                reading=plan.reading,
                ledger=self._ledger,
                on_failure=on_failure,
            )
            self._state.begin(sample)
            for name, error in failures.items():
                self._state.add_model(ModelResult(name, None, error))
            self._failed_now = frozenset(failures)
        else:
            for name, pin in self._sample.pins.items():
                now = None if pin.stamp is None else local_stamp(name)
                if now not in (None, pin.stamp):
                    self._state.pin(name, replace(pin, stamp=now))
        self._changed()

    def read(self) -> None:
        """Read the rows of all models that were not read before."""
        models, names = self._state.models, self._plan.part or self._plan.names
        todo = [name for name in names if name not in models or models[name].error is not None]
        todo = [name for name in todo if name not in self._failed_now]
        n_done = 0
        if todo:
            self._watch.part("rows", 0, len(todo))

        def record(outcome: Taken) -> None:
            nonlocal n_done
            n_done += 1
            arrived = self._readable
            self._record(outcome)
            if outcome.fingerprint is not None and self._plan.compares_all_pairs and self._executor is None:
                self._count(self._in_order((name, outcome.name) for name in arrived))
            self._watch.part("rows", n_done, len(todo))
            self._changed()

        if self._is_shared or self._executor is not None:
            self._take(todo, record, self._executor)
        else:
            with ThreadPoolExecutor(READERS) as threads:
                self._take(todo, record, threads)

    def compare_by_number(self) -> None:
        """Compare neurons by number: of all pairs, or of pairs with similar neurons until no group has such a pair."""
        state, stage = self._state, Stage.ALL_PAIRS if self._plan.compares_all_pairs else Stage.NUMBER
        if not state.stages.isdisjoint({stage, Stage.ALL_PAIRS}):
            return
        readable = self._readable
        if self._plan.compares_all_pairs:
            self._count(pair for pair in combinations(readable, 2) if pair not in state.pairs)
        else:
            prints, same_files = self._prints("neurons")
            self._link(prints, readable, self._count, first=same_files)
            groups = [group for group in state.report.groups() if len(group) <= MOST_DESCRIBED]
            within = self._in_order(pair for group in groups for pair in combinations(group, 2))
            self._count(pair for pair in within if pair not in state.pairs)
        state.finish(stage)
        self._changed()

    def compare_nominated(self) -> None:
        """Compare pairs of groups in full whose heads are similar, until no group has such a pair."""
        if Stage.HEADS in self._state.stages:
            return
        prints, _ = self._prints("heads")
        with_heads = {int(number) for of_shape in prints for number in np.unique(of_shape.owners)}
        place = {name: number for number, name in enumerate(self._readable)}
        # One model of each group: its relatives have similar heads.
        groups = ([place[name] for name in group if name in place] for group in self._state.report.groups())
        chosen = [next((number for number in group if number in with_heads), -1) for group in groups]
        wanted = np.array(chosen, dtype=np.int64)
        self._link([of_shape.of(wanted) for of_shape in prints], self._readable, self._compare_in_full)
        self._state.finish(Stage.HEADS)
        self._changed()

    def compare_layers(self) -> None:
        """Compare the unrelated pairs of a small survey in full, and describe the layers of relatives."""
        if Stage.LAYERS in self._state.stages:
            return
        self._compare_in_full(self._state.report.layers_to_compare())
        self._watch.enter("layers")
        models = OpenModels(self._sample.pins, self._plan.reading, self._ledger, self._watch)
        pairs = self._state.report.relatives_to_describe()
        results = describe_relatives(pairs, self._state.pairs, models, self._plan.settings_in_full)
        for n_done, result in enumerate(results, start=1):
            self._state.add_pairs([result])
            self._watch.part("layers", n_done, len(pairs))
            self._changed()
        self._state.finish(Stage.LAYERS)
        self._changed()

    def read_rows_of(self, groups: Iterable[Sequence[str]]) -> None:
        """Read rows of the models of some groups whose rows are not stored, with a sample of their own."""
        names = tuple(name for group in groups for name in group)
        if names:
            plan, pins = self._plan, self._sample.pins
            how = {"n_tokens": plan.n_tokens, "seed": plan.seed, "reading": plan.reading, "ledger": self._ledger}
            sample, _ = draw_sample(names, **how)  # type: ignore[arg-type]
            for name in names:
                outcome = take(name, sample.tokens, plan.reading, pins.get(name), ledger=self._ledger)
                if outcome.fingerprint is not None:
                    self._state.keep_rows(name, outcome.fingerprint)

    def _take(self, names: Sequence[str], record: Callable[[Taken], None], executor: Executor | None) -> None:
        sample = self._sample
        tasks = (
            (name, (name, sample.tokens, self._plan.reading, sample.pins.get(name), sample.neuron_seed))
            for name in names
        )
        work = partial(take, ledger=self._ledger) if self._is_shared else take
        run_tasks(executor, work, tasks, record, lambda name, why: record(Taken(name, None, why, 0)))

    def _record(self, outcome: Taken) -> None:
        model = None if outcome.fingerprint is None else outcome.fingerprint.model
        result = ModelResult(outcome.name, model, outcome.error, outcome.bytes_read)
        self._state.add_model(result, self._sample.pins.get(outcome.name, outcome.pin), outcome.fingerprint)

    def _in_order(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return pairs with their models in the order of the list."""
        place = self._place
        return [(a, b) if place[a] < place[b] else (b, a) for a, b in pairs]

    def _fingerprint(self, name: str) -> Fingerprint:
        """Return the stored rows of a model, or read them again if they were deleted to save space, or are damaged."""
        fingerprint = self._state.rows(name)
        if fingerprint is None:
            self._take([name], self._record, None)
            fingerprint = self._state.rows(name)
        if fingerprint is None:
            raise InputError(f"it can no longer be read, unlike before: {self._state.models[name].error}", subject=name)
        return fingerprint

    def _neurons_of(self, name: str) -> Fingerprint:
        if name not in self._neurons:
            self._neurons[name] = of_neurons(self._fingerprint(name))
            if len(self._neurons) > MOST_KEPT:
                del self._neurons[next(iter(self._neurons))]
        return self._neurons[name]

    def _prints(self, kind: str) -> tuple[list[Prints], Edges]:
        """Return the prints of all models, and one pair for each model that has the files of an earlier one."""
        prints, first_with, same_files = PrintsOfMany(), dict[frozenset[str], int](), Edges()
        for number, name in enumerate(self._readable):
            fingerprint = self._fingerprint(name)
            prints.add(number, fingerprint.neurons, fingerprint.heads, kind)
            files = SampledModel(fingerprint).identities()
            if files is not None and first_with.setdefault(files, number) != number:
                same_files[first_with[files], number] = math.inf
        return prints.of_kind(kind), same_files

    def _link(
        self,
        prints: Sequence[Prints],
        names: Sequence[str],
        compare: Callable[[Iterable[Pair]], None],
        *,
        first: Edges | None = None,
    ) -> None:
        """Compare the most similar pair of each group with another group, until there are no similar pairs left."""
        place = {name: number for number, name in enumerate(names)}
        groups, seen = DisjointSet(range(len(names))), set[tuple[int, int]]()
        is_open = np.ones(len(names), dtype=bool)
        for seed in count():
            for (a, b), result in self._state.pairs.items():
                if a in place and b in place:
                    pair = place[a], place[b]
                    if result.verdict == "homologous":
                        groups.merge(*pair)
                    if result.layers_compared or compare == self._count:
                        seen.add(pair)
            group_of = np.array([groups[number] for number in range(len(names))], dtype=np.int64)
            edges = dict(first or {})
            for of_shape in prints:
                edges |= similar_models(of_shape, group_of, is_open=is_open, seed=seed)
            chosen = next_pairs(edges, groups, seen)
            if not chosen:
                return
            seen.update(chosen)
            # Other groups had no similar pair, and will have none.
            is_open = np.isin(group_of, [group_of[model] for pair in chosen for model in pair])
            compare([(names[i], names[j]) for i, j in chosen])

    def _count(self, pairs: Iterable[Pair]) -> None:
        """Compare neurons of pairs by number, in blocks."""
        plan, sample = self._plan, self._sample
        n_done = 0

        def tasks(blocks: Iterable[Sequence[Pair]]) -> Iterator[tuple[Sequence[Pair], tuple[Any, ...]]]:
            for block in blocks:
                fingerprints = {name: self._neurons_of(name) for pair in block for name in pair}
                yield block, (fingerprints, block, plan.alpha_of_pair, plan.seed, plan.device, sample.neuron_seed)

        def record(results: list[PairResult]) -> None:
            nonlocal n_done
            self._state.add_pairs(results)
            n_done += len(results)
            self._watch.part("pairs", n_done, n_done)
            self._changed()

        remaining = iter(pairs)
        failed: list[Pair] = []
        blocks = iter(lambda: list(islice(remaining, PAIRS_AT_ONCE)), [])
        run_tasks(self._executor, compare_by_number, tasks(blocks), record, lambda block, why: failed.extend(block))
        # A pair may have killed the worker of its block. Retried alone, it cannot affect other pairs.
        run_tasks(
            self._executor,
            compare_by_number,
            tasks([pair] for pair in failed),
            record,
            lambda block, why: record([PairResult(*block[0], None, error=why)]),
        )

    def _compare_in_full(self, pairs: Iterable[Pair]) -> None:
        plan, pins = self._plan, self._sample.pins

        def record(result: PairResult) -> None:
            pair = result.reference, result.candidate
            if result.verdict is None:
                earlier = self._state.pairs.get(pair)
                result = (
                    PairResult(*pair, None, error=result.layers_error)
                    if earlier is None
                    else replace(earlier, layers_error=result.layers_error)
                )
            self._state.add_pairs([result])
            self._changed()

        tasks = ((pair, (pair, _of(pair, pins), plan.settings_in_full, plan.reading)) for pair in pairs)
        is_here = self._executor is None
        work = partial(compare_in_full, watch=self._watch, ledger=self._ledger) if is_here else compare_in_full
        run_tasks(
            self._executor, work, tasks, record, lambda pair, why: record(PairResult(*pair, None, layers_error=why))
        )


def _of(pair: Pair, pins: Mapping[str, Pin]) -> dict[str, Pin]:
    return {name: pins[name] for name in pair if name in pins}


class SurveyOptions(ReadingOptions, total=False):
    """Keyword arguments of :func:`survey`, named as in :func:`mdir_hf.compare`."""

    alpha: float
    seed: int
    device: str
    progress: bool


@dataclass(frozen=True, slots=True)
class _ReadingOfLoaded(Reading):
    """Opens models in memory by their names in the survey, and others as usual."""

    loaded: Mapping[str, LoadedRepository] = field(default_factory=dict)

    def open(
        self,
        reference: str | os.PathLike[str] | LoadedRepository,
        *,
        revision: str | None = None,
        subfolder: str = "",
        allow_local: bool = True,
        ledger: IoLedger | None = None,
    ) -> Repository:
        model = self.loaded.get(reference, reference) if isinstance(reference, str) else reference
        how = {"revision": revision, "subfolder": subfolder, "allow_local": allow_local, "ledger": ledger}
        return Reading.open(self, model, **how)  # type: ignore[arg-type]


def _of_loaded(reading: Reading, models: Mapping[str, object]) -> Reading:
    loaded = {name: load_model(model) for name, model in models.items()}
    options = {each.name: getattr(reading, each.name) for each in fields(Reading)}
    return _ReadingOfLoaded(**options, loaded=loaded)


def survey(
    models: Iterable[str] | Mapping[str, PreTrainedModel],
    *,
    folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    earlier: Sequence[str | os.PathLike[str]] = (),
    n_tokens: int = N_TOKENS,
    all_pairs: bool | None = None,
    layers: bool = False,
    executor: Executor | None = None,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    **options: Unpack[SurveyOptions],
) -> SurveyReport:
    """Find which of many models share ancestry, reading each model once.

    Pairs whose neurons are similar by number are compared by these neurons, and pairs with similar attention heads in
    full. Other pairs are not compared. Disguises that this misses are listed in the guide on surveys.

    Args:
        models: Distinct names, as for :func:`mdir_hf.compare`, or models in memory by the names to call them.
        folder: Folder for results, from which a stopped survey can be resumed; None to store nothing.
        restart: Remove the results and rows of an earlier survey in the folder.
        earlier: Folders of surveys of parts of the list that started from one sample; their results are used.
        n_tokens: Number of rows of the embedding to read from each model, for trees.
        all_pairs: Whether to compare every pair by number, which takes tens of milliseconds for each. The default is
            True for at most 20 models.
        layers: Whether to describe the layers of relatives and, for at most 20 models, to compare the other pairs in
            full. This reads as much as :func:`mdir_hf.compare`.
        executor: Runs the tasks, such as a ``ProcessPoolExecutor`` or ``Client.get_executor()`` of dask.distributed.
        settings: Alpha, seed and device; other settings have no effect. Alpha bounds the probability that any pair of
            independent models is called homologous.
        reading: How repositories are opened.
        options: ``alpha``, ``seed``, ``device``, ``progress`` or fields of :class:`Reading`, such as ``alpha=1e-6`` or
            ``token=…``.

    Returns:
        The report, including the reason why a model cannot be read or a pair cannot be compared.

    Raises:
        InputError: If the list or a folder is invalid, another process writes into the folder, or no model can be
            opened.
        WorkersLostError: If all workers of the executor are lost.
    """
    check_keywords(options, SurveyOptions)
    if isinstance(models, str):
        raise InputError(f"a survey takes a list of names, not one text: {models.replace(',', ' ').split()}")
    settings, reading = changed(settings, options), changed(reading, options)
    if isinstance(models, Mapping):
        if folder is not None:
            raise InputError("a survey of models in memory cannot be resumed; leave the folder out")
        reading = _of_loaded(reading, models)
    plan = SurveyPlan(
        tuple(models),
        alpha=settings.alpha,
        seed=settings.seed,
        n_tokens=n_tokens,
        all_pairs=all_pairs,
        layers=layers,
        reading=reading,
        progress=options.get("progress", True),
        device=settings.device,
    )
    if folder is None:
        if earlier:
            raise InputError("name a folder for the results that earlier surveys are joined into")
        return run_survey(plan, executor=executor)
    with open_folder(plan, Path(folder), restart=restart) as state:
        for place in map(Path, earlier):
            state.take_over(SurveyFolder(place))
        return run_survey(plan, state, executor=executor)
