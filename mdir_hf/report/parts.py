"""The parts of a result, as frozen dataclasses; their fields are the fields of the JSON."""

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
"""A routed expert by its number, ``shared``, or None for the MLP of a dense layer."""


class ReportRecord:
    """A record of a report, whose JSON has exactly these fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class PlaceboResult(ReportRecord):
    """The statistic on data without a relation.

    Attributes:
        trace: c of the placebo.
        threshold: The c that would be significant at 0.1 %.
        log10_p: At most 0.
        channels: Number of channels in the placebo.
    """

    trace: float
    threshold: float
    log10_p: Log10P
    channels: Count

    @property
    def is_significant(self) -> bool:
        """Whether p is below 0.1 %, which it should not be."""
        return self.log10_p <= PLACEBO_LOG10_P


@dataclass(frozen=True, slots=True)
class Placebos(ReportRecord):
    """Calibration of the embedding test.

    Attributes:
        re_paired: Tokens of one model paired with different tokens of the other; shows artefacts of scale.
        rotated: One model rotated at random; shows the level of the null.
        privileged_basis_z: How far the axes of reference and candidate stand out among all directions.
    """

    re_paired: PlaceboResult
    rotated: PlaceboResult
    privileged_basis_z: tuple[float, float]


class LookResult(NamedTuple):
    """One look at the common tokens: number of tokens, and log10 p corrected for all tests and looks."""

    rows: Count
    log10_p: Log10P


@dataclass(frozen=True, slots=True)
class PrintedAlgorithm1(ReportRecord):
    """MDIR's Algorithm 1 as it is printed, on all common tokens; no verdict rests on it.

    Attributes:
        common_tokens: Rows of the product.
        trace: The largest trace over all permutations.
        rank: Rank of the product. The paper asks for the width.
        width: Channels of the narrower embedding.
        log10_p: p by the paper's formula, d! exp(-trace^2 / 2), uncorrected; None if the widths differ.
        axes_stand_out: Whether the axes of both embeddings stand out, against the paper's assumption; None if unknown.
    """

    common_tokens: Count
    trace: float
    rank: Count
    width: Count
    log10_p: Log10P | None
    axes_stand_out: bool | None

    @property
    def holds(self) -> bool | None:
        """Whether the assumption of p holds here, as far as it was measured."""
        if self.rank < self.width or self.axes_stand_out:
            return False
        return None if self.axes_stand_out is None else True


@dataclass(frozen=True, slots=True)
class MatrixResult(ReportRecord):
    """Algorithm 1 on one pair of matrices, the embeddings or the unembeddings (``lm_head``).

    Attributes:
        common_tokens: Tokens that both vocabularies hold.
        rows_used: Tokens used by the reported look.
        rank: Rank of the polar factor.
        trace: c, or None.
        threshold: The c that would be significant at 0.1 %.
        normalized_trace: c over the number of compared channels.
        coverage: Share of channels that are significant one by one.
        matched_channels: Number of these, at 1 % over all entries.
        off_match_channels: Channels that also resemble a channel other than their match.
        transformation: The transformation shown by these matrices; ``rotation`` if the layers showed it.
        scale: s of E' ~ s E P; None without a finding.
        view: How the rows were prepared.
        log10_p: log10 p, corrected for tests and looks.
        log10_p_trimmed: log10 p without the best n/16, n/4 and n/2 of the channels.
        placebo: Calibration on the same rows.
        looks: Every look.
        log10_p_signs: log10 p of the sign test; None unless channels were compared in their own order.
        numbering: Agreement of channel numbers; None if they have a meaning.
        settled_by: The step in which it was significant, also without the best half of the channels.
        widths: Channels of both matrices; 0 in older reports.
        channels: Channels of the reference in the last look.
        in_order_tested: Whether channels were also tested in their own order.
        rows_are_equal: Whether all compared rows are equal in both models, number by number.
        channel_numbers_mean_something: Whether both architectures give channel numbers a meaning.
        cosine: Mean cosine of paired rows after a significant matching, or None.
        printed: Algorithm 1 as the paper prints it; left out unless all common tokens were read.
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
        """Trace over rank, in [0, 1]."""
        return 0.0 if self.trace is None else self.trace / max(1, self.rank)

    @property
    def keeps_order(self) -> bool:
        """Whether channels were left out and the others keep their order."""
        numbers = self.numbering
        is_in_order = numbers is not None and numbers.in_order == numbers.pairs
        return is_in_order and self.transformation == Transformation.PERMUTATION

    @property
    def off_match_share(self) -> float:
        """Off-match channels per matched one; infinite if they were not counted."""
        if self.off_match_channels is None:
            return math.inf
        return self.off_match_channels / max(1, self.matched_channels or 0)

    @property
    def basis_z(self) -> tuple[float, float]:
        """How far the axes of each model stand out; 0 if not measured."""
        return (0.0, 0.0) if self.placebo is None else self.placebo.privileged_basis_z

    @property
    def both_privileged(self) -> bool:
        """Whether the axes of both models stand out."""
        return min(map(abs, self.basis_z)) > PRIVILEGED_Z


@dataclass(frozen=True, slots=True)
class NumberingResult(ReportRecord):
    """Agreement of the numbers of channels that are each other's best partner, found without their numbers.

    Attributes:
        pairs: Channels that are each other's best partner.
        own_number: Pairs with the same number in both models.
        in_order: Size of the largest set of pairs whose numbers increase together.
        log10_p: log10 p, corrected for all tests and looks: at most 1 / own_number!, or C(pairs, in_order) / in_order!.
        certain_share: Share of the channels that are partners in order and significant one by one.
    """

    pairs: Count
    own_number: Count
    in_order: Count
    log10_p: Log10P
    certain_share: Share = 0.0


class LayerPair(NamedTuple):
    """A layer of the reference and a layer of the candidate, counted from 0."""

    reference: Count
    candidate: Count


class AncestorLayer(NamedTuple):
    """A layer of the candidate with its match in the reference, counted from 0, and the log10 p of the pair."""

    reference: Count
    candidate: Count
    log10_p: float


@dataclass(frozen=True, slots=True)
class NeuronNumbers(ReportRecord):
    """The second witness: the number of tested neurons with a partner of their own number, for pairs of layers.

    Partners resemble each other most, after a rotation fitted on other neurons, first by gate and up, then by down.

    Attributes:
        tested: Neurons that were tested in each layer.
        fitted: Other neurons on which a rotation of the residual stream was fitted.
        reference_layers: Layer of the reference for each row of ``own_number``.
        candidate_layers: Layer of the candidate for each column.
        own_number: Tested neurons with their own number, for each pair of layers.
        certain: Those more similar to their partner than any random pair would be.
        matches: Pairs of layers in which three quarters of the neurons are certain by gate and up, or nine tenths have
            their own number, with p below alpha; if down was read, half also by down, and not idle.
        log10_p: log10 of p by gate and up, corrected for all pairs, tests and looks; 0 if ``is_searched``.
        own_number_by_down: As ``own_number``, by down, for pairs that agree by gate and up; None if down was not read.
        idle: Pairs whose neurons agree by gate and up but write next to nothing.
        is_searched: Whether partners were searched, so that numbers bound no probability.
        nominated: Pairs of layers that stood out by up alone and were compared by gate and up, on a new sample. None:
            all pairs were compared by gate and up; else the others by up alone.
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
        """Tested neurons with their own number, in the layers that match."""
        return sum(self._cell(self.own_number, match) for match in self.matches)

    @property
    def is_witness(self) -> bool:
        """Whether a pair of layers matches by gate, up and down."""
        return bool(self.matches) and self.own_number_by_down is not None

    def _cell(self, counts: tuple[tuple[int, ...], ...], match: LayerPair) -> int:
        return counts[self.reference_layers.index(match.reference)][self.candidate_layers.index(match.candidate)]


@dataclass(frozen=True, slots=True)
class LayersResult(ReportRecord):
    """Algorithm 2: the match between layers of the candidate and layers of the reference.

    Attributes:
        role: The matrix that represents a layer.
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: The rows on which that map was fitted, or None.
        pattern: The arrangement of the matches.
        matches: Candidate layers with a significant match. Empty if the map was not accepted.
        log10_p: log10 p of the map, under any dependence, corrected for every map.
        log10_p_fisher: log10 p of all layers by Fisher's sum. It decides no verdict.
        related_layers_at_least: A lower bound on the number of related layers.
        off_match_share: Share of the layer pairs off the map that are significant.
        placebo_log10_p: Smallest log10 p of a pair of layers with shuffled residual channels.
        reference_layers: Layer number for each row of ``matrix``.
        candidate_layers: Layer number for each column.
        matrix: log10 p of every pair of layers.
        null: The assumption behind the p-values.
        is_supported: Whether analysed layers support the map, as a fitted rotation must be.
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
        """Layers of the candidate that were mapped."""
        return len(self.candidate_layers)
