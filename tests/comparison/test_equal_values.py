"""Rounded values and repeated layers are recognised, and neither strangers nor fine-tunes are taken for them."""

from __future__ import annotations

import pytest
import torch

from mdir_hf.comparison.direction import repeated_layer, rounded_form

R, N = 200, 128


def normal(seed: int, *shape: int, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(*(shape or (R, N)), generator=torch.Generator().manual_seed(seed))


def quantised(rows: torch.Tensor, group: int, n_levels: int = 15) -> torch.Tensor:
    """Quantise rows to symmetric levels with a scale for each group, and dequantise them."""
    blocks = rows.reshape(-1, group)
    scale = blocks.abs().amax(dim=1, keepdim=True) / (n_levels // 2)
    return ((blocks / scale).round() * scale).reshape(rows.shape)


@pytest.mark.parametrize("group", [128, 64, 32])
def test_values_on_a_few_levels_are_rounded(group):
    fine = normal(0)
    assert rounded_form(fine, quantised(fine, group)) == f"a few levels in each {group} numbers of a row"
    assert rounded_form(quantised(fine, group), fine) is None
    assert rounded_form(normal(5), quantised(fine, group)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_in_16_bits_are_rounded(dtype):
    fine = normal(0)
    coarse = fine.to(dtype).float()
    assert rounded_form(fine, coarse) == str(dtype).removeprefix("torch.")
    assert rounded_form(coarse, fine) is None
    assert rounded_form(coarse, coarse) is None
    assert rounded_form(fine + 0.05 * normal(1), coarse) is None


def scaled_floats(rows: torch.Tensor, dtype: torch.dtype, group: int) -> torch.Tensor:
    """Convert rows to 8-bit floats with a float32 scale for each group, and back."""
    blocks = rows.reshape(-1, group)
    scale = blocks.abs().amax(dim=1, keepdim=True) / torch.finfo(dtype).max
    return ((blocks / scale).to(dtype).float() * scale).reshape(rows.shape)


@pytest.mark.parametrize("group", [128, 512])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_floats_are_rounded(dtype, group):
    fine = normal(0)
    coarse = scaled_floats(fine, dtype, group)
    assert rounded_form(fine, coarse) == f"{str(dtype).removeprefix('torch.')} with a scale"
    assert rounded_form(normal(5), coarse) is None
    assert rounded_form(coarse + 2**-3 * coarse.abs() * normal(1), coarse) is None


def layers(*seeds: int, noise: int = 0) -> list[torch.Tensor]:
    return [normal(seed, 16, N) + 0.3 * normal(1000 + 10 * noise + at, 16, N) for at, seed in enumerate(seeds)]


def test_a_repeated_layer_is_named_with_its_partner():
    assert repeated_layer(layers(0, 1, 2, 3), layers(0, 1, 2, 1, 2, 3, noise=1)) == (1, 3, 1)


@pytest.mark.parametrize(
    "other",
    [
        layers(0, 1, 3),  # cut, not doubled
        layers(10, 11, 11, 12),  # a doubled layer of another model
        [normal(0, 16, 2 * N)] * 4,  # of another width
    ],
)
def test_other_depths_and_strangers_repeat_nothing(other):
    assert repeated_layer(layers(0, 1, 2, 3), other) is None
