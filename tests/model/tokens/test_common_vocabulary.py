from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import Vocabulary, VocabularyKind, common_vocabulary
from mdir_hf.model.tokens.common import CommonVocabulary, RowSampler
from mdir_hf.model.tokens.tokens import TokenType, assemble


def vocabulary_of(rows: dict[bytes, int]) -> Vocabulary:
    tokens = [(row, text, TokenType.TEXT) for text, row in rows.items()]
    return assemble(tokens, kind=VocabularyKind.TIKTOKEN, files=("a.tiktoken",))


def numbered(n_tokens: int, start: int = 0) -> dict[bytes, int]:
    return {b"t%d" % token: start + token for token in range(n_tokens)}


def pair(reference: dict[bytes, int], candidate: dict[bytes, int], n_reference: int = 1000, n_candidate: int = 1000):
    return common_vocabulary(
        vocabulary_of(reference), vocabulary_of(candidate), n_reference_rows=n_reference, n_candidate_rows=n_candidate
    )


def test_rows_of_the_same_bytes_come_in_the_references_order():
    common = pair({b"c": 5, b"a": 2, b"x": 0}, {b"a": 7, b"c": 1, b"y": 2})
    assert common.reference_rows.tolist() == [2, 5]
    assert common.candidate_rows.tolist() == [7, 1]
    assert common.reference_rows.dtype == common.candidate_rows.dtype == np.int64
    assert len(common) == 2


def test_permuted_ids_are_all_found():
    order = np.random.default_rng(0).permutation(300)
    common = pair(numbered(300), {b"t%d" % token: int(row) for token, row in enumerate(order)})
    assert common.reference_rows.tolist() == list(range(300))
    assert common.candidate_rows.tolist() == order.tolist()


def test_stray_tokens_beyond_the_embedding_are_left_out_and_counted():
    common = pair(numbered(100), numbered(100), n_reference=98, n_candidate=95)
    assert common.reference_rows.tolist() == common.candidate_rows.tolist() == list(range(95))
    assert (common.n_reference_beyond, common.n_candidate_beyond) == (2, 5)


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_tokenizer_of_another_model_is_an_error_with_both_numbers(side: str):
    sizes = {"n_reference": 100, "n_candidate": 100, f"n_{side}": 60}
    with pytest.raises(
        VocabularyError,
        match=rf"a\.tiktoken: the tokenizer of the {side} does not match its embedding: the embedding has 60 rows, but "
        r"40 usable tokens are beyond them \(ids up to 99\)\..* subfolder",
    ):
        pair(numbered(100), numbered(100), **sizes)


def test_special_rows_beyond_the_embedding_do_no_harm():
    tokens = [(row, text, TokenType.TEXT) for text, row in numbered(10).items()]
    padded = assemble(
        [*tokens, *((row, b"<s>", TokenType.SPECIAL) for row in range(10, 500))],
        kind=VocabularyKind.TIKTOKEN,
        files=("a.tiktoken",),
    )
    assert common_vocabulary(padded, padded, n_reference_rows=10, n_candidate_rows=10).n_reference_beyond == 0


def test_left_out_doublets_are_in_no_pair():
    doubled = [(0, b"a", TokenType.TEXT), (1, b"b", TokenType.TEXT), (2, b"b", TokenType.TEXT)]
    reference = assemble(doubled, kind=VocabularyKind.PLAIN, files=("vocab.txt",))
    common = common_vocabulary(reference, vocabulary_of({b"a": 0, b"b": 1}), n_reference_rows=3, n_candidate_rows=2)
    assert common.reference_rows.tolist() == [0]


def test_a_matrix_of_fewer_rows_takes_the_tokens_that_it_has():
    common = pair(numbered(6), {b"t5": 0, b"t1": 1, b"t0": 2, b"t2": 9})
    assert common.within(1000, 1000) is common
    fewer = common.within(5, 9)
    assert fewer.reference_rows.tolist() == [0, 1]
    assert fewer.candidate_rows.tolist() == [2, 1]


# --- the planner of row windows: nested, spread, few requests, independent of the weights


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
    assert n_runs(ids[first], gap=1) == 8  # windows of 16 rows, no two of them adjacent
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
    # Rows of both models, including the rows between them. Windows of 16 rows, best for few tokens, read 118,000.
    assert n_read[1] < 40_000
    assert n_read[0] < 4000
