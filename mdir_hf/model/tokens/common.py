"""Pairs the tokens that two vocabularies share, as embedding rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens.tokens import Vocabulary

# Fine-tunes may add a few tokens to the tokenizer without growing the embedding, and still run. The tokenizer of
# another model is off by at least hundreds.
MAX_TOKENS_BEYOND = 16


@dataclass(frozen=True, eq=False)
class CommonVocabulary:
    """Pairs of embedding rows of two models that stand for the same bytes.

    Attributes:
        reference_rows: Row numbers in the reference, int64, strictly ascending, each below its number of rows.
        candidate_rows: Row numbers in the candidate, int64, aligned with ``reference_rows``; all different.
        n_reference_beyond: Usable tokens of the reference without a row in its embedding, which are left out.
        n_candidate_beyond: The same for the candidate.
        is_by_number: Whether rows were paired by number, because their tokens are unknown.
    """

    reference_rows: NDArray[np.int64]
    candidate_rows: NDArray[np.int64]
    n_reference_beyond: int
    n_candidate_beyond: int
    is_by_number: bool = False

    def __len__(self) -> int:
        return len(self.reference_rows)

    def within(self, n_reference_rows: int, n_candidate_rows: int) -> CommonVocabulary:
        """Leave out pairs beyond the rows of smaller matrices; an output head may lack added tokens."""
        is_within = (self.reference_rows < n_reference_rows) & (self.candidate_rows < n_candidate_rows)
        if is_within.all():
            return self
        return replace(
            self, reference_rows=self.reference_rows[is_within], candidate_rows=self.candidate_rows[is_within]
        )


def common_vocabulary(
    reference: Vocabulary, candidate: Vocabulary, *, n_reference_rows: int, n_candidate_rows: int
) -> CommonVocabulary:
    """Pair the rows of two embeddings by the bytes that they stand for. Takes about 0.02 s for 128,000 tokens.

    Args:
        reference: Vocabulary of the reference.
        candidate: Vocabulary of the candidate.
        n_reference_rows: Rows of the reference's embedding. More rows than tokens is usual (padding).
        n_candidate_rows: The same for the candidate.

    Returns:
        The pairs, sorted by reference row; possibly none.

    Raises:
        VocabularyError: If a vocabulary has more than ``MAX_TOKENS_BEYOND`` usable tokens beyond the rows of its
            embedding, so that it must belong to another model.
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
            "file belongs to another model, or the weights to another subfolder; name the one that fits",
            subject=vocabulary.files[0],
        )
    return n_beyond
