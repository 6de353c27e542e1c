"""Frozen dataclasses for the parts of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Le

from mdir_hf.report.terms import (
    PLACEBO_LOG10_P,
    PRIVILEGED_Z,
    LayerPattern,
    LayerRole,
    ResidualMap,
    SettledBy,
    Transformation,
    View,
)

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
class PlaceboResult(ReportRecord):
    """Result of the embedding test on unrelated data.

    Attributes:
        trace: The statistic c.
        threshold: Value of c that would be significant at 0.1%.
        log10_p: log10 p, at most 0.
        channels: Number of compared channels.
    """

    trace: float
    threshold: float
    log10_p: Log10P
    channels: Count

    @property
    def is_significant(self) -> bool:
        """Whether p is at most 0.1%."""
        return self.log10_p <= PLACEBO_LOG10_P


@dataclass(frozen=True, slots=True)
class Placebos(ReportRecord):
    """Calibration of the embedding test.

    Attributes:
        re_paired: Result after pairing one model's tokens with different tokens of the other model, which reveals scale
            artefacts.
        rotated: Result after a random rotation of one model, which shows the values to expect by chance.
        privileged_basis_z: For each model, z-score of how far its axes stand out from other directions.
    """

    re_paired: PlaceboResult
    rotated: PlaceboResult
    privileged_basis_z: tuple[float, float]


class LookResult(NamedTuple):
    """One look at the common tokens, with the number of tokens and log10 p, corrected for all tests and looks."""

    rows: Count
    log10_p: Log10P


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
    """Result of Algorithm 1 for one pair of matrices: the embeddings or the unembeddings (``lm_head``).

    Attributes:
        common_tokens: Number of tokens in both vocabularies.
        rows_used: Number of tokens used in the reported look.
        rank: Rank of the polar factor.
        trace: The statistic c; None if no value could be significant.
        threshold: Value of c that would be significant at 0.1%.
        normalized_trace: c divided by the number of compared channels.
        coverage: Share of channels that are individually significant.
        matched_channels: Number of individually significant channels, at 1% over all entries.
        off_match_channels: Number of channels that resemble a channel other than their match.
        transformation: Transformation between the matrices; ``rotation`` if the layers reveal one.
        scale: The factor s in E' ~ s E P; None without a significant match.
        view: How rows were prepared in the reported look.
        log10_p: log10 p, corrected for tests and looks.
        log10_p_trimmed: log10 p after removing the best n/16, n/4 and n/2 channels.
        log10_p_signs: log10 p of the sign test; None unless channels were matched in their own order.
        placebo: Result on unrelated data, or None.
        looks: Results of all looks, in order.
        numbering: Agreement of channel numbers; None if the numbers have a meaning.
        settled_by: The step that was significant even without the best half of the channels.
        widths: Number of channels in each matrix; 0 in older reports.
        channels: Number of reference channels in the last look.
        in_order_tested: Whether channels were also tested in their own order.
        rows_are_equal: Whether all compared rows are identical in both models, value for value.
        channel_numbers_mean_something: Whether both architectures give channel numbers a meaning.
        cosine: Mean cosine of paired rows after a significant matching, or None.
        printed: Algorithm 1 as printed in the paper; omitted unless all common tokens were read.
    """

    common_tokens: Count
    rows_used: Count
    rank: Count
    trace: float | None
    threshold: float | None
    normalized_trace: float | None
    coverage: float | None
    matched_channels: Count | None
    off_match_channels: Count | None
    transformation: Transformation
    scale: float | None
    view: View
    log10_p: Log10P
    log10_p_trimmed: Mapping[str, Log10P]
    placebo: Placebos | None
    looks: tuple[LookResult, ...]
    log10_p_signs: Log10P | None = None
    numbering: NumberingResult | None = None
    settled_by: SettledBy | None = None
    widths: tuple[Count, Count] = (0, 0)
    channels: Count = 0
    in_order_tested: bool = True
    rows_are_equal: bool = False
    channel_numbers_mean_something: bool = False
    cosine: float | None = None
    printed: PrintedAlgorithm1 | None = None

    @property
    def strength(self) -> float:
        """Trace divided by rank, in [0, 1]."""
        return 0.0 if self.trace is None else self.trace / max(1, self.rank)

    @property
    def keeps_order(self) -> bool:
        """Whether channels were dropped and the remaining ones kept their order."""
        numbers = self.numbering
        is_in_order = numbers is not None and numbers.in_order == numbers.pairs
        return is_in_order and self.transformation == Transformation.PERMUTATION

    @property
    def off_match_share(self) -> float:
        """Off-match channels per matched channel; infinite if they were not counted."""
        if self.off_match_channels is None:
            return math.inf
        return self.off_match_channels / max(1, self.matched_channels or 0)

    @property
    def basis_z(self) -> tuple[float, float]:
        """z-scores of how far the axes of each model stand out; 0 if not measured."""
        return (0.0, 0.0) if self.placebo is None else self.placebo.privileged_basis_z

    @property
    def both_privileged(self) -> bool:
        """Whether the axes of both models stand out."""
        return min(map(abs, self.basis_z)) > PRIVILEGED_Z


@dataclass(frozen=True, slots=True)
class NumberingResult(ReportRecord):
    """How often channels that are each other's best match have the same number; matching ignores numbers.

    Attributes:
        pairs: Number of channel pairs that are each other's best match.
        own_number: Number of pairs with the same number in both models.
        in_order: Size of the largest set of pairs that are in the same order in both models.
        log10_p: log10 p, corrected for all tests and looks. The uncorrected p is 1 / own_number! or C(pairs, in_order)
            / in_order!.
        certain_share: Share of channels that are matched in order and individually significant.
    """

    pairs: Count
    own_number: Count
    in_order: Count
    log10_p: Log10P
    certain_share: Share = 0.0


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
    """The second witness: how many tested neurons have the same number as their partner, for each pair of layers.

    A neuron's partner is the most similar neuron of the other layer after a rotation fitted on other neurons. Neurons
    are compared first in gate and up, then in down.

    Attributes:
        tested: Number of neurons tested in each layer.
        fitted: Number of other neurons used to fit the rotation.
        reference_layers: Reference layer for each row of ``own_number``.
        candidate_layers: Candidate layer for each column.
        own_number: Number of tested neurons that kept their number, for each pair of layers.
        certain: How many of these are more similar to their partner than any random pair would be.
        matches: Pairs of layers that match. For gate and up, p is below alpha, and either three quarters of the neurons
            are certain or nine tenths kept their number. If down was read, half of the neurons must also agree in down,
            and the pair must not be ``idle``.
        log10_p: log10 p for gate and up, corrected for all pairs, tests and looks; 0 if ``is_searched``.
        own_number_by_down: ``own_number`` for down, if a pair agrees in gate and up; None if down was not read.
        idle: Pairs of layers whose neurons agree in gate and up, but are switched off or write little.
        is_searched: Whether partners were found by a search, so that their numbers give no bound on p.
        nominated: Pairs of layers that stood out in up and were then compared in gate and up, on a new sample. None if
            all pairs were compared in gate and up.
    """

    tested: Count
    fitted: Count
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    own_number: tuple[tuple[Count, ...], ...]
    certain: tuple[tuple[Count, ...], ...]
    matches: tuple[LayerPair, ...]
    log10_p: Log10P
    own_number_by_down: tuple[tuple[Count, ...], ...] | None = None
    idle: tuple[LayerPair, ...] = ()
    is_searched: bool = False
    nominated: tuple[LayerPair, ...] | None = None

    @property
    def own_in_matches(self) -> int:
        """Number of tested neurons that kept their number in matching pairs of layers."""
        return sum(self._cell(self.own_number, match) for match in self.matches)

    @property
    def is_witness(self) -> bool:
        """Whether a pair of layers matches in gate, up and down."""
        return bool(self.matches) and self.own_number_by_down is not None

    def _cell(self, counts: tuple[tuple[int, ...], ...], match: LayerPair) -> int:
        return counts[self.reference_layers.index(match.reference)][self.candidate_layers.index(match.candidate)]


@dataclass(frozen=True, slots=True)
class LayersResult(ReportRecord):
    """Results of Algorithm 2: matches between the layers of the candidate and the reference.

    Attributes:
        role: The matrix that represents a layer.
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: Rows on which ``residual_map`` was fitted, or None.
        pattern: The arrangement of the matches.
        matches: Candidate layers with a significant match; empty if the layer map was not accepted.
        log10_p: log10 p of the layer map, valid under any dependence and corrected for all maps.
        log10_p_fisher: log10 p of all layers by Fisher's method; it does not affect the verdict.
        related_layers_at_least: Lower bound on the number of related layers.
        off_match_share: Share of pairs outside the layer map that are significant.
        placebo_log10_p: Smallest log10 p of any pair of layers after shuffling residual channels.
        reference_layers: Layer number for each row of ``matrix``.
        candidate_layers: Layer number for each column.
        matrix: log10 p of every pair of layers.
        null: The assumption behind the p-values.
        is_supported: Whether neurons or analysed layers support the residual map, as a fitted rotation requires.
    """

    role: LayerRole
    residual_map: ResidualMap
    fitted_on: str | None
    pattern: LayerPattern
    matches: tuple[AncestorLayer, ...]
    log10_p: Log10P
    log10_p_fisher: float
    related_layers_at_least: Count
    off_match_share: Share
    placebo_log10_p: Log10P
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    matrix: tuple[tuple[float, ...], ...]
    null: str
    is_supported: bool = True

    @property
    def n_candidate_layers(self) -> int:
        """Number of candidate layers that were compared."""
        return len(self.candidate_layers)
