"""Layers of latent attention: relatives match and strangers do not, although the products have few directions."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from mdir_hf.method.modules import LayerWeights, analyse_layer

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.comparison import layers as layers_module
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.files import MemorySource
from mdir_hf.model.roles import FusedRows, HeadCounts, WeightPart, WeightProduct, read_part
from tests.method.one_map import map_layers
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

ALPHA = math.log(1e-10)
N, H, D, RANK = 96, 4, 16, 24  # residual width, heads, width of a head, rank of the latents: 64 rows of rank 24


def factors(seed, structure="plain", rank=RANK):
    """One layer's stored tensors: Gaussian, or with structure that training gives to strangers too."""
    gen = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=gen)

    kv_a, kv_b, q_a, q_b, o = draw(rank, N), draw(H * 2 * D, rank), draw(rank, N), draw(H * D, rank), draw(N, H * D)
    gain = torch.rand(rank, generator=gen) + 0.5
    if structure == "spectrum":  # latents of decreasing importance
        kv_a, q_a = (a * (1.0 + torch.arange(rank))[:, None] ** -1.0 for a in (kv_a, q_a))
    elif structure == "residual":  # residual channels of decreasing importance
        scale = (1.0 + torch.arange(N)) ** -0.7
        kv_a, q_a, o = kv_a * scale, q_a * scale, o * scale[:, None]
    elif structure == "outliers":
        kv_a[:, :3] *= 30.0
        q_a[:, :3] *= 30.0
        o[:3] *= 30.0
    elif structure == "rows":
        kv_b, kv_a = kv_b * torch.exp(draw(len(kv_b), 1)), kv_a * torch.exp(draw(rank, 1))
    elif structure == "gain":
        gain = torch.exp(1.5 * draw(rank))
    return {"kv_a": kv_a, "kv_b": kv_b, "q_a": q_a, "q_b": q_b, "o": o, "gain": gain}


def weights(tensors):
    """The layer as our reader returns it."""
    heads = HeadCounts(H, H)
    source = MemorySource(tensors)
    k, v = (
        WeightProduct(
            WeightPart("kv_b", FusedRows("heads", (1, 1), at), heads=heads), WeightPart("kv_a"), WeightPart("gain")
        )
        for at in (0, 1)
    )
    q = WeightProduct(WeightPart("q_b"), WeightPart("q_a"))
    return LayerWeights(
        q=read_part(source, q),
        k=read_part(source, k),
        v=read_part(source, v),
        o=tensors["o"].double(),
        n_heads=H,
        n_kv_heads=H,
        rope="none",
    )


def smallest_of_map(reference, candidate, role):
    found = map_layers(
        [unit_rows(getattr(layer, role)) for layer in reference],
        [unit_rows(getattr(layer, role)) for layer in candidate],
        log_alpha=ALPHA,
        refine="undecided",
    )
    return float(found.log_p.min())


@pytest.mark.parametrize("structure", ["spectrum", "residual", "outliers", "rows"])
def test_strangers_do_not_match_in_any_test(structure):
    identity = ResidualBasisMap.identity(N)
    n_tests, smallest = 0, 0.0
    for seed in range(0, 24, 6):
        reference, candidate = ([weights(factors(seed + i + 3 * side, structure)) for i in range(3)] for side in (0, 1))
        for role in ("v", "k"):
            smallest = min(smallest, smallest_of_map(reference, candidate, role))
            n_tests += 9
        for one, other in zip(reference, candidate, strict=True):
            evidence = analyse_layer(one, other, identity)
            assert {e.test for e in evidence} == {"permutation", "signed_permutation", "blocks", "subspaces"}
            smallest = min(smallest, *(e.log_p for e in evidence))
            n_tests += len(evidence)
    assert n_tests == 4 * (18 + 3 * 16)
    assert smallest > math.log(1e-3)


def haar(n, gen):
    return torch.linalg.qr(torch.randn(n, n, generator=gen))[0]


def hidden(tensors, seed):
    """The same function, with the latent rotated and the heads mixed inside and permuted."""
    gen = torch.Generator().manual_seed(seed)
    turn, order = haar(RANK, gen), torch.randperm(H, generator=gen)
    kv_b = (tensors["kv_b"] * tensors["gain"]) @ turn.T
    kv_b = kv_b.reshape(H, 2 * D, RANK)
    o = tensors["o"].reshape(N, H, D)
    for head in range(H):
        mix = torch.randn(D, D, generator=gen) + 2.0 * torch.eye(D)
        kv_b[head, D:] = mix @ kv_b[head, D:]
        o[:, head] = o[:, head] @ torch.linalg.inv(mix)
    return tensors | {
        "kv_a": turn @ tensors["kv_a"],
        "kv_b": kv_b[order].reshape(-1, RANK),
        "gain": torch.ones(RANK),
        "o": o[:, order].reshape(N, -1),
    }


def test_rotated_latents_are_found_by_their_subspaces():
    base = factors(0)
    relative = hidden(copy.deepcopy(base), seed=9)
    evidence = analyse_layer(weights(base), weights(relative), ResidualBasisMap.identity(N))
    by_test = {(e.role, e.test): e.log_p for e in evidence}
    assert by_test["v", "permutation"] > ALPHA
    assert by_test["v", "subspaces"] < ALPHA
    assert by_test["k", "subspaces"] < ALPHA


# --- whole models

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


@pytest.fixture
def save(tmp_path):
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()

    def save_model(model, name):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(SIZES["vocab_size"]))))
        return tmp_path / name

    return save_model


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


def test_a_retrained_model_is_found_by_what_k_and_v_share(save):
    base = new_model(0)
    report = compare(save(base, "base"), save(retrained(base), "retrained"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.layers.role == "kv_latent"
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    tests = {(m.role, m.test) for m in report.modules if m.log10_p < -10}
    assert {("v", "blocks"), ("v", "subspaces"), ("k", "blocks"), ("q", "permutation")} <= tests
    assert not any(m.test in ("planes", "frequencies") for m in report.modules)


def test_sampled_layers_leave_out_projections_that_are_too_wide(save, monkeypatch):
    monkeypatch.setattr(layers_module, "MANY_ROWS", 127)  # q, k, v and o have 128
    base = new_model(0)
    report = compare(save(base, "base"), save(retrained(base), "retrained"))
    assert {m.role for m in report.modules} == {"k", "gate", "up", "down", "mlp", "experts"}
    monkeypatch.setattr(layers_module, "TOO_MANY_ROWS", 127)
    report = compare(save(base, "again"), save(retrained(base), "retrained-again"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert {m.role for m in report.modules} == {"gate", "up", "down", "mlp", "experts"}


def test_rotated_latents_are_found_by_the_values(save):
    base = retrained(new_model(0))
    turned = with_rotated_latents(base)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        # The rotations are in float32; the function is the same.
        torch.testing.assert_close(base.eval()(ids).logits, turned.eval()(ids).logits, rtol=1e-3, atol=1e-4)
    report = compare(save(new_model(0), "base"), save(turned, "turned"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.layers.role == "v"
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
