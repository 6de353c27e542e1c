"""Evidence that one of two models is earlier, for each kind of pair with and without such evidence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdir_hf.comparison.order_evidence import (
    OrderEvidence,
    copied_layers,
    grown_vocabulary,
    is_extension,
    roundings,
)
from mdir_hf.lineage.trees.placing import root_candidates
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.model.tokens.tokens import VocabularyKind

R, N = 200, 128


def normal(seed: int, *shape: int, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(*(shape or (R, N)), generator=torch.Generator().manual_seed(seed))


def quantised(rows: torch.Tensor, group: int, n_levels: int = 15) -> torch.Tensor:
    """Quantise rows to symmetric levels with a scale for each group, and dequantise them."""
    blocks = rows.reshape(-1, group)
    scale = blocks.abs().amax(dim=1, keepdim=True) / (n_levels // 2)
    return ((blocks / scale).round() * scale).reshape(rows.shape)


@pytest.mark.parametrize("group", [128, 64, 32])
def test_a_quantised_copy_came_later(group):
    fine = normal(0)
    rows = {"fine": fine, "coarse": quantised(fine, group), "stranger": normal(5)}
    assert [(one.earlier, one.later) for one in roundings(rows)] == [("fine", "coarse")]


def test_the_closer_of_two_models_was_rounded():
    fine = normal(0)
    rows = {"near": fine + 1e-4 * normal(1), "fine": fine, "coarse": quantised(fine, 128, n_levels=7)}
    assert [(one.earlier, one.later) for one in roundings(rows)] == [("fine", "coarse")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_in_16_bits_of_a_model_in_32_came_later(dtype):
    fine = normal(0)
    (found,) = roundings({"coarse": fine.to(dtype).float(), "fine": fine})
    assert (found.earlier, found.later) == ("fine", "coarse")
    assert str(dtype).removeprefix("torch.") in found.says


def scaled_floats(rows: torch.Tensor, dtype: torch.dtype, group: int) -> torch.Tensor:
    """Convert rows to 8-bit floats with a float32 scale for each group, and back."""
    blocks = rows.reshape(-1, group)
    scale = blocks.abs().amax(dim=1, keepdim=True) / torch.finfo(dtype).max
    return ((blocks / scale).to(dtype).float() * scale).reshape(rows.shape)


@pytest.mark.parametrize("group", [128, 512])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_copy_in_scaled_floats_came_later(dtype, group):
    fine = normal(0)
    rows = {"fine": fine, "coarse": scaled_floats(fine, dtype, group), "stranger": normal(5)}
    (found,) = roundings(rows)
    assert (found.earlier, found.later) == ("fine", "coarse")
    assert str(dtype).removeprefix("torch.") in found.says


@pytest.mark.parametrize("drift", [0.01, 0.1, 0.3])
def test_a_fine_tune_is_not_taken_for_its_origin_in_scaled_floats(drift):
    coarse = scaled_floats(normal(0), torch.float8_e4m3fn, 128)
    assert roundings({"tuned": coarse + drift * 2**-4 * coarse.abs() * normal(1), "coarse": coarse}) == ()


@pytest.mark.parametrize("drift", [0.01, 0.1, 0.15, 0.3])
def test_a_fine_tune_is_not_taken_for_its_quantised_origin(drift):
    coarse = quantised(normal(0), 128)
    step = coarse.abs().amax(dim=1, keepdim=True) / 7
    assert roundings({"tuned": coarse + drift * step * normal(1), "coarse": coarse}) == ()


def layers(*seeds: int, noise: int = 0) -> list[torch.Tensor]:
    return [normal(seed, 16, N) + 0.3 * normal(1000 + 10 * noise + at, 16, N) for at, seed in enumerate(seeds)]


def test_a_model_with_a_repeated_layer_came_later():
    rows = {"deep": layers(0, 1, 2, 1, 2, 3, noise=1), "base": layers(0, 1, 2, 3)}
    (found,) = copied_layers(rows)
    assert (found.earlier, found.later) == ("base", "deep")
    assert "layers 1 and 3 of deep both match layer 1 of base by sampled rows" in found.says


@pytest.mark.parametrize(
    "other",
    [
        layers(0, 1, 3),  # cut, not doubled
        layers(10, 11, 11, 12),  # a doubled layer of another model
        [*layers(0, 1, 2), None],
        [None] * 4,
        [normal(0, 16, 2 * N)] * 4,  # of another width
    ],
)
def test_other_depths_and_strangers_are_no_evidence(other):
    assert copied_layers({"base": layers(0, 1, 2, 3), "other": other}) == ()


def vocabulary(n_tokens: int, *, shift: int = 0) -> Vocabulary:
    row_of = {f"w{at}".encode(): at + shift for at in range(n_tokens)}
    return Vocabulary(VocabularyKind.TIKTOKEN, row_of, n_tokens, 0, 0, 0, 0, {}, ())


def test_new_rows_at_the_mean_of_the_others_came_later():
    old = normal(0) + 0.5
    new = old.mean(dim=0) + normal(1, 20, N, size=1e-3)
    found = grown_vocabulary("base", "grown", 20, old[::3], new)
    assert (found.earlier, found.later) == ("base", "grown")
    assert "20 tokens more" in found.says


@pytest.mark.parametrize(
    "new",
    [
        normal(1, 20, N),  # trained rows: the vocabulary may have been cut instead
        normal(1, 20, N, size=0.01) + 1.0,  # untrained rows, but not at the mean
        torch.zeros(2, N),
        torch.zeros(0, N),
    ],
)
def test_a_larger_vocabulary_alone_is_no_evidence(new):
    assert grown_vocabulary("a", "b", 20, normal(0), new) is None


def test_an_extension_keeps_every_row_and_has_more():
    assert is_extension(vocabulary(R), vocabulary(R + 20))
    assert not is_extension(vocabulary(R), vocabulary(R + 20, shift=1))
    assert not is_extension(vocabulary(R + 20), vocabulary(R))
    assert not is_extension(vocabulary(R), vocabulary(R))


def test_the_root_lies_on_the_earlier_side_of_all_evidence():
    names = ("a", "b", "c", "d")
    distances = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))  # a chain
    assert root_candidates(names, distances, []) == names
    assert root_candidates(names, distances, [OrderEvidence("rounding", "b", "c", "")]) == ("a", "b")
    assert root_candidates(
        names, distances, [OrderEvidence("layers", "a", "b", ""), OrderEvidence("x", "z", "a", "")]
    ) == ("a",)
    assert root_candidates(names, distances, [OrderEvidence("x", "a", "b", ""), OrderEvidence("x", "b", "a", "")]) == ()
