"""The tokens of a survey: common to as many models as possible, in few runs of rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.lineage.survey.sample import choose_tokens
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.model.tokens.tokens import VocabularyKind


def vocabulary(words) -> Vocabulary:
    row_of = {word.encode(): row for row, word in enumerate(words)}
    return Vocabulary(VocabularyKind.TIKTOKEN, row_of, len(words), 0, 0, 0, 0, {}, ())


def common(sample, *vocabularies) -> int:
    return sum(all(token in v.row_of for v in vocabularies) for token in sample)


def test_models_that_share_little_get_tokens_of_their_own():
    most = vocabulary([f"a{i}" for i in range(3000)])
    few = vocabulary([f"b{i}" for i in range(3000)] + ["a1"])
    fewer = vocabulary([f"b{i}" for i in range(100, 3000)] + ["a2"])
    sample = choose_tokens([most] * 5 + [few, fewer], 200)
    assert common(sample, most) >= 200
    assert common(sample, few, fewer) >= 200


def test_two_models_of_their_own_vocabulary_are_compared_by_it():
    most = vocabulary([f"a{i}" for i in range(3000)])
    own = vocabulary([f"b{i}" for i in range(3000)])
    assert common(choose_tokens([most] * 3 + [own] * 2, 200), own) >= 200


@given(
    vocabularies=st.lists(st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=40), min_size=1, max_size=4),
    n_tokens=st.integers(1, 60),
    seed=st.integers(0, 3),
)
def test_the_sample_is_known_reproducible_and_large_enough(vocabularies, n_tokens, seed):
    known = [vocabulary(sorted(words)) for words in vocabularies]
    sample = choose_tokens(known, n_tokens, seed=seed)
    assert sample == choose_tokens(known, n_tokens, seed=seed)
    assert len(set(sample)) == len(sample)
    assert all(any(token in v.row_of for v in known) for token in sample)
    if len(known) == 2:
        shared = len(known[0].row_of.keys() & known[1].row_of.keys())
        assert common(sample, *known) >= min(shared, n_tokens / 2)


def test_no_vocabulary_has_no_tokens():
    assert choose_tokens([], 10) == ()
