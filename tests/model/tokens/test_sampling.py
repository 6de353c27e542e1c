"""The planner of row windows: nested, spread, few requests, blind to the weights."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.model.tokens.common import CommonVocabulary, RowSampler


def common(reference: np.ndarray, candidate: np.ndarray) -> CommonVocabulary:
    reference, candidate = np.asarray(reference, dtype=np.int64), np.asarray(candidate, dtype=np.int64)
    return CommonVocabulary(reference, candidate, 0, 0)


def n_runs(rows: np.ndarray, gap: int) -> int:
    return 1 + int((np.diff(np.sort(rows)) > gap).sum())


@given(
    pairs=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 700)), min_size=1, max_size=300),
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    seed=st.integers(0, 5),
)
def test_larger_samples_hold_the_smaller_ones_and_are_large_enough(pairs, sizes, seed):
    rows = dict(pairs)
    reference = np.array(sorted(rows))
    candidate = np.array([rows[r] for r in reference])
    sampler = RowSampler(common(reference, candidate), row_n_bytes=(512, 256), seed=seed)
    small, large = (sampler.take(n) for n in sorted(sizes))
    assert set(small) <= set(large)
    assert len(small) >= min(min(sizes), len(reference))
    assert np.array_equal(np.sort(large), large)
    assert len(np.unique(large)) == len(large)


def test_with_one_tokenizer_few_spread_runs_cover_the_sample():
    ids = np.arange(128_000)
    sampler = RowSampler(common(ids, ids), row_n_bytes=(8192, 8192), seed=3)
    taken = sampler.take(512)
    assert len(taken) == 512
    assert n_runs(ids[taken], gap=1) <= 32  # 16 rows of 8 kB make a request of 128 kB
    assert ids[taken].max() - ids[taken].min() > 64_000


def test_with_one_tokenizer_a_large_sample_has_longer_runs():
    ids = np.arange(129_280)
    sampler = RowSampler(common(ids, ids), row_n_bytes=(14_336, 14_336), seed=3)
    first, last = sampler.take(128), sampler.take(4096)
    assert len(first) == 128
    assert n_runs(ids[first], gap=1) == 8  # windows of 16 rows, no two of them neighbours
    assert ids[first].max() - ids[first].min() > 64_000
    assert 4096 <= len(last) < 4096 + 256
    assert n_runs(ids[last], gap=1) <= 48
    assert len(sampler.take(len(ids))) == len(ids)


def test_with_two_tokenizers_little_is_read_between_rows():
    rng = np.random.default_rng(0)
    reference = np.sort(rng.choice(150_000, 40_000, replace=False))
    candidate = np.argsort(np.argsort(reference * np.exp(rng.normal(0, 0.7, 40_000))))
    sampler = RowSampler(common(reference, candidate), row_n_bytes=(2048, 2048), n_first=256, n_last=4096)
    n_read = []
    for n_tokens in (256, 4096):
        taken = sampler.take(n_tokens)
        gaps = [np.diff(np.sort(rows)) for rows in (reference[taken], candidate[taken])]
        n_read.append(sum(1 + int(gap[gap <= 64].sum()) + int((gap > 64).sum()) for gap in gaps))
    # Rows of both models, with those between them. Windows of 16 rows, the best for few tokens, read 118,000.
    assert n_read[1] < 40_000
    assert n_read[0] < 4000
