"""Maps of a reconstruction: exact for applied transformations, and the identity if training moved the weights."""

import numpy as np
import pytest
import torch

from mdir_hf.method.inner_maps import Sides, fit_blocks, fit_heads, fit_planes
from mdir_hf.method.neuron_maps import FEW_NEURONS, fit_neurons
from mdir_hf.method.neurons import MlpWeights
from mdir_hf.method.stream_map import RowProducts, fit_stream, held_out_share
from mdir_hf.reconstruction.records import RowMap

HEADS, QUERIES, D, N = 3, 2, 8, 48


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def orthogonal(matrix):
    return torch.linalg.qr(matrix).Q


def with_noise(sides, drawn, size):
    return Sides(sides.single + size * drawn(*sides.single.shape), sides.grouped + size * drawn(*sides.grouped.shape))


def heads(drawn):
    return Sides(drawn(HEADS, D, N), drawn(HEADS, QUERIES, D, N))


@pytest.mark.parametrize("size", [0.01, 0.3])
def test_training_leaves_values_unmixed(drawn, size):
    x = heads(drawn)
    found = fit_blocks(x, with_noise(x, drawn, size))
    assert (found.kind, found.matrices) == ("identity", None)


@pytest.mark.parametrize(("kind", "stretch"), [("rotations", 1.0), ("scaled_rotations", 2.5), ("matrices", None)])
def test_mixed_values_are_unmixed_under_noise(drawn, kind, stretch):
    x = heads(drawn)
    h = orthogonal(drawn(HEADS, D, D))
    h = h * stretch if stretch else h * torch.linspace(0.3, 3.0, D, dtype=torch.float64)
    y = Sides(h @ x.single, torch.linalg.inv(h).mT[:, None] @ x.grouped)
    found = fit_blocks(x, y)
    assert found.kind == kind
    torch.testing.assert_close(found.matrices, h)
    assert fit_blocks(x, with_noise(y, drawn, 0.02)).kind == kind


@pytest.mark.parametrize("layouts", [("half", "half"), ("interleaved", "interleaved"), ("half", "interleaved")])
def test_turned_planes_are_found_in_either_layout(drawn, layouts):
    x = heads(drawn)
    z = torch.view_as_complex(drawn(HEADS, D // 2, 2))

    def turned(rows, factor):
        first, second = (
            (rows[..., : D // 2, :], rows[..., D // 2 :, :])
            if layouts[0] == "half"
            else (rows[..., ::2, :], rows[..., 1::2, :])
        )
        made = torch.complex(first, second) * factor[..., None]
        if layouts[1] == "half":
            return torch.cat((made.real, made.imag), dim=-2)
        return torch.stack((made.real, made.imag), dim=-2).flatten(-3, -2)

    y = Sides(turned(x.single, z), turned(x.grouped, (1 / z.conj())[:, None]))
    found = fit_planes(x, y, layouts)
    assert found.kind == "scaled_turns"
    torch.testing.assert_close(found.matrices @ x.single, y.single)


def test_heads_of_a_mixed_layer_are_matched(drawn):
    x = heads(drawn)
    order, mixing = torch.tensor([2, 0, 1]), drawn(HEADS, D, D)
    y = Sides((mixing @ x.single)[order], (torch.linalg.inv(mixing).mT[:, None] @ x.grouped)[order].flip(1))
    found = fit_heads((x, y), None, n_kv_heads=(HEADS, HEADS), n_heads=(6, 6), layouts=None, rotary_dim=None)
    assert found.kv_candidate.tolist() == [1, 2, 0]
    assert found.q_candidate.tolist() == [3, 2, 5, 4, 1, 0]


def test_a_row_map_is_undone_by_its_inverse(drawn):
    v = drawn(HEADS * D, N)
    row_map = RowMap(np.array([2, 0, 1]), drawn(HEADS, D, D))
    torch.testing.assert_close(row_map.inverse.apply(row_map.apply(v)), v)


@pytest.mark.parametrize("n_neurons", [200, FEW_NEURONS + 100])
def test_shuffled_neurons_with_signs_and_scales_are_found(drawn, n_neurons):
    up, down, gate = (drawn(n_neurons, 64) for _ in range(3))
    order = torch.randperm(n_neurons, generator=torch.Generator().manual_seed(1))
    scales = drawn(n_neurons)
    candidate = MlpWeights((up * scales[:, None])[order], (down / scales[:, None])[order].T, gate[order])
    found = fit_neurons(MlpWeights(up, down.T, gate), candidate)
    assert found.kind == "scales"
    assert (order.numpy()[found.candidate] == found.reference).all()
    torch.testing.assert_close(found.scales, scales)


def test_training_leaves_neurons_their_size_and_place(drawn):
    up, down, gate = (drawn(200, 64) for _ in range(3))
    noisy = MlpWeights(up + 0.3 * drawn(200, 64), (down + 0.3 * drawn(200, 64)).T, gate + 0.3 * drawn(200, 64))
    found = fit_neurons(MlpWeights(up, down.T, gate), noisy)
    assert (found.kind, (found.reference == found.candidate).all()) == ("order", True)


def products(x, y):
    made = RowProducts.empty(x.shape[1], y.shape[1])
    made.add(x, y)
    return made


def test_a_rotation_of_layer_norm_models_fixes_the_mean(drawn):
    x = drawn(400, 16)
    one = torch.full((16, 1), 0.25, dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([one, drawn(16, 15)], dim=1)).Q
    inner = torch.eye(16, dtype=torch.float64)
    inner[1:, 1:] = orthogonal(drawn(15, 15))
    turn = basis @ inner @ basis.T
    found = fit_stream(products(x, x @ turn + 0.05 * drawn(400, 16)), keeps_mean=True)
    assert found.outer.kind == "rotation"
    torch.testing.assert_close(found.outer.matrix.T @ one, one)
    torch.testing.assert_close(found.outer.matrix @ found.outer.matrix.T, torch.eye(16, dtype=torch.float64))


def test_low_rank_training_is_not_a_rotation(drawn):
    x = drawn(2000, 64)
    trained = x + 0.002 * drawn(2000, 1) @ drawn(1, 64)
    assert fit_stream(products(x, trained), keeps_mean=False).outer.kind == "identity"


def test_strangers_do_not_explain_held_out_rows(drawn):
    halves = [products(drawn(100, 64), drawn(100, 64)) for _ in range(2)]
    assert held_out_share(*halves, keeps_mean=False) < 0.01
    x = drawn(200, 64)
    turned = x @ orthogonal(drawn(64, 64)) + drawn(200, 64)
    related = [products(x[half::2], turned[half::2]) for half in range(2)]
    assert held_out_share(*related, keeps_mean=False) > 0.1
