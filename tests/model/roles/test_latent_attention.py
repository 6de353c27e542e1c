"""Latent attention: products of factors, and families that took over DeepSeek's names.

test_coverage.py checks the products of every class of transformers by value.
"""

import pytest
import torch

from mdir_hf.errors import AnatomyError
from mdir_hf.model.files import MemorySource
from mdir_hf.model.roles import FusedRows, HeadCounts, Role, WeightPart, WeightProduct, part_shape, read_part
from mdir_hf.model.roles import resolve_anatomy as resolve
from mdir_hf.model.roles.parts import FLOAT64_ENTRIES
from tests.model.roles.counting_source import CountingSource
from tests.model.roles.tiny_causal import build

WIDTH = 24


@pytest.mark.parametrize("model_type", ["kimi_k2", "unknown to us"])
def test_a_family_that_took_over_deepseeks_names_has_its_roles(model_type, tmp_path):
    saved = build("deepseek_v3", tmp_path)
    known, source = saved.ours.anatomy, saved.ours.tensors
    config = {**saved.module.config.to_dict(), "model_type": model_type}
    other = resolve(config, source.names(), lambda name: source.spec(name).shape)
    for layer, expected in zip(other.layers, known.layers, strict=True):
        assert {role: part.tensors for role, part in layer.parts.items()} == {
            role: part.tensors for role, part in expected.parts.items()
        }
        assert layer.heads == expected.heads
        assert len(layer.experts) == len(expected.experts)


def test_a_copy_of_the_embedding_in_a_further_layer_is_left_out():
    names = [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.1.embed_tokens.weight",
        "model.layers.1.shared_head.head.weight",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
    ]
    config = {"model_type": "kimi_k2", "num_hidden_layers": 1, "hidden_size": WIDTH}
    anatomy = resolve(config, names, lambda name: (40, WIDTH))
    assert anatomy.embedding.tensor == "model.embed_tokens.weight"
    assert anatomy.unembedding.tensor == "lm_head.weight"
    assert [layer.index for layer in anatomy.layers] == [0]
    assert "multi-token prediction" in anatomy.notes[0]


# --- handmade products


def product(latent_dim=8, **numbers):
    heads = HeadCounts(2, 2, {"nope": 1, "value": 2, "rank": latent_dim, "rope": 1} | numbers)
    return WeightProduct(
        WeightPart("b", FusedRows("heads", ("nope", "value"), 1), heads=heads),
        WeightPart("a", FusedRows(1, ("rank", "rope"), 0), heads=heads),
        WeightPart("g"),
    )


def test_only_the_rows_of_the_factors_are_read():
    b, a, g = torch.randn(6, 8), torch.randn(9, 5), torch.rand(8)
    source = CountingSource({"a": a, "b": b, "g": g})
    got = read_part(source, product())
    expected = b[[1, 2, 4, 5]].double() @ (g.double()[:, None] * a[:8].double())
    torch.testing.assert_close(got, expected)
    assert source.asked == [("a", list(range(8))), ("b", [1, 2, 4, 5])]


def test_the_rank_of_a_product_equals_its_latent_size():
    # A test in float64 would take float32 rounding beyond the rank for structure.
    source = MemorySource({"a": torch.randn(5, 64), "b": torch.randn(48, 4), "g": torch.rand(4) + 0.5})
    got = read_part(source, product(4, rope=1, nope=8, value=16))
    assert int((torch.linalg.svdvals(got) > 1e-13 * torch.linalg.matrix_norm(got, 2)).sum()) == 4


def test_large_products_are_single_precision():
    n = int(FLOAT64_ENTRIES**0.5) + 1
    source = MemorySource({"left": torch.ones(n, 1), "right": torch.ones(1, n)})
    assert read_part(source, WeightProduct(WeightPart("left"), WeightPart("right"))).dtype == torch.float32


@pytest.mark.parametrize("shapes", [((6, 8), (9, 5), (7,)), ((6, 7), (9, 5), (8,)), ((6, 8), (9, 5), (8, 1))])
def test_factors_that_do_not_fit_are_refused_by_name(shapes):
    b, a, g = (torch.ones(shape) for shape in shapes)
    with pytest.raises(AnatomyError, match=r"b x g x a: factors of shapes .* do not form a product"):
        read_part(MemorySource({"a": a, "b": b, "g": g}), product())


def test_a_width_that_the_config_does_not_tell_is_named():
    with pytest.raises(AnatomyError, match="'value' is needed to split it, but the config does not state it"):
        part_shape(product(value=0), {"a": (9, 5), "b": (6, 8), "g": (8,)}.__getitem__)


def test_a_single_factor_gives_no_role():
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.kv_b_proj.weight"]
    anatomy = resolve({"model_type": "deepseek_v3", "hidden_size": WIDTH}, names, lambda name: (40, WIDTH))
    assert Role.V not in anatomy.layers[0].parts
    assert anatomy.unplaced == ("model.layers.0.self_attn.kv_b_proj.weight",)


@pytest.mark.parametrize("architecture", ["llamamla", "deepseek_v3"])
def test_latent_attention_without_a_norm_as_transmla_makes_it(architecture):
    n, n_heads, rank, nope, rope, values = 96, 8, 32, 16, 8, 16
    at = "model.layers.0.self_attn"
    shapes = {
        "model.embed_tokens.weight": (160, n),
        f"{at}.q_proj.weight": (n_heads * (nope + rope), n),
        f"{at}.kv_a_proj_with_mqa.weight": (rank + rope, n),
        f"{at}.kv_b_proj.weight": (n_heads * (nope + values), rank),
        f"{at}.o_proj.weight": (n, n_heads * values),
    }
    config = {
        "model_type": architecture, "hidden_size": n, "num_attention_heads": n_heads, "kv_lora_rank": rank,
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": values, "num_hidden_layers": 1,
    }  # fmt: skip
    anatomy = resolve(config, shapes, shapes.__getitem__)
    parts = anatomy.layers[0].parts
    assert anatomy.unplaced == () and {Role.Q, Role.K, Role.V, Role.O, Role.KV_LATENT} <= parts.keys()
    assert parts[Role.K].gain is None and part_shape(parts[Role.V], shapes.__getitem__) == (n_heads * values, n)
