"""Framed models compute the same function as their stranger, and the counts detect copies."""

import pytest
import torch
import transformers

from benchmarks.evidence.framing import framing_section
from benchmarks.real.framing import arranging, copies, turning
from benchmarks.real.framing.counts import fresh_counts
from benchmarks.real.relatives import rebuilt
from benchmarks.zoo.stack import take_apart

WIDTH, N_NEURONS = 16, 12
SIZES = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2, "tie_word_embeddings": False}
LLAMA_SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": N_NEURONS,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GPT2_SIZES = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_inner": 24, "n_positions": 64, "resid_pdrop": 0.0}
IDS = (torch.arange(60), torch.arange(60))
TRICKS = {
    "without output": copies.without_output,
    "cancelling": copies.cancelling,
    "grouped": copies.grouped,
    "crossed": copies.crossed,
    "up alone": copies.up_alone,
    "down alone": copies.down_alone,
    "up and down": copies.up_and_down,
    "gate alone": copies.gate_alone,
}


def model_of(architecture, seed, **sizes):
    """A model with random gains and biases."""
    torch.manual_seed(seed)
    if architecture == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **GPT2_SIZES)).eval()
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **{**LLAMA_SIZES, **sizes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.3 * torch.rand_like(weight)
    return model


@torch.no_grad()
def assert_same_function(before, after, *, within=1e-3):
    ids = torch.arange(40).reshape(2, 20)
    torch.testing.assert_close(after(ids).logits, before(ids).logits, atol=within, rtol=within)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_rotated_stranger_computes_the_same(architecture):
    victim, stranger = (model_of(architecture, seed) for seed in (0, 1))
    stack, target = turning.folded(take_apart(stranger)), take_apart(victim)
    turned = turning.turned(stack, arranging.fitted_turn(target, stack, IDS, arranging.BOTH_ENDS))
    assert_same_function(stranger, rebuilt(stranger, turned))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_an_arranged_stranger_computes_the_same(architecture):
    victim, stranger = (model_of(architecture, seed) for seed in (0, 1))
    stack, target = turning.folded(take_apart(stranger)), take_apart(victim)
    plan = arranging.arranged(target, stack, IDS, arranging.EVERYTHING, rounds=2)
    stack = arranging.with_heads(target, turning.turned(arranging.with_neurons(stack, plan), plan.turn))
    assert_same_function(stranger, rebuilt(stranger, stack), within=1e-2)


def test_a_rotation_brings_embeddings_nearer():
    victim, stranger = (take_apart(model_of("llama", seed)) for seed in (0, 1))
    stack = turning.folded(stranger)
    rows = turning.standard(victim.embedding)
    before = (rows * turning.standard(stack.embedding)).sum()
    turned = turning.turned(stack, arranging.fitted_turn(victim, stack, IDS, arranging.TOKENS_ONLY))
    assert (rows * turning.standard(turned.embedding)).sum() > before + 5.0


def test_a_widened_stranger_computes_the_same():
    stranger = model_of("llama", 1)
    wide = turning.widened(turning.folded(take_apart(stranger)), 32)
    stranger.config.rms_norm_eps *= WIDTH / 32
    assert_same_function(stranger, rebuilt(stranger, wide))


@pytest.mark.parametrize("trick", TRICKS)
def test_copies_without_effect_keep_the_function(trick):
    victim, stranger = (model_of("llama", seed) for seed in (0, 1))
    stack, target = turning.folded(take_apart(stranger)), take_apart(victim)
    planted = copies.planted(target, stack, copies.Planted(trick, TRICKS[trick]), [(0, 0), (1, 1)])
    assert len(planted.blocks[0].up.weight) > N_NEURONS
    assert_same_function(stranger, rebuilt(stranger, planted))


def test_rows_in_dead_directions_keep_the_function():
    victim, stranger = model_of("llama", 0, hidden_size=32, head_dim=4), model_of("llama", 1)
    stack, target = turning.widened(turning.folded(take_apart(stranger)), 32), take_apart(victim)
    stranger.config.rms_norm_eps *= WIDTH / 32
    filled = copies.in_dead_directions(target, stack, [(0, 0), (1, 1)], n_live=WIDTH, size=3.0)
    assert_same_function(stranger, rebuilt(stranger, filled))


def test_unused_tokens_keep_the_function():
    stranger = model_of("llama", 1)
    larger = copies.with_unused_tokens(turning.folded(take_apart(stranger)), -0.5)
    made = rebuilt(stranger, larger)
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(made(ids).logits[..., :60], stranger(ids).logits, atol=1e-3, rtol=1e-3)


def test_the_counts_tell_a_copy_from_a_stranger():
    sizes = {"hidden_size": 64, "intermediate_size": 256}
    victim, stranger = (take_apart(model_of("llama", seed, **sizes)) for seed in (0, 1))
    copied = fresh_counts(victim, take_apart(model_of("llama", 0, **sizes)), [(0, 0)], n_samples=2)
    strange = fresh_counts(victim, stranger, [(0, 0)], n_samples=2)
    assert copied["smallest"]["reads_own"] == copied["smallest"]["writes_own"] == copied["tested"]
    assert strange["largest"]["reads_certain"] == 0


def test_the_section_names_each_false_positive():
    counts = {"largest": {"reads_own": 3, "reads_certain": 0, "writes_own": 4, "writes_certain": 0}}
    common = {"victim": "a", "stranger": "b", "related": False, "counts": counts}
    refused = {"verdict": "inconclusive", "reason": "embeddings_only", "log10_p": 0.0}
    accused = {"verdict": "homologous", "reason": None, "log10_p": -99.0}
    rows = [
        {**common, "name": "turned", "done": "turned", "copied": "nothing", "auto": refused, "layers": refused},
        {**common, "name": "dead", "done": "asleep", "copied": "gate", "auto": accused, "layers": refused},
    ]
    text = framing_section({"framing": rows}, {})
    assert "None of the 1 models is called `homologous`" in text
    assert "1 of 1 models is called `homologous`: asleep" in text
