from __future__ import annotations

import numpy as np
import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import Vocabulary, VocabularyKind, common_vocabulary
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
