"""Adapted weights equal the result of PEFT's own merge."""

from __future__ import annotations

import json

import numpy as np
import peft
import pytest
import safetensors.torch
import torch

from mdir_hf.budgets import ADAPTER_CONFIG
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.adapters.config import read_adapter_config
from tests.conformance_tensors import MemoryTree, TensorSourceConformance, safetensors_bytes
from tests.model.files.adapters.peft_models import (
    edit_config,
    make_adapted,
    make_adapted_mixture,
    make_base,
    write_adapter,
)

PROJECTIONS = ["q_proj", "v_proj", "down_proj"]


def adapted_source(adapter, base):
    trees = {"base": MemoryTree.from_folder(base), "adapter": MemoryTree.from_folder(adapter)}
    source = open_checkpoint(trees["adapter"], open_base=lambda config: open_checkpoint(trees["base"]))
    return source, trees


def lora(**more):
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": PROJECTIONS, **more})


CASES = {
    "LoRA": ({}, "llama"),
    "one rank": ({"r": 1}, "llama"),
    "rank-stabilised": ({"use_rslora": True}, "llama"),
    "DoRA": ({"use_dora": True}, "llama"),
    "patterns": (
        {
            "rank_pattern": {"down_proj": 2, "layers.0.self_attn.q_proj": 3},
            "alpha_pattern": {"^model.layers.1.self_attn.v_proj": 5, "q_proj": 16},
        },
        "llama",
    ),
    "rank-stabilised patterns": (
        {"use_rslora": True, "rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 3}},
        "llama",
    ),
    "all linear layers": ({"target_modules": "all-linear"}, "llama"),
    "some layers": ({"layers_to_transform": [1]}, "llama"),
    "embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, "llama"),
    "embedding that the base alone holds": ({"target_modules": ["embed_tokens"], "save": False}, "llama"),
    "embedding that the base alone holds, DoRA": (
        {"target_modules": ["embed_tokens"], "use_dora": True, "save": False},
        "llama",
    ),
    "embedding, DoRA": ({"target_modules": ["embed_tokens", "q_proj"], "use_dora": True}, "llama"),
    "head": ({"target_modules": ["lm_head"]}, "llama"),
    "modules saved whole": ({"modules_to_save": ["lm_head", "embed_tokens"]}, "llama"),
    "biases of the adapter's layers": ({"bias": "lora_only", "target_modules": ["q_proj"]}, "llama"),
    "all biases": ({"bias": "all"}, "llama"),
    "a bias in B": ({"lora_bias": True, "target_modules": ["q_proj"]}, "llama"),
    "retrained tokens beside": ({"trainable_token_indices": [3, 17, 0]}, "llama"),
    "retrained tokens by name": ({"trainable_token_indices": {"embed_tokens": [5], "lm_head": [7, 1]}}, "llama"),
    "Conv1D": ({"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}, "gpt2"),
    "Conv1D, DoRA": ({"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}, "gpt2"),
    "Conv1D and embedding": ({"target_modules": ["wte", "c_proj"], "fan_in_fan_out": True}, "gpt2"),
    "orthogonal start": ({"init_lora_weights": "orthogonal"}, "llama"),
}


@pytest.mark.parametrize(
    ("case", "safe"), [*((case, True) for case in CASES), ("LoRA", False), ("embedding, DoRA", False)]
)
def test_every_tensor_equals_the_merged_model(case, safe, tmp_path):
    options, kind = CASES[case]
    save = options.get("save", "auto")
    config = lora(**{key: value for key, value in options.items() if key != "save"})
    adapted = make_adapted(tmp_path, config, kind=kind, safe=safe, save_embedding_layers=save)
    source, _ = adapted_source(adapted.adapter, adapted.base)
    n_changed = 0
    for name in source.names():
        expected = adapted.merged[name]
        got = source.read(name)
        assert source.spec(name).shape == tuple(expected.shape)
        # Both compute in float32; products of rank 4 differ in the last bits.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        n_changed += not torch.equal(got, adapted.expected_base[name])
        if expected.ndim == 2:
            rows = np.array([len(expected) - 1, 0, 2, 0], dtype=np.int64)
            torch.testing.assert_close(
                source.read_rows(name, rows), expected[torch.from_numpy(rows)], rtol=1e-5, atol=1e-6
            )
    assert n_changed == sum(
        not torch.equal(tensor, adapted.expected_base[name])
        for name, tensor in adapted.merged.items()
        if name in source.names()
    )
    assert n_changed > 0


def test_retrained_tokens_alone(tmp_path):
    config = peft.TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[4, 39, 11])
    adapted = make_adapted(tmp_path, config)
    source, _ = adapted_source(adapted.adapter, adapted.base)
    name = "model.embed_tokens.weight"
    assert torch.equal(source.read(name), adapted.merged[name])
    assert not torch.equal(source.read(name), adapted.expected_base[name])
    rows = np.array([11, 4, 5, 4], dtype=np.int64)
    assert torch.equal(source.read_rows(name, rows), adapted.merged[name][torch.from_numpy(rows)])
    assert "3 token rows replaced" in source.description.notes[-1]


def tied_head(tmp_path, rows_of_head):
    """Open an adapter with token rows of the embedding and of a head that is tied to it in the base."""
    make_base(tmp_path / "base")
    path = tmp_path / "base" / "model.safetensors"
    safetensors.torch.save_file(
        {name: tensor for name, tensor in safetensors.torch.load_file(path).items() if name != "lm_head.weight"}, path
    )
    rows = torch.arange(48.0).reshape(2, 24)
    names = ("model.embed_tokens", "lm_head")
    tensors = {
        f"base_model.model.{name}.trainable_tokens_delta": tensor
        for name, tensor in zip(names, (rows, rows_of_head(rows)), strict=True)
    }
    adapter = write_adapter(tmp_path / "adapter", tensors, peft_type="TRAINABLE_TOKENS", token_indices=[4, 7])
    return adapted_source(adapter, tmp_path / "base")[0], rows


def test_token_rows_that_peft_saved_twice_for_a_tied_head_are_read(tmp_path):
    source, rows = tied_head(tmp_path, torch.clone)
    assert torch.equal(source.read_rows("model.embed_tokens.weight", np.array([4, 7])), rows)
    assert "lm_head.weight" not in source.names()


def test_other_token_rows_of_a_head_that_the_base_lacks_are_refused(tmp_path):
    with pytest.raises(UnsupportedFormatError, match="changes 'lm_head', but its base"):
        tied_head(tmp_path, lambda rows: rows + 1)


@pytest.mark.parametrize("ties", [True, False])
def test_a_tied_head_keeps_the_rows_of_the_base(tmp_path, ties):
    """PEFT retrains a copy of the embedding, and leaves the tied head as it was unless told otherwise."""
    make_base(tmp_path / "base")
    path = tmp_path / "base" / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors["lm_head.weight"]
    safetensors.torch.save_file(tensors, path)
    old, new = tensors["model.embed_tokens.weight"], torch.randn_like(tensors["model.embed_tokens.weight"])
    saved = {"base_model.model.model.embed_tokens.weight": new}
    adapter = write_adapter(tmp_path / "adapter", saved, ensure_weight_tying=ties, modules_to_save=["embed_tokens"])
    source = adapted_source(adapter, tmp_path / "base")[0]
    assert torch.equal(source.read("model.embed_tokens.weight"), new)
    assert ("lm_head.weight" in source.names()) is not ties
    if not ties:
        assert torch.equal(source.read("lm_head.weight"), old)
        stored = {tensor.weight: tensor.reason for tensor in source.contents()}
        assert stored["lm_head.weight"] is None and stored["model.embed_tokens.weight"] is None


def test_an_embedding_that_was_resized_is_the_adapters(tmp_path):
    adapted = make_adapted(
        tmp_path,
        lora(modules_to_save=["embed_tokens", "lm_head"]),
        change=lambda model: model.resize_token_embeddings(48, mean_resizing=False),
    )
    source, _ = adapted_source(adapted.adapter, adapted.base)
    assert source.spec("model.embed_tokens.weight").shape == (48, 24)
    assert torch.equal(source.read("lm_head.weight"), adapted.merged["lm_head.weight"])
    assert torch.equal(
        source.read_rows("model.embed_tokens.weight", np.array([47])), adapted.merged["model.embed_tokens.weight"][47:]
    )


@pytest.mark.filterwarnings("ignore")
def test_methods_that_change_no_weights_give_the_weights_of_the_base(tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = make_base(tmp_path / "base")
    model.name_or_path = "base"
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    source, trees = adapted_source(tmp_path / "adapter", tmp_path / "base")
    base = open_checkpoint(trees["base"])
    assert source.names() == base.names()
    assert all(torch.equal(source.read(name), base.read(name)) for name in base.names())
    assert (source.n_bytes, source.paths) == (base.n_bytes, base.paths)
    assert "(prompt tuning) on tree, which leaves the weights unchanged" in source.description.notes[-1]


LLAMA_LAYER = ["q_proj", "v_proj", "down_proj"]
OTHER_KINDS = {
    "IA3": lambda: peft.IA3Config(target_modules=LLAMA_LAYER, feedforward_modules=["down_proj"]),
    "LoHa": lambda: peft.LoHaConfig(target_modules=LLAMA_LAYER, r=3, alpha=7, alpha_pattern={"v_proj": 5}),
    "LoKr": lambda: peft.LoKrConfig(target_modules=LLAMA_LAYER, r=2, alpha=5),
    "LoKr, both factors cut": lambda: peft.LoKrConfig(
        target_modules=["down_proj"], r=1, alpha=5, decompose_both=True, decompose_factor=4
    ),
    "OFT": lambda: peft.OFTConfig(target_modules=LLAMA_LAYER, oft_block_size=4, r=0),
    "OFT by exact rotations": lambda: peft.OFTConfig(
        target_modules=LLAMA_LAYER, oft_block_size=6, r=0, use_cayley_neumann=False
    ),
    "OFT with one block": lambda: peft.OFTConfig(target_modules=["q_proj"], oft_block_size=4, r=0, block_share=True),
    "VeRA": lambda: peft.VeraConfig(target_modules=LLAMA_LAYER, r=4),
    "AdaLoRA": lambda: peft.AdaLoraConfig(target_modules=LLAMA_LAYER, init_r=6, target_r=3, total_step=10),
    "norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm", "norm"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_linear_kinds_are_applied_as_peft_merges_them(kind, tmp_path):
    adapted = make_adapted(tmp_path, OTHER_KINDS[kind]())
    source, _ = adapted_source(adapted.adapter, adapted.base)
    n_changed = 0
    for name in source.names():
        expected = adapted.merged[name]
        n_changed += not torch.equal(expected, adapted.expected_base[name])
        # Both compute in float32, in a different order.
        torch.testing.assert_close(source.read(name), expected, rtol=1e-4, atol=1e-5)
        if expected.ndim == 2:
            rows = np.array([len(expected) - 1, 0, 2, 0], dtype=np.int64)
            got = source.read_rows(name, rows)
            torch.testing.assert_close(got, expected[torch.from_numpy(rows)], rtol=1e-4, atol=1e-5)
    assert n_changed > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("files", ["stacked", "one by one"])
def test_lora_on_stacked_experts_is_applied_per_expert(files, tmp_path):
    config = lora(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    adapted = make_adapted_mixture(tmp_path, config, save_original_format=files == "one by one")
    source, _ = adapted_source(adapted.adapter, adapted.base)
    assert ("model.layers.0.mlp.experts.gate_up_proj" in source.names()) is (files == "stacked")
    for name in source.names():
        torch.testing.assert_close(source.read(name), adapted.merged[name], rtol=1e-4, atol=1e-5)
    changed = [name for name in source.names() if not torch.equal(adapted.merged[name], adapted.expected_base[name])]
    assert sum(".experts." in name for name in changed) == (4 if files == "stacked" else 18)
    name = next(name for name in changed if "down_proj" in name)
    rows = np.array([5, 0, 23], dtype=np.int64)
    whole = adapted.merged[name].flatten(0, -2)
    torch.testing.assert_close(source.read_rows(name, rows), whole[torch.from_numpy(rows)], rtol=1e-4, atol=1e-5)


NOT_APPLIED = {
    "FOURIERFT": lambda: peft.FourierFTConfig(target_modules=["q_proj"], n_frequency=5),
    "HRA": lambda: peft.HRAConfig(target_modules=["q_proj"]),
    "VERA": lambda: peft.VeraConfig(target_modules=["q_proj"], r=4, save_projection=False),
    "OFT": lambda: peft.OFTConfig(target_modules=["q_proj"], oft_block_size=4, r=0, coft=True),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", NOT_APPLIED)
def test_a_kind_that_is_not_applied_blocks_its_targets_alone(method, tmp_path):
    adapted = make_adapted(tmp_path, NOT_APPLIED[method]())
    source, _ = adapted_source(adapted.adapter, adapted.base)
    blocked = {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)}
    assert source.description.unreadable == blocked
    for name in source.names():
        if name in blocked:
            with pytest.raises(UnsupportedFormatError, match=r"cannot be read: it is changed by an adapter that"):
                source.read(name)
        else:
            assert torch.equal(source.read(name), adapted.expected_base[name])
    assert "2 changed weights not compared" in source.description.notes[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"init_lora_weights": "pissa_niter_16"}, "was subtracted from its base|from a part that was subtracted"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights 'OLoRA'"),
        ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
        ({"use_qalora": True}, "QA-LoRA"),
        ({"kasa_config": {"beta": 1}}, "KaSA"),
        ({"alpha_pattern": {"(a+)+b": 3}}, r"regular expression '\(a\+\)\+b'"),
    ],
)
def test_methods_beyond_a_product_block_their_targets(options, message, tmp_path):
    adapted = make_adapted(tmp_path, lora())
    edit_config(adapted.adapter, **options)
    source, _ = adapted_source(adapted.adapter, adapted.base)
    assert len(source.description.unreadable) == 2 * len(PROJECTIONS)
    with pytest.raises(UnsupportedFormatError, match=message):
        source.read("model.layers.0.self_attn.q_proj.weight")
    name = "model.embed_tokens.weight"
    assert torch.equal(source.read(name), adapted.expected_base[name])


def test_an_adapter_that_repeats_layers_is_refused(tmp_path):
    adapted = make_adapted(tmp_path, lora())
    edit_config(adapted.adapter, layer_replication=[[0, 2], [1, 2]])
    with pytest.raises(UnsupportedFormatError, match="repeats layers"):
        adapted_source(adapted.adapter, adapted.base)


def test_an_adapter_of_mlx_lm_is_recognised(tmp_path):
    folder = write_adapter(tmp_path / "mlx", {"model.layers.0.self_attn.q_proj.lora_a": torch.ones(24, 2)})
    (folder / "adapter_model.safetensors").rename(folder / "adapters.safetensors")
    with pytest.raises(UnsupportedFormatError, match=r"mlx-lm adapter .*mlx_lm\.fuse"):
        open_checkpoint(MemoryTree.from_folder(folder))


def test_every_tensor_of_base_and_adapter_is_listed(tmp_path):
    adapted = make_adapted(tmp_path, lora(modules_to_save=["lm_head"]))
    source, trees = adapted_source(adapted.adapter, adapted.base)
    source.read_all_headers()
    listed = list(source.contents())
    assert sum(tensor.n_bytes for tensor in listed) == sum(
        tensor.numel() * tensor.element_size()
        for tree, file in (("base", "model.safetensors"), ("adapter", "adapter_model.safetensors"))
        for tensor in safetensors.torch.load(trees[tree].contents[file]).values()
    )
    factors = [tensor for tensor in listed if tensor.belongs_to_other]
    assert len(factors) == 12 and all(tensor.weight in source.names() for tensor in factors)
    assert [tensor.name for tensor in listed if tensor.reason == "the adapter replaces it"] == ["lm_head.weight"]


def test_the_note_says_what_was_computed(tmp_path):
    adapted = make_adapted(tmp_path, lora(modules_to_save=["lm_head"], use_rslora=True))
    source, _ = adapted_source(adapted.adapter, adapted.base)
    assert source.description.notes == (
        "tree: an adapter (LoRA) on tree; W = W_base + (alpha / sqrt(r)) B A for 6 modules, 1 tensor saved whole.",
    )
    assert source.description.format == "safetensors"


def test_rows_of_an_adapted_embedding_cost_rows_of_the_base(tmp_path):
    adapted = make_adapted(tmp_path, lora(target_modules=["embed_tokens"]), save_embedding_layers=False)
    source, trees = adapted_source(adapted.adapter, adapted.base)
    source.spec("model.embed_tokens.weight")
    file = trees["base"].opened["model.safetensors"]
    n_before = len(file.reads)
    source.read_rows("model.embed_tokens.weight", np.array([3, 4, 9]))
    source.read_rows("model.embed_tokens.weight", np.array([20]))
    assert [stop - start for start, stop in file.reads[n_before:]] == [2 * 24 * 4, 24 * 4, 24 * 4]
    rows = np.array([3, 4, 9], dtype=np.int64)
    expected = adapted.merged["model.embed_tokens.weight"][torch.from_numpy(rows)]
    torch.testing.assert_close(source.read_rows("model.embed_tokens.weight", rows), expected, rtol=1e-5, atol=1e-6)
    # The factors are read once.
    reads = trees["adapter"].opened["adapter_model.safetensors"].reads
    assert len(reads) == len(set(reads))


class TestNothingAdapted(TensorSourceConformance):
    """An adapter that changes no weight equals its base."""

    def make(self, tensors, tmp_path):
        base = MemoryTree({"model.safetensors": safetensors_bytes(tensors)})
        folder = write_adapter(tmp_path / "adapter", {})
        return WithStored(
            open_checkpoint(MemoryTree.from_folder(folder), open_base=lambda config: open_checkpoint(base)),
            open_checkpoint(base),
        )

    def test_size_counts_at_least_every_tensor(self, source, tensors):
        assert source.n_bytes > sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class WithStored:
    """Add the base's ``read_stored`` for the test suite; an adapted source has none."""

    def __init__(self, source, base):
        self._source, self._base = source, base

    def __getattr__(self, name):
        return getattr(self._base if name.startswith("read_stored") else self._source, name)


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def factors(r=2, d_in=24, d_out=24, *, module=LAYER):
    return {f"{module}.lora_A.weight": torch.ones(r, d_in), f"{module}.lora_B.weight": torch.ones(d_out, r)}


def opened(tmp_path, tensors, **config):
    make_base(tmp_path / "base")
    source, _ = adapted_source(write_adapter(tmp_path / "adapter", tensors, **config), tmp_path / "base")
    return source


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (factors(), {"r": 0}, "its r is 0; it should be greater than or equal to 1"),
        (factors(), {"r": -1}, "its r is -1"),
        (factors(), {"r": "2"}, "its r is '2'"),
        (factors(), {"r": 2.0}, "its r is 2.0"),
        (factors(), {"r": 10**30}, "its r is 1000"),
        (factors(), {"lora_alpha": "x"}, "its lora_alpha is 'x'"),
        (factors(), {"lora_alpha": float("nan")}, "its lora_alpha is nan"),
        (factors(), {"lora_alpha": 10**400}, "its lora_alpha is 1000"),
        (factors(), {"rank_pattern": {"x": 0}}, "its rank_pattern is 0"),
        (factors(), {"rank_pattern": [1]}, r"its rank_pattern is \[1\]; it should be an object"),
        (factors(), {"alpha_pattern": {"x": None}}, "its alpha_pattern is None"),
        (factors(), {"peft_type": 3}, "its peft_type is 3; it should be a valid string"),
        (factors(), {"base_model_name_or_path": ["a"]}, "base_model_name_or_path"),
        (factors(), {"trainable_token_indices": [-1]}, "its trainable_token_indices is -1; it should be greater"),
        (factors(r=3), {}, "have rank 3, but the config says 2"),
        (factors(r=3), {"rank_pattern": {"x": 5}}, "have rank 3, but the config says 2 or 5"),
        ({f"{LAYER}.lora_A.weight": torch.ones(2, 24)}, {}, "lacks the factor B"),
        ({f"{LAYER}.lora_B.weight": torch.ones(24, 2)}, {}, "lacks the factor A"),
        ({**factors(), f"{LAYER}.lora_B.weight": torch.ones(24, 3)}, {}, "do not form a product"),
        ({**factors(), f"{LAYER}.lora_B.weight": torch.ones(24)}, {}, "do not form a product"),
        ({**factors(), f"{LAYER}.lora_B.weight": torch.ones(0, 2)}, {}, "do not form a product"),
        ({**factors(), f"{LAYER}.lora_A.other.weight": torch.ones(2, 24)}, {}, "two tensors for lora_A"),
        (factors(), {"use_dora": True}, "lacks the magnitudes"),
        ({f"{LAYER}.lora_magnitude_vector": torch.ones(24)}, {}, "lacks the factor B|lacks the factor A"),
        ({"lm_head.weight": torch.ones(1), "base_model.model.lm_head.weight": torch.ones(1)}, {}, "two tensors"),
    ],
)
def test_an_impossible_adapter_is_refused(tensors, config, message, tmp_path):
    with pytest.raises(CorruptCheckpointError, match=message):
        opened(tmp_path, tensors, **config)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (factors(d_in=23), r"shape \(24, 24\) by a product of shape \(24, 23\), which does not fit"),
        (factors(d_out=2**20), r"by a product of shape \(1048576, 24\)"),
    ],
)
def test_factors_that_do_not_fit_the_base_are_refused_when_read(tensors, message, tmp_path):
    source = opened(tmp_path, tensors)
    name = "model.layers.0.self_attn.q_proj.weight"
    for ask in (source.spec, source.read, lambda name: source.read_rows(name, np.array([0]))):
        with pytest.raises(CorruptCheckpointError, match=message):
            ask(name)


def test_a_module_that_the_base_lacks_is_refused(tmp_path):
    with pytest.raises(UnsupportedFormatError, match=r"changes 'model\.layers\.0\.self_attn\.qkv_proj', but its base"):
        opened(tmp_path, factors(module="base_model.model.model.layers.0.self_attn.qkv_proj"))


def test_a_product_that_is_not_finite_is_refused_with_its_row(tmp_path):
    tensors = factors()
    tensors[f"{LAYER}.lora_B.weight"][5] = 1e38
    source = opened(tmp_path, tensors, lora_alpha=1e6)
    name = "model.layers.0.self_attn.q_proj.weight"
    for ask in (lambda: source.read(name), lambda: source.read_rows(name, np.array([1, 5]))):
        with pytest.raises(CorruptCheckpointError, match="NaN or infinity, first seen in row 5"):
            ask()
    assert source.read_rows(name, np.array([1, 4])).shape == (2, 24)


def test_factors_that_are_not_finite_are_refused(tmp_path):
    tensors = factors()
    tensors[f"{LAYER}.lora_A.weight"][1, 3] = float("nan")
    with pytest.raises(CorruptCheckpointError, match=r"lora_A.*NaN or infinity"):
        opened(tmp_path, tensors).read("model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize(
    ("numbers", "shape", "message"),
    [
        ([1, 2], (3, 24), r"replaces 2 rows of tensor .* new rows has shape \(3, 24\)"),
        ([1, 1], (2, 24), r"replaces 1 rows"),
        ([1, 2], (2, 23), r"new rows has shape \(2, 23\)"),
        ([1, 40], (2, 24), "replaces row 40 of tensor"),
    ],
)
def test_retrained_tokens_that_do_not_fit_are_refused(numbers, shape, message, tmp_path):
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    source = opened(tmp_path, {name: torch.ones(shape)}, trainable_token_indices=numbers)
    with pytest.raises(CorruptCheckpointError, match=message):
        source.read_rows("model.embed_tokens.weight", np.array([0]))


def test_retrained_tokens_without_numbers_are_refused(tmp_path):
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    with pytest.raises(CorruptCheckpointError, match="its config does not say which"):
        opened(tmp_path, {name: torch.ones(2, 24)}, trainable_token_indices={"lm_head": [1, 2]})


def test_the_difference_is_added_to_the_dequantised_base(tmp_path):
    name = "model.layers.0.self_attn.q_proj.weight"
    codes, scale = torch.randn(24, 24).to(torch.float8_e4m3fn), torch.full((24, 1), 0.01)
    base = MemoryTree({"model.safetensors": safetensors_bytes({name: codes, f"{name}_scale": scale})})
    folder = write_adapter(tmp_path / "adapter", factors())
    source = open_checkpoint(MemoryTree.from_folder(folder), open_base=lambda config: open_checkpoint(base))
    expected = codes.float() * scale + 4 / 2 * torch.full((24, 24), 2.0)
    assert torch.equal(source.read(name), expected)
    assert torch.equal(source.read_rows(name, np.array([7, 3])), expected[[7, 3]])
    assert source.description.quantization is not None


# --- config


def config_of(n_rows: int) -> bytes:
    """The config of an adapter that retrained this many tokens."""
    return json.dumps({"peft_type": "LORA", "r": 4, "trainable_token_indices": [0] * n_rows}).encode()


def test_a_config_of_too_many_values_is_refused_unparsed():
    with pytest.raises(UnsupportedFormatError, match=r"adapter_config\.json: the config of the adapter has .* values"):
        read_adapter_config(MemoryTree({"adapter_config.json": config_of(ADAPTER_CONFIG.n_items + 1)}))
    assert read_adapter_config(MemoryTree({"adapter_config.json": config_of(1000)})).token_rows == {"": (0,) * 1000}
