"""Run one comparison; :func:`compare_models` shows the order of the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mdir_hf.comparison import caveats, steps
from mdir_hf.comparison.agreed_roles import with_agreed_roles
from mdir_hf.comparison.direction import direction_facts
from mdir_hf.comparison.layer_table import describe_layers
from mdir_hf.comparison.measurements import Measurements, report_on
from mdir_hf.comparison.neuron_sample import draw_sample_seed
from mdir_hf.comparison.paper import run_algorithms
from mdir_hf.comparison.plan import NOISE_AFTER_KEYS, plan_comparison, steps_without_room
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.reading import read_closely
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import ByteBudgetError, MdirError
from mdir_hf.model.comparable import Comparable
from mdir_hf.processor import is_one_of_several_ranks, one_pool, value_of_first_rank
from mdir_hf.report import HomologyReport, NeuronNumbers, Verdict

Step = Callable[[Measurements], Measurements]

BY_NEURONS: tuple[tuple[str, Step], ...] = (
    ("near", steps.compare_near),
    ("number", steps.compare_numbers),
    ("noise", steps.compare_numbers_under_noise),
    ("parts", steps.compare_parts),
    ("keys", steps.compare_keys),
    ("every", steps.compare_every_layer),
)
"""Steps that settle a yes, cheapest first, without tokens or embeddings. A step runs only if the question is open."""

BEHIND_AGREEMENT: tuple[tuple[str, str, Step], ...] = (
    ("noise", NOISE_AFTER_KEYS, steps.compare_under_noise),
    ("search", "search", steps.search_behind_embeddings),
    ("parts", "parts", steps.compare_experts_behind_maps),
)
"""Steps that run if keys or embeddings agree, and neurons do not, with the names of their memory in the plan."""


def compare_models(
    reference: Comparable,
    candidate: Comparable,
    settings: Settings,
    watch: Watch,
    *,
    repeated_sample_seed: int | None = None,
) -> HomologyReport:
    """Compare two opened models. All comparisons in this package go through this function.

    ``repeated_sample_seed`` repeats a comparison that drew this seed, to check its report: the result has the verdict
    that the evidence gave then. It must never be published, because a caller could have chosen the seed.

    Raises:
        MdirError: If an argument is invalid or the files cannot be read.
    """
    plan = plan_comparison(reference, candidate, settings)
    left_out = steps_without_room(plan, settings.max_memory_bytes)
    watch.planned(replace(plan, opening_bytes=watch.n_bytes))
    agreement = with_agreed_roles(reference, candidate)
    reference, candidate = agreement.models
    sample_seed = settings.sample_seed if repeated_sample_seed is None else repeated_sample_seed
    measurements = Measurements(
        reference=reference,
        candidate=candidate,
        settings=settings,
        log_n_readings=agreement.log_n_readings,
        notes=agreement.notes,
        tensors=(read_closely(reference), read_closely(candidate)),
        sample_seed=_fresh_seed(reference, candidate) if sample_seed is None else sample_seed,
        is_sample_fresh=settings.sample_seed is None,
        left_out=frozenset(left_out),
    )
    with one_pool():
        measurements = steps.compare_files(measurements)
        if measurements.files_are_equal and not settings.level.describes_layers:
            return with_direction(measurements, watch)
        for name, step in BY_NEURONS:
            if not measurements.is_settled and name not in left_out:
                measurements = _run(name, step, measurements, watch)
        if not measurements.is_settled:
            measurements = steps.with_notes(measurements, *caveats.of_unsearched_copies(left_out))
        if not measurements.is_settled or settings.describes or settings.level.describes_layers:
            if "embeddings" in left_out:
                measurements = steps.with_notes(measurements, caveats.of_large_embeddings(left_out["embeddings"]))
            else:
                measurements = _run("embeddings", steps.look_at_embeddings, measurements, watch)
        for name, memory, step in BEHIND_AGREEMENT:
            if measurements.is_settled or not steps.agrees_elsewhere(measurements):
                break
            if memory not in left_out:
                measurements = _run(name, step, measurements, watch)
            elif memory == NOISE_AFTER_KEYS and "noise" not in left_out and not steps.was_noise_compared(measurements):
                note = caveats.of_unsearched_copies({"noise": left_out[memory]})
                measurements = steps.with_notes(measurements, *note)
        if measurements.parts is None:
            measurements = _run("parts", steps.compare_parts, measurements, watch)
        is_relative = measurements.decision.verdict is Verdict.HOMOLOGOUS
        if settings.level.describes_layers or (settings.describes_relatives and is_relative):
            measurements = _run("layers", describe_layers, measurements, watch)
        if settings.level.runs_paper:
            measurements = _run("paper", run_algorithms, measurements, watch)
    return with_direction(measurements, watch)


def report_on_counts(
    reference: Comparable,
    candidate: Comparable,
    counts: NeuronNumbers | None,
    settings: Settings,
    watch: Watch,
    *,
    neuron_seed: int | None,
) -> HomologyReport:
    """Report on two models whose files and sampled neurons alone were compared; ``counts`` are of the number step.

    ``neuron_seed`` must have been drawn from system entropy after both models were open; if it is None, the neurons
    cannot give a ``homologous`` verdict.
    """
    measurements = Measurements(
        reference=reference,
        candidate=candidate,
        settings=settings,
        tensors=(reference, candidate),
        sample_seed=neuron_seed or 0,
        is_sample_fresh=neuron_seed is not None,
    )
    measurements = steps.compare_files(measurements)
    if counts is not None and not measurements.files_are_equal:
        measurements = replace(measurements, neurons=(counts,), has_read_layers=True)
    return report_on(measurements, watch)


def _fresh_seed(*models: Comparable) -> int:
    """Draw the seed of the samples, the same in all ranks that share a model, because they must read the same rows."""
    seed = draw_sample_seed()
    are_sharded = any(model.is_sharded for model in models)
    return value_of_first_rank(seed) if are_sharded and is_one_of_several_ranks() else seed


def _run(name: str, step: Step, measurements: Measurements, watch: Watch) -> Measurements:
    """Run one step, and turn unreadable weights into a note. First report the measurements so far to listeners."""
    if measurements.has_results:
        watch.found(lambda: report_on(replace(measurements, not_yet=(caveats.NOT_YET[name],)), watch))
    with watch.step(name):
        watch.enter(name)
        try:
            return step(measurements)
        except MdirError as exc:
            return steps.without_unreadable(measurements, exc)


def with_direction(measurements: Measurements, watch: Watch) -> HomologyReport:
    """Return the report; for related models, add facts on equal values."""
    report = report_on(measurements, watch)
    if report.verdict is not Verdict.HOMOLOGOUS:
        return report
    try:
        with watch.step("direction"):
            facts = direction_facts(*measurements.models, level_reads=not measurements.files_are_equal)
    except ByteBudgetError:  # the verdict stands without them
        return report
    io = watch.io(sum(model.tensors.n_bytes for model in measurements.models))
    return replace(report, direction=facts, io=io, seconds=watch.seconds)
