"""Frozen dataclasses for the parts of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Le

from mdir_hf.report.terms import PRIVILEGED_Z, LayerPattern, ModuleRole, ResidualMap, SettledBy, Transformation
from mdir_hf.thresholds import COPIED_COSINE

Count = Annotated[int, Ge(0), Le(2**63)]
Log10P = Annotated[float, Le(0.0)]
Share = Annotated[float, Ge(0.0)]
ExpertName = Annotated[int, Ge(0), Le(2**63)] | Literal["shared"] | None
"""Number of a routed expert, ``shared`` for a shared expert, or None for the MLP of a dense layer."""


class ReportRecord:
    """Base class for the records in a report. The JSON has exactly their fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class PrintedAlgorithm1(ReportRecord):
    """Algorithm 1 as printed in the paper, applied to all common tokens. It does not affect the verdict.

    Attributes:
        common_tokens: Number of tokens used.
        trace: The largest trace over all permutations.
        rank: Rank of the product; the paper requires it to equal ``width``.
        width: Number of channels of the narrower embedding.
        log10_p: log10 p from the paper's formula, d! exp(-trace^2 / 2), uncorrected; None if the widths differ.
        axes_stand_out: Whether the axes of both embeddings stand out, contrary to the paper's assumption; None if
            unknown.
    """

    common_tokens: Count
    trace: float
    rank: Count
    width: Count
    log10_p: Log10P | None
    axes_stand_out: bool | None

    @property
    def holds(self) -> bool | None:
        """Whether the assumption behind p holds; None if unknown."""
        if self.rank < self.width or self.axes_stand_out:
            return False
        return None if self.axes_stand_out is None else True


@dataclass(frozen=True, slots=True)
class MatrixResult(ReportRecord):
    """One look at a pair of matrices: the embeddings or the unembeddings (``lm_head``).

    It describes the models, and never makes a verdict ``homologous``.

    Attributes:
        common_tokens: Number of tokens in both vocabularies.
        rows_used: Number of tokens whose rows were compared.
        rank: Rank of the polar factor U.
        trace: The statistic c, the sum of the matched entries of U.
        normalized_trace: c divided by the number of channels of the narrower matrix.
        matched_channels: Number of individually significant channels, at 1% over all entries.
        transformation: Transformation between the matrices; ``none`` if no matching is significant.
        scale: The factor s in E' ~ s E P; None without a significant matching.
        cosine: Mean cosine of paired rows after the matching, or None.
        log10_p: log10 p of the trace by the paper's formula, corrected for all matchings that were tried. It bounds a
            probability only if the axes of at most one matrix stand out.
        axes_z: For each model, z-score of how far its axes stand out from random directions.
        is_significant: Whether p is below alpha, with all channels and without the best half of them.
        widths: Number of channels in each matrix.
        rows_are_equal: Whether all compared rows are identical in both models, value for value.
        printed: Algorithm 1 as printed in the paper, on all common tokens; None unless the level is ``paper``.
    """

    common_tokens: Count
    rows_used: Count
    rank: Count
    trace: float
    normalized_trace: float
    matched_channels: Count
    transformation: Transformation
    scale: float | None
    cosine: float | None
    log10_p: Log10P
    axes_z: tuple[float, float]
    is_significant: bool
    widths: tuple[Count, Count]
    rows_are_equal: bool = False
    printed: PrintedAlgorithm1 | None = None

    @property
    def is_copied(self) -> bool:
        """Whether the rows of matched matrices are copies rather than merely aligned."""
        return self.is_significant and (self.cosine or 0.0) >= COPIED_COSINE

    @property
    def axes_stand_out(self) -> bool:
        """Whether the axes of both matrices stand out, so that ``log10_p`` bounds no probability."""
        return min(map(abs, self.axes_z)) > PRIVILEGED_Z


class LayerPair(NamedTuple):
    """A reference layer and a candidate layer, counted from 0."""

    reference: Count
    candidate: Count


class AncestorLayer(NamedTuple):
    """A candidate layer and its match in the reference, counted from 0, with log10 p for the pair."""

    reference: Count
    candidate: Count
    log10_p: float


@dataclass(frozen=True, slots=True)
class NeuronNumbers(ReportRecord):
    """One comparison of neurons: how many tested neurons match their partner, for each pair of layers.

    Neurons are compared in gate and up (in up, if there is no gate), after a rotation fitted on other neurons.

    Attributes:
        step: The step of the comparison.
        tested: Number of neurons tested in each layer.
        fitted: Number of other neurons used to fit the rotation.
        reference_layers: Reference layer for each row of ``own_number``.
        candidate_layers: Candidate layer for each column.
        own_number: Number of tested neurons whose most similar neuron of the other layer is their partner, for each
            pair of layers. Partners have the same number, or were found by a search.
        certain: How many of these are more similar to their partner than any random pair would be, in gate and up
            together, and similar in each.
        matches: Pairs of layers that match: at least half of the tested neurons are certain, and p is below alpha.
        log10_p: log10 p of this step, by the numbers of the neurons of all its pairs of layers; None if partners were
            found by a search, which gives no bound.
    """

    step: SettledBy
    tested: Count
    fitted: Count
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    own_number: tuple[tuple[Count, ...], ...]
    certain: tuple[tuple[Count, ...], ...]
    matches: tuple[LayerPair, ...]
    log10_p: Log10P | None

    @property
    def is_searched(self) -> bool:
        """Whether partners were found by a search."""
        return self.log10_p is None

    @property
    def certain_in_matches(self) -> int:
        """Number of certain neurons in matching pairs of layers."""
        return sum(
            self.certain[self.reference_layers.index(match.reference)][self.candidate_layers.index(match.candidate)]
            for match in self.matches
        )

    @property
    def most_certain(self) -> int:
        """Largest number of certain neurons in any pair of layers."""
        return max(map(max, self.certain))


@dataclass(frozen=True, slots=True)
class LayersResult(ReportRecord):
    """Candidate layers and the reference layers that they agree with. It describes the models and decides nothing.

    Attributes:
        method: ``sampled rows``, or ``algorithm 2`` of the paper on whole matrices.
        role: The projection in ``matrix``.
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: Rows on which ``residual_map`` was fitted, or None.
        pattern: The arrangement of the matches.
        matches: Candidate layers that agree with a reference layer.
        reference_layers: Layer number for each row of ``matrix``.
        candidate_layers: Layer number for each column.
        matrix: log10 p of every pair of layers, corrected for all tests.
    """

    method: Literal["sampled rows", "algorithm 2"]
    role: ModuleRole
    residual_map: ResidualMap
    fitted_on: str | None
    pattern: LayerPattern
    matches: tuple[AncestorLayer, ...]
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    matrix: tuple[tuple[float, ...], ...]
