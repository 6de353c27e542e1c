from types import SimpleNamespace

import pytest
import torch

from mdir_hf.demo.training import mean_loss, seeded_single_thread, train


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


TOKENS = torch.arange(4096) % 16  # after i comes i + 1


def trained(seed=0, **options):
    with seeded_single_thread(seed):
        model = Bigram()
        losses = train(model, TOKENS, sequence_length=32, **{"steps": 20, "learning_rate": 0.1, **options})
    return model, losses


def test_training_learns_what_can_be_learnt():
    model, losses = trained(steps=100)

    assert losses[0] == pytest.approx(2.77, abs=0.2)  # ln 16: an untrained guess
    assert mean_loss(model, TOKENS, sequence_length=32) < 0.1


def test_training_twice_gives_the_same_weights_to_the_bit():
    (left, left_losses), (right, right_losses) = trained(), trained()

    assert left_losses == right_losses
    assert torch.equal(left.table, right.table)


def test_they_are_put_back_after_an_error_too():
    threads = torch.get_num_threads()

    with pytest.raises(KeyboardInterrupt), seeded_single_thread(3):
        raise KeyboardInterrupt

    assert torch.get_num_threads() == threads
