import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method import matching as matching_module
from mdir_hf.method.matching import best_matching, matching_in_order, quick_matching
from tests.method.reference import haar


def near(permutation, noise, rng):
    """The polar factor of a permutation matrix with added noise."""
    n = len(permutation)
    left, _, right_t = np.linalg.svd(np.eye(n)[permutation] + noise * rng.standard_normal((n, n)) / math.sqrt(n))
    return torch.from_numpy(left @ right_t)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_the_matching_is_the_best_of_all(shape, signed):
    rng = np.random.default_rng(0)
    u = rng.standard_normal(shape)
    narrow = u if shape[0] <= shape[1] else u.T
    weights = np.abs(narrow) if signed else narrow
    n1, n2 = narrow.shape
    best = max(sum(weights[i, p[i]] for i in range(n1)) for p in itertools.permutations(range(n2), n1))
    assert best_matching(torch.from_numpy(u), signed=signed).trace == pytest.approx(best, rel=1e-12)


def test_row_maxima_that_form_a_permutation_need_no_assignment(monkeypatch):
    rng = np.random.default_rng(1)
    permutation = rng.permutation(64)
    u = near(permutation, 0.5, rng)
    _, expected = linear_sum_assignment(u.numpy(), maximize=True)

    def never(*_args, **_kwargs):
        raise AssertionError("an assignment was solved")

    monkeypatch.setattr(matching_module, "best_assignment", never)
    found = best_matching(u, signed=False)
    np.testing.assert_array_equal(found.candidate, expected)
    np.testing.assert_array_equal(found.candidate, permutation)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("n1", "n2", "rank"), [(48, 48, 12), (32, 64, 32)])
def test_the_shortcut_never_loses_a_significant_matching(n1, n2, rank, signed):
    rng = np.random.default_rng(2)
    passed = lost = 0
    for noise in np.linspace(0.02, 1.5, 40):
        m = np.eye(n1, n2)[rng.permutation(n1)][:, rng.permutation(n2)]
        left, _, right_t = np.linalg.svd(m + noise * rng.standard_normal((n1, n2)) / math.sqrt(n2), full_matrices=False)
        u = torch.from_numpy(left[:, :rank] @ right_t[:rank])
        exact = best_matching(u, signed=signed).log_p
        # Levels on either side of the exact value and far from it.
        for level in (exact - 5.0, exact * 1.0001 - 1e-9, exact * 0.999, -2.0, math.log(1e-10)):
            found = best_matching(u, signed=signed, log_alpha=level)
            if exact < level:
                lost += found is None
                passed += found is not None and found.log_p == exact
    assert lost == 0
    assert passed >= 15


def test_strangers_are_dismissed_without_an_assignment(monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("an assignment was solved")

    monkeypatch.setattr(matching_module, "best_assignment", never)
    u = torch.from_numpy(haar(256, np.random.default_rng(3)))
    assert best_matching(u, signed=False, log_alpha=math.log(1e-3)) is None
    assert best_matching(u, signed=True, log_alpha=math.log(1e-3)) is None


@pytest.mark.parametrize("signed", [False, True])
def test_the_transposed_factor_has_the_inverse_matching(signed):
    rng = np.random.default_rng(4)
    for shape in ((32, 32), (20, 48)):
        m = np.eye(*shape) + 0.3 * rng.standard_normal(shape) / math.sqrt(shape[1])
        left, _, right_t = np.linalg.svd(m, full_matrices=False)
        u = torch.from_numpy(left @ right_t)
        one, other = best_matching(u, signed=signed), best_matching(u.T, signed=signed)
        assert dict(zip(one.reference, one.candidate, strict=True)) == dict(
            zip(other.candidate, other.reference, strict=True)
        )
        assert one.log_p == pytest.approx(other.log_p, rel=1e-12)
        assert one.log_p_half == pytest.approx(other.log_p_half, rel=1e-12)


def test_reference_channels_come_in_ascending_order():
    rng = np.random.default_rng(5)
    u = torch.from_numpy(rng.standard_normal((30, 12)))
    found = best_matching(u, signed=False)
    assert np.all(np.diff(found.reference) > 0)
    np.testing.assert_allclose(found.entries, u.numpy()[found.reference, found.candidate])


def test_signs_say_which_channels_were_flipped():
    rng = np.random.default_rng(6)
    flips = np.where(rng.uniform(size=64) < 0.5, -1, 1)
    u = near(np.arange(64), 0.3, rng) * torch.from_numpy(flips)
    found = best_matching(u, signed=True)
    np.testing.assert_array_equal(found.signs, flips)
    assert found.n_negative == (flips < 0).sum()
    assert found.entries.min() > 0.0


def test_an_unsigned_matching_has_no_signs():
    u = near(np.arange(16), 0.3, np.random.default_rng(7))
    assert set(best_matching(u, signed=False).signs) == {1}


def test_few_shared_axes_are_significant_only_before_trimming():
    rng = np.random.default_rng(8)
    n, shared = 256, 40
    u = np.eye(n)
    u[shared:, shared:] = haar(n - shared, rng)
    found = best_matching(torch.from_numpy(u), signed=False)
    assert found.log_p < math.log(1e-10)
    assert found.log_p_half == 0.0


def test_a_copy_is_significant_after_trimming_half_of_it():
    found = best_matching(near(np.arange(256), 0.5, np.random.default_rng(9)), signed=False)
    assert found.log_p < found.log_p_half < math.log(1e-10)


def test_channels_of_a_copy_are_each_significant():
    rng = np.random.default_rng(10)
    assert best_matching(near(np.arange(128), 0.3, rng), signed=False).n_significant == 128
    strangers = [best_matching(torch.from_numpy(haar(64, rng)), signed=False).n_significant for _ in range(30)]
    # Each at 1 % family-wise: more than three of thirty have a probability below 1e-3.
    assert sum(count > 0 for count in strangers) <= 3


def test_only_the_shared_channels_count_as_matched_by_themselves():
    u = np.eye(128)
    u[40:, 40:] = haar(88, np.random.default_rng(11))
    found = best_matching(torch.from_numpy(u), signed=False)
    np.testing.assert_array_equal(np.flatnonzero(found.is_significant), np.arange(40))


def test_a_factor_of_zeros_is_not_significant():
    found = best_matching(torch.zeros(6, 9, dtype=torch.float64), signed=False)
    assert found.trace == 0.0
    assert found.log_p == 0.0
    assert not found.is_significant.any()


def test_float32_and_float64_factors_agree():
    u = near(np.random.default_rng(12).permutation(64), 0.5, np.random.default_rng(13))
    one, other = best_matching(u, signed=False), best_matching(u.float(), signed=False)
    np.testing.assert_array_equal(one.candidate, other.candidate)
    # Each entry is rounded to 6e-8; log p depends on the square of their sum.
    assert other.log_p == pytest.approx(one.log_p, rel=1e-6)


class TestWithoutTheOptimum:
    def test_a_significant_greedy_matching_is_accepted(self, monkeypatch):
        # Row maxima collide here, and the remainder after the greedy rounds is far below the whole.
        def small_only(weights):
            assert weights.shape[0] <= matching_module.GREEDY_REST
            return linear_sum_assignment(weights, maximize=True)

        monkeypatch.setattr(matching_module, "best_assignment", small_only)
        rng = np.random.default_rng(14)
        u = near(rng.permutation(400), 0.5, rng)
        u[:20] = u[20:40]
        found = quick_matching(u, signed=False, log_alpha=math.log(1e-10))
        assert max(found.log_p, found.log_p_half) < math.log(1e-10)
        assert len(set(u.argmax(dim=1).tolist())) < 400

    @pytest.mark.parametrize("signed", [False, True])
    @pytest.mark.parametrize("shape", [(300, 300), (280, 400), (400, 280)])
    def test_a_greedy_matching_is_a_matching_and_close_to_the_optimum(self, shape, signed, monkeypatch):
        monkeypatch.setattr(matching_module, "GREEDY_REST", 20)
        rng = np.random.default_rng(15)
        u = torch.from_numpy(np.linalg.qr(rng.standard_normal((max(shape), min(shape))))[0])
        u = (u if shape[0] > shape[1] else u.T) + 0.4 * torch.eye(*shape)
        greedy = quick_matching(u, signed=signed, log_alpha=-1.0)
        optimum = best_matching(u, signed=signed)
        assert len(set(greedy.reference)) == len(set(greedy.candidate)) == min(shape)
        np.testing.assert_allclose(
            greedy.entries,
            np.abs(u.numpy()[greedy.reference, greedy.candidate])
            if signed
            else u.numpy()[greedy.reference, greedy.candidate],
        )
        assert 0.9 * optimum.trace < greedy.trace <= optimum.trace * (1 + 1e-12)

    def test_one_column_that_every_row_wants_does_not_cost_a_round_each(self):
        u = torch.from_numpy(0.01 * np.random.default_rng(16).standard_normal((300, 300))) + torch.eye(300)
        u[:, 0] += 2.0
        found = quick_matching(u, signed=False, log_alpha=-1.0)
        assert sorted(found.candidate) == list(range(300))

    def test_the_optimum_is_computed_if_a_greedy_matching_is_not_enough(self):
        rng = np.random.default_rng(17)
        u = near(rng.permutation(48), 2.0, rng)
        exact = best_matching(u, signed=False)
        level = exact.log_p * 0.999  # so close to the optimum that only the optimum reaches it
        assert quick_matching(u, signed=False, log_alpha=level) is None
        assert best_matching(u, signed=False, log_alpha=level).trace == exact.trace


class TestChannelsInTheirOwnOrder:
    def test_a_copy_needs_no_correction_for_a_choice(self):
        found = matching_in_order(torch.eye(40, dtype=torch.float64))
        assert found.log_p == pytest.approx(-(40**2) / 2, rel=1e-12)  # -c^2 / 2 with c = n
        assert found.log_p_signs == pytest.approx(-40 / 2, rel=1e-12)  # 40 votes of 40
        assert found.is_identity
        # Without the best half: 20 pairs, chosen in one of C(40, 20) ways.
        kept = math.log(math.comb(40, 20)) - 20**2 / 2 * 40 / 20
        assert found.log_p_half == pytest.approx(kept, rel=1e-9)

    def test_votes_and_the_worse_half_count_as_two_tests(self):
        faint = torch.from_numpy(haar(400, np.random.default_rng(20)) + 0.04 * np.eye(400))
        for u, votes_win in ((torch.eye(40, dtype=torch.float64), False), (faint, True)):
            found = matching_in_order(u)
            by_votes, by_the_rest = found.log_p_signs, found.log_p_half
            assert (by_votes < by_the_rest) == votes_win
            assert found.log_p_robust == pytest.approx(min(by_votes, by_the_rest) + math.log(2), rel=1e-12)
        searched = best_matching(torch.eye(40, dtype=torch.float64), signed=False)
        assert searched.log_p_robust == searched.log_p_half

    def test_a_faint_agreement_of_all_channels_is_found(self):
        n, rng = 400, np.random.default_rng(20)
        u = torch.from_numpy(haar(n, rng) + 0.04 * np.eye(n))  # a tenth of the largest of n entries expected by chance
        found = matching_in_order(u)
        assert max(found.log_p, found.log_p_robust) < math.log(1e-10)
        assert best_matching(u, signed=True).log_p == best_matching(u, signed=False).log_p == 0.0

    def test_a_few_outstanding_axes_are_a_few_votes(self):
        u, rng = np.eye(256), np.random.default_rng(21)
        u[24:, 24:] = haar(232, rng)
        found = matching_in_order(torch.from_numpy(u))
        assert found.log_p < math.log(1e-10)
        assert found.log_p_robust > math.log(1e-3)

    def test_a_narrower_model_has_the_weaker_of_two_bounds(self):
        found = matching_in_order(torch.eye(3, 32, dtype=torch.float64))
        assert found.trace == 3.0
        np.testing.assert_array_equal(found.candidate, [0, 1, 2])
        # The row energy is 3 of n = 32, the column energy 3 of 3: the weaker of 32 c^2 / 2 e and 3 c^2 / 2 e applies.
        assert found.log_p == pytest.approx(-0.5 * 9 * min(32 / 3, 3 / 3), rel=1e-12)

    def test_channels_of_opposite_signs_vote_against(self):
        assert matching_in_order(-torch.eye(20, dtype=torch.float64)).log_p == 0.0
        assert matching_in_order(-torch.eye(20, dtype=torch.float64)).log_p_signs == 0.0
