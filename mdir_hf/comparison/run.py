"""One comparison: equal files, common tokens, plan, looks at the matrices, layers, verdict, report.

Read :func:`compare_models` first; each line of it is a step.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from mdir_hf._version import __version__
from mdir_hf.comparison import caveats
from mdir_hf.comparison.coverage import with_coverage
from mdir_hf.comparison.decide import Decision, Evidence, decide, is_trusted, where_tokens_are_unknown
from mdir_hf.comparison.direction import direction_facts
from mdir_hf.comparison.embeddings import FoundMatrix, compare_embeddings
from mdir_hf.comparison.exclusion import exclusion, layers_noise
from mdir_hf.comparison.layer_weights import layers_with, why_not_compared
from mdir_hf.comparison.layers import analyse_matches, compare_layers, representatives
from mdir_hf.comparison.neuron_sample import NeuronSample, draw_sample_seed, neuron_layers
from mdir_hf.comparison.neurons import excluded_noise
from mdir_hf.comparison.plan import check_memory
from mdir_hf.comparison.planning import NO_TOKENS, MatrixPair, common_tokens, matrix_pairs, plan_matrix
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.analysis import LayerAnalysis, analyse_layers
from mdir_hf.comparison.projections.layer_maps import is_accepted, map_by_rows, supports
from mdir_hf.comparison.residual_maps import attempts
from mdir_hf.comparison.results import FoundLayers, layers_result, module_results, shown_layers
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.stacks import compare_expert_sets, stack_pairs
from mdir_hf.comparison.witness import Witness, are_layers_invariant
from mdir_hf.errors import AnatomyError, InputError, MdirError, StoppedError, UnsupportedFormatError
from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.gauge import ResidualBasisMap, residual_basis_maps
from mdir_hf.method.significance import log_cost_of_look
from mdir_hf.model.comparable import Comparable, matrix_spec
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.processor import one_pool
from mdir_hf.report import (
    Exclusion,
    HomologyReport,
    LayersResult,
    LayerTable,
    Level,
    MatrixResult,
    NeuronNumbers,
    Reason,
    ReportArrays,
    ResidualMap,
    SettledBy,
    StackPair,
    Transformation,
    Verdict,
    unconfirmed,
)


@dataclass(frozen=True)
class GivenNeurons:
    """Samples of neurons that were read before the comparison.

    Attributes:
        reference: Sample of the reference; None if its neurons cannot be sampled.
        candidate: Sample of the candidate; None likewise.
        seed: Seed of the samples.
        is_fresh: Whether the seed was drawn from the entropy of the system after both models were open.
    """

    reference: NeuronSample | None
    candidate: NeuronSample | None
    seed: int
    is_fresh: bool


LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""log10 of the probability that two independent files have the same SHA-256."""

IDENTICAL_FILES = Decision(
    Verdict.HOMOLOGOUS, None, SettledBy.IDENTICAL_FILES, LOG10_P_EQUAL_DIGESTS, (caveats.SAME_FILES,)
)


def compare_models(
    reference: Comparable,
    candidate: Comparable,
    settings: Settings,
    watch: Watch,
    *,
    neurons: GivenNeurons | None = None,
) -> HomologyReport:
    """Compare two models. Every comparison of this package runs through this function.

    Args:
        reference: One model.
        candidate: The other.
        settings: The settings.
        watch: Counts the bytes read and reports progress.
        neurons: Samples of neurons of the two models; None: they are read if the question needs them.

    Returns:
        The report.

    Raises:
        MdirError: If the question cannot be asked or the files cannot be read.
    """
    n_layers = len(candidate.anatomy.layers)
    if settings.layers and max(settings.layers) >= n_layers:
        raise InputError(
            f"layer {max(settings.layers)} was named, and there are {n_layers}, counted from 0", subject=candidate.label
        )
    comparison = Comparison(reference, candidate, settings, watch, neurons)
    level = settings.level
    with one_pool():
        if comparison.compare_files():
            return comparison.with_direction(comparison.report())
        common = comparison.find_common_tokens()
        for name, pair in comparison.matrix_pairs.items():
            comparison.compare_matrix(name, pair, common)
            if comparison.is_nominated and level.stops_when_settled:
                break
        if comparison.is_nominated or level.may_read_layers or neurons is not None:
            comparison.compare_neurons()
            if comparison.is_settled and level.stops_when_settled:
                return comparison.final_report()
        if level.may_read_layers:
            if comparison.is_nominated:
                comparison.search_neurons()
                if comparison.is_settled and level.stops_when_settled:
                    return comparison.final_report()
            comparison.compare_layers()
            comparison.search_neurons_of_matched_layers()
        if level.may_read_layers and not level.tests_whole_layers and not comparison.is_settled:
            comparison.compare_neurons_of_every_layer()
    return comparison.final_report()


class Comparison:
    """The state of one comparison. :meth:`report` gives a report of the evidence so far at any time.

    Args:
        reference: One model.
        candidate: The other.
        settings: Level, alpha and the rest.
        watch: Counts bytes read and reports progress.
        neurons: Samples of neurons that were read before.

    Attributes:
        matrix_pairs: The matrices that are to be compared, by name.
        matrices: Results on each pair of them so far.
        witness: The second witness.
        layers: Results on the layers; None if they were not compared.
        projections: Changes of each projection of each layer; None if they were not analysed.
    """

    def __init__(
        self,
        reference: Comparable,
        candidate: Comparable,
        settings: Settings,
        watch: Watch,
        neurons: GivenNeurons | None = None,
    ) -> None:
        self.reference, self.candidate = reference, candidate
        self.settings, self.watch = settings, watch
        self.matrix_pairs: dict[str, MatrixPair] = {}
        self.matrices: dict[str, FoundMatrix] = {}
        self.layers: FoundLayers | None = None
        self.projections: LayerAnalysis | None = None
        self._given_neurons = neurons
        self._witness: Witness | None = None
        self._caveats = list(caveats.of_weights(reference, candidate))
        self._caveats_of_layers: tuple[str, ...] = ()
        self._files_are_equal = False
        self._tokens_are_known = True
        self._n_looks = 0
        self._stopped_before: tuple[str, ...] = ()
        self._layers_are_unreadable = False
        self._layers_noise = 0.0
        self._are_layers_invariant = False
        self._neurons_noise: float | None = None
        self._stack_pairs: tuple[StackPair, ...] | None = None

    @property
    def witness(self) -> Witness:
        """The second witness; its seed is drawn when it is first asked, after both models are open."""
        if self._witness is None:
            given, settings = self._given_neurons, self.settings
            if given is not None:
                seed, is_fresh = given.seed, given.is_fresh
            elif settings.sample_seed is not None:
                seed, is_fresh = settings.sample_seed, False
            else:
                seed, is_fresh = draw_sample_seed(), True
            self._witness = Witness(
                self.reference,
                self.candidate,
                seed=seed,
                is_fresh=is_fresh,
                alpha=settings.alpha,
                device=settings.device,
            )
        return self._witness

    @property
    def neurons(self) -> NeuronNumbers | None:
        """Counts of the second witness so far; None if no neurons were compared."""
        return None if self._witness is None else self._witness.counts

    def compare_files(self) -> bool:
        """Look for weight files that are the same bytes in both models; True if that settles the question."""
        reference_digests, candidate_digests = self.reference.identities(), self.candidate.identities()
        if reference_digests is None or candidate_digests is None:
            return False
        is_same = reference_digests == candidate_digests
        if is_same and self.settings.level.accepts_equal_files:
            self._files_are_equal = True
            return True
        n_same = len(reference_digests & candidate_digests)
        if n_same and not is_same:
            self._caveats.append(caveats.of_equal_files(n_same))
        return False

    def find_common_tokens(self) -> CommonVocabulary:
        """Pair the rows of the same tokens, if both models have a matrix of them."""
        self.matrix_pairs = matrix_pairs(self.reference, self.candidate, self.settings.level)
        if not self.matrix_pairs:
            self._caveats.append(caveats.NO_COMMON_MATRIX)
            return NO_TOKENS
        with self.watch.step("vocabulary"):
            self.watch.enter("vocabulary")
            common, notes = common_tokens(self.reference, self.candidate)
        self._caveats += notes
        self._tokens_are_known = not common.is_by_number
        return common

    def compare_matrix(self, name: str, pair: MatrixPair, common: CommonVocabulary) -> None:
        """Run Algorithm 1 on the embeddings or the unembeddings.

        Args:
            name: ``embedding`` or ``unembedding``.
            pair: The matrices.
            common: Rows of the same tokens.
        """
        specs = (matrix_spec(self.reference, pair[0]), matrix_spec(self.candidate, pair[1]))
        rows = common.within(specs[0].shape[0], specs[1].shape[0])
        plan = plan_matrix(name, self.reference, self.candidate, pair, rows, self.settings.level, self.settings.alpha)
        check_memory(plan, self.settings.max_memory_bytes)
        self._n_looks = max(self._n_looks, plan.n_looks)
        if self.matrices:
            self._tell(caveats.STOPPED_BEFORE_UNEMBEDDINGS, *self._layers_to_come)
            plan = plan.at_once()
        else:
            self.watch.planned(replace(plan, opening_bytes=self.watch.io.n_bytes))
        self.matrices[name] = compare_embeddings(
            name,
            self.reference,
            self.candidate,
            rows,
            plan,
            self.settings,
            self.watch,
            n_tests=self._n_tests_of_matrices,
            after_first_look=self._neurons_settle if self.settings.level is Level.AUTO and not self.matrices else None,
        )

    @property
    def is_nominated(self) -> bool:
        """Whether a pair of matrices agrees, so that the second witness decides."""
        return any(is_trusted(matrix.result) for matrix in self.matrices.values())

    @property
    def is_settled(self) -> bool:
        """Whether the second witness settles the question, or copied matrices of models without layers.

        A given sample of neurons stops a comparison at the step that the same sample, freshly drawn, stopped it.
        """
        decision = self.decide()
        return decision.verdict is Verdict.HOMOLOGOUS or decision.reason is Reason.SAMPLE_CHOSEN

    def compare_neurons(self) -> None:
        """Compare a few neurons by number, unless that was done; :meth:`compare_layers` reports unreadable layers."""
        with suppress(AnatomyError, UnsupportedFormatError), self.watch.step("neurons"):
            self.watch.enter("neurons")
            if self._given_neurons is not None:
                self.witness.compare_given(self._given_neurons.reference, self._given_neurons.candidate)
                return
            if not self._have_layers or self.witness.was_asked:
                return
            if self.is_nominated and not self.settings.level.tests_whole_layers:
                self.witness.ask_near_copy()
            if not self.witness.is_convincing:
                self.witness.ask_by_number(every=self.settings.level.tests_whole_layers)

    def search_neurons(self) -> None:
        """Ask the second witness of noisy or reordered neurons, behind the map that the embeddings suggest."""
        if self._given_neurons is not None or not self._have_layers or self.witness.is_convincing:
            return
        with suppress(AnatomyError, UnsupportedFormatError), self.watch.step("neurons"):
            self.watch.enter("neurons")
            self.witness.ask_under_noise()
            for residual_map in self._maps_of_embeddings:
                if not self.witness.is_convincing:
                    self.witness.ask_by_search(self.witness.same_places(), residual_map)

    def search_neurons_of_matched_layers(self) -> None:
        """Ask the second witness of reordered neurons of the layers that an accepted map matches."""
        if self.layers is None or not self.decide().accepts_layers or self.witness.is_convincing:
            return
        positions, layer_map = self.layers.positions, self.layers.layer_map
        pairs = [(positions[0][m.reference], positions[1][m.candidate]) for m in layer_map.matches]
        with suppress(AnatomyError, UnsupportedFormatError), self.watch.step("neurons"):
            self.watch.enter("neurons")
            self.witness.ask_under_noise(pairs)
            if not self.witness.is_convincing:
                self.witness.ask_by_search(pairs, self.layers.residual_map)

    def compare_neurons_of_every_layer(self) -> None:
        """Compare neurons of every layer, if a few layers and everything else show nothing.

        One copied layer of many is found by no test that looks at some layers.
        """
        if self._given_neurons is not None or self._witness is None:
            return
        counts = self.witness.by_number
        if counts is None or _holds_every_layer(counts, self.reference, self.candidate):
            return
        self._tell(caveats.STOPPED_BEFORE_NEURONS)
        with suppress(AnatomyError, UnsupportedFormatError), self.watch.step("neurons"):
            self.watch.enter("neurons")
            self.witness.ask_every_layer()

    def _neurons_settle(self) -> bool:
        self.compare_neurons()
        return self.is_settled

    @property
    def _have_layers(self) -> bool:
        """Whether both models have layers, read or not."""
        return all(bool(model.anatomy.layers or model.summary().layers) for model in (self.reference, self.candidate))

    @property
    def _maps_of_embeddings(self) -> tuple[ResidualBasisMap, ...]:
        # An embedding that is projected on its way in has channels of its own, not those of the stream.
        widths = (self.reference.anatomy.hidden_size, self.candidate.anatomy.hidden_size)
        of_stream = {name: matrix for name, matrix in self.matrices.items() if matrix.result.widths == widths}
        matching = next((matrix.matching for matrix in of_stream.values() if matrix.matching is not None), None)
        polar = of_stream["embedding"].polar if "embedding" in of_stream else None
        return residual_basis_maps(*widths, polar=polar, matching=matching)

    def compare_layers(self) -> None:
        """Run Algorithms 2 and 3, as one more look after those at the matrices.

        Raises:
            AnatomyError: If the layers of a model cannot be told apart, at the level that asks for all of them.
            UnsupportedFormatError: If they cannot be read, at that level.
        """
        self._tell(*self._layers_to_come)
        with self.watch.step("layers"):
            self.watch.enter("layers")
            try:
                self._compare_layers()
            except (AnatomyError, UnsupportedFormatError) as exc:
                if self.settings.level.analyses_all_layers:
                    raise
                # The embeddings were read, and they may have the answer.
                self._caveats_of_layers, self._layers_are_unreadable = (caveats.of_failed_layers(exc),), True

    def decide(self) -> Decision:
        """Apply the verdict rules to the evidence so far."""
        if self._files_are_equal:
            return IDENTICAL_FILES
        evidence = Evidence(
            matrices=self._results,
            layers=self._layers_result,
            neurons=self.neurons,
            have_layers=self._have_layers,
            is_sample_fresh=self._witness is None or self._witness.is_fresh,
            layers_are_unreadable=self._layers_are_unreadable,
            was_stopped=bool(self._stopped_before),
            layers_noise=self._layers_noise,
            are_layers_invariant=self._are_layers_invariant,
            parts=self._stack_pairs or (),
        )
        decision = decide(evidence, alpha=self.settings.alpha, level=self.settings.level)
        if self._tokens_are_known and not self._doubts_of_tokens:
            return decision
        return where_tokens_are_unknown(decision)

    def final_report(self) -> HomologyReport:
        """The report, after experts, stacks and facts of direction were looked at."""
        if self.settings.level.may_read_layers:
            with self.watch.step("stacks"):
                experts = () if self.is_settled else self._compare_experts()
                settings = self.settings
                stacks = stack_pairs(
                    self.reference,
                    self.candidate,
                    alpha=settings.alpha,
                    seed=self.witness.seed,
                    is_fresh=self.witness.is_fresh,
                    device=settings.device,
                    before=self._tell,
                )
                self._stack_pairs = (*experts, *(stacks or ())) if experts or stacks is not None else None
        self.describe_relatives()
        return self.with_direction(self.report())

    def describe_relatives(self) -> None:
        """Make the table of projections of related models, if the settings ask for it and there is none.

        The verdict is known by then, so an error is only noted.
        """
        if not self.settings.describes_relatives or self.projections is not None or not self._have_layers:
            return
        if self.decide().verdict is not Verdict.HOMOLOGOUS:
            return
        maps = self._maps_of_embeddings
        if self.layers is not None and self.decide().accepts_layers:
            maps = (self.layers.residual_map,)
        with self.watch.step("projections"):
            self.watch.enter("layers")
            try:
                self.projections = analyse_layers(
                    self.reference, self.candidate, maps, seed=self.settings.seed, device=self.settings.device
                )
            except StoppedError:
                raise
            except MdirError as exc:
                self._caveats_of_layers = (*self._caveats_of_layers, caveats.of_failed_table(exc))

    def with_direction(self, report: HomologyReport) -> HomologyReport:
        """Add the facts that show which model came first, if the two are related."""
        if report.verdict is not Verdict.HOMOLOGOUS:
            return report
        may_read = self.settings.level.may_read_layers and not self._files_are_equal
        with self.watch.step("direction"):
            facts = direction_facts(self.reference, self.candidate, level_reads=may_read)
        io = self.watch.io.result(self.reference.tensors.n_bytes + self.candidate.tensors.n_bytes)
        return replace(report, direction=facts, io=io, seconds=self.watch.seconds)

    def _compare_experts(self) -> tuple[StackPair, ...]:
        """Compare the experts of mixtures as sets, unless a model is known by sampled rows only."""
        if any(getattr(model, "stacks", None) is None for model in (self.reference, self.candidate)):
            return ()
        widths = (self.reference.anatomy.hidden_size, self.candidate.anatomy.hidden_size)
        residual_maps = list(self._maps_of_embeddings)
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

    def report(self) -> HomologyReport:
        """The report of the findings so far."""
        decision, alpha = self.decide(), self.settings.alpha
        layers, matrices = self._layers_result, self._results
        if decision.settled_by is SettledBy.LAYERS and layers is not None and _shows_rotation(layers):
            matrices["embedding"] = replace(matrices["embedding"], transformation=Transformation.ROTATION)
        report = HomologyReport(
            verdict=decision.verdict,
            reason=decision.reason,
            log10_p=decision.headline(alpha),
            alpha=alpha,
            tests=1 if self._files_are_equal else self._n_tests,
            level=self.settings.level,
            settled_by=decision.settled_by,
            reference=self.reference.summary(),
            candidate=self.candidate.summary(),
            embedding=matrices.get("embedding"),
            unembedding=matrices.get("unembedding"),
            layers=None if layers is None else shown_layers(layers, alpha, is_accepted=decision.accepts_layers),
            modules=module_results(self.layers)
            if self.layers is not None and self.layers.has_tests and decision.accepts_layers
            else None,
            caveats=(*self._all_caveats(decision), *decision.caveats),
            io=self.watch.io.result(self.reference.tensors.n_bytes + self.candidate.tensors.n_bytes),
            seconds=self.watch.seconds,
            seed=self.settings.seed,
            version=__version__,
            assumption=decision.assumption,
            neurons=self.neurons,
            sample_seed=None if self.neurons is None or self._witness is None else self._witness.seed,
            parts=self._stack_pairs,
            log10_p_not_accepted=decision.log10_p_not_accepted,
            excludes=self._exclusion() if decision.verdict is Verdict.NO_EVIDENCE else None,
            projections=self._table(decision),
            arrays=ReportArrays(
                **{name: matrix.arrays for name, matrix in self.matrices.items()},
                layers=() if self.projections is None else self.projections.layer_maps(),
            ),
        )
        return with_coverage(report, self.reference, self.candidate)

    def _table(self, decision: Decision) -> LayerTable | None:
        """The table of projections, which speaks of copies only if the second witness does."""
        if self.projections is None:
            return None
        table = replace(self.projections.table, tested_layers=self.settings.layers)
        is_confirmed = decision.verdict is Verdict.HOMOLOGOUS and self.neurons is not None and self.neurons.is_witness
        return table if is_confirmed else unconfirmed(table)

    def _exclusion(self) -> Exclusion:
        if self._neurons_noise is None and self._witness is not None and self._witness.samples:
            self._neurons_noise = excluded_noise(*self._witness.samples, alpha=self.settings.alpha)
        return exclusion(
            self._results,
            n_tests=self._n_tests_of_matrices,
            alpha=self.settings.alpha,
            noise_of_layers=None if self.layers is None else self._layers_noise,
            noise_of_neurons=self._neurons_noise,
        )

    @property
    def _n_tests_of_matrices(self) -> int:
        return TESTS_PER_MATRIX * len(self.matrix_pairs)

    @property
    def _n_tests(self) -> int:
        of_layers = 0 if self.layers is None else self.layers.n_tests
        of_layers *= 2 if self.settings.level.analyses_all_layers else 1  # of sampled rows, and of whole matrices
        return max(1, self._n_tests_of_matrices + of_layers)

    @property
    def _results(self) -> dict[str, MatrixResult]:
        return {name: matrix.result for name, matrix in self.matrices.items()}

    @property
    def _log_cost(self) -> float:
        # Looks at matrices spend 1 - 1/(s + 1) of alpha in all; the layers take the next share (docs/method/rows.md).
        return log_cost_of_look(self._n_looks + 1)

    @property
    def _layers_result(self) -> LayersResult | None:
        if self.layers is None:
            return None
        return layers_result(self.layers, self.settings.alpha, log_cost=self._log_cost_of_layers)

    @property
    def _log_cost_of_layers(self) -> float:
        # If all layers are compared, sampled rows show a map, and whole matrices show another one: both are paid for.
        return self._log_cost + (math.log(2.0) if self.settings.level.analyses_all_layers else 0.0)

    @property
    def _layers_to_come(self) -> tuple[str, ...]:
        return (caveats.STOPPED_BEFORE_LAYERS,) if self.settings.level.may_read_layers else ()

    @property
    def _doubts_of_tokens(self) -> tuple[str, ...]:
        if not self._tokens_are_known:
            return ()
        return caveats.of_contradicting_tokenizers(self.reference, self.candidate)

    def _tell(self, *stopped_before: str) -> None:
        """Tell listeners of the report that there would be if the comparison was stopped here."""

        def report() -> HomologyReport:
            self._stopped_before = stopped_before
            try:
                return self.report()
            finally:
                self._stopped_before = ()

        self.watch.found(report)

    def _compare_layers(self) -> None:
        reference, candidate, settings = self.reference, self.candidate, self.settings
        maps = self._maps_of_embeddings
        roles = representatives(reference, candidate, every=settings.level.tests_whole_layers)
        tried = attempts(
            reference,
            candidate,
            maps,
            roles,
            settings,
            are_matched=any(matrix.matching is not None for matrix in self.matrices.values()),
        )
        log_alpha = math.log(settings.alpha) - self._log_cost_of_layers
        why = why_not_compared(reference, candidate, roles)
        self._caveats_of_layers, self._layers_are_unreadable = why, bool(why)

        by_rows: FoundLayers | None = None
        if settings.level.analyses_all_layers:
            self.projections, by_rows = map_by_rows(
                reference, candidate, maps, tried, settings, log_alpha=log_alpha, on_part=self.watch.part
            )
            if by_rows is not None and by_rows.has_most_layers and not settings.level.tests_whole_layers:
                self._keep_layers(by_rows, log_alpha)
                return

        analysis = self.projections

        def on_found(layers: FoundLayers, n_left: int) -> None:
            self.layers = layers
            self._tell(caveats.of_layers_not_analysed(n_left))
            self.layers = None

        layers = compare_layers(
            reference,
            candidate,
            tried,
            settings,
            log_alpha=log_alpha,
            on_part=self.watch.part,
            on_found=on_found,
            supports=None if analysis is None else partial(supports, analysis, log_alpha=log_alpha),
        )
        if by_rows is not None and not (
            layers is not None
            and is_accepted(layers, log_alpha, settings)
            and len(layers.layer_map.matches) >= len(by_rows.layer_map.matches)
        ):
            layers = by_rows
        if layers is None:
            self._caveats_of_layers = why or (caveats.UNRELATED_STREAMS,)
            # A model without layers was compared as a whole.
            self._layers_are_unreadable = bool(reference.anatomy.layers and candidate.anatomy.layers)
            return
        if layers.is_empty:
            self._caveats_of_layers, self._layers_are_unreadable = (*why, self._of_zeros(layers)), True
            return
        if settings.level.analyses_all_layers and is_accepted(layers, log_alpha, settings):
            self._complete_projections(layers)
            if settings.layers and layers is not by_rows:
                layers = analyse_matches(
                    reference, candidate, layers, settings, log_alpha=log_alpha, named=settings.layers
                )
        self._keep_layers(layers, log_alpha)

    def _complete_projections(self, layers: FoundLayers) -> None:
        """Run tiers 1 and 2 behind the layer map of whole matrices, if they found less on their own."""
        matches = layers.layer_map.matches
        if self.projections is not None and len(self.projections.counterparts) >= len(matches):
            return
        counterparts = {layers.positions[1][m.candidate]: layers.positions[0][m.reference] for m in matches}
        self.projections = analyse_layers(
            self.reference,
            self.candidate,
            (layers.residual_map,),
            seed=self.settings.seed,
            device=self.settings.device,
            counterparts=counterparts,
        )

    def _keep_layers(self, layers: FoundLayers, log_alpha: float) -> None:
        """Keep a layer map, and measure its null and the noise that it excludes."""
        reference, candidate, settings = self.reference, self.candidate, self.settings
        self.layers = layers
        self._are_layers_invariant = are_layers_invariant(reference, candidate, layers, seed=settings.seed)
        unread = () if self.projections is None else tuple(self.projections.reader.unread)
        self._caveats_of_layers = tuple(dict.fromkeys((*self._caveats_of_layers, *layers.not_compared, *unread)))
        self._layers_noise = layers_noise(
            reference,
            candidate,
            layers.role,
            layers.positions,
            n_tests=layers.n_tests,
            log_alpha=log_alpha,
            every=settings.level.tests_whole_layers,
        )

    def _of_zeros(self, layers: FoundLayers) -> str:
        models = zip((self.reference, self.candidate), layers.n_empty, layers.positions, strict=True)
        model, n_empty, places = max(models, key=lambda each: each[1] / len(each[2]))
        return caveats.of_empty_layers(layers.role, n_empty, len(places), model.label)

    def _all_caveats(self, decision: Decision) -> tuple[str, ...]:
        """All sentences but those of the decision. Reading the weights may have brought up more notes on them."""
        late = tuple(note for note in caveats.of_weights(self.reference, self.candidate) if note not in self._caveats)
        if self._files_are_equal:
            return (*self._caveats, *late)
        doubts: tuple[str, ...] = ()
        if decision.verdict is not Verdict.HOMOLOGOUS:
            doubts = (*self._doubts_of_tokens, *caveats.of_channel_numbers(self.reference, self.candidate))
            if self.settings.level.may_read_layers:
                doubts += caveats.of_neuron_numbers(self.reference, self.candidate)
        on_rows = (caveat for matrix in self.matrices.values() for caveat in matrix.caveats)
        on_layers = (*self._caveats_of_layers, *self._stopped_before)
        if decision.verdict is Verdict.NO_EVIDENCE and self.layers is not None:
            n_layers = [len(layers_with(model, self.layers.role)) for model in (self.reference, self.candidate)]
            on_layers += caveats.of_left_out_layers([len(places) for places in self.layers.positions], n_layers)
        if decision.verdict is Verdict.NO_EVIDENCE and self.settings.level.may_read_layers:
            are_sets_compared = any(pair.experts is not None for pair in self._stack_pairs or ())
            on_layers += caveats.of_other_experts(self.reference, self.candidate, are_sets_compared=are_sets_compared)
        return (*self._caveats, *doubts, *on_rows, *on_layers, *late)


def _holds_every_layer(neurons: NeuronNumbers, reference: Comparable, candidate: Comparable) -> bool:
    n_compared = (len(neurons.reference_layers), len(neurons.candidate_layers))
    return n_compared == (len(neuron_layers(reference)), len(neuron_layers(candidate)))


def _shows_rotation(layers: LayersResult) -> bool:
    return layers.residual_map is ResidualMap.ROTATION and layers.fitted_on == "embeddings"
