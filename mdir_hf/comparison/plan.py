"""Pair tokens, choose the matrices to compare, and plan reads and memory from file headers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from mdir_hf.comparison.caveats import ROWS_PAIRED_BY_NUMBER, VOCABULARY_AS_ASKED
from mdir_hf.comparison.layer_weights import layers_with, n_neurons
from mdir_hf.comparison.neuron_reading import planned_n_bytes
from mdir_hf.comparison.read_bound import bytes_of_blocks, bytes_of_layer_map, bytes_of_looks, bytes_of_neurons
from mdir_hf.comparison.reading import rows_of_a_read
from mdir_hf.comparison.row_screen import representatives
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.stacks import expert_sets, has_mixture
from mdir_hf.errors import AnatomyError, MemoryBudgetError, UnsupportedFormatError
from mdir_hf.model.comparable import Comparable, PlacedTensors, head_of, matrix_spec, n_rows, vocabularies_of
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.roles import WeightPart
from mdir_hf.model.tokens import CommonVocabulary, common_vocabulary
from mdir_hf.model.tokens.common import RowSampler
from mdir_hf.report import Level, n_bytes_text
from mdir_hf.report.words import UNLESS_IN_ANOTHER_BASIS, UNLESS_ROTATED, correlation_text, range_text

FIRST_LOOK_ROWS = (64, 512)
FIRST_LOOK_VALUES = 1 << 19
"""Number of rows times width in the first look: 512 rows for small models (up to width 1024), and 128 at width 4096.
Near copies do not need more rows (docs/method/rows.md, "Looks"), and each row slows down a look at a wide model."""

LAST_LOOK_ROWS = 4096
"""Number of rows in the last look; models wider than this use one row per channel. That is enough to find a copy with
noise eight times as strong as its weights (docs/method/rows.md, "Looks")."""

WIDEST_WHOLE = 8192
"""Maximum width at which the last look uses one row per channel. A 16384 x 16384 polar factor takes an hour on one
core."""

KEPT_BYTES = 64 << 20
"""If a full test is planned and the common rows of each model take at most this many bytes in float32, they are read at
once. Reading the remainder later would repeat the sampled runs."""

BASE_MEMORY_BYTES = 420 << 20
"""Memory for Python, torch, two vocabularies of 128,000 tokens, and the names of 90,000 tensors (measured)."""

N_SQUARES_OF_FULL_TEST = 9
"""Number of float32 n x n matrices in memory at the peak of a full test: the cross product M, 6.4 more for its SVD
(measured), and a block of rows."""


MatrixPair = tuple[WeightPart, WeightPart]
"""A matrix of the reference, and the corresponding matrix of the candidate."""

NO_TOKENS = CommonVocabulary(np.arange(0), np.arange(0), 0, 0, is_by_number=False)


FULL_TEST_BYTES = 256 << 20
"""Level ``layers`` compares all common tokens if their rows in both embeddings take at most this many bytes. The
embedding of Llama-3.1-8B takes 1.05 GB, whereas comparing the layers of two such models reads only 0.4 GB."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Planned reads of a comparison: one pair of matrices in detail, and bounds on the total.

    Attributes:
        look_rows: Number of rows in each look of the screen, doubling each time.
        screen_bytes: Bytes read by the end of the first look and of the last look, excluding gaps between rows.
        full_bytes: Bytes read by a full test.
        peak_memory_bytes: Estimated peak memory of the whole comparison.
        runs_full_test: Whether all common tokens are compared regardless of the first looks.
        excluded_noise: Strongest noise at which the embeddings would reveal a copy, in units of the weights' RMS; 0 if
            not computed.
        excluded_layers_noise: Strongest noise at which the layers would reveal a copy, or None.
        matrix: ``embedding``, ``unembedding``, or ``layer``.
        opening_bytes: Bytes of both models' headers, configs and tokenizers.
        neuron_bytes: Estimated bytes of the first neurons to compare.
        most_bytes: Upper bound on bytes read after opening; None if unknown.
    """

    reference: TensorSpec
    candidate: TensorSpec
    common_tokens: int
    look_rows: tuple[int, ...]
    screen_bytes: tuple[int, int]
    full_bytes: int
    bytes_of_weights: int
    peak_memory_bytes: int
    level: Level
    runs_full_test: bool
    excluded_noise: float = 0.0
    excluded_layers_noise: float | None = None
    matrix: str = "embedding"
    opening_bytes: int = 0
    neuron_bytes: int = 0
    most_bytes: int | None = None

    @property
    def n_bytes(self) -> tuple[int, int]:
        """Minimum and maximum bytes read."""
        least = self.full_bytes if self.runs_full_test else self.screen_bytes[0]
        most = self.most_bytes
        if most is None:
            of_looks = {Level.SCREEN: self.screen_bytes[1], Level.EMBEDDING: self.full_bytes}
            most = of_looks.get(self.level, self.bytes_of_weights + self.screen_bytes[1])
        if self.level not in (Level.SCREEN, Level.EMBEDDING):
            least += self.neuron_bytes
            most = max(most, least)
        return self.opening_bytes + least, self.opening_bytes + most

    @property
    def row_n_bytes(self) -> tuple[int, int]:
        """Stored bytes per row of each matrix."""
        return self.reference.n_bytes // self.reference.shape[0], self.candidate.n_bytes // self.candidate.shape[0]

    @property
    def n_looks(self) -> int:
        """Maximum number of looks at a matrix."""
        return len(self.look_rows) + self.runs_full_test

    @property
    def is_read_at_once(self) -> bool:
        """Whether the screen reads all rows that a full test needs."""
        width = max(self.reference.shape[1], self.candidate.shape[1])
        return self.runs_full_test and 4 * self.common_tokens * width <= KEPT_BYTES

    def at_once(self) -> ReadPlan:
        """Return a plan with only the last look, for a second matrix."""
        return replace(self, look_rows=self.look_rows[-1:], screen_bytes=(self.screen_bytes[1],) * 2)

    def __str__(self) -> str:
        def matrix(spec: TensorSpec) -> str:
            return f"{spec.name} {' x '.join(map(str, spec.shape))} {spec.dtype}"

        first, last = (n_bytes_text(n) for n in self.screen_bytes)
        full = f", the full test {n_bytes_text(self.full_bytes)}" if self.runs_full_test else ""
        if self.level.may_read_layers:
            full += ", the layers "
            full += _of_layers(self.level)
        noise = self.excluded_layers_noise
        by_layers = "" if not noise else f", by its layers from {correlation_text(noise)} on"
        opening = f"headers and tokenizers have {n_bytes_text(self.opening_bytes)}; " if self.opening_bytes else ""
        neurons = f", a few neurons {n_bytes_text(self.neuron_bytes)}" if self.neuron_bytes else ""
        return (
            f"plan: {matrix(self.reference)} against {matrix(self.candidate)}, {self.common_tokens} common tokens\n"
            f"      {opening}the screen reads {range_text(first, last)}{neurons}{full}, of "
            f"{n_bytes_text(self.bytes_of_weights)} of weights; "
            f"peak memory about {n_bytes_text(self.peak_memory_bytes)}\n"
            f"      matched weights would be found by the {self.matrix}s if they correlate by "
            f"{correlation_text(self.excluded_noise)} or more{by_layers},\n"
            f"      {UNLESS_IN_ANOTHER_BASIS if noise else UNLESS_ROTATED}"
        )


def _of_layers(level: Level) -> str:
    if level.tests_whole_layers:
        return "the rest, whose tests take about 4 s a layer at width 576, 50 s at 1,024 and 7 minutes at 2,048"
    if level.analyses_all_layers:
        return "64 rows of each projection, and more of those that moved"
    return "more if none of that is significant"


def make_plan(
    reference: TensorSpec,
    candidate: TensorSpec,
    *,
    common_tokens: int,
    bytes_of_weights: int,
    settings: Settings,
    matrix: str = "embedding",
    n_neurons: int = 0,
) -> ReadPlan:
    """Plan the reads of two matrices ``(V, n)``; ``n_neurons`` is the wider MLP's width."""
    level = settings.level
    row_n_bytes = sum(spec.n_bytes // spec.shape[0] for spec in (reference, candidate))
    full_bytes = common_tokens * row_n_bytes
    is_small = level is Level.LAYERS and matrix == "embedding" and full_bytes <= FULL_TEST_BYTES
    runs_full_test = level.runs_full_test or is_small
    widths = (reference.shape[1], candidate.shape[1])
    n_channels = max(widths)
    last = min(LAST_LOOK_ROWS if n_channels > WIDEST_WHOLE else max(LAST_LOOK_ROWS, n_channels), common_tokens)
    look_rows = [min(first_look_rows(max(widths)), last)]
    while look_rows[-1] < last:
        look_rows.append(min(2 * look_rows[-1], last))
    if runs_full_test:
        look_rows = look_rows[-1:]  # one look gives the means, and an early result is not needed
    n_wide = max(widths)
    # The rows of the last look stay in memory as stored. A look needs a second copy in float64 or float32, and a few
    # matrices of the polar factor's size. A full test needs M, LAPACK's copy of it, its factors and the workspace.
    look_bytes = 8 * last * sum(widths) + 4 * 4 * widths[0] * widths[1]
    squares_bytes = 4 * N_SQUARES_OF_FULL_TEST * n_wide * n_wide if runs_full_test else 0
    memory = BASE_MEMORY_BYTES + last * row_n_bytes + max(look_bytes, squares_bytes)
    if level.tests_whole_layers:
        # The polar factor of an MLP, its absolute values and the assignment's copy, and the layer's weights twice.
        memory += 8 * 3 * n_neurons * n_neurons + 8 * 2 * 4 * n_neurons * n_wide
    plan = ReadPlan(
        reference=reference,
        candidate=candidate,
        common_tokens=common_tokens,
        look_rows=tuple(look_rows),
        screen_bytes=(look_rows[0] * row_n_bytes, look_rows[-1] * row_n_bytes),
        full_bytes=full_bytes,
        bytes_of_weights=bytes_of_weights,
        peak_memory_bytes=memory,
        level=level,
        runs_full_test=runs_full_test,
        matrix=matrix,
    )
    # The rows as stored, and two reads in progress in float32.
    held_bytes = common_tokens * row_n_bytes + 2 * KEPT_BYTES if plan.is_read_at_once else 0
    return replace(plan, peak_memory_bytes=memory + held_bytes)


def first_look_rows(width: int) -> int:
    """Return the number of rows in the first look at matrices of this width."""
    least, most = FIRST_LOOK_ROWS
    return max(least, min(most, FIRST_LOOK_VALUES // width))


def row_sampler(plan: ReadPlan, common: CommonVocabulary, *, seed: int) -> RowSampler:
    """Return the sampler that chooses the rows of each look."""
    return RowSampler(common, row_n_bytes=plan.row_n_bytes, n_last=plan.look_rows[-1], seed=seed)


def with_bound(
    plan: ReadPlan, reference: Comparable, candidate: Comparable, common: CommonVocabulary, sampler: RowSampler
) -> ReadPlan:
    """Add an upper bound on all bytes that the comparison reads."""
    sides = (common.reference_rows, common.candidate_rows)
    if plan.is_read_at_once:
        n_bytes = bytes_of_blocks(sides, plan.row_n_bytes, max(1, len(common)))
    else:
        n_bytes = bytes_of_looks(common, sampler, plan.row_n_bytes, plan.look_rows)
        if plan.runs_full_test:
            remaining_rows = np.setdiff1d(np.arange(len(common)), sampler.take(plan.look_rows[-1]), assume_unique=True)
            n_rows = rows_of_a_read(max(plan.reference.shape[1], plan.candidate.shape[1]))
            n_bytes += bytes_of_blocks([rows[remaining_rows] for rows in sides], plan.row_n_bytes, n_rows)
    level, models = plan.level, (reference, candidate)
    n_bytes += sum(bytes_of_neurons(model, every=level.may_read_layers) for model in models)
    if level.may_read_layers:  # experts and other stacks come last
        parts: list[PlacedTensors] = [part for model in models for part in getattr(model, "other_stacks", ())]
        if has_mixture(models):
            parts += [part for model in models for part in expert_sets(model)]
        n_bytes += sum(bytes_of_neurons(part, every=True) for part in parts)
    if level.analyses_all_layers:  # the layer map and the table of projections, then all tests of matched layers
        n_bytes += plan.bytes_of_weights * (2 + level.tests_whole_layers)
    elif level.may_read_layers:
        n_bytes += bytes_of_layer_map(models, representatives(*models))
    elif plan.runs_full_test and "unembedding" in matrix_pairs(*models, level):
        n_bytes += 2 * sum(spec.n_bytes for spec in (plan.reference, plan.candidate))
    return replace(plan, most_bytes=n_bytes)


def check_memory(plan: ReadPlan, max_memory_bytes: int | None) -> None:
    """Reject a comparison that does not fit in memory. None allows all of the machine's memory.

    Raises:
        MemoryBudgetError: If the estimate exceeds the limit.
    """
    allowed = max_memory_bytes if max_memory_bytes is not None else _machine_memory_bytes()
    if allowed is not None and plan.peak_memory_bytes > allowed:
        raise MemoryBudgetError(
            f"comparing {plan.reference.name} {plan.reference.shape} with {plan.candidate.name} {plan.candidate.shape} "
            f"needs about {n_bytes_text(plan.peak_memory_bytes)} of memory and {n_bytes_text(allowed)} are allowed; "
            "use level 'screen', or a machine with more memory"
        )


def _machine_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return None


def common_tokens(reference: Comparable, candidate: Comparable) -> tuple[CommonVocabulary, tuple[str, ...]]:
    """Pair the models' rows by token, or by number if a vocabulary is unknown. Also return caveats."""
    models = (reference, candidate)
    caveats = tuple(
        VOCABULARY_AS_ASKED.format(model=model.label, place=model.vocabulary_from)
        for model in models
        if model.vocabulary_from is not None
    )
    vocabularies = vocabularies_of(reference, candidate)
    rows_of_models = (n_rows(reference), n_rows(candidate))
    if vocabularies[0] is not None and vocabularies[1] is not None:
        common = common_vocabulary(
            vocabularies[0], vocabularies[1], n_reference_rows=rows_of_models[0], n_candidate_rows=rows_of_models[1]
        )
        return common, caveats
    without = " and ".join(model.label for model, v in zip(models, vocabularies, strict=True) if v is None)
    vocabulary = next((v for v in vocabularies if v is not None), None)
    n_common = min(rows_of_models)
    if vocabulary is None:
        rows = np.arange(n_common, dtype=np.int64)
    else:
        rows = np.array(sorted(row for row in vocabulary.row_of.values() if row < n_common), dtype=np.int64)
    by_number = ROWS_PAIRED_BY_NUMBER.format(models=without)
    return CommonVocabulary(rows, rows, 0, 0, is_by_number=True), (*caveats, by_number)


def plan_comparison(reference: Comparable, candidate: Comparable, settings: Settings) -> ReadPlan:
    """Plan a comparison from tokenizers and file headers.

    Raises:
        AnatomyError: If the models have no matrix in common.
    """
    pairs = matrix_pairs(reference, candidate, settings.level)
    name, pair = next(iter(pairs.items()), ("layer", None))
    common = NO_TOKENS if pair is None else common_tokens(reference, candidate)[0]
    pair = pair or _first_of_layers(reference, candidate)
    plan = plan_matrix(name, reference, candidate, pair, common, settings)
    common = common.within(plan.reference.shape[0], plan.candidate.shape[0])
    return with_bound(plan, reference, candidate, common, row_sampler(plan, common, seed=settings.seed))


def plan_matrix(
    name: str,
    reference: Comparable,
    candidate: Comparable,
    pair: MatrixPair,
    common: CommonVocabulary,
    settings: Settings,
) -> ReadPlan:
    """Plan the reads of one pair of matrices; ``name`` is ``embedding``, ``unembedding`` or ``layer``."""
    level = settings.level
    plan = make_plan(
        matrix_spec(reference, pair[0]),
        matrix_spec(candidate, pair[1]),
        common_tokens=len(common),
        bytes_of_weights=reference.tensors.n_bytes + candidate.tensors.n_bytes,
        settings=settings,
        matrix=name,
        n_neurons=max(n_neurons(reference), n_neurons(candidate)) if level.tests_whole_layers else 0,
    )
    return replace(plan, neuron_bytes=_neuron_bytes(reference) + _neuron_bytes(candidate))


def _neuron_bytes(model: Comparable) -> int:
    try:
        return planned_n_bytes(model)
    except (AnatomyError, UnsupportedFormatError):
        return 0


def matrix_pairs(reference: Comparable, candidate: Comparable, level: Level) -> dict[str, MatrixPair]:
    """Return the matrices to compare, keyed by name: embeddings, plus unembeddings if they are tested separately.

    If either model has no embedding, the unembeddings are compared, even if they are tied.
    """
    models = (reference, candidate)
    first, second = (model.anatomy.embedding for model in models)
    if first is None or second is None:
        heads = (head_of(reference), head_of(candidate))
        return {} if heads[0] is None or heads[1] is None else {"unembedding": (heads[0], heads[1])}
    pairs = {"embedding": (first, second)}
    # A tied head repeats the embedding. If both models have one, the heads are not an independent test.
    is_independent = not all(map(_has_tied_head, models, (first, second)))
    first, second = (model.anatomy.unembedding for model in models)
    if not level.is_screen_only and first is not None and second is not None and is_independent:
        pairs["unembedding"] = (first, second)
    return pairs


def _first_of_layers(reference: Comparable, candidate: Comparable) -> MatrixPair:
    for role in representatives(reference, candidate):
        parts = [model.anatomy.layers[layers_with(model, role)[0]].parts.get(role) for model in (reference, candidate)]
        if isinstance(parts[0], WeightPart) and isinstance(parts[1], WeightPart):
            return parts[0], parts[1]
    raise AnatomyError(
        f"{reference.label} and {candidate.label} have no matrix in common: one has no embedding, and neither heads "
        "nor layers of both can be compared"
    )


def _has_tied_head(model: Comparable, embedding: WeightPart) -> bool:
    """Return whether the head is the embedding, according to the config or the file."""
    anatomy = model.anatomy
    if anatomy.declares_tied or anatomy.unembedding is None:
        return True
    # torch.save writes tied tensors once; safetensors cannot.
    of_embedding, of_head = (model.tensors.spec(part.tensor) for part in (embedding, anatomy.unembedding))
    return (of_embedding.path, of_embedding.start, of_embedding.stop) == (of_head.path, of_head.start, of_head.stop)
