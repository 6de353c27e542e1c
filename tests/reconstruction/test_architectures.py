"""Hidden models of several architectures, aligned with their base."""

import copy

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from benchmarks.zoo import edits
from benchmarks.zoo.stack import state_dict, take_apart
from mdir_hf.demo.transformations import keep_channels, permute_channels
from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import SIZES, new_model, obfuscate
from tests.reconstruction.models import aligned, largest_difference, loaded, logits, opened, saved

GPT2 = {"vocab_size": 160, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
NEOX = {"vocab_size": 160, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


@torch.no_grad()
def drawn(model_class, config):
    """A model in float64, with gains and biases as in a trained model."""
    torch.manual_seed(0)
    model = model_class(config).double().eval()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.copy_(0.1 * torch.randn_like(weight) + (1.0 if "bias" not in name else 0.0))
        else:
            weight.normal_(std=0.1)
    return model


MODELS = {
    "gpt2": lambda: drawn(GPT2LMHeadModel, GPT2Config(**GPT2)),
    "gpt_neox": lambda: drawn(GPTNeoXForCausalLM, GPTNeoXConfig(**NEOX)),
    "qwen2": lambda: drawn(Qwen2ForCausalLM, Qwen2Config(**SIZES)),
}


def difference_without_head(folder, base):
    """Return the largest relative difference of the tensors of both; a rotated head is no longer tied."""
    mine, theirs = (loaded(each).state_dict() for each in (folder, base))
    return max(
        float((mine[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-9))
        for name in theirs
        if name in mine and theirs[name].is_floating_point()
    )


@pytest.mark.parametrize("architecture", MODELS)
def test_hidden_models_with_biases_become_their_base(architecture, tmp_path):
    base = MODELS[architecture]()
    stack = edits.obfuscate(take_apart(base), torch.Generator().manual_seed(1))
    made = copy.deepcopy(base)
    made.config.tie_word_embeddings = False
    made = type(base)(made.config).double().eval()
    made.load_state_dict(state_dict(stack))
    torch.testing.assert_close(logits(made), logits(base), rtol=1e-5, atol=1e-5)
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "hidden")
    aligned(tmp_path / "base", tmp_path / "hidden", tmp_path / "aligned")
    torch.testing.assert_close(logits(loaded(tmp_path / "aligned")), logits(made), rtol=1e-5, atol=1e-5)
    assert difference_without_head(tmp_path / "aligned", tmp_path / "base") < 1e-7


def test_signs_behind_norms_of_queries_and_keys(tmp_path):
    base = new_model("qwen3")
    made, _ = obfuscate(base, residual_scale=1.0)
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "hidden")
    found, _ = aligned(tmp_path / "base", tmp_path / "hidden", tmp_path / "aligned")
    assert {layer.attention.keys.kind for layer in found.layers} == {"signs"}
    assert largest_difference(tmp_path / "aligned", tmp_path / "base") < 1e-9


def test_permuted_tied_model_is_restored_exactly(tmp_path):
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": True}))
    made = copy.deepcopy(base)
    permute_channels(made, torch.randperm(64, generator=torch.Generator().manual_seed(2)), scale=2.0)
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "permuted")
    found, _ = aligned(tmp_path / "base", tmp_path / "permuted", tmp_path / "aligned")
    assert found.stream.outer.kind == "permutation"
    assert largest_difference(tmp_path / "aligned", tmp_path / "base") == 0.0
    assert loaded(tmp_path / "aligned").config.rms_norm_eps == base.config.rms_norm_eps


def test_rotated_tied_model_gets_its_own_head(tmp_path):
    base = LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": True})).double().eval()
    with torch.no_grad():  # a tied head needs a last gain of 1
        for name, weight in base.named_parameters():
            if "layernorm" in name:
                weight.copy_(0.5 + torch.rand_like(weight))
    made = copy.deepcopy(base)
    made.config.tie_word_embeddings = False
    untied = LlamaForCausalLM(LlamaConfig(**SIZES)).double().eval()
    untied.load_state_dict({**base.state_dict(), "lm_head.weight": base.lm_head.weight.clone()})
    hidden, _ = obfuscate(untied, residual_scale=1.0)
    state = hidden.state_dict()
    tied = copy.deepcopy(base)
    tied.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    saved(base, tmp_path / "base")
    saved(tied, tmp_path / "hidden")
    _, written = aligned(tmp_path / "base", tmp_path / "hidden", tmp_path / "aligned")
    made = loaded(tmp_path / "aligned")
    assert made.config.tie_word_embeddings is False
    assert len(written.notes) == 1
    torch.testing.assert_close(logits(made), logits(tied), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_shuffled_experts_are_restored(tmp_path):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
    base = Qwen3MoeForCausalLM(config).eval()  # experts do not support float64
    made = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(4)
    for layer in made.model.layers:
        order, neurons = torch.randperm(4, generator=generator), torch.randperm(48, generator=generator)
        experts = layer.mlp.experts
        gate, up = experts.gate_up_proj[order].chunk(2, dim=1)
        experts.gate_up_proj.copy_(torch.cat([gate[:, neurons], -up[:, neurons]], dim=1))
        experts.down_proj.copy_(-experts.down_proj[order][:, :, neurons])
        layer.mlp.gate.weight.copy_(layer.mlp.gate.weight[order])
    torch.testing.assert_close(logits(made), logits(base), rtol=1e-5, atol=1e-5)
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "shuffled")
    found, written = aligned(tmp_path / "base", tmp_path / "shuffled", tmp_path / "aligned")
    assert largest_difference(tmp_path / "aligned", tmp_path / "base") == 0.0
    assert found.layers[0].experts.mlps[0].neurons.kind == "signs"
    assert all(each.share == 1.0 for each in written.explained if "experts" in each.name)


def test_layers_that_were_repeated_find_their_ancestors(tmp_path):
    base = new_model("llama")
    made, _ = obfuscate(base, residual_scale=1.0)
    chosen = [0, 1, 2, 1, 2]
    deeper = LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_hidden_layers": 5})).double()
    state = made.state_dict()
    for at, source in enumerate(chosen):
        for name, weight in made.model.layers[source].state_dict().items():
            state[f"model.layers.{at}.{name}"] = weight
    deeper.load_state_dict(state)
    saved(base, tmp_path / "base")
    saved(deeper, tmp_path / "deeper")
    found, _ = aligned(tmp_path / "base", tmp_path / "deeper", tmp_path / "aligned")
    assert [layer.reference for layer in found.layers] == chosen
    back, mine = loaded(tmp_path / "aligned"), loaded(tmp_path / "base")
    for at, source in enumerate(chosen):
        for name, weight in mine.model.layers[source].state_dict().items():
            torch.testing.assert_close(back.model.layers[at].state_dict()[name], weight, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(logits(back), logits(deeper), rtol=1e-5, atol=1e-5)


def test_remaining_channels_of_a_cut_model_keep_their_order(tmp_path):
    base = new_model("llama", dtype=torch.float32)
    kept = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:40]
    made = keep_channels(base, kept)
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "narrow")
    found, written = aligned(tmp_path / "base", tmp_path / "narrow", tmp_path / "aligned")
    assert found.stream.outer.kind == "channels"
    torch.testing.assert_close(logits(loaded(tmp_path / "aligned")), logits(made), rtol=1e-4, atol=1e-5)
    back = loaded(tmp_path / "aligned").model.layers[1].mlp.up_proj.weight
    assert torch.equal(back, base.model.layers[1].mlp.up_proj.weight[:, kept.sort().values])
    assert {each.share for each in written.explained} == {1.0}


# --- an aligned hidden model equals its base up to rounding, with unchanged logits; the inverse restores it


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A base, a copy hidden in all known ways, and the copy aligned with the base."""
    folder = tmp_path_factory.mktemp("hidden")
    base = new_model("llama")
    made, secrets = obfuscate(base)
    saved(base, folder / "base")
    saved(made, folder / "hidden", epsilon=made.model.norm.variance_epsilon)
    found, written = aligned(folder / "base", folder / "hidden", folder / "aligned")
    return folder, secrets, found, written


def test_aligned_weights_equal_the_base(hidden):
    folder, *_ = hidden
    assert largest_difference(folder / "aligned", folder / "base") < 1e-9


def test_aligned_model_computes_the_same_logits(hidden):
    folder, *_ = hidden
    before, after = logits(loaded(folder / "hidden")), logits(loaded(folder / "aligned"))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)  # norms are computed in float32


def test_reconstruction_finds_the_transformation(hidden):
    _, secrets, found, _ = hidden
    assert found.stream.outer.kind == "rotation"
    torch.testing.assert_close(found.stream.outer.matrix, secrets.rotation)
    assert found.stream.scale == pytest.approx(3.0)
    for at, layer in enumerate(found.layers):
        kv, queries, neurons = (each[at].numpy() for each in (secrets.kv_heads, secrets.q_heads, secrets.neurons))
        assert layer.reference == at
        assert (kv[layer.attention.kv_candidate] == layer.attention.kv_reference).all()
        assert (queries[layer.attention.q_candidate] == layer.attention.q_reference).all()
        assert (neurons[layer.mlp.neurons.candidate] == layer.mlp.neurons.reference).all()
        assert (layer.attention.values.kind, layer.attention.keys.kind) == ("matrices", "scaled_turns")
        assert max(layer.residuals.values()) < 1e-9


def test_every_tensor_is_explained_by_the_base(hidden):
    *_, written = hidden
    shares = {each.name: each.share for each in written.explained}
    assert len(shares) == 3 + 3 * 9
    assert all(share > 1 - 1e-12 for name, share in shares.items() if "norm" not in name)


def test_the_inverse_restores_the_hidden_model(hidden, tmp_path):
    folder, _, found, _ = hidden
    write_model(opened(folder / "aligned"), found, tmp_path / "back", is_inverse=True)
    assert largest_difference(tmp_path / "back", folder / "hidden") < 1e-8
    assert loaded(tmp_path / "back").config.rms_norm_eps == pytest.approx(loaded(folder / "hidden").config.rms_norm_eps)
