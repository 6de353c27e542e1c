"""Pair embedding rows of tokens that two vocabularies share, and choose which to read first.

The bound p is valid for any choice that is independent of the weights, so rows are read in windows of neighbouring
ids. Windows with more tokens in common come first; the seed shuffles ties.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens.tokens import Vocabulary

# Fine-tunes may add a few tokens to the tokenizer without enlarging the embedding, and still run. Another model's
# tokenizer usually exceeds the embedding by hundreds of tokens.
MAX_TOKENS_BEYOND = 16


@dataclass(frozen=True, eq=False)
class CommonVocabulary:
    """Pairs of embedding rows from two models whose tokens stand for the same bytes.

    Attributes:
        reference_rows: Row numbers in the reference, strictly ascending, int64.
        candidate_rows: Row numbers in the candidate, all distinct, int64.
        n_reference_beyond: Number of the reference's usable tokens that have no embedding row.
    """

    reference_rows: NDArray[np.int64]
    candidate_rows: NDArray[np.int64]
    n_reference_beyond: int
    n_candidate_beyond: int

    def __len__(self) -> int:
        return len(self.reference_rows)

    def within(self, n_reference_rows: int, n_candidate_rows: int) -> CommonVocabulary:
        """Keep only pairs whose rows exist in matrices with fewer rows, such as output heads."""
        is_within = (self.reference_rows < n_reference_rows) & (self.candidate_rows < n_candidate_rows)
        if is_within.all():
            return self
        return replace(
            self, reference_rows=self.reference_rows[is_within], candidate_rows=self.candidate_rows[is_within]
        )


def common_vocabulary(
    reference: Vocabulary, candidate: Vocabulary, *, n_reference_rows: int, n_candidate_rows: int
) -> CommonVocabulary:
    """Pair embedding rows whose tokens stand for the same bytes, ordered by the reference's rows.

    Raises:
        VocabularyError: If more than ``MAX_TOKENS_BEYOND`` tokens of a vocabulary have no embedding row. The vocabulary
            then probably belongs to another model.
    """
    n_reference_beyond = _beyond(reference, n_reference_rows, "reference")
    n_candidate_beyond = _beyond(candidate, n_candidate_rows, "candidate")
    row_in_candidate = candidate.row_of.get
    rows = np.fromiter(reference.row_of.values(), dtype=np.int64, count=reference.n_tokens)
    others = np.array([row_in_candidate(text, -1) for text in reference.row_of], dtype=np.int64)
    is_within = (others >= 0) & (rows < n_reference_rows) & (others < n_candidate_rows)
    rows, others = rows[is_within], others[is_within]
    order = np.argsort(rows)
    return CommonVocabulary(
        reference_rows=rows[order],
        candidate_rows=others[order],
        n_reference_beyond=n_reference_beyond,
        n_candidate_beyond=n_candidate_beyond,
    )


def _beyond(vocabulary: Vocabulary, n_rows: int, side: str) -> int:
    if vocabulary.n_rows <= n_rows:
        return 0
    n_beyond = sum(row >= n_rows for row in vocabulary.row_of.values())
    if n_beyond > MAX_TOKENS_BEYOND:
        raise VocabularyError(
            f"the tokenizer of the {side} does not match its embedding: the embedding has {n_rows} rows, but "
            f"{n_beyond} usable tokens are beyond them (ids up to {max(vocabulary.row_of.values())}). The tokenizer "
            "file belongs to another model, the weights to another subfolder, or they are one rank's slice; name "
            "the one that fits",
            subject=vocabulary.files[0],
        )
    return n_beyond


IntArray = npt.NDArray[np.int64]

REQUEST_COST_BYTES = 128 << 10
"""Overhead of a request, as the number of bytes that a 100 Mbit/s connection transfers in about 10 ms."""

LARGEST_RUN_BYTES = 128 << 10
"""Longest run of rows to read if the models share a tokenizer. Longer runs would save few requests."""

SMALL_GAP_BYTES = 16 << 10
"""Largest gap to read if the models share a tokenizer. Larger gaps would add up to most of a small embedding."""

WINDOW_ROWS = tuple(2**i for i in range(4, 14))

N_FINE_WINDOWS, N_COARSE_WINDOWS = 32, 16
"""Numbers of short and long windows if the models share a tokenizer. The first sample consists of short windows, spread
over the vocabulary. Reading 4096 rows of 14 kB then takes 46 requests rather than 256."""


class RowSampler:
    """Draws nested samples of the common tokens: each sample contains all smaller ones.

    Samples of ``n_first`` to ``n_last`` tokens are cheap to read. ``row_n_bytes`` is the stored size of a row in each
    embedding.

    Attributes:
        window_rows: Number of rows per window. If the tokenizer is shared, larger samples also use longer windows.
        max_gap_bytes: Largest gap between rows that is worth reading.
    """

    def __init__(
        self,
        common: CommonVocabulary,
        *,
        row_n_bytes: tuple[int, int],
        n_first: int = 256,
        n_last: int = 4096,
        seed: int = 0,
    ) -> None:
        self._reference = common.reference_rows
        self._candidate = common.candidate_rows
        if len(self._reference) and np.array_equal(self._reference, self._candidate):
            window = max(w for w in WINDOW_ROWS if w * max(row_n_bytes) <= LARGEST_RUN_BYTES or w == WINDOW_ROWS[0])
            # With small rows a single window would contain the whole first sample; keep it spread over the vocabulary.
            self.window_rows = max(WINDOW_ROWS[0], min(window, n_first // 4))
            self.max_gap_bytes = SMALL_GAP_BYTES
            self._rank_of_token = self._spread_ranks(self.window_rows, n_last, seed)
        else:
            # Short windows make the first sample cheap, which is enough for near copies. Long windows make the last one
            # cheap, which unrelated pairs always need; with short windows it took five times as many bytes.
            ranks = {w: self._ranks(w, seed) for w in WINDOW_ROWS}
            costs = {w: sum(self._cost(ranks[w], n, row_n_bytes) for n in (n_first, n_last)) for w in WINDOW_ROWS}
            self.window_rows = min(costs, key=lambda w: costs[w])
            self.max_gap_bytes = REQUEST_COST_BYTES
            self._rank_of_token = ranks[self.window_rows]

    def take(self, n_tokens: int) -> IntArray:
        """Return ascending positions in ``common`` of at least ``n_tokens`` tokens, or all. Windows are never split."""
        n_tokens = min(n_tokens, len(self._reference))
        if n_tokens <= 0:
            return np.zeros(0, dtype=np.int64)
        last_rank = np.partition(self._rank_of_token, n_tokens - 1)[n_tokens - 1]
        return np.flatnonzero(self._rank_of_token <= last_rank).astype(np.int64)

    def _spread_ranks(self, window: int, n_last: int, seed: int) -> IntArray:
        # The vocabulary is divided into long windows in random order. One short window of each of the first long ones
        # comes first, then the other long windows, then the rest of the first ones.
        per_coarse = -(-max(0, n_last - N_FINE_WINDOWS * window) // N_COARSE_WINDOWS)
        n_parts = 1
        while n_parts * window < per_coarse:
            n_parts *= 2
        rng = np.random.default_rng(seed)
        coarse = self._reference // (n_parts * window)
        part = self._reference // window % n_parts
        n_coarse = int(coarse.max()) + 1
        place = np.empty(n_coarse, dtype=np.int64)
        present = rng.permutation(np.unique(coarse))
        place[present] = np.arange(len(present))
        # In each long window, the short window that comes first is the one with a randomly drawn token, so it is not
        # empty.
        order = rng.permutation(len(self._reference))
        chosen = np.empty(n_coarse, dtype=np.int64)
        chosen[coarse[order]] = part[order]
        is_first = place[coarse] < N_FINE_WINDOWS
        is_left = is_first & (part != chosen[coarse])
        return np.where(is_left, len(present) + place[coarse], place[coarse])

    def _ranks(self, window: int, seed: int) -> IntArray:
        if not len(self._reference):
            return np.zeros(0, dtype=np.int64)
        n_windows = int(self._candidate.max()) // window + 1
        pair = (self._reference // window) * n_windows + self._candidate // window
        _, inverse, counts = np.unique(pair, return_inverse=True, return_counts=True)
        order = np.lexsort((np.random.default_rng(seed).permutation(len(counts)), -counts))
        rank = np.empty(len(counts), dtype=np.int64)
        rank[order] = np.arange(len(counts))
        return rank[inverse]

    def _cost(self, ranks: IntArray, n_tokens: int, row_n_bytes: tuple[int, int]) -> float:
        if not len(ranks):
            return 0.0
        last_rank = np.partition(ranks, min(n_tokens, len(ranks)) - 1)[min(n_tokens, len(ranks)) - 1]
        is_chosen = ranks <= last_rank
        cost = 0.0
        for rows, n_bytes in zip((self._reference, self._candidate), row_n_bytes, strict=True):
            used_rows = np.sort(rows[is_chosen])
            gaps = np.diff(used_rows) * n_bytes
            cost += float(np.minimum(gaps, REQUEST_COST_BYTES + n_bytes).sum()) + REQUEST_COST_BYTES + n_bytes
        return cost
