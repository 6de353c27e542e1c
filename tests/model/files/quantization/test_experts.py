"""Stacks of experts: the orientation of the unquantised file, and reading a single expert."""

import numpy as np
import pytest
import torch

from tests.model.files.quantization.stored import FILE, bytes_read, source_of, tree_of
from tests.model.files.quantization.writers import E4M3_MAX, SCHEMES, gpt_oss_experts, mlx, modelopt_nvfp4

NAME = "model.layers.0.mlp.experts.gate_up_proj"
N, OUT, IN = 4, 48, 64
WEIGHTS = 0.05 * torch.randn(N, OUT, IN, generator=torch.Generator().manual_seed(0))


def rows_of_expert(number, n_rows):
    return np.arange(number * n_rows, (number + 1) * n_rows, dtype=np.int64)


def test_gpt_oss_is_read_as_by_transformers():
    written = gpt_oss_experts(WEIGHTS, NAME)
    source = source_of(written.tensors)
    assert source.names() == (NAME,)
    assert source.spec(NAME).shape == (N, IN, OUT)
    assert source.spec(NAME).n_bytes == N * OUT * IN // 2
    assert torch.equal(source.read(NAME), written.expected)
    assert source.description.quantization == "MXFP4, in groups of 32"


def test_an_expert_of_gpt_oss_costs_its_own_bytes():
    written = gpt_oss_experts(WEIGHTS, NAME)
    tree = tree_of(written.tensors)
    source = source_of({}, tree=tree)
    spec = source.spec(NAME)
    tree.opened[FILE].reads.clear()
    got = source.read_rows(NAME, rows_of_expert(2, IN))
    assert torch.equal(got, written.expected[2])
    assert bytes_read(tree, spec.start, spec.stop) == OUT * IN // 2
    assert bytes_read(tree) == OUT * IN // 2 + OUT * IN // 32


def test_rows_of_several_experts_come_in_the_requested_order():
    written = gpt_oss_experts(WEIGHTS, NAME)
    rows = np.array([3 * IN + 5, 7, 3 * IN + 5, 2 * IN - 1], dtype=np.int64)
    expected = written.expected.reshape(-1, OUT)[torch.from_numpy(rows)]
    assert torch.equal(source_of(written.tensors).read_rows(NAME, rows), expected)


def fp8(weights, scale):
    return (weights / scale).to(torch.float8_e4m3fn)


SCALES = {
    "one": (torch.tensor(0.01), ()),
    "by expert": (torch.rand(N) * 0.01, (slice(None), None, None)),
    "by expert, kept axes": (torch.rand(N, 1, 1) * 0.01, ()),
    "by expert and row": (torch.rand(N, OUT) * 0.01, (slice(None), slice(None), None)),
    "by expert and row, kept axis": (torch.rand(N, OUT, 1) * 0.01, ()),
    "by expert and column": (torch.rand(N, 1, IN) * 0.01, ()),
    "by expert and column, without axis": (torch.rand(N, IN) * 0.01, (slice(None), None, slice(None))),
    "FBGEMM's down projection": (torch.rand(N, IN, 1) * 0.01, (slice(None), None, slice(None), 0)),
}


@pytest.mark.parametrize("case", SCALES)
def test_scales_of_a_stack_of_fp8_are_arranged_by_their_shape(case):
    scale, view = SCALES[case]
    spread = scale[view] if view else scale
    codes = fp8(WEIGHTS, spread)
    source = source_of({NAME: codes, f"{NAME}_scale": scale})
    expected = codes.float() * spread
    assert torch.equal(source.read(NAME), expected)
    rows = np.array([N * OUT - 1, 0, OUT + 3], dtype=np.int64)
    assert torch.equal(source.read_rows(NAME, rows), expected.reshape(-1, IN)[torch.from_numpy(rows)])


def test_blocks_of_stacked_fp8_end_with_each_expert():
    # The layout in transformers: experts (experts, out, in) and scales (experts, out / 32, in / 48), rounded up.
    blocks = torch.rand(N, 2, 2) * 0.01
    spread = blocks.repeat_interleave(32, 1)[:, :OUT].repeat_interleave(48, 2)[:, :, :IN]
    codes = fp8(WEIGHTS, spread)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 48]}}
    source = source_of({NAME: codes, f"{NAME}_scale_inv": blocks}, config)
    assert torch.equal(source.read(NAME), codes.float() * spread)
    assert source.description.quantization == "FP8, blocks of 32 x 48"


def test_an_expert_of_a_stack_of_fp8_costs_its_own_bytes():
    tree = tree_of({NAME: fp8(WEIGHTS, 0.01), f"{NAME}_scale_inv": torch.full((N, 3, 4), 0.01)})
    source = source_of({}, tree=tree)
    source.spec(NAME)
    tree.opened[FILE].reads.clear()
    source.read_rows(NAME, rows_of_expert(1, OUT))
    assert bytes_read(tree) == OUT * IN + 3 * 4 * 4


def test_modelopt_packs_transposed_experts_along_the_input():
    # Llama-4 stores (experts, in, out); ModelOpt quantises along the input and stores (experts, in / 2, out).
    experts = [modelopt_nvfp4(weight, "m") for weight in WEIGHTS]
    whole = torch.stack([e.tensors["m.weight_scale_2"] for e in experts])
    tensors = {
        NAME: torch.stack([e.tensors["m.weight"].T for e in experts]),
        f"{NAME}_weight_scale": torch.stack([e.tensors["m.weight_scale"].T for e in experts]),
        f"{NAME}_weight_scale_2": whole,
    }
    source = source_of(tensors)
    expected = torch.stack([e.expected.T for e in experts])
    assert source.spec(NAME).shape == (N, IN, OUT)
    assert torch.equal(source.read(NAME), expected)
    rows = np.array([N * IN - 1, 0, IN + 3, IN + 2], dtype=np.int64)
    assert torch.equal(source.read_rows(NAME, rows), expected.reshape(-1, OUT)[torch.from_numpy(rows)])


def test_experts_of_nvfp4_in_their_own_orientation():
    experts = [modelopt_nvfp4(weight, "m") for weight in WEIGHTS]
    tensors = {
        NAME: torch.stack([e.tensors["m.weight"] for e in experts]),
        f"{NAME}_weight_scale": torch.stack([e.tensors["m.weight_scale"] for e in experts]),
        f"{NAME}_weight_scale_2": torch.stack([e.tensors["m.weight_scale_2"] for e in experts]).reshape(N, 1, 1),
    }
    assert torch.equal(source_of(tensors).read(NAME), torch.stack([e.expected for e in experts]))


def test_inverse_scales_of_a_stack_are_divided_by():
    scale = torch.rand(N, OUT, 1) + E4M3_MAX
    codes = WEIGHTS.to(torch.float8_e4m3fn)
    config = {"quantization_config": {"quant_method": "fp8", "weight_scale_semantics": "inverse"}}
    assert torch.equal(source_of({NAME: codes, f"{NAME}_scale_inv": scale}, config).read(NAME), codes.float() / scale)


def test_experts_of_mlx_are_stacks_of_words():
    parts = [mlx(4)(weight, "m").tensors for weight in WEIGHTS]
    tensors = {
        f"e.{leaf}": torch.stack([part[f"m.{leaf}"] for part in parts]) for leaf in ("weight", "scales", "biases")
    }
    source = source_of(tensors, {"quantization": {"bits": 4, "group_size": 64}})
    assert torch.equal(source.read("e.weight"), torch.stack([mlx(4)(weight, "m").expected for weight in WEIGHTS]))


def test_packed_experts_are_stacks_of_words():
    scheme = SCHEMES["int4"]
    parts = [scheme.write(weight, "m") for weight in WEIGHTS]
    tensors = {
        f"e.weight_{leaf}": torch.stack([part.tensors[f"m.weight_{leaf}"] for part in parts])
        for leaf in ("packed", "scale")
    }
    source = source_of(tensors, scheme.model_config)
    assert torch.equal(source.read("e.weight"), torch.stack([part.expected for part in parts]))
    rows = np.array([N * OUT - 1, 0, OUT], dtype=np.int64)
    assert torch.equal(source.read_rows("e.weight", rows), source.read("e.weight").reshape(-1, IN)[rows])
