from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from mdir_hf.demo.text import train_byte_level_bpe
from mdir_hf.demo.training import encode, mean_loss, seeded_single_thread, train


class Bigram(torch.nn.Module):
    """Logits that depend on the last token only, behind the call signature of a causal LM."""

    def __init__(self, vocabulary_size=16):
        super().__init__()
        self.table = torch.nn.Parameter(0.1 * torch.randn(vocabulary_size, vocabulary_size))
        self.gain = torch.nn.Parameter(torch.ones(vocabulary_size))
        self.batches = []

    def forward(self, input_ids, labels, use_cache):
        self.batches.append(input_ids)
        logits = self.table[input_ids[:, :-1]] * self.gain
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))


class Indifferent(Bigram):
    """A loss that no weight changes: what still moves is moved by weight decay alone."""

    def forward(self, input_ids, labels, use_cache):
        return SimpleNamespace(loss=0 * (self.table.sum() + self.gain.sum()))


TOKENS = torch.arange(4096) % 16  # after i comes i + 1


def trained(seed=0, **options):
    with seeded_single_thread(seed):
        model = Bigram()
        losses = train(model, TOKENS, sequence_length=32, **{"steps": 20, "learning_rate": 0.1, **options})
    return model, losses


def test_the_ids_of_all_texts_follow_each_other():
    tokenizer = train_byte_level_bpe(["abab", "cc"], vocabulary_size=260)

    ids = encode(tokenizer, ["abab", "cc"])

    assert ids.dtype == torch.int64
    assert tokenizer.decode(ids.tolist()) == "ababcc"


def test_training_learns_what_can_be_learnt():
    model, losses = trained(steps=100)

    assert losses[0] == pytest.approx(2.77, abs=0.2)  # ln 16: an untrained guess
    assert mean_loss(model, TOKENS, sequence_length=32) < 0.1


def test_training_twice_gives_the_same_weights_to_the_bit():
    (left, left_losses), (right, right_losses) = trained(), trained()

    assert left_losses == right_losses
    assert torch.equal(left.table, right.table)


def test_two_initialisations_see_the_same_batches_in_the_same_order():
    (left, _), (right, _) = trained(seed=0), trained(seed=1)

    assert not torch.equal(left.table, right.table)
    assert all(map(torch.equal, left.batches, right.batches))


def test_another_order_seed_gives_other_batches():
    (left, _), (right, _) = trained(order_seed=0), trained(order_seed=1)

    assert not torch.equal(left.batches[0], right.batches[0])


def test_every_step_is_reported_and_has_a_loss():
    calls = []

    _, losses = trained(steps=7, on_step=lambda: calls.append(None))

    assert len(calls) == len(losses) == 7


def test_matrices_decay_and_gains_do_not():
    model = Indifferent()
    before = model.table.detach().clone()

    train(model, TOKENS, steps=1, sequence_length=32, learning_rate=0.1)

    # One step at the peak rate 0.1 with decay 0.1 takes a hundredth off.
    torch.testing.assert_close(model.table.detach(), 0.99 * before)
    assert torch.equal(model.gain.detach(), torch.ones(16))


def test_the_rate_warms_up_to_its_peak_and_falls_to_a_tenth():
    model, sizes = Indifferent(), []

    def note():
        sizes.append(model.table.detach().norm().item())

    note()
    train(model, TOKENS, steps=100, sequence_length=32, learning_rate=0.1, on_step=note)

    shrinking = [1 - after / before for before, after in pairwise(sizes)]
    rates = [share / (0.1 * 0.1) for share in shrinking]  # share of the peak, from the decay that went with it
    assert rates[:5] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0], abs=1e-3
    )  # float32 norms: 1e-5 of what is divided by 1e-2
    assert rates[-1] == pytest.approx(0.1, abs=2e-3)
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_the_global_generator_and_the_number_of_threads_are_put_back():
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    with seeded_single_thread(3):
        assert torch.get_num_threads() == 1
        torch.randn(5)

    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_they_are_put_back_after_an_error_too():
    threads = torch.get_num_threads()

    with pytest.raises(KeyboardInterrupt), seeded_single_thread(3):
        raise KeyboardInterrupt

    assert torch.get_num_threads() == threads
