"""Collect the measurements of a comparison and report on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mdir_hf._version import __version__
from mdir_hf.comparison import caveats
from mdir_hf.comparison.coverage import with_coverage
from mdir_hf.comparison.decide import Decision, Evidence, decide, is_trusted, where_tokens_are_unknown
from mdir_hf.comparison.embeddings import MatrixEvidence
from mdir_hf.comparison.exclusion import exclusion
from mdir_hf.comparison.layer_weights import layers_with
from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import excluded_noise
from mdir_hf.comparison.plan import MatrixPair
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.analysis import LayerAnalysis
from mdir_hf.comparison.results import LayersEvidence, layers_result, module_results, shown_layers
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.gauge import ResidualBasisMap, residual_basis_maps
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.significance import log_cost_of_look
from mdir_hf.model.comparable import Comparable
from mdir_hf.report import (
    Exclusion,
    HomologyReport,
    LayersResult,
    LayerTable,
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

LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""log10 of the probability that two independent files have the same SHA-256."""

IDENTICAL_FILES = Decision(
    Verdict.HOMOLOGOUS, None, SettledBy.IDENTICAL_FILES, LOG10_P_EQUAL_DIGESTS, (caveats.SAME_FILES,)
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurements:
    """Everything that a comparison has measured so far. Fields are None for steps that were not taken.

    Attributes:
        is_sample_fresh: Whether ``sample_seed`` was drawn from system entropy after both models were open.
        neuron_samples: Samples of gate and up from the last comparison of neurons by number.
        nominating_samples: Samples of up from every layer.
        n_looks: Maximum number of looks at a pair of matrices.
        layers_are_unreadable: Whether most of the layers to compare could not be read.
        parts: Compared pairs of other stacks and of expert sets.
        stopped_before: Sentences about the remaining steps, in interim reports.
    """

    reference: Comparable
    candidate: Comparable
    settings: Settings
    sample_seed: int
    is_sample_fresh: bool
    neurons: NeuronNumbers | None = None
    neuron_samples: tuple[NeuronSample, ...] = ()
    nominating_samples: tuple[NeuronSample, ...] = ()
    caveats: tuple[str, ...] = ()
    files_are_equal: bool = False
    tokens_are_known: bool = True
    matrix_pairs: Mapping[str, MatrixPair] = field(default_factory=dict)
    matrices: Mapping[str, MatrixEvidence] = field(default_factory=dict)
    n_looks: int = 0
    layers: LayersEvidence | None = None
    layers_are_unreadable: bool = False
    caveats_of_layers: tuple[str, ...] = ()
    projections: LayerAnalysis | None = None
    parts: tuple[StackPair, ...] | None = None
    stopped_before: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[Comparable, Comparable]:
        """The reference and the candidate."""
        return self.reference, self.candidate

    @property
    def have_layers(self) -> bool:
        """Whether both models have layers, even if those cannot be read."""
        return all(bool(model.anatomy.layers or model.summary().layers) for model in self.models)

    @property
    def is_nominated(self) -> bool:
        """Whether at least one pair of matrices agrees."""
        return any(is_trusted(matrix.result) for matrix in self.matrices.values())

    @property
    def is_settled(self) -> bool:
        """Whether agreeing neurons (or, in models without layers, copied matrices) settle the question."""
        return self.decision.verdict is Verdict.HOMOLOGOUS or self.decision.reason is Reason.SAMPLE_CHOSEN

    @cached_property
    def decision(self) -> Decision:
        """The decision that follows from the evidence so far."""
        if self.files_are_equal:
            return IDENTICAL_FILES
        decision = decide(
            Evidence(
                alpha=self.settings.alpha,
                level=self.settings.level,
                matrices=self.results,
                layers=self.layers_result,
                neurons=self.neurons,
                have_layers=self.have_layers,
                is_sample_fresh=self.is_sample_fresh,
                layers_are_unreadable=self.layers_are_unreadable,
                was_stopped=bool(self.stopped_before),
                layers_noise=0.0 if self.layers is None else self.layers.noise,
                are_layers_invariant=self.layers is not None and self.layers.are_invariant,
                parts=self.parts or (),
            )
        )
        return decision if self.tokens_are_known and not self.doubts_of_tokens else where_tokens_are_unknown(decision)

    @property
    def results(self) -> dict[str, MatrixResult]:
        """Results for each pair of matrices, keyed by name."""
        return {name: matrix.result for name, matrix in self.matrices.items()}

    @cached_property
    def layers_result(self) -> LayersResult | None:
        """The result for the layers, regardless of the verdict."""
        if self.layers is None:
            return None
        return layers_result(self.layers, self.settings.alpha, log_cost=self.log_cost_of_layers)

    @property
    def log_cost_of_layers(self) -> float:
        """Natural log of the factor by which the layers' p is corrected.

        The layers use the share of alpha that one more look would get (docs/method/rows.md). If all layers are
        analysed, two maps split that share.
        """
        is_paid_twice = self.settings.level.analyses_all_layers
        return log_cost_of_look(self.n_looks + 1) + (math.log(2.0) if is_paid_twice else 0.0)

    @property
    def n_tests_of_matrices(self) -> int:
        """Number of tests on pairs of matrices."""
        return TESTS_PER_MATRIX * len(self.matrix_pairs)

    @property
    def n_tests(self) -> int:
        """Number of tests on matrices and layer maps."""
        if self.files_are_equal:
            return 1
        of_layers = 0 if self.layers is None else self.layers.n_tests
        of_layers *= 2 if self.settings.level.analyses_all_layers else 1  # sampled rows, then whole matrices
        return max(1, self.n_tests_of_matrices + of_layers)

    @property
    def maps_of_embeddings(self) -> tuple[ResidualBasisMap, ...]:
        """The residual-basis maps that the embeddings suggest."""
        # The channels of an embedding that is projected on input differ from the channels of the stream.
        widths = (self.reference.anatomy.hidden_size, self.candidate.anatomy.hidden_size)
        of_stream = {name: matrix for name, matrix in self.matrices.items() if matrix.result.widths == widths}
        matching = next((matrix.matching for matrix in of_stream.values() if matrix.matching is not None), None)
        polar = of_stream["embedding"].polar if "embedding" in of_stream else None
        return residual_basis_maps(*widths, polar=polar, matching=matching)

    @property
    def doubts_of_tokens(self) -> tuple[str, ...]:
        """Contradictions between a model's tokenizer files."""
        return caveats.of_contradicting_tokenizers(*self.models) if self.tokens_are_known else ()


def report_on(measurements: Measurements, watch: Watch) -> HomologyReport:
    """Make a report from the measurements so far."""
    decision, layers, matrices = measurements.decision, measurements.layers_result, measurements.results
    settings = measurements.settings
    if decision.settled_by is SettledBy.LAYERS and layers is not None and _shows_rotation(layers):
        matrices["embedding"] = replace(matrices["embedding"], transformation=Transformation.ROTATION)
    has_modules = measurements.layers is not None and measurements.layers.has_tests and decision.accepts_layers
    report = HomologyReport(
        verdict=decision.verdict,
        reason=decision.reason,
        log10_p=decision.headline(settings.alpha),
        alpha=settings.alpha,
        tests=measurements.n_tests,
        level=settings.level,
        settled_by=decision.settled_by,
        reference=measurements.reference.summary(),
        candidate=measurements.candidate.summary(),
        embedding=matrices.get("embedding"),
        unembedding=matrices.get("unembedding"),
        layers=None if layers is None else shown_layers(layers, settings.alpha, is_accepted=decision.accepts_layers),
        modules=module_results(measurements.layers) if measurements.layers is not None and has_modules else None,
        caveats=(*_caveats_on(measurements), *decision.caveats),
        io=watch.io(sum(model.tensors.n_bytes for model in measurements.models)),
        seconds=watch.seconds,
        seed=settings.seed,
        version=__version__,
        assumption=decision.assumption,
        neurons=measurements.neurons,
        sample_seed=None if measurements.neurons is None else measurements.sample_seed,
        parts=measurements.parts,
        log10_p_not_accepted=decision.log10_p_not_accepted,
        excludes=_exclusion_by(measurements) if decision.verdict is Verdict.NO_EVIDENCE else None,
        projections=_table_of(measurements),
        arrays=ReportArrays(
            **{name: matrix.arrays for name, matrix in measurements.matrices.items()},
            layers=() if measurements.projections is None else measurements.projections.layer_maps(),
        ),
    )
    return with_coverage(report, measurements.reference, measurements.candidate)


def _shows_rotation(layers: LayersResult) -> bool:
    return layers.residual_map is ResidualMap.ROTATION and layers.fitted_on == "embeddings"


def _table_of(measurements: Measurements) -> LayerTable | None:
    """Return the projection table, which mentions copies only if neurons agree."""
    if measurements.projections is None:
        return None
    table = replace(measurements.projections.table, tested_layers=measurements.settings.layers)
    neurons = measurements.neurons
    is_confirmed = measurements.decision.verdict is Verdict.HOMOLOGOUS and neurons is not None and neurons.is_witness
    return table if is_confirmed else unconfirmed(table)


def _exclusion_by(measurements: Measurements) -> Exclusion:
    alpha, samples = measurements.settings.alpha, measurements.neuron_samples
    noise = excluded_noise(*samples, alpha=alpha) if samples else None
    if noise is not None and measurements.nominating_samples:
        noise = min(noise, excluded_noise(*measurements.nominating_samples, alpha=REMARKABLE, nominates=True))
    return exclusion(
        measurements.results,
        n_tests=measurements.n_tests_of_matrices,
        alpha=alpha,
        noise_of_layers=None if measurements.layers is None else measurements.layers.noise,
        noise_of_neurons=noise,
    )


def _caveats_on(measurements: Measurements) -> tuple[str, ...]:
    verdict, models, level = measurements.decision.verdict, measurements.models, measurements.settings.level
    late = tuple(note for note in caveats.of_weights(*models) if note not in measurements.caveats)
    if measurements.files_are_equal:
        return (*measurements.caveats, *late)
    doubts: tuple[str, ...] = ()
    if verdict is not Verdict.HOMOLOGOUS:
        doubts = (*measurements.doubts_of_tokens, *caveats.of_channel_numbers(*models))
        if level.may_read_layers:
            doubts += caveats.of_neuron_numbers(*models)
    on_rows = (caveat for matrix in measurements.matrices.values() for caveat in matrix.caveats)
    on_layers = (*measurements.caveats_of_layers, *measurements.stopped_before)
    if verdict is Verdict.NO_EVIDENCE and measurements.layers is not None:
        n_layers = [len(layers_with(model, measurements.layers.role)) for model in models]
        on_layers += caveats.of_left_out_layers([len(places) for places in measurements.layers.positions], n_layers)
    if verdict is Verdict.NO_EVIDENCE and level.may_read_layers:
        are_sets_compared = any(pair.experts is not None for pair in measurements.parts or ())
        on_layers += caveats.of_other_experts(*models, are_sets_compared=are_sets_compared)
    return (*measurements.caveats, *doubts, *on_rows, *on_layers, *late)
