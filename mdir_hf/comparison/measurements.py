"""Collect the measurements of a comparison and report on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from mdir_hf._version import __version__
from mdir_hf.comparison import caveats
from mdir_hf.comparison.coverage import with_coverage
from mdir_hf.comparison.decide import Decision, Evidence, decide
from mdir_hf.comparison.embeddings import MatrixEvidence, excluded_noise
from mdir_hf.comparison.keys import HeadResemblances
from mdir_hf.comparison.neuron_layers import can_compare_most_layers
from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import excluded_noise as excluded_noise_of_neurons
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.analysis import LayerAnalysis
from mdir_hf.comparison.reading import ReadOnce
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.model.comparable import Comparable
from mdir_hf.report import (
    Exclusion,
    HomologyReport,
    LayersResult,
    LayerTable,
    MatrixResult,
    ModuleResult,
    NeuronNumbers,
    PrintedAlgorithm1,
    ReportArrays,
    StackPair,
    Verdict,
    unconfirmed,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurements:
    """Everything that a comparison has measured so far. Fields are None or empty for steps that were not taken.

    Attributes:
        reference: One model.
        candidate: The other model.
        tensors: The tensors of both models, which keep each row once it has been read.
        sample_seed: Seed of the samples of neurons.
        is_sample_fresh: Whether ``sample_seed`` was drawn from system entropy after both models were open.
        log_n_readings: Natural log of the number of readings of unknown names among which rows of neurons chose.
        neurons: Comparisons of neurons, in order.
        samples: Samples of gate and up from the number step.
        nominating_samples: Samples of up from every layer.
        heads: Resemblances of the heads of both models.
        map_of_heads: The residual-basis map fitted on the keys of nominated layers.
        has_read_layers: Whether rows of layers of both models were read.
        have_other_shapes: Whether neurons cannot be compared by number, because layers of the models differ in shape.
        matrices: Looks at the embeddings or unembeddings, keyed by name.
        printed: Algorithm 1 as printed.
        parts: Compared pairs of other stacks and of expert sets; empty if there are none.
        notes: Sentences on weights that could not be compared.
        left_out: Names of steps that do not fit in memory.
        not_yet: Sentences about the remaining steps, in interim reports.
    """

    reference: Comparable
    candidate: Comparable
    settings: Settings
    tensors: tuple[Comparable | ReadOnce, Comparable | ReadOnce]
    sample_seed: int
    is_sample_fresh: bool
    log_n_readings: float = 0.0
    files_are_equal: bool = False
    neurons: tuple[NeuronNumbers, ...] = ()
    samples: tuple[NeuronSample, ...] = ()
    nominating_samples: tuple[NeuronSample, ...] = ()
    heads: HeadResemblances | None = None
    map_of_heads: ResidualBasisMap | None = None
    has_read_layers: bool = False
    have_other_shapes: bool = False
    matrices: Mapping[str, MatrixEvidence] = field(default_factory=dict)
    printed: PrintedAlgorithm1 | None = None
    projections: LayerAnalysis | None = None
    layers: LayersResult | None = None
    modules: tuple[ModuleResult, ...] | None = None
    parts: tuple[StackPair, ...] | None = None
    notes: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    not_yet: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[Comparable, Comparable]:
        """The reference and the candidate."""
        return self.reference, self.candidate

    @property
    def have_layers(self) -> bool:
        """Whether both models have layers, even if those cannot be read."""
        return all(bool(model.anatomy.layers or model.summary().layers) for model in self.models)

    @property
    def has_results(self) -> bool:
        """Whether anything was compared, so that an interim report would not be a verdict on nothing."""
        return self.files_are_equal or bool(self.neurons or self.heads or self.parts or self.matrices)

    @property
    def has_drawn_rows(self) -> bool:
        """Whether a result depends on the sample of neurons and heads."""
        return bool(self.neurons or self.parts) or self.heads is not None

    @property
    def is_settled(self) -> bool:
        """Whether neurons match, or files are equal."""
        return self.files_are_equal or any(neurons.matches for neurons in self.neurons) or bool(self._matching_parts)

    @property
    def _matching_parts(self) -> list[StackPair]:
        return Evidence(parts=self.parts or (), have_layers=self.have_layers).matching_parts

    @cached_property
    def decision(self) -> Decision:
        """The decision that follows from the measurements so far."""
        return decide(
            Evidence(
                are_files_equal=self.files_are_equal,
                is_sample_fresh=self.is_sample_fresh,
                neurons=self.neurons,
                parts=self.parts or (),
                matrices=list(self.results.values()),
                has_copied_heads=self.heads is not None and self.heads.has_copies,
                have_layers=self.have_layers,
                have_compared_layers=self.has_read_layers and all(map(can_compare_most_layers, self.models)),
                have_other_shapes=self.have_other_shapes,
                is_unfinished=bool(self.not_yet),
            )
        )

    @property
    def results(self) -> dict[str, MatrixResult]:
        """Results for each pair of matrices, keyed by name."""
        return {
            name: matrix.result if self.printed is None else replace(matrix.result, printed=self.printed)
            for name, matrix in self.matrices.items()
        }

    @property
    def shown_neurons(self) -> NeuronNumbers | None:
        """The comparison of neurons that settled the question or, failing that, the last one by number."""
        by_number = (neurons for neurons in reversed(self.neurons) if not neurons.is_searched)
        match = next((neurons for neurons in self.neurons if neurons.matches), None)
        return match or next(by_number, None) or next(iter(self.neurons), None)

    @property
    def residual_maps(self) -> tuple[ResidualBasisMap, ...]:
        """The residual-basis maps that embeddings and keys suggest, and the identity if the widths are equal."""
        maps = [*chain.from_iterable(matrix.residual_maps for matrix in self.matrices.values())]
        maps += [] if self.map_of_heads is None else [self.map_of_heads]
        widths = [model.anatomy.hidden_size for model in self.models]
        if widths[0] == widths[1] and all(residual_map.is_fitted for residual_map in maps):
            maps.append(ResidualBasisMap.identity(widths[0]))
        return tuple(maps)


def report_on(measurements: Measurements, watch: Watch) -> HomologyReport:
    """Make a report from the measurements so far."""
    decision, matrices, settings = measurements.decision, measurements.results, measurements.settings
    report = HomologyReport(
        verdict=decision.verdict,
        reason=decision.reason,
        log10_p=decision.log10_p,
        alpha=settings.alpha,
        tests=max(1, len(measurements.neurons) + len(measurements.parts or ())),
        level=settings.level,
        settled_by=decision.settled_by,
        reference=measurements.reference.summary(),
        candidate=measurements.candidate.summary(),
        embedding=matrices.get("embedding"),
        unembedding=matrices.get("unembedding"),
        layers=measurements.layers,
        modules=measurements.modules,
        caveats=_caveats_on(measurements),
        io=watch.io(sum(model.tensors.n_bytes for model in measurements.models)),
        seconds=watch.seconds,
        seed=settings.seed,
        version=__version__,
        assumption=decision.assumption,
        neurons=measurements.shown_neurons,
        sample_seed=measurements.sample_seed if measurements.has_drawn_rows else None,
        parts=measurements.parts or None,
        excludes=_exclusion_by(measurements) if decision.verdict is Verdict.NO_EVIDENCE else None,
        projections=_table_of(measurements),
        arrays=ReportArrays(
            **{name: matrix.arrays for name, matrix in measurements.matrices.items()},
            layers=() if measurements.projections is None else measurements.projections.layer_maps(),
        ),
    )
    return with_coverage(report, measurements.reference, measurements.candidate)


def _table_of(measurements: Measurements) -> LayerTable | None:
    """Return the projection table, which mentions copies only if neurons match."""
    if measurements.projections is None:
        return None
    table = measurements.projections.table
    is_confirmed = measurements.decision.verdict is Verdict.HOMOLOGOUS and any(
        neurons.matches for neurons in measurements.neurons
    )
    return table if is_confirmed else unconfirmed(table)


def _exclusion_by(measurements: Measurements) -> Exclusion:
    alpha = measurements.settings.alpha
    neurons = keys = embedding = None
    if measurements.samples:
        neurons = excluded_noise_of_neurons(*measurements.samples, alpha=alpha)
        if measurements.nominating_samples:
            nominated = excluded_noise_of_neurons(*measurements.nominating_samples, alpha=REMARKABLE, nominates=True)
            neurons = min(neurons, nominated)
    if measurements.heads is not None:
        keys = measurements.heads.excluded_noise
    for matrix in measurements.matrices.values():
        embedding = excluded_noise(matrix.result, alpha)
    return Exclusion(neurons=_correlation(neurons), keys=_correlation(keys), embedding=_correlation(embedding))


def _correlation(noise: float | None) -> float | None:
    """Return the correlation of a matrix with a noisy copy of itself; None if even a plain copy would not be found."""
    return None if not noise else 1.0 / math.sqrt(1.0 + noise * noise)


def _caveats_on(measurements: Measurements) -> tuple[str, ...]:
    models, decision = measurements.models, measurements.decision
    sentences = [*caveats.of_weights(*models)]
    if measurements.files_are_equal:
        return (*sentences, caveats.SAME_FILES)
    sentences += measurements.notes
    for matrix in measurements.matrices.values():
        sentences += matrix.caveats
    match = next((neurons for neurons in measurements.neurons if neurons.matches), None)
    if decision.verdict is Verdict.HOMOLOGOUS and match is not None:
        sentences.append(caveats.of_neurons(match))
    if decision.verdict is not Verdict.HOMOLOGOUS:
        sentences += caveats.of_contradicting_tokenizers(*models) if measurements.matrices else ()
        sentences += caveats.of_neuron_numbers(*models)
        sentences += (caveats.of_matrix(name, result) for name, result in measurements.results.items())
    if decision.verdict is Verdict.NO_EVIDENCE:
        sentences += caveats.of_other_experts(*models, are_sets_compared=_has_expert_sets(measurements))
        sentences.append(caveats.NOT_COVERED)
    return tuple(dict.fromkeys((*sentences, *measurements.not_yet)))


def _has_expert_sets(measurements: Measurements) -> bool:
    return any(pair.experts is not None for pair in measurements.parts or ())
