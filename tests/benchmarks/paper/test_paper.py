"""Parts of the paper's experiments that need no training."""

import math

import pytest
import torch

from benchmarks.paper.changed_tokenizer import finding
from benchmarks.paper.noise_real import add_noise
from benchmarks.paper.output import p_text
from tests.method.obfuscation import new_model


def test_p_is_ns_unless_it_is_below_the_level():
    assert p_text(-4750.2) == "10^-4750"
    assert p_text(-3.0).startswith("NS")
    assert p_text(0.0) == "NS"


def _look(tokens, log10_p, channels):
    return {
        "tokens": tokens,
        "log10_p_embedding": log10_p,
        "log10_p_own_order": log10_p,
        "verdict": "homologous",
        "channels": channels,
    }


def test_a_table_like_the_papers_is_described_as_such():
    looks = [_look(1000, -0.2, 3), _look(2000, -40.0, 40), _look(3000, -80.0, 64)]
    assert finding(64, looks) == (
        "As in the paper, the embeddings are not significant at first. They are significant from 2,000 tokens on. "
        "Most channels are matched with themselves from 2,000 tokens on, and all from 3,000 on. By its neurons, the "
        "model is homologous at 3 of 3 looks."
    )
    assert "never all of them" in finding(64, looks[:2])
    assert "At most 10 channels are matched with themselves" in finding(64, [looks[0], _look(2000, -40.0, 10)])


def test_a_table_unlike_the_papers_is_described_as_such():
    silent = [_look(1000, 0.0, 3), _look(2000, -9.9, 3)]
    assert finding(64, silent).startswith("**Unlike in the paper**, these embeddings are not significant after 2,000")
    assert "As in the paper" not in finding(64, [_look(1000, -40.0, 64)])


def test_noise_of_one_rms_leaves_a_cosine_of_seven_tenths():
    model = new_model(seed=0)
    noisy = add_noise(model, 1.0)
    x, y = (m.get_input_embeddings().weight.detach().flatten() for m in (model, noisy))
    assert float(torch.nn.functional.cosine_similarity(x, y, dim=0)) == pytest.approx(math.sqrt(0.5), abs=0.01)
