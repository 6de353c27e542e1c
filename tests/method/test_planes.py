"""Q and K under rotary positions."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method.blocks import best_head_map, log_p_head_map
from mdir_hf.method.neurons import inner_polar
from mdir_hf.method.planes import (
    LAYOUTS,
    normalise_planes,
    plane_pattern,
    plane_rows,
)
from tests.method.obfuscation import haar

H, D, N = 4, 8, 64


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def turned(rows, planes, seed=0, *, signs_only=False):
    """Every plane rotated by its own angle and scaled, or with its own sign."""
    generator = torch.Generator().manual_seed(seed)
    out = rows.clone()
    for plane in planes.reshape(-1, 2):
        angle = 2 * math.pi * torch.rand(1, dtype=torch.float64, generator=generator).item()
        scale = math.exp(torch.randn(1, dtype=torch.float64, generator=generator).item())
        if signs_only:
            angle, scale = (0.0 if angle < math.pi else math.pi), 1.0
        c, s = scale * math.cos(angle), scale * math.sin(angle)
        out[plane] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64) @ rows[plane]
    return out


def evidence(x, y, *, layout="half", other="half", n_heads=H, rotary_dim=None, signs_only=False):
    rows = plane_rows(len(x), n_heads, layout, rotary_dim=rotary_dim)
    columns = plane_rows(len(y), n_heads, other, rotary_dim=rotary_dim)
    polar = inner_polar(normalise_planes(x, rows[0]), normalise_planes(y, columns[0]))
    pattern = plane_pattern(polar, rows, columns, signs_only=signs_only)
    heads = best_head_map(pattern)
    return heads, log_p_head_map(pattern, *heads)[1], pattern


def test_rotate_half_pairs_a_row_with_the_one_half_a_head_further():
    planes, still = plane_rows(8, 2, "half")
    assert planes.tolist() == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]
    assert still.shape == (2, 0)


@pytest.mark.parametrize(("n_rows", "rotary_dim"), [(9, None), (6, None), (8, 6), (8, 3)])
def test_rows_that_make_no_planes_are_refused(n_rows, rotary_dim):
    with pytest.raises(ValueError, match="expected whole heads and pairs of rows"):
        plane_rows(n_rows, 2, "half", rotary_dim=rotary_dim)


def test_heads_with_other_numbers_of_planes_are_refused():
    with pytest.raises(ValueError, match="planes per head: 4 against 2"):
        plane_pattern(draw(8, 4), plane_rows(8, 1, "half"), plane_rows(4, 1, "half"))


def test_plane_energies_agree_with_a_projection_on_a_plus_bj():
    u = draw(8, 8)
    pattern = plane_pattern(u, plane_rows(8, 2, "half"), plane_rows(8, 2, "half"))
    identity, turn = np.eye(2) / math.sqrt(2), np.array([[0, -1], [1, 0]]) / math.sqrt(2)
    for h in range(2):
        for g in range(2):
            energy = 0.0
            for f in range(2):
                block = u[[4 * h + f, 4 * h + f + 2]][:, [4 * g + f, 4 * g + f + 2]].numpy()
                energy += (block * identity).sum() ** 2 + (block * turn).sum() ** 2
            assert pattern.scores[h, g] == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("signs_only", [False, True])
def test_energies_are_sums_over_a_basis_of_what_a_head_may_be_turned_by(signs_only):
    u = draw(12, 12)
    rows = planes, still = plane_rows(12, 2, "half", rotary_dim=4)
    turns = [np.eye(2)] if signs_only else [np.eye(2), np.array([[0, -1], [1, 0]])]
    pattern = plane_pattern(u, rows, rows, signs_only=signs_only)
    for h in range(2):
        of_planes = [(turn / math.sqrt(2), u[plane].numpy()) for plane in planes[h] for turn in turns]
        entries = [np.outer(one, other) for one in np.eye(2) for other in np.eye(2)]
        basis = of_planes + [(entry, u[still[h]].numpy()) for entry in entries]
        assert pattern.reference_energy[h] == pytest.approx(sum(((b @ part) ** 2).sum() for b, part in basis))
    of_transposed = plane_pattern(u.T, rows, rows, signs_only=signs_only)
    np.testing.assert_allclose(of_transposed.candidate_energy, pattern.reference_energy)


@pytest.mark.parametrize("signs_only", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 2])
def test_on_haar_factors_the_bound_holds(signs_only, rotary_dim):
    rows = plane_rows(12, 3, "half", rotary_dim=rotary_dim)
    generator, heads = torch.Generator().manual_seed(0), np.arange(3)
    log_p = np.array(
        [
            log_p_head_map(plane_pattern(haar(12, generator), rows, rows, signs_only=signs_only), heads, heads, 0.0)[1]
            for _ in range(2000)
        ]
    )
    for a in (0.5, 0.2, 0.05, 0.01):
        # three standard errors of the count
        assert np.mean(log_p <= math.log(a)) <= a + 3 * math.sqrt(a * (1 - a) / len(log_p))


@pytest.mark.parametrize("seed", range(5))
def test_turns_and_scales_of_planes_change_no_energy(seed):
    x, y = draw(H * D, N, seed=seed), draw(H * D, N, seed=seed + 100)
    planes = plane_rows(H * D, H, "half")[0]
    before = evidence(x, y)[2].scores
    np.testing.assert_allclose(evidence(turned(x, planes, seed), y)[2].scores, before, rtol=1e-9)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_shuffled_heads_with_turned_and_scaled_planes_are_found(layout, noise):
    x, order = draw(H * D, N), torch.tensor([2, 0, 3, 1])
    y = turned(x.reshape(H, D, N)[order].reshape(H * D, N), plane_rows(H * D, H, layout)[0])
    y = y + noise * y.norm() / y.numel() ** 0.5 * draw(H * D, N, seed=3)
    (reference, candidate, _), log_p, _ = evidence(x, y, layout=layout, other=layout)
    assert reference[np.argsort(candidate)].tolist() == order.tolist()
    assert log_p < math.log(1e-10)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_right_layout_has_by_far_the_smaller_p(layout):
    # p is also small in the wrong layout, because some rows have the same place of a plane in both.
    x = draw(H * D, N)
    y = turned(x, plane_rows(H * D, H, layout)[0])
    log_p = {k: evidence(x, y, layout=k, other=k)[1] for k in LAYOUTS}
    assert min(log_p, key=log_p.get) == layout
    assert log_p[layout] < 5 * max(log_p.values())


def test_a_model_stored_in_the_other_layout_is_found():
    x = draw(H * D, N)
    half, interleaved = plane_rows(H * D, H, "half")[0], plane_rows(H * D, H, "interleaved")[0]
    y = x.clone()
    y[interleaved.reshape(-1)] = x[half.reshape(-1)]
    across, alike = evidence(x, y, layout="half", other="interleaved")[1], evidence(x, y)[1]
    assert across < math.log(1e-10)
    assert across < 5 * alike


def test_partly_rotary_heads_allow_any_rotation_of_the_rest():
    x = draw(H * D, N)
    planes, still = plane_rows(H * D, H, "half", rotary_dim=4)
    y = turned(x, planes)
    generator = torch.Generator().manual_seed(0)
    for rows in still:
        y[rows] = haar(4, generator) @ y[rows]
    (reference, candidate, _), log_p, _ = evidence(x, y, rotary_dim=4)
    assert (reference == candidate).all()
    assert log_p < math.log(1e-10)


def test_behind_qk_norm_signs_are_found_and_other_turns_are_not():
    x = draw(H * D, N)
    planes = plane_rows(H * D, H, "half")[0]
    flipped, quarter = turned(x, planes, signs_only=True), x.clone()
    quarter[planes[..., 0]], quarter[planes[..., 1]] = -x[planes[..., 1]], x[planes[..., 0]]
    assert evidence(x, flipped, signs_only=True)[1] < math.log(1e-10)
    assert evidence(x, quarter, signs_only=True)[1] == 0.0


def test_a_plane_of_zeros_stays_zero():
    rows = draw(4, 6)
    rows[[0, 2]] = 0.0
    scaled = normalise_planes(rows, plane_rows(4, 1, "half")[0])
    assert float(scaled[[0, 2]].abs().max()) == 0.0
    assert float(scaled[[1, 3]].square().sum()) == pytest.approx(1.0, rel=1e-12)
