"""Models with latent attention: relatives are found, also with rotated latents and reordered neurons."""

import copy

import pytest
import torch

from mdir_hf import HomologyChecker, SettledBy, Verdict
from mdir_hf.report import Outcome

SIZES = {
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 160,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def new_model(seed):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.DeepseekV3Config(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return transformers.DeepseekV3ForCausalLM(config)


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


@torch.no_grad()
def retrained(base):
    """Replace every embedding and add noise of 20 % to every other weight."""
    model = copy.deepcopy(base)
    gen = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if "embed" in name or "lm_head" in name:
            weight.copy_(0.02 * torch.randn(weight.shape, generator=gen))
        elif weight.ndim > 1:
            weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=gen)
    return model


def haar(n, gen):
    return torch.linalg.qr(torch.randn(n, n, generator=gen))[0]


@torch.no_grad()
def with_rotated_latents(base):
    model = copy.deepcopy(base)
    gen = torch.Generator().manual_seed(6)
    for layer in model.model.layers:
        attention = layer.self_attn
        rank = SIZES["kv_lora_rank"]
        turn = haar(rank, gen)
        attention.kv_b_proj.weight.copy_((attention.kv_b_proj.weight * attention.kv_a_layernorm.weight) @ turn.T)
        attention.kv_a_proj_with_mqa.weight[:rank] = turn @ attention.kv_a_proj_with_mqa.weight[:rank]
        attention.kv_a_layernorm.weight.fill_(1.0)
    return model


@torch.no_grad()
def renumbered(base):
    """The same function with reordered neurons in every MLP and every expert."""
    model = copy.deepcopy(base)
    gen = torch.Generator().manual_seed(8)
    for layer in model.model.layers:
        is_dense = hasattr(layer.mlp, "up_proj")
        for mlp in [layer.mlp if is_dense else layer.mlp.shared_experts]:
            order = torch.randperm(len(mlp.up_proj.weight), generator=gen)
            for projection in (mlp.gate_proj, mlp.up_proj):
                projection.weight.copy_(projection.weight[order].clone())
            mlp.down_proj.weight.copy_(mlp.down_proj.weight[:, order].clone())
        for gate_up, down in [] if is_dense else zip(*layer.mlp.experts.parameters(), strict=True):
            n = down.shape[1]
            order = torch.randperm(n, generator=gen)
            gate_up.copy_(gate_up[torch.cat([order, order + n])].clone())
            down.copy_(down[:, order].clone())
    return model


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.arange(12)[None]).logits


@pytest.mark.parametrize("change", [lambda model: model, with_rotated_latents], ids=["plain", "rotated latents"])
def test_a_retrained_model_is_found_and_described(save, change):
    relative = retrained(new_model(0))
    changed = change(relative)
    # The rotations are in float32; the function is the same.
    torch.testing.assert_close(logits(relative), logits(changed), rtol=1e-3, atol=1e-4)
    report = compare(save(new_model(0), "base"), save(changed, "changed"), level="layers")
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    outcomes = {(result.layer.candidate, result.role.value): result.outcome for result in report.projections.results}
    assert len(outcomes) == 4 * 7 and set(outcomes.values()) == {Outcome.KEPT}


def test_reordered_neurons_behind_rotated_latents_are_found_by_the_rotated_keys(save):
    relative = retrained(new_model(0))
    hidden = renumbered(with_rotated_latents(relative))
    # The rotations are in float32; the function is the same.
    torch.testing.assert_close(logits(relative), logits(hidden), rtol=1e-3, atol=1e-4)
    report = compare(save(new_model(0), "base"), save(hidden, "hidden"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    ((source, place),) = report.neurons.matches
    assert source == place


def test_strangers_do_not_match(save):
    report = compare(save(new_model(0), "base"), save(new_model(1), "stranger"), level="layers")
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0)
    assert report.layers.matches == () and Outcome.KEPT not in report.projections.counts()
