"""Compare with MLX itself if it is installed; the writers of the other tests do not need it."""

import numpy as np
import pytest
import torch

from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of

mlx = pytest.importorskip("mlx.core")

W = np.random.default_rng(0).standard_normal((24, 192)).astype(np.float32)


def read(parts, settings):
    names = (WEIGHT, f"{MODULE}.scales", f"{MODULE}.biases")
    tensors = {name: torch.from_numpy(np.array(part)) for name, part in zip(names, parts, strict=False)}
    return source_of(tensors, {"quantization": settings}).read(WEIGHT).numpy()


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine_codes_are_read_as_by_mlx(bits, group):
    parts = mlx.quantize(mlx.array(W), group_size=group, bits=bits)
    expected = np.array(mlx.dequantize(*parts, group_size=group, bits=bits))
    assert np.array_equal(read(parts, {"bits": bits, "group_size": group}), expected)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_byte_scales_are_read_as_by_mlx(mode):
    parts = mlx.quantize(mlx.array(W), mode=mode)
    expected = np.array(mlx.dequantize(*parts, mode=mode).astype(mlx.float32))
    assert np.array_equal(read(parts, {"mode": mode}), expected)


def test_a_module_of_its_own_bits_is_read_by_them():
    parts = mlx.quantize(mlx.array(W), group_size=32, bits=8)
    expected = np.array(mlx.dequantize(*parts, group_size=32, bits=8))
    settings = {"bits": 4, "group_size": 64, MODULE: {"bits": 8, "group_size": 32}, "lm_head": False}
    assert np.array_equal(read(parts, settings), expected)
