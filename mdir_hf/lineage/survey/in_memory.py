"""Compare every pair of a list of models from Python, and report after each model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.planning import OnFailure, choose_sample
from mdir_hf.lineage.survey.results import ModelResult, SurveyReport
from mdir_hf.lineage.survey.run import N_TOKENS, SurveyPlan, check_plan, run_survey, settings_of
from mdir_hf.lineage.survey.work import compare_tile, compare_with_layers, take
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading


def survey_arriving(
    plan: SurveyPlan,
    *,
    max_bytes: int | None = None,
    listeners: Listeners = Listeners(progress=False),
    on_model: Callable[[SurveyReport], None] = lambda report: None,
    on_failure: OnFailure = lambda name, error: None,
) -> tuple[SurveyReport, dict[str, Fingerprint]]:
    """Compare every pair of a few models with intermediate results; see :func:`~mdir_hf.lineage.survey.run.run_survey`.

    Shard and fingerprint folder of the plan are ignored. Memory is O(models): 2048 rows of each, or 17 MB at width
    4096. A model that would exceed ``max_bytes`` is reported with that reason. ``on_model`` gets the report when the
    models are open, after each model was read and compared with the earlier ones, and after each full comparison.
    Return the report, and the rows of every model by name.

    Raises:
        InputError: If the plan is invalid, or no model can be opened.
    """
    check_plan(plan)
    ledger = IoLedger(max_bytes=max_bytes)
    watch = Watch(ledger, listeners, from_start=True)
    fingerprints: dict[str, Fingerprint] = {}
    with watch.listening():
        watch.enter("opening")
        sample, failures = choose_sample(
            plan.names,
            n_tokens=plan.n_tokens,
            seed=plan.seed,
            reading=plan.reading,
            ledger=ledger,
            on_failure=on_failure,
        )
        models = {name: ModelResult(name, None, error) for name, error in failures.items()}
        report = SurveyReport(plan.names, models, {}, settings_of(plan, sample.tokens))
        on_model(report)
        watch.enter("rows")
        for name in plan.names:
            if name in failures:
                continue
            taken = take(name, sample.tokens, plan.reading, sample.pins.get(name), sample.neuron_seed, ledger=ledger)
            model = None if taken.fingerprint is None else taken.fingerprint.model
            models = {**report.models, name: ModelResult(name, model, taken.error, taken.bytes_read)}
            pairs = dict(report.pairs)
            if taken.fingerprint is not None:
                tile = [(other, name) for other in fingerprints]
                fingerprints[name] = taken.fingerprint
                compared = compare_tile(
                    fingerprints, tile, plan.alpha_of_pair, plan.seed, plan.device, sample.neuron_seed
                )
                for pair_result in compared:
                    pairs[pair_result.reference, pair_result.candidate] = pair_result
            report = replace(report, models=models, pairs=pairs)
            on_model(report)
        for pair in report.layers_to_compare() if plan.layers else ():
            pair_result = compare_with_layers(
                report.pairs[pair], sample.pins, plan.settings_with_layers, plan.reading, ledger, watch
            )
            report = replace(report, pairs={**report.pairs, pair: pair_result})
            on_model(report)
        if plan.layers:
            watch.enter("layers")
            open_models = OpenModels(sample.pins, plan.reading, ledger, watch)
            wanted = report.relatives_to_describe()
            for pair_result in describe_relatives(wanted, report.pairs, open_models, plan.settings_with_layers):
                pair = pair_result.reference, pair_result.candidate
                report = replace(report, pairs={**report.pairs, pair: pair_result})
                on_model(report)
    return report, fingerprints


def survey(
    models: Iterable[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    n_tokens: int = N_TOKENS,
    settings: Settings = Settings(),
    progress: bool = True,
    layers: bool = False,
    reading: Reading = Reading(),
) -> SurveyReport:
    """Compare the embeddings and some neurons of every pair of models. Each model is read once.

    Reads O(models) bytes; takes O(pairs) time, tenths of a second to some seconds per pair, depending on the width.

    Args:
        models: Names of the models, as for :func:`mdir_hf.compare`, without repeats.
        folder: Folder for results, so that a stopped survey can be resumed. None: store nothing.
        n_tokens: Number of rows to read from each model.
        settings: Alpha, seed and device; others have no effect. Alpha is the significance level of the whole survey: an
            upper bound on the probability that any pair of independent models is called homologous.
        progress: Whether to show progress if standard error is a terminal.
        layers: Whether to describe the layers of relatives, by some dozen rows of each projection, and to compare
            models without a relative in full with one model of each family. This reads as many bytes per pair as
            :func:`mdir_hf.compare`.
        reading: How repositories are opened.

    Returns:
        The report. Models that cannot be read, and pairs that cannot be compared, are listed with the reason.

    Raises:
        InputError: If the list or the folder is invalid, or no model can be opened.
    """
    plan = SurveyPlan(
        tuple(models),
        alpha=settings.alpha,
        seed=settings.seed,
        n_tokens=n_tokens,
        device=settings.device,
        progress=progress,
        layers=layers,
        reading=reading,
    )
    if folder is None:
        return survey_arriving(plan, listeners=Listeners(progress=progress))[0]
    return run_survey(plan, Path(folder))
