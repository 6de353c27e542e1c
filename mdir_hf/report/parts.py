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
    ModuleRole,
    ModuleTest,
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

READ_AS = ("subfolder", "variant", "file", "tokenizer", "bases")
"""Fields of a :class:`ModelSummary` that JSON has only where they were used: digests of older reports stay valid."""


class Part:
    """A part of a report: its JSON has these fields and no others, and no number in it is NaN or infinite."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class HowRead(Part):
    """How a model was read, as far as a repository and a commit alone do not say; what was not used is None.

    Attributes:
        subfolder: Folder of its repository that holds it, None for the root.
        variant: As asked for, e.g. ``fp16`` or ``Q4_K_M``.
        file: The one weight file that was named, of several.
        tokenizer: Where its vocabulary was read from, if elsewhere: ``owner/name@commit``, or a folder.
        bases: What lies under it if it is an adapter, nearest first: ``owner/name@commit``, or folders.
    """

    subfolder: str | None = None
    variant: str | None = None
    file: str | None = None
    tokenizer: str | None = None
    bases: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Take the list that JSON has for a tuple."""
        if isinstance(self.bases, list):
            object.__setattr__(self, "bases", tuple(self.bases))

    @property
    def read_as(self) -> str:
        """In words for people; empty where its repository says it all."""
        words = {"subfolder": "folder", "tokenizer": "vocabulary of"}
        said = [f"{words.get(name, name)} {value}" for name in READ_AS[:-1] if (value := getattr(self, name))]
        return ", ".join([*said, *(f"on {base}" for base in self.bases or ())])


@dataclass(frozen=True, slots=True)
class ModelSummary(HowRead):
    """One side of a comparison.

    Attributes:
        repo: Repo id, or the local path.
        revision: Revision that was asked for, None for the default branch or a plain folder.
        commit: The commit it resolved to, None for a plain folder.
        architecture: ``model_type`` of the config, or ``unknown``.
        hidden_size: Width n of the residual stream.
        layers: Number of decoder layers, None where the names do not tell.
        vocabulary: Number of rows of the embedding.
        quantization: How its weights are quantised, e.g. ``GPTQ, 4 bits in groups of 128``; None where they are not.
    """

    repo: str
    revision: str | None
    commit: str | None
    architecture: str
    hidden_size: Count | None
    layers: Count | None
    vocabulary: Count | None
    quantization: str | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether it was an object in memory, which no name opens again."""
        return self.repo.startswith("memory:")

    @property
    def pinned(self) -> str:
        """What opens these very files again: its name at the commit that was read."""
        if self.file is not None:
            return f"hf://models/{self.repo}@{self.commit}/{self.file}"
        return f"{self.repo}@{self.commit}" if self.commit else self.repo


@dataclass(frozen=True, slots=True)
class PlaceboResult(Part):
    """The statistic where there is nothing to find; it should lie below its threshold.

    Attributes:
        trace: c of the placebo.
        threshold: The c that would be significant at 0.1 %.
        log10_p: At most 0.
        channels: Number of channels it was computed on.
    """

    trace: float
    threshold: float
    log10_p: Log10P
    channels: Count

    @property
    def is_significant(self) -> bool:
        """Whether p is below 0.1 %, as it should not be."""
        return self.log10_p <= PLACEBO_LOG10_P


@dataclass(frozen=True, slots=True)
class Placebos(Part):
    """Calibration of the embedding test (method: calibration).

    Attributes:
        re_paired: Tokens of one model paired with other tokens of the other.
        rotated: One model turned by a random rotation.
        privileged_basis_z: How far each model's axes stand out among all directions, reference and candidate.
    """

    re_paired: PlaceboResult
    rotated: PlaceboResult
    privileged_basis_z: tuple[float, float]


class LookResult(NamedTuple):
    """One look at the common tokens: how many were used, and log10 p corrected for all tests and looks."""

    rows: Count
    log10_p: Log10P


@dataclass(frozen=True, slots=True)
class PrintedAlgorithm1(Part):
    """MDIR's Algorithm 1 as it is printed, on all common tokens; no verdict rests on it.

    Attributes:
        common_tokens: Rows of the product.
        trace: The largest trace over all permutations.
        rank: Rank of the product. The paper asks for the width.
        width: Channels of the narrower embedding.
        log10_p: p by the paper's formula, d! exp(-trace^2 / 2), not corrected for anything else; None if the widths
            differ.
        axes_stand_out: Whether the axes of both embeddings stand out, so that neither is isotropic, as the paper's
            proof asks of one of them; None if that was not measured.
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
class MatrixResult(Part):
    """Algorithm 1 on one pair of matrices, the embeddings or the unembeddings (``lm_head``).

    Attributes:
        common_tokens: Tokens that both vocabularies hold.
        rows_used: Tokens used by the look that is reported.
        rank: Rank of the polar factor.
        trace: c, None where no matching could have been significant and none was solved.
        threshold: The c that would be significant at 0.1 %.
        normalized_trace: c over the number of channels compared.
        coverage: Share of channels that are significant one by one.
        matched_channels: Their number: entries of the polar factor significant at 1 % over all entries.
        off_match_channels: Channels that also resemble another one than their own; next to none in relatives.
        transformation: What these matrices themselves show; ``rotation`` where the layers showed it.
        scale: s of E' ~ s E P, None where nothing was found.
        view: How the rows were prepared.
        log10_p: Corrected for tests and looks.
        log10_p_trimmed: The same without the best n/16, n/4 and n/2 of the channels.
        placebo: Calibration on the same rows.
        looks: Every look.
        log10_p_signs: The sign test: p with one vote for each channel, its sign, where channels were compared in their
            own order; None else.
        numbering: How the numbers of the channels agree; None where an architecture gives them a meaning.
        settled_by: The step in which it was significant, with and without the best half of the channels; None: in none.
        widths: Channels of the reference's matrix and of the candidate's; 0 in reports of older schemas.
        channels: Channels of the reference that the last look was at; a screen of a wide model draws some.
        in_order_tested: Whether channels were also tested in their own order.
        rows_are_equal: Whether all rows that were looked at are equal in both models, number by number.
        channel_numbers_mean_something: Whether the architectures of both models give the number of a channel a meaning.
        cosine: Mean cosine of paired rows after the matching of channels, in [-1, 1]; None unless it is significant.
        printed: Algorithm 1 as the paper prints it; None unless all common tokens were read. Left out of JSON if None.
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
        """Whether channels were left out and the others keep their order; a permutation in name only."""
        numbers = self.numbering
        is_in_order = numbers is not None and numbers.in_order == numbers.pairs
        return is_in_order and self.transformation == Transformation.PERMUTATION

    @property
    def off_match_share(self) -> float:
        """Off-match channels per matched one; infinite where they were not counted."""
        if self.off_match_channels is None:
            return math.inf
        return self.off_match_channels / max(1, self.matched_channels or 0)

    @property
    def basis_z(self) -> tuple[float, float]:
        """How far the axes of either model stand out; 0 where that was not measured."""
        return (0.0, 0.0) if self.placebo is None else self.placebo.privileged_basis_z

    @property
    def both_privileged(self) -> bool:
        """Whether the axes of both models stand out, so that neither is rotation invariant."""
        return min(map(abs, self.basis_z)) > PRIVILEGED_Z


@dataclass(frozen=True, slots=True)
class NumberingResult(Part):
    """How the numbers of channels agree that are each other's best partner; partners are found without their numbers.

    Attributes:
        pairs: Channels that are each other's best partner.
        own_number: How many of them have the same number in both models.
        in_order: The most of them whose numbers go up together.
        log10_p: Corrected for all tests and looks: at most 1 / own_number!, or C(pairs, in_order) / in_order!.
        certain_share: Share of the channels that are partners in order and each significant by itself.
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
    """A layer of the candidate with its ancestor in the reference, counted from 0, and the log10 p of the pair."""

    reference: Count
    candidate: Count
    log10_p: float


@dataclass(frozen=True, slots=True)
class NeuronNumbers(Part):
    """The second witness: how many tested neurons have a partner of their own number, for pairs of layers.

    Partners are neurons of the two layers that resemble each other most, behind a rotation that was fitted on other
    neurons of the same layers. They are found without their numbers, first by gate and up, then separately by down.

    Attributes:
        tested: Neurons that were tested in each layer.
        fitted: Other neurons that a rotation of the residual stream was fitted on, for each pair of layers.
        reference_layers: Layer of the reference of each row of ``own_number``.
        candidate_layers: Layer of the candidate of each column.
        own_number: How many of the tested neurons have their own number, for each pair of layers.
        certain: How many of those resemble their partner more than the best of all pairs of random neurons would.
        matches: Pairs of layers in which three quarters of the tested neurons are certain by gate and up, or nine
            tenths have their own number, with p below alpha; if down was read, half of them also have their own number
            by down, and they are not idle.
        log10_p: log10 of p by gate and up, corrected for all pairs, tests and looks; 0 if ``is_searched``.
        own_number_by_down: The same as ``own_number`` by the columns of down, for pairs that agree by gate and up; None
            if down was not read.
        idle: Pairs whose neurons agree by gate and up and write next to nothing in one of the models.
        is_searched: Whether partners were looked for among all neurons of a layer first, because the numbers do not
            agree. Then the numbers bound no probability.
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

    @property
    def own_in_matches(self) -> int:
        """Tested neurons with their own number, in the layers that match."""
        return sum(self._cell(self.own_number, match) for match in self.matches)

    @property
    def is_witness(self) -> bool:
        """Whether at least one pair of layers matches by gate, up and down."""
        return bool(self.matches) and self.own_number_by_down is not None

    def _cell(self, counts: tuple[tuple[int, ...], ...], match: LayerPair) -> int:
        return counts[self.reference_layers.index(match.reference)][self.candidate_layers.index(match.candidate)]


@dataclass(frozen=True, slots=True)
class LayersResult(Part):
    """Algorithm 2: which layer of the candidate descends from which layer of the reference.

    Attributes:
        role: The matrix that stands for a layer.
        residual_map: What carried the reference's layers into the candidate's residual basis.
        fitted_on: Rows of what that map was fitted on; None where nothing was fitted.
        pattern: How the candidate's layers descend from the reference's.
        matches: Every candidate layer that has a significant ancestor, once, in the candidate's order; none where the
            map was not accepted, and none that is like its neighbours only.
        log10_p: Of the map, under any dependence between layers, corrected for every map that was to be tried.
        log10_p_fisher: Of all layers together by Fisher's sum, corrected likewise. It decides no verdict.
        related_layers_at_least: A lower bound on the number of related layers.
        off_match_share: Share of the layer pairs off the map that are significant.
        placebo_log10_p: Smallest p of a pair of layers where the residual channels are shuffled.
        reference_layers: Which layer each row of ``matrix`` is; not every layer of a hybrid is compared.
        candidate_layers: Which layer each column is.
        matrix: log10 p of every pair of layers.
        null: What the p-values rest on.
        is_supported: Whether the map stands by itself, or the analysed layers support it, as a fitted rotation asks.
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


@dataclass(frozen=True, slots=True)
class RowsFound(Part):
    """Rows matched one by one: whether any moved, and of how many the sign is turned."""

    moves: bool
    negative: Count


@dataclass(frozen=True, slots=True)
class NeuronsFound(Part):
    """Neurons, or channels of a state space, matched one by one."""

    moved_neurons: Count
    matched_neurons: Count


@dataclass(frozen=True, slots=True)
class HeadsFound(Part):
    """Heads matched: (reference head, candidate head), and what the fitted maps leave unexplained, relative."""

    heads: tuple[tuple[Count, Count], ...]
    residual: float


class ExpertOrigin(NamedTuple):
    """An expert of the candidate, the expert (or dense MLP) of the reference that it came from, and log10 p."""

    candidate: ExpertName
    reference: ExpertName
    log10_p: Log10P


@dataclass(frozen=True, slots=True)
class ExpertsFound(Part):
    """Where the experts of one layer came from; those without a significant origin by name."""

    experts: tuple[ExpertOrigin, ...]
    without_origin: tuple[ExpertName, ...]

    @property
    def n_experts(self) -> int:
        """Experts that were looked at."""
        return len(self.experts) + len(self.without_origin)


@dataclass(frozen=True, slots=True)
class ModuleResult(Part):
    """Algorithm 3: one test of one part of a matched pair of layers.

    Attributes:
        layer: The pair.
        role: The part.
        test: What was looked for.
        trace: The statistic; of experts that of the most significant pair.
        normalized_trace: Over its largest value.
        log10_p: Corrected for all tests of modules.
        scale: Factor between the two weights, None where none was fitted.
        found: The inner transformation, None where none was solved for.
    """

    layer: LayerPair
    role: ModuleRole
    test: ModuleTest
    trace: float
    normalized_trace: float
    log10_p: Log10P
    scale: float | None
    found: RowsFound | NeuronsFound | HeadsFound | ExpertsFound | None

    @property
    def is_significant(self) -> bool:
        """Whether p is below 0.1 %."""
        return self.log10_p <= PLACEBO_LOG10_P


@dataclass(frozen=True, slots=True)
class Exclusion(Part):
    """What a "no" excludes: copies under noise up to these strengths would have been found, 99 times of 100.

    Noise is independent and as large in every channel. Its strength is in units of the weights' own root mean square,
    of the embeddings after centring. None where that part was not compared.

    Attributes:
        embedding_noise: On the embeddings, the channels in any order; on the unembeddings where only those were
            compared.
        embedding_noise_in_order: The same, the channels where they were.
        layers_noise: On the layers, in the same residual basis or one that the embeddings show, the heads in any order.
        neurons_noise: On the neurons of a few layers, in their order, in whatever basis and under whatever embeddings.
    """

    embedding_noise: Share | None
    embedding_noise_in_order: Share | None
    layers_noise: Share | None
    neurons_noise: Share | None = None


@dataclass(frozen=True, slots=True)
class InputOutput(Part):
    """What was read.

    Attributes:
        bytes_read: Bytes fetched from the network or read from local files, tokenizers and configs included.
        bytes_from_cache: Bytes served by our own cache of ranges.
        bytes_of_weights: Stored size of the two checkpoints.
        requests: Number of HTTP requests; none for local files.
        files: Files touched, as ``repo@commit:path``.
    """

    bytes_read: Count
    bytes_from_cache: Count
    bytes_of_weights: Count
    requests: Count
    files: tuple[str, ...]

    @property
    def share_read(self) -> float:
        """Bytes read over the stored size of the weights; 0 where that is not known."""
        return self.bytes_read / self.bytes_of_weights if self.bytes_of_weights else 0.0
