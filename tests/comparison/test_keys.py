"""Heads of every layer are compared by their keys: copies, strangers and the bytes that are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mdir_hf.comparison import keys as keys_module
from mdir_hf.comparison.keys import compare_heads, head_keys, map_of_heads, n_heads_read, n_layers_read
from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy, resolve_anatomy
from tests.method.reference import haar
from tests.model.roles.counting_source import CountingSource

N, HEADS, D = 96, 4, 16
"""Width of the stream, key heads, and rows of a head."""


@dataclass
class Placed:
    label: str
    tensors: TensorSource
    anatomy: Anatomy


def placed(tensors, config):
    anatomy = resolve_anatomy(config, tensors, lambda name: tuple(tensors[name].shape))
    return Placed("a model", CountingSource(tensors), anatomy)


def llama(layers, *, d=D, embedding_rows=8, **config):
    """A model of embeddings, keys, ``(H d, n)`` of each layer with the norm folded in, and norms."""
    width = layers[0].shape[1]
    tensors = {"model.embed_tokens.weight": torch.zeros(embedding_rows, width)}
    for at, keys in enumerate(layers):
        gain = torch.linspace(0.5, 2.0, width)
        tensors[f"model.layers.{at}.self_attn.k_proj.weight"] = (keys / gain).contiguous()
        tensors[f"model.layers.{at}.input_layernorm.weight"] = gain
    n_heads = len(layers[0]) // d
    sizes = {"hidden_size": width, "num_hidden_layers": len(layers), "head_dim": d}
    heads = {"num_attention_heads": 2 * n_heads, "num_key_value_heads": n_heads}
    return placed(tensors, {"model_type": "llama", "vocab_size": embedding_rows, **sizes, **heads, **config})


def drawn(n_layers, seed, *, n_heads=HEADS, d=D, width=N):
    """Keys of independent layers, ``(H d, n)`` each, as before training."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.standard_normal((n_heads * d, width))).float() for _ in range(n_layers)]


def rotation(seed, width=N):
    return torch.from_numpy(haar(width, np.random.default_rng(seed))).float()


def by_head(keys, d=D):
    return keys.reshape(-1, d, keys.shape[1])


def with_turned_planes(keys, seed, d=D):
    """Every plane (f, f + d / 2) of every head turned by its own angle."""
    angles = torch.from_numpy(np.random.default_rng(seed).uniform(0, 2 * np.pi, (len(keys) // d, d // 2, 1))).float()
    first, second = by_head(keys, d).chunk(2, dim=1)
    turned = (angles.cos() * first - angles.sin() * second, angles.sin() * first + angles.cos() * second)
    return torch.cat(turned, dim=1).flatten(0, 1)


def with_noise(keys, share, seed):
    return keys + share * keys.std() * torch.from_numpy(np.random.default_rng(seed).standard_normal(keys.shape)).float()


def hidden(layers, seed, *, noise=0.2):
    """The stream rotated, heads permuted, planes turned, and some noise."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(layers[0]) // D))
    turn = rotation(seed)
    moved = [with_turned_planes(by_head(keys)[order].flatten(0, 1), seed + at) @ turn for at, keys in enumerate(layers)]
    return [with_noise(keys, noise, seed + 50 + at) for at, keys in enumerate(moved)], turn


def places(resemblances):
    return {(reference, candidate) for reference, candidate, _ in resemblances.pairs}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_swapped", [False, True])
def test_hidden_layers_behind_a_decoy_are_found_at_their_places(seed, is_swapped):
    layers = drawn(6, seed)
    copies, _ = hidden(layers, seed + 10)
    models = llama(layers), llama([*drawn(1, seed + 20), *copies])
    resemblances = compare_heads(models[::-1] if is_swapped else models, seed=seed)
    right = {(at + 1, at) if is_swapped else (at, at + 1) for at in range(6)}
    assert places(resemblances) <= right
    # Four of the six layers are drawn, and all four heads of each are compared.
    assert len(resemblances.pairs) == 4
    # Noise of 0.2 leaves 1 / 1.04 of a product of directions; sizes of products vary by 1 / sqrt(96) and noise adds
    # 0.2 sqrt(2 / 96), which leaves a correlation of about 0.9.
    assert min(mean for *_, mean in resemblances.pairs) > 0.8
    assert resemblances.has_copies
    assert resemblances.resemblance.shape == tuple(map(len, resemblances.layers))


@pytest.mark.parametrize(("layout", "rotary"), [("half", True), ("none", False)])
def test_layers_in_another_order_are_found(layout, rotary):
    layers = drawn(5, 0)
    order = [3, 0, 4, 2, 1]
    config = {} if rotary else {"model_type": "granitemoehybrid", "position_embedding_type": "nope"}
    candidate = [layers[at] @ rotation(1) for at in order]
    models = llama(layers, **config), llama(candidate, **config)
    assert {model.anatomy.rope for model in models} == {layout}
    resemblances = compare_heads(models, seed=0)
    assert places(resemblances) <= {(at, place) for place, at in enumerate(order)}
    assert len(resemblances.pairs) == 4


def test_expanded_and_doubled_heads_are_found():
    layers = drawn(5, 2)
    expanded = [by_head(keys).repeat_interleave(2, dim=0).flatten(0, 1) @ rotation(3) for keys in layers]
    resemblances = compare_heads((llama(layers), llama(expanded)), seed=0)
    assert places(resemblances) <= {(at, at) for at in range(5)}
    assert len(resemblances.pairs) == 4


def test_rows_outside_of_partial_rotary_planes_are_compared_too():
    layers = drawn(5, 4, d=24)
    config = {"model_type": "stablelm", "partial_rotary_factor": 0.25}
    models = llama(layers, d=24, **config), llama([keys @ rotation(5) for keys in layers], d=24, **config)
    assert {model.anatomy.rotary_dim for model in models} == {6}
    readers = head_keys(models)
    assert readers[0].shape == (3, 18)
    resemblances = compare_heads(models, seed=0, keys=readers)
    assert len(resemblances.pairs) == 4
    pairs = [(at, at) for at in range(5)]
    residual_map = map_of_heads(models, pairs, seed=0, keys=readers)
    assert residual_map.kind == "rotation"


def test_strangers_are_rarely_nominated():
    # Each of 40 comparisons nominates with a probability of about 0.001 by the limit. More than one nomination has a
    # probability of 8e-4 for a Poisson variable of mean 0.04.
    n_nominated = 0
    for seed in range(40):
        models = llama(drawn(4, 2 * seed)), llama(drawn(5, 2 * seed + 1))
        resemblances = compare_heads(models, seed=seed)
        n_nominated += len(resemblances.nominated)
        assert not resemblances.has_copies
    assert n_nominated <= 1


def test_structure_that_all_heads_share_nominates_nothing():
    # The same offsets in every head of both models, larger than the rows that differ.
    rng = np.random.default_rng(6)
    common = torch.from_numpy(rng.standard_normal((D, N))).float()
    models = [llama([by_head(keys).add(1.5 * common).flatten(0, 1) for keys in drawn(6, seed)]) for seed in (7, 8)]
    resemblances = compare_heads(tuple(models), seed=0)
    assert not resemblances.nominated and not resemblances.pairs
    assert map_of_heads(tuple(models), [], seed=0) is None


def test_a_nomination_is_dropped_if_the_other_heads_differ(monkeypatch):
    monkeypatch.setattr(keys_module, "prominence_limit", lambda n_pairs: -math.inf)
    resemblances = compare_heads((llama(drawn(3, 9)), llama(drawn(4, 10))), seed=0)
    assert len(resemblances.nominated) == 3  # each layer of the shallower model once
    assert len({candidate for _, candidate in resemblances.nominated}) == 3
    assert not resemblances.pairs and not resemblances.has_copies


def test_heads_of_different_sizes_and_models_without_keys_give_nothing():
    model = llama(drawn(3, 11))
    assert compare_heads((model, llama(drawn(3, 12, d=8), d=8)), seed=0) is None
    assert map_of_heads((model, llama(drawn(3, 12, d=8), d=8)), [(0, 0)], seed=0) is None
    mlp = {"model.embed_tokens.weight": torch.zeros(8, N), "model.layers.0.mlp.up_proj.weight": torch.zeros(32, N)}
    without_keys = placed(mlp, {"model_type": "llama", "hidden_size": N, "vocab_size": 8, "num_hidden_layers": 1})
    assert compare_heads((model, without_keys), seed=0) is None


# --- the map


def test_the_map_is_the_rotation_of_the_stream_up_to_its_sign():
    layers = drawn(6, 13)
    copies, turn = hidden(layers, 14, noise=0.1)
    models = llama(layers), llama([*drawn(1, 15), *copies])
    readers = head_keys(models)
    resemblances = compare_heads(models, seed=0, keys=readers)
    pairs = [(reference, candidate) for reference, candidate, _ in resemblances.pairs]
    residual_map = map_of_heads(models, pairs, seed=0, keys=readers)
    assert residual_map.kind == "rotation"
    # 256 rows with noise of 0.1 fix 96 channels to about 0.1 * sqrt(96 / 256) = 0.06 of their length.
    cosine = abs(float((residual_map.matrix.double() * turn.double()).sum())) / N
    assert cosine > 0.99


def test_permuted_channels_give_their_permutation_and_unmoved_ones_nothing():
    layers = drawn(6, 16)
    order = torch.from_numpy(np.random.default_rng(17).permutation(N))
    pairs = [(at, at) for at in range(4)]
    permuted = [with_noise(keys[:, order], 0.1, at) for at, keys in enumerate(layers)]
    assert map_of_heads((llama(layers), llama(permuted)), pairs, seed=0).kind == "permutation"
    unmoved = [with_noise(keys, 0.1, at) for at, keys in enumerate(layers)]
    assert map_of_heads((llama(layers), llama(unmoved)), pairs, seed=0) is None
    assert map_of_heads((llama(layers), llama(permuted)), [(0, 99)], seed=0) is None  # no such layer


# --- bytes read


def rows_read(model):
    """The rows of keys that were read, with repetitions."""
    source = model.tensors
    assert not [name for name in source.reads if "k_proj" in name]
    return [(name, row) for name, rows in source.asked for row in rows]


def test_strangers_cost_a_few_layers_of_one_model_and_a_few_heads_of_the_other():
    shallow, deep = llama(drawn(8, 18)), llama(drawn(20, 19))
    compare_heads((shallow, deep), seed=0)
    assert len(rows_read(shallow)) == 4 * HEADS * D
    assert len({name for name, _ in rows_read(shallow)}) == 4
    assert len(rows_read(deep)) == 20 * D
    assert len({name for name, _ in rows_read(deep)}) == 20


def test_nothing_is_read_twice_by_the_map():
    layers = drawn(20, 20)
    models = llama(layers[:8]), llama([keys @ rotation(21) for keys in layers])
    readers = head_keys(models)
    resemblances = compare_heads(models, seed=0, keys=readers)
    pairs = [(reference, candidate) for reference, candidate, _ in resemblances.pairs]
    assert len(pairs) == 4
    assert map_of_heads(models, pairs, seed=0, keys=readers).kind == "rotation"
    for model, n_rows in zip(models, (4 * HEADS * D, 20 * D + 4 * (HEADS - 1) * D), strict=True):
        rows = rows_read(model)
        assert len(rows) == len(set(rows)) == n_rows
        norms = [name for name in model.tensors.reads if "layernorm" in name]
        assert len(norms) == len(set(norms))


@pytest.mark.parametrize(
    ("n_heads", "n_layers", "n_megabytes"),
    [(8, 32, 67), (32, 32, 101), (1, 18, 36), (128, 61, 332)],
    ids=["grouped", "full", "one head", "very many heads"],
)
def test_the_bytes_at_8b_stay_small(n_heads, n_layers, n_megabytes):
    # Heads of 128 rows of 4,096 channels in 16 bits are 1 MiB.
    n_read = n_heads * min(n_layers, n_layers_read(n_heads)) + n_layers * n_heads_read(n_heads, n_layers)
    assert n_read * 2**20 / 1e6 == pytest.approx(n_megabytes, abs=0.5)


def test_readers_that_have_read_all_heads_give_the_same_pairs():
    layers = drawn(6, 30)
    models = llama(layers), llama([keys @ rotation(31) for keys in layers])
    readers = head_keys(models)
    first = compare_heads(models, seed=0, keys=readers)
    for reader in readers:
        reader.read(reader.positions)
    again = compare_heads(models, seed=0, keys=readers)
    assert again.resemblance.shape == first.resemblance.shape
    assert len(again.pairs) == 4
    assert places(again) <= {(at, at) for at in range(6)}


def test_the_layers_read_depend_on_the_seed():
    model = llama(drawn(12, 22))
    chosen = {compare_heads((model, llama(drawn(12, 23))), seed=seed).layers[0] for seed in range(8)}
    assert len(chosen) > 4  # each is one of 81
    assert all(len(set(positions)) == 4 and list(positions) == sorted(positions) for positions in chosen)


# --- latent attention

RANK, ROPE, NOPE, VALUE = 24, 16, 8, 8
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": N, "vocab_size": 8, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "kv_lora_rank": RANK, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE, "q_lora_rank": 16,
}  # fmt: skip


def latent_model(layers):
    """Latent attention with the given rotated rows, ``(ROPE, n)``, and everything else drawn anew."""
    tensors = {"model.embed_tokens.weight": torch.zeros(8, N)}
    for at, rotated in enumerate(layers):
        name = f"model.layers.{at}.self_attn"
        latent = drawn(1, int(1000 * abs(float(rotated[0, 0]))), n_heads=1, d=RANK)[0]
        tensors[f"{name}.kv_a_proj_with_mqa.weight"] = torch.cat((latent, rotated))
        tensors[f"{name}.kv_a_layernorm.weight"] = torch.ones(RANK)
        tensors[f"{name}.kv_b_proj.weight"] = torch.randn(HEADS * (NOPE + VALUE), RANK)
        tensors[f"model.layers.{at}.input_layernorm.weight"] = torch.ones(N)
    return placed(tensors, {**DEEPSEEK, "num_hidden_layers": len(layers)})


def test_latent_attention_is_compared_by_the_rotated_rows_that_all_heads_share():
    layers = drawn(8, 24, n_heads=1, d=ROPE)
    copies = [*drawn(1, 25, n_heads=1, d=ROPE), *(keys @ rotation(26) for keys in layers)]
    models = latent_model(layers), latent_model(copies)
    readers = head_keys(models)
    assert [reader.shape for reader in readers] == [(ROPE // 2, 0)] * 2
    resemblances = compare_heads(models, seed=0, keys=readers)
    assert places(resemblances) <= {(at, at + 1) for at in range(8)}
    assert len(resemblances.pairs) == 4
    assert map_of_heads(models, [*places(resemblances)], seed=0, keys=readers).kind == "rotation"
    for model, n_layers in zip(models, (8, 9), strict=True):
        assert {name.rsplit(".", 2)[1] for name, _ in rows_read(model)} == {"kv_a_proj_with_mqa"}
        assert len(rows_read(model)) == n_layers * ROPE


def test_strangers_of_latent_attention_are_not_nominated():
    models = [latent_model(drawn(8, seed, n_heads=1, d=ROPE)) for seed in (27, 28)]
    assert not compare_heads(tuple(models), seed=0).nominated
    assert compare_heads((models[0], llama(drawn(4, 29, d=8), d=8)), seed=0) is None
