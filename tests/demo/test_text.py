import pytest

from mdir_hf.demo import text
from mdir_hf.demo.text import BEGIN, END, read_corpus, train_byte_level_bpe, train_unigram
from mdir_hf.errors import InputError


@pytest.fixture(scope="module")
def corpus():
    return read_corpus(code_n_chars=300_000, prose_n_chars=300_000)


def test_the_corpus_is_the_same_every_time(corpus):
    assert read_corpus(code_n_chars=300_000, prose_n_chars=300_000) == corpus


@pytest.mark.parametrize("kind", ["code", "prose"])
def test_as_many_characters_are_read_as_asked_for_and_the_last_module_whole(corpus, kind):
    n_chars = sum(map(len, getattr(corpus, kind)))

    assert 300_000 <= n_chars < 600_000  # no module of the standard library is larger than 300,000 characters


def test_shards_are_of_one_size_but_for_the_last(corpus):
    sizes = [len(shard) for shard in corpus.code]

    assert len(sizes) > 1
    assert set(sizes[:-1]) == {100_000}
    assert 0 < sizes[-1] <= 100_000


def test_code_is_whole_modules_and_prose_is_what_their_docstrings_say(corpus):
    n_functions_in_code, n_functions_in_prose = (
        sum(s.count("    def ") for s in k) for k in (corpus.code, corpus.prose)
    )

    # Docstrings show a few functions as examples.
    assert n_functions_in_code > 10 * n_functions_in_prose > 0


def test_a_python_without_its_sources_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: str(tmp_path))

    with pytest.raises(
        InputError, match=r"holds 0 characters of source.*at least 500,000.*installed with its \.py files"
    ):
        read_corpus()


def test_byte_level_bpe_has_the_size_asked_for_and_loses_nothing(corpus):
    tokenizer = train_byte_level_bpe(corpus.prose[:1], vocabulary_size=500)

    assert tokenizer.get_vocab_size() == 500
    assert tokenizer.decode(tokenizer.encode("never seen: žluťoučký 🐎").ids) == "never seen: žluťoučký 🐎"


def test_unigram_writes_spaces_as_sentencepiece_does(corpus):
    tokenizer = train_unigram(corpus.prose[:1], vocabulary_size=500)

    assert tokenizer.get_vocab_size() == 500
    assert "▁the" in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer.encode("the value of the text").ids) == "the value of the text"


@pytest.mark.parametrize("train", [train_byte_level_bpe, train_unigram])
def test_both_kinds_have_the_same_special_tokens(train, corpus):
    tokenizer = train(corpus.prose[:1], vocabulary_size=500)

    assert tokenizer.token_to_id(BEGIN) is not None
    assert tokenizer.token_to_id(END) is not None
