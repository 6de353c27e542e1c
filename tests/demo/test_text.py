import pytest

from mdir_hf.demo import training
from mdir_hf.demo.training import read_corpus, train_byte_level_bpe, train_unigram
from mdir_hf.errors import InputError


@pytest.fixture(scope="module")
def corpus():
    return read_corpus(code_n_chars=300_000, prose_n_chars=300_000)


@pytest.mark.slow
def test_the_corpus_is_the_same_every_time(corpus):
    assert read_corpus(code_n_chars=300_000, prose_n_chars=300_000) == corpus


@pytest.mark.parametrize("kind", ["code", "prose"])
def test_held_out_text_comes_from_many_modules_and_is_not_learnt(corpus, kind):
    body = getattr(corpus, kind)
    learnt = {line for line in "".join(body.learnt).splitlines() if len(line) > 60}
    held_out = [[line for line in part.splitlines() if len(line) > 60] for part in body.held_out]

    assert 8 <= len(held_out) <= 16
    assert {len(part) for part in body.held_out} == {6000}
    for lines in held_out:
        # Licences, and docstrings of what several modules inherit, stand in more than one.
        assert len(learnt.intersection(lines)) <= len(lines) / 4


def test_a_python_without_its_sources_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(training.sysconfig, "get_path", lambda name: str(tmp_path))

    with pytest.raises(
        InputError, match=r"has 0 characters of source.*at least 500,000.*installed with its \.py files"
    ):
        read_corpus()


def test_byte_level_bpe_has_the_requested_size_and_loses_nothing(corpus):
    tokenizer = train_byte_level_bpe(corpus.prose.learnt[:1], vocabulary_size=500)

    assert tokenizer.get_vocab_size() == 500
    assert tokenizer.decode(tokenizer.encode("never seen: žluťoučký 🐎").ids) == "never seen: žluťoučký 🐎"


def test_unigram_writes_spaces_as_sentencepiece_does(corpus):
    tokenizer = train_unigram(corpus.prose.learnt[:1], vocabulary_size=500)

    assert tokenizer.get_vocab_size() == 500
    assert "▁the" in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer.encode("the value of the text").ids) == "the value of the text"
