"""Run one comparison; :func:`compare_models` shows the order of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from mdir_hf.comparison import caveats
from mdir_hf.comparison.direction import direction_facts
from mdir_hf.comparison.embeddings import compare_embeddings
from mdir_hf.comparison.exclusion import with_noise
from mdir_hf.comparison.measurements import Measurements, report_on
from mdir_hf.comparison.neuron_reading import neuron_layers
from mdir_hf.comparison.neuron_sample import NeuronSample, draw_sample_seed
from mdir_hf.comparison.plan import (
    NO_TOKENS,
    MatrixPair,
    check_memory,
    common_tokens,
    matrix_pairs,
    plan_matrix,
    row_sampler,
    with_bound,
)
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.layer_maps import projections_of, with_layer_map
from mdir_hf.comparison.reading import PairReader
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.stacks import compare_expert_sets, stack_pairs
from mdir_hf.comparison.witness import Witness
from mdir_hf.errors import AnatomyError, InputError, MdirError, StoppedError, UnsupportedFormatError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.comparable import Comparable, matrix_spec
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.processor import one_pool
from mdir_hf.report import HomologyReport, Level, NeuronNumbers, StackPair, Verdict


@dataclass(frozen=True)
class GivenNeurons:
    """Neuron samples that were read before the comparison; None for a model without comparable neurons.

    ``is_fresh`` tells whether the seed was drawn from system entropy after both models were open.
    """

    reference: NeuronSample | None
    candidate: NeuronSample | None
    seed: int
    is_fresh: bool


def compare_models(
    reference: Comparable,
    candidate: Comparable,
    settings: Settings,
    watch: Watch,
    *,
    neurons: GivenNeurons | None = None,
) -> HomologyReport:
    """Compare two opened models. All comparisons in this package go through this function.

    Raises:
        MdirError: If an argument is invalid or the files cannot be read.
    """
    n_layers = len(candidate.anatomy.layers)
    if settings.layers and max(settings.layers) >= n_layers:
        raise InputError(
            f"layer {max(settings.layers)} was named, and there are {n_layers}, counted from 0", subject=candidate.label
        )
    comparison = Comparison(reference, candidate, settings, watch, _witness(reference, candidate, settings, neurons))
    if neurons is not None:
        comparison = replace(comparison, given_neurons=neurons)
    level = settings.level
    with one_pool():
        measurements = comparison.compare_files()
        if measurements.files_are_equal:
            return comparison.with_direction(measurements)
        measurements, common = comparison.find_common_tokens(measurements)
        for name in measurements.matrix_pairs:
            measurements = comparison.compare_matrix(measurements, name, common)
            if measurements.is_nominated and level.stops_when_settled:
                break
        if measurements.is_nominated or level.may_read_layers or neurons is not None:
            measurements = comparison.compare_neurons(measurements)
            if measurements.is_settled and level.stops_when_settled:
                return comparison.final_report(measurements)
        if level.may_read_layers:
            if measurements.is_nominated:
                measurements = comparison.search_neurons(measurements)
                if measurements.is_settled and level.stops_when_settled:
                    return comparison.final_report(measurements)
            measurements = comparison.compare_layers(measurements)
            measurements = comparison.search_neurons_of_matched_layers(measurements)
        if level.may_read_layers and not level.tests_whole_layers and not measurements.is_settled:
            measurements = comparison.compare_neurons_of_every_layer(measurements)
    return comparison.final_report(measurements)


def _witness(
    reference: Comparable, candidate: Comparable, settings: Settings, given_neurons: GivenNeurons | None
) -> Witness:
    if given_neurons is not None:
        seed, is_fresh = given_neurons.seed, given_neurons.is_fresh
    elif settings.sample_seed is not None:
        seed, is_fresh = settings.sample_seed, False
    else:
        seed, is_fresh = draw_sample_seed(), True
    return Witness(
        reference,
        candidate,
        seed=seed,
        is_fresh=is_fresh,
        alpha=settings.alpha,
        device=settings.device,
        keeps_rows=given_neurons is None,
    )


@dataclass(frozen=True)
class Comparison:
    """The steps of one comparison. Each step takes the measurements so far and returns them with its own results added.

    The witness reads neurons itself unless ``given_neurons`` are set.
    """

    reference: Comparable
    candidate: Comparable
    settings: Settings
    watch: Watch
    witness: Witness
    given_neurons: GivenNeurons | None = None

    def compare_files(self) -> Measurements:
        """Check whether the weight files are equal."""
        nothing = Measurements(
            reference=self.reference,
            candidate=self.candidate,
            settings=self.settings,
            sample_seed=self.witness.seed,
            is_sample_fresh=self.witness.is_fresh,
            caveats=caveats.of_weights(self.reference, self.candidate),
        )
        reference_digests, candidate_digests = self.reference.identities(), self.candidate.identities()
        if reference_digests is None or candidate_digests is None:
            return nothing
        is_same = reference_digests == candidate_digests
        if is_same and self.settings.level.accepts_equal_files:
            return replace(nothing, files_are_equal=True)
        n_same = len(reference_digests & candidate_digests)
        if n_same and not is_same:
            return replace(nothing, caveats=(*nothing.caveats, caveats.of_equal_files(n_same)))
        return nothing

    def find_common_tokens(self, measurements: Measurements) -> tuple[Measurements, CommonVocabulary]:
        """Pair the rows that belong to the same tokens."""
        pairs = matrix_pairs(self.reference, self.candidate, self.settings.level)
        if not pairs:
            return replace(measurements, caveats=(*measurements.caveats, caveats.NO_COMMON_MATRIX)), NO_TOKENS
        with self.watch.step("vocabulary"):
            self.watch.enter("vocabulary")
            common, notes = common_tokens(self.reference, self.candidate)
        measurements = replace(
            measurements,
            matrix_pairs=pairs,
            caveats=(*measurements.caveats, *notes),
            tokens_are_known=not common.is_by_number,
        )
        return measurements, common

    def compare_matrix(self, measurements: Measurements, name: str, common: CommonVocabulary) -> Measurements:
        """Run Algorithm 1 on the ``embedding`` or the ``unembedding``."""
        pair: MatrixPair = measurements.matrix_pairs[name]
        specs = (matrix_spec(self.reference, pair[0]), matrix_spec(self.candidate, pair[1]))
        rows = common.within(specs[0].shape[0], specs[1].shape[0])
        plan = plan_matrix(name, self.reference, self.candidate, pair, rows, self.settings)
        sampler = row_sampler(plan, rows, seed=self.settings.seed)
        check_memory(plan, self.settings.max_memory_bytes)
        measurements = replace(measurements, n_looks=max(measurements.n_looks, plan.n_looks))
        is_first = not measurements.matrices
        if is_first:
            bounded = with_bound(plan, self.reference, self.candidate, rows, sampler)
            if self.watch.shows_plan:
                bounded = with_noise(bounded, self.reference, self.candidate, self.settings.alpha)
            self.watch.planned(replace(bounded, opening_bytes=self.watch.n_bytes))
        else:
            self._tell(measurements, caveats.STOPPED_BEFORE_UNEMBEDDINGS, *self._layers_to_come)
            plan = plan.at_once()

        def neurons_settle() -> bool:
            return self.compare_neurons(measurements).is_settled

        matrix = compare_embeddings(
            name,
            PairReader(self.reference, self.candidate, rows, plan, sampler),
            self.settings,
            self.watch,
            n_tests=measurements.n_tests_of_matrices,
            after_first_look=neurons_settle if self.settings.level is Level.AUTO and is_first else None,
        )
        return replace(self._with_neurons(measurements), matrices={**measurements.matrices, name: matrix})

    def compare_neurons(self, measurements: Measurements) -> Measurements:
        """Compare a few neurons by number, unless that has already been done."""
        with self._reading_neurons():
            if self.given_neurons is not None:
                self.witness.compare_given(self.given_neurons.reference, self.given_neurons.candidate)
            elif measurements.have_layers and not self.witness.was_asked:
                if measurements.is_nominated and not self.settings.level.tests_whole_layers:
                    self.witness.ask_near_copy()
                if not self.witness.is_convincing:
                    self.witness.ask_by_number(every=self.settings.level.tests_whole_layers)
        return self._with_neurons(measurements)

    def search_neurons(self, measurements: Measurements) -> Measurements:
        """Search for noisy or reordered neurons, using the embeddings' residual-basis maps."""
        if self.given_neurons is not None or not measurements.have_layers or self.witness.is_convincing:
            return measurements
        with self._reading_neurons():
            self.witness.ask_under_noise()
            for residual_map in measurements.maps_of_embeddings:
                if not self.witness.is_convincing:
                    self.witness.ask_by_search(self.witness.same_places(), residual_map)
        return self._with_neurons(measurements)

    def search_neurons_of_matched_layers(self, measurements: Measurements) -> Measurements:
        """Search for noisy or reordered neurons in the layers that an accepted map matches."""
        if measurements.layers is None or not measurements.decision.accepts_layers or self.witness.is_convincing:
            return measurements
        pairs = measurements.layers.pairs
        with self._reading_neurons():
            self.witness.ask_under_noise(pairs)
            if not self.witness.is_convincing:
                self.witness.ask_by_search(pairs, measurements.layers.residual_map)
        return self._with_neurons(measurements)

    def compare_neurons_of_every_layer(self, measurements: Measurements) -> Measurements:
        """Compare neurons of every layer, as a last resort."""
        counts = self.witness.by_number
        if (
            self.given_neurons is not None
            or counts is None
            or _holds_every_layer(counts, self.reference, self.candidate)
        ):
            return measurements
        self._tell(measurements, caveats.STOPPED_BEFORE_NEURONS)
        with self._reading_neurons():
            self.witness.ask_every_layer()
        return self._with_neurons(measurements)

    def compare_layers(self, measurements: Measurements) -> Measurements:
        """Run Algorithms 2 and 3, which count as one more look after the looks at the matrices.

        Raises:
            AnatomyError: If a model's layers cannot be identified, at a level that analyses all layers.
            UnsupportedFormatError: If layers cannot be read, at a level that analyses all layers.
        """
        self._tell(measurements, *self._layers_to_come)
        with self.watch.step("layers"):
            self.watch.enter("layers")
            try:
                return with_layer_map(measurements, self.witness.models, self.watch, self._tell)
            except (AnatomyError, UnsupportedFormatError) as exc:
                if self.settings.level.analyses_all_layers:
                    raise
                # The embeddings were read and may settle the question.
                return replace(
                    measurements, caveats_of_layers=(caveats.of_failed_layers(exc),), layers_are_unreadable=True
                )

    def final_report(self, measurements: Measurements) -> HomologyReport:
        """Compare experts and other stacks, collect facts on which model came first, and return the report."""
        if self.settings.level.may_read_layers:
            with self.watch.step("stacks"):
                measurements = self.compare_stacks(measurements)
        return self.with_direction(self.describe_relatives(measurements))

    def compare_stacks(self, measurements: Measurements) -> Measurements:
        """Compare the other stacks and, if the verdict is not settled, experts as sets."""
        experts = () if measurements.is_settled else self._compare_experts(measurements)
        stacks = stack_pairs(
            self.reference,
            self.candidate,
            alpha=self.settings.alpha,
            seed=self.witness.seed,
            is_fresh=self.witness.is_fresh,
            device=self.settings.device,
            before=partial(self._tell, measurements),
        )
        return replace(measurements, parts=(*experts, *(stacks or ())) if experts or stacks is not None else None)

    def _compare_experts(self, measurements: Measurements) -> tuple[StackPair, ...]:
        if any(getattr(model, "other_stacks", None) is None for model in measurements.models):
            return ()
        widths = (self.reference.anatomy.hidden_size, self.candidate.anatomy.hidden_size)
        residual_maps = list(measurements.maps_of_embeddings)
        if widths[0] == widths[1] and all(residual_map.is_fitted for residual_map in residual_maps):
            residual_maps.append(ResidualBasisMap.identity(widths[0]))
        return compare_expert_sets(
            self.reference,
            self.candidate,
            residual_maps,
            alpha=self.settings.alpha,
            seed=self.witness.seed,
            is_fresh=self.witness.is_fresh,
            device=self.settings.device,
        )

    def describe_relatives(self, measurements: Measurements) -> Measurements:
        """Make the projection table of related models if requested, turning errors into caveats."""
        if (
            not self.settings.describes_relatives
            or measurements.projections is not None
            or not measurements.have_layers
        ):
            return measurements
        if measurements.decision.verdict is not Verdict.HOMOLOGOUS:
            return measurements
        maps = measurements.maps_of_embeddings
        if measurements.layers is not None and measurements.decision.accepts_layers:
            maps = (measurements.layers.residual_map,)
        with self.watch.step("projections"):
            self.watch.enter("layers")
            try:
                return replace(measurements, projections=projections_of(measurements, maps))
            except StoppedError:
                raise
            except MdirError as exc:
                sentences = (*measurements.caveats_of_layers, caveats.of_failed_table(exc))
                return replace(measurements, caveats_of_layers=sentences)

    def with_direction(self, measurements: Measurements) -> HomologyReport:
        """Return the report; for related models, add facts on which came first."""
        report = report_on(measurements, self.watch)
        if report.verdict is not Verdict.HOMOLOGOUS:
            return report
        may_read = self.settings.level.may_read_layers and not measurements.files_are_equal
        with self.watch.step("direction"):
            facts = direction_facts(self.reference, self.candidate, level_reads=may_read)
        io = self.watch.io(self.reference.tensors.n_bytes + self.candidate.tensors.n_bytes)
        return replace(report, direction=facts, io=io, seconds=self.watch.seconds)

    @property
    def _layers_to_come(self) -> tuple[str, ...]:
        return (caveats.STOPPED_BEFORE_LAYERS,) if self.settings.level.may_read_layers else ()

    def _tell(self, measurements: Measurements, *stopped_before: str) -> None:
        self.watch.found(lambda: report_on(replace(measurements, stopped_before=stopped_before), self.watch))

    @contextmanager
    def _reading_neurons(self) -> Iterator[None]:
        """Time a comparison of neurons, and skip the rest of it if neurons cannot be read."""
        with suppress(AnatomyError, UnsupportedFormatError), self.watch.step("neurons"):
            self.watch.enter("neurons")
            yield

    def _with_neurons(self, measurements: Measurements) -> Measurements:
        witness = self.witness
        return replace(
            measurements,
            neurons=witness.counts,
            neuron_samples=witness.samples,
            nominating_samples=witness.nominating_samples,
        )


def _holds_every_layer(neurons: NeuronNumbers, reference: Comparable, candidate: Comparable) -> bool:
    n_compared = (len(neurons.reference_layers), len(neurons.candidate_layers))
    return n_compared == (len(neuron_layers(reference)), len(neuron_layers(candidate)))
