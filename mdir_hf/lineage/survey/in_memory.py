"""Compare every pair of models from Python, with intermediate reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.comparison.api import ReadingOptions, changed, check_keywords
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, pin_of_summary
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.planning import OnFailure, choose_sample
from mdir_hf.lineage.survey.results import ModelResult, SurveyReport
from mdir_hf.lineage.survey.run import N_TOKENS, SurveyPlan, check_plan, run_survey, settings_of
from mdir_hf.lineage.survey.work import compare_tile, compare_with_layers, take
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading

if TYPE_CHECKING:
    from typing_extensions import Unpack


def survey_arriving(
    plan: SurveyPlan,
    *,
    earlier: SurveyReport | None = None,
    max_bytes: int | None = None,
    listeners: Listeners = Listeners(progress=False),
    on_model: Callable[[SurveyReport], None] = lambda report: None,
    on_failure: OnFailure = lambda name, error: None,
) -> tuple[SurveyReport, dict[str, Fingerprint]]:
    """Compare a few models pairwise in memory, as :func:`~mdir_hf.lineage.survey.run.run_survey` does on disk.

    Ignores the plan's shard and cache size. A model whose reads would exceed ``max_bytes`` is reported as a failure.
    ``on_model`` is called with the report after each step. If ``earlier`` is given, a complete survey without
    layers, only layers are compared, at the same commits. Returns the report, and rows keyed by model; after an
    ``earlier`` survey, only the rows of models in new groups.

    Raises:
        InputError: If the plan is invalid, or no model can be opened.
    """
    check_plan(plan)
    ledger = IoLedger(max_bytes=max_bytes)
    watch = Watch(ledger, listeners, from_start=True)
    with watch.listening():
        if earlier is None:
            report, pins, fingerprints = _compare_samples(plan, ledger, watch, on_model, on_failure)
        else:
            report, fingerprints = earlier, {}
            pins = {name: pin_of_summary(name, result.model) for name, result in earlier.models.items() if result.model}
            on_model(report)
        if plan.layers:
            report = _compare_layers(plan, report, pins, ledger, watch, on_model)
        if earlier is not None:
            new_groups = [group for group in report.groups() if group not in earlier.groups()]
            fingerprints = _read_rows(plan, tuple(name for group in new_groups for name in group), pins, ledger)
    return report, fingerprints


def _compare_samples(
    plan: SurveyPlan,
    ledger: IoLedger,
    watch: Watch,
    on_model: Callable[[SurveyReport], None],
    on_failure: OnFailure,
) -> tuple[SurveyReport, Mapping[str, Pin], dict[str, Fingerprint]]:
    watch.enter("opening")
    sample, failures = choose_sample(
        plan.names, n_tokens=plan.n_tokens, seed=plan.seed, reading=plan.reading, ledger=ledger, on_failure=on_failure
    )
    models = {name: ModelResult(name, None, error) for name, error in failures.items()}
    report = SurveyReport(plan.names, models, {}, settings_of(plan, sample.tokens))
    fingerprints: dict[str, Fingerprint] = {}
    on_model(report)
    watch.enter("rows")
    for name in plan.names:
        if name in failures:
            continue
        outcome = take(name, sample.tokens, plan.reading, sample.pins.get(name), sample.neuron_seed, ledger=ledger)
        model = None if outcome.fingerprint is None else outcome.fingerprint.model
        models = {**report.models, name: ModelResult(name, model, outcome.error, outcome.bytes_read)}
        pairs = dict(report.pairs)
        if outcome.fingerprint is not None:
            tile = [(earlier_name, name) for earlier_name in fingerprints]
            fingerprints[name] = outcome.fingerprint
            pair_results = compare_tile(
                fingerprints, tile, plan.alpha_of_pair, plan.seed, plan.device, sample.neuron_seed
            )
            for pair_result in pair_results:
                pairs[pair_result.reference, pair_result.candidate] = pair_result
        report = replace(report, models=models, pairs=pairs)
        on_model(report)
    return report, sample.pins, fingerprints


def _compare_layers(
    plan: SurveyPlan,
    report: SurveyReport,
    pins: Mapping[str, Pin],
    ledger: IoLedger,
    watch: Watch,
    on_model: Callable[[SurveyReport], None],
) -> SurveyReport:
    for pair in report.layers_to_compare():
        pair_result = compare_with_layers(
            report.pairs[pair], pins, plan.settings_with_layers, plan.reading, ledger, watch
        )
        report = replace(report, pairs={**report.pairs, pair: pair_result})
        on_model(report)
    watch.enter("layers")
    open_models = OpenModels(pins, plan.reading, ledger, watch)
    wanted_pairs = report.relatives_to_describe()
    for pair_result in describe_relatives(wanted_pairs, report.pairs, open_models, plan.settings_with_layers):
        pair = pair_result.reference, pair_result.candidate
        report = replace(report, pairs={**report.pairs, pair: pair_result})
        on_model(report)
    return report


def _read_rows(
    plan: SurveyPlan, names: tuple[str, ...], pins: Mapping[str, Pin], ledger: IoLedger
) -> dict[str, Fingerprint]:
    if not names:
        return {}
    sample, _ = choose_sample(names, n_tokens=plan.n_tokens, seed=plan.seed, reading=plan.reading, ledger=ledger)
    outcomes = (take(name, sample.tokens, plan.reading, pins.get(name), ledger=ledger) for name in names)
    return {model.name: model.fingerprint for model in outcomes if model.fingerprint is not None}


class SurveyOptions(ReadingOptions, total=False):
    """Keyword arguments of :func:`survey`, named as in :func:`mdir_hf.compare`."""

    alpha: float
    seed: int
    device: str
    progress: bool


def survey(
    models: Iterable[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    n_tokens: int = N_TOKENS,
    layers: bool = False,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    **options: Unpack[SurveyOptions],
) -> SurveyReport:
    """Compare the embeddings and some neurons of every pair of models, reading each model once.

    Each pair takes from tenths of a second to several seconds.

    Args:
        models: Distinct names, as for :func:`mdir_hf.compare`.
        folder: Folder for results, from which a stopped survey can be resumed; None to store nothing.
        n_tokens: Number of rows to read from each model.
        layers: Whether to describe the layers of relatives, and to fully compare each model that has no relative with
            one model of each family. This reads as much as :func:`mdir_hf.compare`.
        settings: Alpha, seed and device; other settings have no effect. Alpha bounds the probability that any pair of
            independent models is called homologous.
        reading: How repositories are opened.
        options: ``alpha``, ``seed``, ``device``, ``progress`` or fields of :class:`Reading`, such as ``alpha=1e-6`` or
            ``token=…``.

    Returns:
        The report, including the reason why a model cannot be read or a pair cannot be compared.

    Raises:
        InputError: If the list or the folder is invalid, or no model can be opened.
    """
    check_keywords(options, SurveyOptions)
    if isinstance(models, str):
        raise InputError(f"a survey takes a list of names, not one text: {models.replace(',', ' ').split()}")
    settings = changed(settings, options)
    progress = options.get("progress", True)
    plan = SurveyPlan(
        tuple(models),
        alpha=settings.alpha,
        seed=settings.seed,
        n_tokens=n_tokens,
        device=settings.device,
        progress=progress,
        layers=layers,
        reading=changed(reading, options),
    )
    if folder is None:
        return survey_arriving(plan, listeners=Listeners(progress=progress))[0]
    return run_survey(plan, Path(folder))
