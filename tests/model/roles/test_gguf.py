"""GGUF against its source checkpoint: every role of every layer has the same values."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from mdir_hf.errors import AnatomyError
from mdir_hf.model.hub import IoLedger, open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Anatomy, HeadCounts, Layer, Role, gguf_config, read_experts, read_part, read_sizes
from mdir_hf.model.roles.roles import InterleavedRows
from tests.gguf_converter import ARCHITECTURES, OTHERS, paired, to_gguf
from tests.gguf_writer import gguf_bytes
from tests.model.roles.tiny_causal import build_module, save_and_open

ALIASES = {
    "bamba": "granitemoehybrid",
    "distilbert": "bert",
    "falcon_mamba": "mamba",
    "mistral": "llama",
    "mixtral": "llama",
    "mt5": "t5",
    "olmo3": "olmo2",
}
"""Families that have another family's name in GGUF."""

TILED = ("qwen3_5_text", "qwen3_5_moe_text")
"""The converter separates value heads that share a key head."""

FEW = ("llama", "gpt2", "falcon", "gemma2", "mixtral", "deepseek_v2", "qwen3_next", "mamba", "bert", "t5")

_LATENT = ("deepseek_v2", "deepseek_v3", "minicpm3")
_ATTENTION = {Role.Q, Role.K, Role.V, Role.O}


@pytest.mark.parametrize(
    "model_type",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in (*ARCHITECTURES, *OTHERS)],
)
def test_every_role_is_the_weight_of_the_checkpoint_it_was_made_from(model_type, tmp_path):
    original, converted = both(model_type, tmp_path)
    theirs, ours = original.anatomy, converted.anatomy
    assert ours.architecture == ALIASES.get(model_type, model_type)
    for size in ("hidden_size", "n_layers", "embedding_size", "vocabulary_size", "tied"):
        assert getattr(ours, size) == getattr(theirs, size), size
    assert not ours.norms_add_one
    assert same(original, theirs.embedding, converted, ours.embedding)
    assert (ours.unembedding is None) == (theirs.unembedding is None)
    assert ours.unembedding is None or same(original, theirs.unembedding, converted, ours.unembedding)
    if theirs.final_norm is not None:
        assert ours.final_norm is not None
        assert same(original, theirs.final_norm, converted, ours.final_norm, is_norm=True)
    for mine, other in zip(theirs.layers, ours.layers, strict=True):
        assert set(other.parts) == set(mine.parts)
        if set(mine.parts) & _ATTENTION:
            assert heads(ours, other) == heads(theirs, mine)
            if ALIASES.get(model_type, model_type) == model_type:
                assert (other.rope or ours.rope) == (mine.rope or theirs.rope)
        for role, part in mine.parts.items():
            is_tiled = model_type in TILED and Role.MIXER_GATE in mine.parts
            assert same(original, part, converted, other.parts[role], is_norm=role.is_norm, is_tiled=is_tiled), role
        same_experts(original, mine.experts, converted, other.experts)
        same_experts(original, mine.shared_experts, converted, other.shared_experts)
    if model_type not in (*_LATENT, "mamba2"):  # latent attention: the widths have other names
        assert ours.head_dim == theirs.head_dim
        assert ours.rotary_dim == theirs.rotary_dim


def test_attention_after_and_inside_linear_layers_is_placed(tmp_path):
    _, converted = both("qwen3_next", tmp_path)
    linear, full = converted.anatomy.layers
    assert _ATTENTION | {Role.MIXER_GATE} <= set(linear.parts)
    assert _ATTENTION | {Role.Q_NORM, Role.K_NORM} <= set(full.parts)


@pytest.mark.parametrize("model_type", ["cohere2", "exaone4", "llama4_text", "smollm3"])
def test_layers_without_positions_match_the_checkpoint(model_type, tmp_path):
    original, converted = both(model_type, tmp_path, num_hidden_layers=4)
    theirs, ours = original.anatomy, converted.anatomy
    expected = [layer.rope or theirs.rope for layer in theirs.layers]
    assert [layer.rope or ours.rope for layer in ours.layers] == expected
    assert len(set(expected)) == 2


def both(model_type, folder, **more) -> tuple[Model, Model]:
    is_t5 = model_type.endswith("t5")
    mapping = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if is_t5 else MODEL_FOR_MASKED_LM_MAPPING
    mapping = mapping if model_type in OTHERS else MODEL_FOR_CAUSAL_LM_MAPPING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of a handmade config
        original = save_and_open(build_module(model_type, mapping=mapping, **more), folder / "original")
    config = json.loads((folder / "original" / "config.json").read_text())
    names = [name for name in original.tensors.names() if original.tensors.spec(name).dtype == "F32"]
    state = {name: original.tensors.read(name) for name in names}
    (folder / "converted").mkdir()
    (folder / "converted" / "model.gguf").write_bytes(
        to_gguf(
            model_type,
            config.get("text_config", config),
            state,
            **{"tokenizer.ggml.tokens": [f"w{i}" for i in range(original.n_rows)]},
        )
    )
    return original, Model(open_repository(str(folder / "converted"), ledger=IoLedger()))


def heads(anatomy: Anatomy, layer: Layer) -> tuple[int | None, int | None]:
    own = layer.heads
    return (anatomy.n_heads, anatomy.n_kv_heads) if own is None else (own.n_heads, own.n_kv_heads)


def same(original, part, converted, other, *, is_norm=False, is_tiled=False) -> bool:
    expected, found = read_part(original.tensors, part), read_part(converted.tensors, other)
    if is_norm and original.anatomy.norms_add_one:
        expected = expected + 1
    if is_tiled and not is_norm and expected.shape == found.shape:
        side = 1 if expected.shape[0] == original.width and expected.shape[1] != original.width else 0
        if torch.allclose(expected, found):
            return True
        # The same rows, or the columns of matrices that read them, in a different order.
        return any(torch.equal(in_order(expected, side), in_order(found, side)) for side in (side, 1 - side))
    # Products are sums in a different order.
    return expected.shape == found.shape and torch.allclose(expected, found.to(expected.dtype), rtol=1e-6, atol=1e-9)


def in_order(matrix: torch.Tensor, axis: int) -> torch.Tensor:
    rows = (matrix if axis == 0 else matrix.T).numpy()
    return torch.from_numpy(rows[np.lexsort(rows.T)])


def same_experts(original, parts, converted, others) -> None:
    assert len(parts) == len(others)
    for mine, other in zip(read_experts(original.tensors, parts), read_experts(converted.tensors, others), strict=True):
        assert set(mine) == set(other)
        assert all(torch.equal(mine[role], other[role]) for role in mine)


@pytest.mark.parametrize(("n_heads", "n_rows"), [(1, 8), (4, 8), (4, 24), (3, 18)])
def test_paired_rows_undo_the_order_of_rotary_positions(n_heads, n_rows):
    weight = torch.arange(n_rows * 5.0).reshape(n_rows, 5)
    rows = InterleavedRows("heads").rows(n_rows, HeadCounts(n_heads, n_heads))
    assert torch.equal(paired(weight, n_heads)[torch.from_numpy(rows)], weight)


def test_rows_that_make_no_pairs_are_refused():
    with pytest.raises(AnatomyError, match="12 rows cannot be divided into pairs in 4 heads"):
        InterleavedRows(4).rows(12, None)


def test_separate_experts_and_joined_gate_and_up_are_placed(tmp_path):
    # Early Mixtral files; newer converters join these tensors.
    n = torch.arange(64.0).reshape(8, 8)
    numbered = {f"blk.0.ffn_{name}.{i}.weight": n + i for name in ("gate", "up", "down") for i in range(2)}
    joined = {"blk.1.ffn_gate_up_exps.weight": torch.stack([n, -n]), "blk.1.ffn_down_exps.weight": torch.ones(2, 8, 4)}
    keys = {"llama.block_count": 2, "llama.embedding_length": 8, "llama.expert_count": 2}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({"token_embd.weight": n, **numbered, **joined}, keys))
    opened = Model(open_repository(str(tmp_path), ledger=IoLedger()))
    first, second = (list(read_experts(opened.tensors, layer.experts)) for layer in opened.anatomy.layers)
    assert [torch.equal(expert[role], n + i) for i, expert in enumerate(first) for role in expert] == 6 * [True]
    assert torch.equal(second[1][Role.GATE], -n[:4])
    assert torch.equal(second[1][Role.UP], -n[4:])


def test_unknown_heads_leave_q_and_k_of_llama_unplaced(tmp_path):
    names = ("attn_q", "attn_k", "attn_v", "attn_output")
    tensors = {"token_embd.weight": torch.ones(6, 8), **{f"blk.0.{name}.weight": torch.ones(8, 8) for name in names}}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(tensors, {"llama.block_count": 1, "llama.embedding_length": 8}))
    anatomy = Model(open_repository(str(tmp_path), ledger=IoLedger())).anatomy
    assert set(anatomy.layers[0].parts) == {Role.V, Role.O}
    assert anatomy.unplaced == ("blk.0.attn_k.weight", "blk.0.attn_q.weight")


def config_of(architecture="llama", **keys):
    return gguf_config(
        {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}
    )


def test_sizes_are_read_in_the_words_of_a_config():
    config = config_of(
        **{
            "block_count": 4,
            "embedding_length": 64,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "rope.dimension_count": 4,
            "vocab_size": 100,
            "expert_count": 0,
        }
    )
    sizes = read_sizes(config)
    assert (sizes.architecture, sizes.n_layers, sizes.hidden_size) == ("llama", 4, 64)
    assert (sizes.n_heads, sizes.n_kv_heads, sizes.vocabulary_size, sizes.n_experts) == (8, 2, 100, None)
    assert (sizes.rotation.layout, sizes.rotation.dim) == ("half", 4)


def test_layers_of_multi_token_prediction_are_counted_apart():
    assert config_of(block_count=47, nextn_predict_layers=1)["num_hidden_layers"] == 46


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (np.array([8, 8, 8], np.int32), 8),
        (np.array([0, 8, 0, 8]), 8),
        (np.array([8, 4]), None),
        (np.array([0, 0]), None),
        (np.array([]), None),
        (np.array([8.5]), 8),
        (np.array([np.inf]), None),
        ([b"8"], 8),
        ("8", None),
        (True, None),
        (-8, None),
        (float("nan"), None),
    ],
)
def test_counts_per_layer_become_one_count_if_they_agree(counts, expected):
    assert config_of(**{"attention.head_count": counts}).get("num_attention_heads") == expected


def test_the_vocabulary_gives_its_size_if_no_key_does():
    metadata = {"general.architecture": "gpt2", "tokenizer.ggml.tokens": [b"a", b"b"]}
    assert gguf_config(metadata)["vocab_size"] == 2


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": 3}])
def test_a_header_without_architecture_leaves_names_to_decide(metadata):
    assert read_sizes(gguf_config(metadata)).architecture == "unknown"


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("qwen2moe", "qwen2_moe"), ("command-r", "cohere"), ("falcon-h1", "falcon_h1"), ("some-new", "some_new")],
)
def test_families_are_called_as_in_transformers(architecture, model_type):
    assert config_of(architecture)["model_type"] == model_type
