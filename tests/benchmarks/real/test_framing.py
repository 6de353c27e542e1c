"""Framed models compute the same function as their stranger, and the counts detect copies."""

import pytest
import torch
import transformers

from benchmarks.evidence.framing import framing_section
from benchmarks.real.framing import arranging, copies, turning
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
    "up and down": copies.up_and_down,
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


def test_a_layer_that_reads_nothing_keeps_the_function():
    victim, stranger = (model_of("llama", seed) for seed in (0, 1))
    stack = copies.with_quiet_layers(take_apart(victim), turning.folded(take_apart(stranger)), 1e-4)
    made = rebuilt(stranger, stack)
    assert made.config.num_hidden_layers == 4
    # A gain of 1e-4 leaves a ten thousandth of the input of each copied layer.
    assert_same_function(stranger, made, within=1e-2)


def test_the_section_names_each_false_positive():
    counts = {"victim": "a", "stranger": "b", "tested": 64, "most_own": 3, "copied": "nothing", "related": False}
    refused = {**counts, "done": "turned", "verdicts": {"inconclusive": 10}, "most_certain": 9}
    accused = {**counts, "done": "arranged", "verdicts": {"homologous": 1, "no_evidence": 9}, "most_certain": 33}
    text = framing_section({"framing": [refused]})
    assert "None of the 1 models is called `homologous`. The largest count of certain neurons is 9 of 64" in text
    text = framing_section({"framing": [refused, accused]})
    assert "1 of 2 models is called `homologous`: arranged. The largest count of certain neurons is 33 of 64" in text
    assert "homologous (1), no_evidence (9)" in text
