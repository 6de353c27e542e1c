from types import SimpleNamespace

import pytest
import torch

from mdir_hf.demo import training
from mdir_hf.demo.training import (
    mean_loss,
    read_corpus,
    seeded_single_thread,
    train,
    train_byte_level_bpe,
    train_unigram,
)
from mdir_hf.errors import InputError


class Bigram(torch.nn.Module):
    """A model whose logits depend only on the last token, with the call signature of a causal LM."""

    def __init__(self, vocabulary_size=16):
        super().__init__()
        self.table = torch.nn.Parameter(0.1 * torch.randn(vocabulary_size, vocabulary_size))
        self.gain = torch.nn.Parameter(torch.ones(vocabulary_size))
        self.batches = []

    def forward(self, input_ids, labels, use_cache):
        self.batches.append(input_ids)
        logits = self.table[input_ids[:, :-1]] * self.gain
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))


TOKENS = torch.arange(4096) % 16  # after i comes i + 1


def trained(seed=0, **options):
    with seeded_single_thread(seed):
        model = Bigram()
        losses = train(model, TOKENS, batch=(8, 32), **{"steps": 20, "learning_rate": 0.1, **options})
    return model, losses


def test_training_learns_what_can_be_learnt():
    model, losses = trained(steps=100)

    assert losses[0] == pytest.approx(2.77, abs=0.2)  # ln 16: an untrained guess
    assert mean_loss(model, TOKENS, sequence_length=32) < 0.1


def test_training_twice_gives_the_same_weights_to_the_bit():
    (left, left_losses), (right, right_losses) = trained(), trained()

    assert left_losses == right_losses
    assert torch.equal(left.table, right.table)


def test_the_number_of_threads_is_restored_after_an_error():
    threads = torch.get_num_threads()

    with pytest.raises(KeyboardInterrupt), seeded_single_thread(3):
        raise KeyboardInterrupt

    assert torch.get_num_threads() == threads


# --- text


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
        # Several modules share licences and inherited docstrings.
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
