import numpy as np
import pytest
import torch

from mdir_hf.method.heads import pair_heads, turn_back
from tests.method.reference import haar


def heads(n_heads, d, n, seed):
    rows = torch.from_numpy(np.random.default_rng(seed).standard_normal((n_heads, d, n)))
    return rows / rows.norm(dim=2, keepdim=True)


def test_heads_are_matched_in_any_residual_basis_and_order():
    mine = heads(6, 16, 80, 0)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    turned = mine[order] @ torch.from_numpy(haar(80, np.random.default_rng(1)))
    reference, candidate, resemblance = pair_heads(mine, turned)
    np.testing.assert_array_equal(reference, np.arange(6))
    np.testing.assert_array_equal(order[candidate], reference)
    assert resemblance == pytest.approx(1.0, abs=1e-12)  # float64 products of 80 terms


def test_the_pairing_does_not_depend_on_the_residual_basis():
    # For this reason, every p that is valid after a rotation stays valid.
    mine, other = heads(5, 12, 40, 2), heads(4, 12, 56, 3)
    turned = other @ torch.from_numpy(haar(56, np.random.default_rng(4)))
    one, same = pair_heads(mine, other), pair_heads(mine, turned)
    np.testing.assert_array_equal(one[1], same[1])
    assert one[2] == pytest.approx(same[2], abs=1e-12)


def test_heads_and_channels_may_be_fewer_on_either_side():
    mine = heads(6, 16, 80, 5)
    kept = mine[[4, 1, 2]][:, :, :60]
    kept = kept / kept.norm(dim=2, keepdim=True)
    reference, candidate, resemblance = pair_heads(mine, kept)
    assert list(zip(reference.tolist(), candidate.tolist(), strict=True)) == [(1, 1), (2, 2), (4, 0)]
    assert resemblance > 0.5
    reference, candidate, _ = pair_heads(kept, mine)
    assert list(zip(reference.tolist(), candidate.tolist(), strict=True)) == [(0, 4), (1, 1), (2, 2)]


def test_strangers_whose_heads_share_a_pattern_differ():
    # Rotary positions make such patterns: neighbouring rows are alike in every head of every model.
    def smooth(seed):
        rows = heads(8, 32, 64, seed)
        rows = rows + 0.7 * rows.roll(1, dims=1)
        return rows / rows.norm(dim=2, keepdim=True)

    for seed in range(10):
        *_, resemblance = pair_heads(smooth(seed), smooth(100 + seed))
        assert abs(resemblance) < 0.15


def test_one_head_is_paired_with_one_head():
    mine = heads(1, 8, 20, 6)
    reference, candidate, resemblance = pair_heads(mine, mine)
    assert (reference.tolist(), candidate.tolist()) == ([0], [0])
    assert resemblance == pytest.approx(1.0, abs=1e-12)


def test_heads_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="heads of 8 rows cannot be paired with heads of 16"):
        pair_heads(heads(2, 8, 20, 7), heads(2, 16, 20, 8))


def test_rows_that_are_all_zeros_resemble_nothing():
    *_, resemblance = pair_heads(torch.zeros(2, 4, 10), heads(2, 4, 10, 9).float())
    assert resemblance == 0.0


class TestPlanes:
    def planes(self, n_heads, n_planes, n, seed):
        rng = np.random.default_rng(seed)
        z = torch.from_numpy(
            rng.standard_normal((n_heads, n_planes, n)) + 1j * rng.standard_normal((n_heads, n_planes, n))
        )
        return z / z.norm(dim=2, keepdim=True)

    def turned(self, z, seed):
        """Every plane rotated by its own angle, and the residual stream rotated too."""
        rng = np.random.default_rng(seed)
        angles = torch.from_numpy(rng.uniform(0, 2 * np.pi, z.shape[:-1]))
        turn = torch.from_numpy(haar(z.shape[-1], rng)).to(z.dtype)
        return z * torch.polar(torch.ones_like(angles), angles)[..., None] @ turn, turn

    def test_heads_with_turned_planes_are_matched(self):
        mine = self.planes(5, 8, 60, 0)
        order = torch.tensor([2, 4, 0, 1, 3])
        other, _ = self.turned(mine[order], 1)
        reference, candidate, resemblance = pair_heads(mine, other)
        np.testing.assert_array_equal(order[candidate], reference)
        assert resemblance == pytest.approx(1.0, abs=1e-12)

    @pytest.mark.parametrize("noise", [0.0, 0.3])
    def test_planes_are_rotated_back_up_to_one_sign(self, noise):
        mine = self.planes(1, 40, 60, 2)[0]
        other, turn = self.turned(mine, 3)
        other = other + noise * self.planes(1, 40, 60, 4)[0]
        found = turn_back(mine, other)
        agreement = (found * (mine @ turn).conj()).sum(dim=1).real / found.norm(dim=1)
        agreement = agreement * agreement.sum().sign()
        # Without noise, exact to the rounding of an eigenvector of 80; with noise, a row loses 1 - 1/sqrt(1.09) of its
        # norm.
        assert agreement.min() > (1 - 1e-9 if noise == 0 else 0.9)

    def test_unturned_planes_stay(self):
        mine = self.planes(1, 30, 50, 5)[0]
        found = turn_back(mine, mine)
        sign = (found * mine.conj()).sum().real.sign()
        torch.testing.assert_close(sign * found, mine)

    def test_strangers_do_not_resemble_each_other(self):
        for seed in range(10):
            *_, resemblance = pair_heads(self.planes(8, 16, 64, seed), self.planes(8, 16, 64, 100 + seed))
            assert abs(resemblance) < 0.15

    def test_the_rotations_of_planes_do_not_depend_on_the_residual_basis(self):
        mine, other = self.planes(1, 20, 40, 6)[0], self.planes(1, 20, 56, 7)[0]
        turn = torch.from_numpy(haar(56, np.random.default_rng(8))).to(other.dtype)
        one, two = turn_back(mine, other) @ turn, turn_back(mine, other @ turn)
        torch.testing.assert_close((one * two.conj()).sum().real.sign() * two, one)

    def test_planes_of_zeros_are_left_alone(self):
        mine = self.planes(1, 6, 20, 9)[0]
        other = mine.clone()
        other[2] = 0.0
        assert torch.isfinite(torch.view_as_real(turn_back(mine, other))).all()
