"""New embeddings on models with permuted, removed or rotated channels: the layers' keys relate the residual bases."""

from __future__ import annotations

import json

import pytest
import torch

from mdir_hf import HomologyReport, Verdict
from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.residual_maps import FITTED_ON, fitted_on_layers
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.render.description import describe
from tests.comparison.test_body import SIZES, compare, new_embeddings
from tests.method.obfuscation import haar, new_model, obfuscate
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

pytest.importorskip("transformers")

HEAD, GROUP = SIZES["head_dim"], 2


@pytest.fixture
def save(tmp_path):
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()

    def save_model(model, name, *, first_token=0):
        model.float().save_pretrained(tmp_path / name)
        words = tokens(model.config.vocab_size, first=first_token)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(words)))
        return tmp_path / name

    return save_model


@pytest.fixture
def base():
    return new_model(seed=0, **SIZES)


@torch.no_grad()
def edited(model, edit, **changes):
    """A model with the edited weights of another, plus a little noise; the edit depends on a weight's name."""
    other = new_model(seed=9, **{**SIZES, **changes})
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, weight in model.state_dict().items():
        moved = edit(name, weight)
        noise = 0.2 * moved.std() * torch.randn(moved.shape, generator=generator, dtype=moved.dtype)
        state[name] = moved + noise if moved.ndim == 2 else moved
    other.load_state_dict(state)
    return other


def writes(name):
    return "o_proj" in name or "down_proj" in name


def of_channels(order):
    """An edit that puts the residual channels in this order; channels not listed are dropped."""

    def edit(name, weight):
        if weight.ndim == 1:
            return weight[order] if "norm" in name else weight
        return weight[order] if writes(name) else weight[:, order]

    return edit


def of_heads(kv_heads):
    """An edit that puts key-value heads and their queries in this order; heads not listed are dropped."""
    kv_rows = torch.cat([HEAD * k + torch.arange(HEAD) for k in kv_heads])
    query_rows = torch.cat([HEAD * GROUP * k + torch.arange(HEAD * GROUP) for k in kv_heads])

    def edit(name, weight):
        if "k_proj" in name or "v_proj" in name:
            return weight[kv_rows]
        if "q_proj" in name:
            return weight[query_rows]
        return weight[:, query_rows] if "o_proj" in name else weight

    return edit


def chained(*edits):
    def edit(name, weight):
        for one in edits:
            weight = one(name, weight)
        return weight

    return edit


@torch.no_grad()
def turned(model, seed=3, turn=None):
    """The same function in another residual basis, with the norms' gains folded into the next matrices."""
    turn = haar(model.config.hidden_size, torch.Generator().manual_seed(seed)) if turn is None else turn
    state = model.state_dict()

    def edit(name, weight):
        if "norm" in name:
            return torch.ones_like(weight)
        if writes(name):
            return turn.T @ weight
        layer = name.rsplit(".", 3)[0]
        norms = {
            "self_attn": f"{layer}.input_layernorm.weight",
            "mlp": f"{layer}.post_attention_layernorm.weight",
            "lm_head": "model.norm.weight",
        }
        gain = next((state[norm] for part, norm in norms.items() if part in name), 1.0)
        return weight * gain @ turn

    return edit


def found_by_keys(report, outer):
    assert report.verdict is Verdict.HOMOLOGOUS
    assert (report.settled_by, report.layers.residual_map, report.layers.fitted_on) == ("layers", outer, FITTED_ON)
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    assert report.embedding.transformation == "none"
    assert any("fitted on their own keys" in caveat for caveat in report.caveats)
    assert FITTED_ON in report.layers.null
    # The matrices that the residual-basis map was fitted on are no evidence for it.
    assert report.layers.role != "k"
    assert "k" not in {module.role for module in report.modules}
    assert HomologyReport.from_json(report.to_json()).layers.fitted_on == FITTED_ON
    how = "after a rotation fitted" if outer == "rotation" else "through the channels matched"
    assert f"{how} on the {FITTED_ON}" in str(describe(report))
    assert f"{how} on the {FITTED_ON}" in " ".join(str(report).split())


def test_permuted_channels_under_new_embeddings(base, save):
    order = torch.randperm(96, generator=torch.Generator().manual_seed(2))
    candidate = new_embeddings(edited(base, of_channels(order)))
    found_by_keys(compare(save(base, "base"), save(candidate, "candidate")), "permutation")


@pytest.mark.parametrize("first_token", [0, 1000], ids=["some tokens in common", "none"])
def test_fewer_channels_and_fewer_heads_under_new_embeddings(base, save, first_token):
    channels = torch.randperm(96, generator=torch.Generator().manual_seed(2))[:72].sort().values
    edit = chained(of_channels(channels), of_heads([0, 2, 3]))
    smaller = edited(base, edit, hidden_size=72, num_attention_heads=6, num_key_value_heads=3)
    candidate = save(new_embeddings(smaller), "candidate", first_token=first_token)
    found_by_keys(compare(save(base, "base"), candidate), "channels")


def plain_qr(n, generator):
    """The usual way to draw a rotation: its trace is about -1.6 sqrt(n), unlike any uniformly random rotation."""
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q


def half_turned(n, generator):
    return torch.block_diag(torch.eye(n // 2, dtype=torch.float64), haar(n // 2, generator))


def half_reordered(n, generator):
    kept, moved = torch.arange(n // 2), n // 2 + torch.randperm(n // 2, generator=generator)
    return torch.eye(n, dtype=torch.float64)[torch.cat([kept, moved])]


def small_angles(n, generator):
    drawn = torch.randn(n, n, dtype=torch.float64, generator=generator) / n**0.5
    return torch.linalg.matrix_exp(0.25 * (drawn - drawn.T))


def reflected(n, generator):
    axis = torch.nn.functional.normalize(torch.randn(n, dtype=torch.float64, generator=generator), dim=0)
    return torch.eye(n, dtype=torch.float64) - 2.0 * axis[:, None] * axis


@pytest.mark.parametrize("matrix", [half_turned, half_reordered, small_angles])
def test_layers_are_found_after_any_residual_map(base, save, matrix):
    turn = matrix(96, torch.Generator().manual_seed(3))
    candidate = new_embeddings(edited(base, turned(base, turn=turn)))
    report = compare(save(base, "base"), save(candidate, "candidate"))
    assert (report.verdict, report.settled_by) == ("homologous", "layers")
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_whole_obfuscation_under_new_embeddings(architecture, save):
    # Heads, values, neurons and rotary planes are rotated, scaled and reordered as far as the function allows.
    model = new_model(architecture, seed=0, **SIZES)
    hidden, _ = obfuscate(model, seed=3)
    candidate = save(new_embeddings(hidden), "candidate")
    found_by_keys(compare(save(model, "base"), candidate), "rotation")


def keys_of(*folders):
    return tuple(RoleReader(Model(open_repository(folder)), Role.K) for folder in folders)


def test_strangers_are_not_related_by_their_keys(save):
    # Heads of 32 rows have enough products to keep strangers below the bound on resemblance.
    larger = {**SIZES, "head_dim": 32}
    folders = [save(new_model(seed=seed, **larger), f"model-{seed}") for seed in (0, 1)]
    assert fitted_on_layers(keys_of(*folders)) is None
    report = compare(*folders, level="layers")
    assert report.verdict is Verdict.NO_EVIDENCE
    # Two outer transformations with three projections, a third without K; two readings of each map, for whole matrices
    # and for sampled rows; and 12 tests of the embeddings.
    assert report.tests == 2 * 2 * (3 + 3 + 2) + 12


def test_strangers_do_not_match_after_a_map_fitted_on_them(base, save, monkeypatch):
    monkeypatch.setattr("mdir_hf.comparison.residual_maps.LEAST_RESEMBLANCE", -1.0)
    for seed in range(1, 3):
        folders = [save(new_model(seed=0, **SIZES), "base"), save(new_model(seed=seed, **SIZES), f"stranger-{seed}")]
        assert fitted_on_layers(keys_of(*folders)).kind == "rotation"
        report = compare(*folders, level="layers")
        assert report.verdict is Verdict.NO_EVIDENCE
        assert report.layers.log10_p > -3


def test_unchanged_channels_give_no_new_transformation(base, save):
    candidate = new_embeddings(edited(base, lambda name, weight: weight))
    folders = [save(base, "base"), save(candidate, "candidate")]
    assert fitted_on_layers(keys_of(*folders)) is None
    assert compare(*folders).layers.residual_map == "identity"


def test_keys_of_different_sizes_give_no_map(base, save):
    other = new_model(seed=1, **{**SIZES, "head_dim": 8})
    assert fitted_on_layers(keys_of(save(base, "base"), save(other, "other"))) is None
