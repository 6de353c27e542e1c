"""Choose the tokens that a survey reads from every model: present in many vocabularies, and cheap to read.

p is valid for any choice of tokens that does not depend on the weights. Using one choice for all models means that each
model is read only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from mdir_hf.model.tokens import Vocabulary

WINDOW_ROWS = 64
"""Tokens are taken in windows of this many adjacent rows of the most common vocabulary, so that one request returns
many of them. Most vocabularies order tokens by frequency, so this largely works for the others too."""

LEAST_COMMON_SHARE = 0.5
"""Pairs of vocabularies with less than this share of the requested tokens in common get additional tokens from those
that they share."""


def choose_tokens(vocabularies: Sequence[Vocabulary], n_tokens: int, *, seed: int = 0) -> tuple[bytes, ...]:
    """Choose the tokens whose rows are read from every model.

    Args:
        vocabularies: Vocabulary of each model. Equal vocabularies may be one object; each counts once per model.
        n_tokens: Number of tokens that each pair of models should have in common, if their vocabularies allow it.
        seed: Seed for spreading the choice over the vocabulary.

    Returns:
        The tokens, in arbitrary order. More than ``n_tokens`` if some vocabularies share little with the rest, fewer if
        there are no more. Cost: O(tokens of all distinct vocabularies), O(pairs that share few tokens).
    """
    distinct: dict[int, Vocabulary] = {}
    n_models: Counter[int] = Counter()
    for vocabulary in vocabularies:
        same = (k for k, known in distinct.items() if known is vocabulary or known.row_of == vocabulary.row_of)
        key = next(same, None)
        if key is None:
            key = len(distinct)
            distinct[key] = vocabulary
        n_models[key] += 1
    if not distinct:
        return ()
    holders: Counter[bytes] = Counter()
    for key, vocabulary in distinct.items():
        for token in vocabulary.row_of:
            holders[token] += n_models[key]
    ranked = [key for key, _ in n_models.most_common()]
    chosen = dict.fromkeys(_by_windows(distinct[ranked[0]], holders, n_tokens, seed))
    enough = LEAST_COMMON_SHARE * n_tokens
    for first, second in combinations(ranked, 2):
        first_rows, second_rows = distinct[first].row_of, distinct[second].row_of
        if sum(token in first_rows and token in second_rows for token in chosen) >= enough:
            continue
        shared = Counter(
            {token: holders[token] for token in first_rows if token in second_rows and token not in chosen}
        )
        chosen |= dict.fromkeys(_by_windows(distinct[first], shared, n_tokens, seed))
    if len(distinct) > 1:
        # Two models with the same vocabulary share all of it, even if other models share little of it.
        for key in ranked:
            if n_models[key] > 1 and sum(token in distinct[key].row_of for token in chosen) < enough:
                rest = Counter({token: 1 for token in distinct[key].row_of if token not in chosen})
                chosen |= dict.fromkeys(_by_windows(distinct[key], rest, n_tokens, seed))
    return tuple(chosen)


def _by_windows(vocabulary: Vocabulary, holders: Counter[bytes], n_tokens: int, seed: int) -> Iterable[bytes]:
    """Take the tokens in most vocabularies, from the windows with most of them; the seed breaks ties."""
    present = [token for token in vocabulary.row_of if holders[token] > 0]
    if not present:
        return ()
    counts = np.array([holders[token] for token in present], dtype=np.int64)
    rows = np.array([vocabulary.row_of[token] for token in present], dtype=np.int64)
    # The largest number of holders that still leaves enough tokens.
    least = np.sort(counts)[::-1][min(n_tokens, len(counts)) - 1]
    is_common = counts >= least
    windows, inverse = np.unique(rows[is_common] // WINDOW_ROWS, return_inverse=True)
    worth = np.bincount(inverse, weights=counts[is_common].astype(np.float64))
    order = np.lexsort((np.random.default_rng(seed).permutation(len(windows)), -worth))
    place = np.empty(len(windows), dtype=np.int64)
    place[order] = np.arange(len(windows))
    by_window = np.lexsort((rows[is_common], place[inverse]))[:n_tokens]
    members = np.flatnonzero(is_common)[by_window]
    return [present[at] for at in members]
