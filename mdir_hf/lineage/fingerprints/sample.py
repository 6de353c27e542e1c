"""Chooses the tokens that a survey reads of every model: in many vocabularies, and cheap to read.

Any choice of tokens that does not look at the weights keeps p valid. With one choice for all models, each model is read
once, whatever it is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from mdir_hf.model.tokens import Vocabulary

WINDOW_ROWS = 64
"""Tokens are taken in windows of this many neighbouring rows of the vocabulary that most models have, so that a request
brings many of them. Most vocabularies order tokens by frequency, so that this largely holds for the others too."""

LEAST_COMMON_SHARE = 0.5
"""Two vocabularies with less than this share of the tokens asked for in common get more, from those that they share."""


def choose_tokens(vocabularies: Sequence[Vocabulary], n_tokens: int, *, seed: int = 0) -> tuple[bytes, ...]:
    """Choose the tokens whose rows are read of every model.

    Args:
        vocabularies: That of each model; those of one tokenizer may be one object, and count once for every model.
        n_tokens: How many tokens each pair of models should have in common, where their vocabularies do.
        seed: Seed of the spread over the vocabulary.

    Returns:
        The tokens, in no particular order; more than ``n_tokens`` where some vocabularies share little with the rest,
        fewer where there are no more. Cost: O(tokens of all distinct vocabularies), O(pairs of those that share few).
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
        mine, other = distinct[first].row_of, distinct[second].row_of
        if sum(token in mine and token in other for token in chosen) >= enough:
            continue
        shared = Counter({token: holders[token] for token in mine if token in other and token not in chosen})
        chosen |= dict.fromkeys(_by_windows(distinct[first], shared, n_tokens, seed))
    if len(distinct) > 1:
        # Two models with one vocabulary share all of it, even if the others share little of it.
        for key in ranked:
            if n_models[key] > 1 and sum(token in distinct[key].row_of for token in chosen) < enough:
                rest = Counter({token: 1 for token in distinct[key].row_of if token not in chosen})
                chosen |= dict.fromkeys(_by_windows(distinct[key], rest, n_tokens, seed))
    return tuple(chosen)


def _by_windows(vocabulary: Vocabulary, holders: Counter[bytes], n_tokens: int, seed: int) -> Iterable[bytes]:
    """Take the tokens that most models hold, from the windows with the most of them; the seed breaks ties."""
    present = [token for token in vocabulary.row_of if holders[token] > 0]
    if not present:
        return ()
    counts = np.array([holders[token] for token in present], dtype=np.int64)
    rows = np.array([vocabulary.row_of[token] for token in present], dtype=np.int64)
    # The largest number of holders that still leaves enough tokens.
    least = np.sort(counts)[::-1][min(n_tokens, len(counts)) - 1]
    kept = counts >= least
    windows, inverse = np.unique(rows[kept] // WINDOW_ROWS, return_inverse=True)
    worth = np.bincount(inverse, weights=counts[kept].astype(np.float64))
    order = np.lexsort((np.random.default_rng(seed).permutation(len(windows)), -worth))
    place = np.empty(len(windows), dtype=np.int64)
    place[order] = np.arange(len(windows))
    by_window = np.lexsort((rows[kept], place[inverse]))[:n_tokens]
    members = np.flatnonzero(kept)[by_window]
    return [present[at] for at in members]
