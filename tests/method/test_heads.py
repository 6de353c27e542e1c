"""Blocks of heads: the bound, its invariances, and the changes that it detects."""

import itertools
import math

import numpy as np
import pytest
import torch

from mdir_hf.method.blocks import HeadPattern, best_head_map, block_pattern, log_p_head_map, log_p_pattern
from mdir_hf.method.heads import find_head_map, unit_heads
from mdir_hf.method.neurons import inner_polar
from tests.method.obfuscation import haar


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def invertible(n_heads, d, seed=0):
    return draw(n_heads, d, d, seed=seed) + 2 * torch.eye(d, dtype=torch.float64)


def mix(matrices, rows):
    n_heads, d, _ = matrices.shape
    return (matrices @ rows.reshape(n_heads, d, -1)).reshape(rows.shape)


def uniform_log_p(pattern_of, n_draws, n_heads, seed=0):
    """ln of the bound for a map fixed in advance, on draws of U from the null."""
    generator = torch.Generator().manual_seed(seed)
    heads = np.arange(n_heads)
    return np.array([log_p_head_map(pattern_of(generator), heads, heads, 0.0)[1] for _ in range(n_draws)])


def assert_is_a_bound(log_p):
    """P[bound <= a] <= a, up to three standard errors of the count."""
    for a in (0.5, 0.2, 0.05, 0.01):
        assert np.mean(log_p <= math.log(a)) <= a + 3 * math.sqrt(a * (1 - a) / len(log_p))


# --- the bound


def test_the_bound_is_the_optimum_of_chernoffs_exponent():
    # the naive reference: minimise -sT - (N/2) ln(1 - 2s/m) over a fine grid of s
    m, energy, statistic = 32.0, 128.0, 9.0
    s = np.linspace(0, m / 2, 200_001)[:-1]
    exponent = np.min(-s * statistic - energy / 2 * np.log(1 - 2 * s / m))
    assert log_p_pattern(statistic, energy=energy, n_haar=int(m), log_n_maps=0.0) == pytest.approx(exponent, rel=1e-8)


def test_the_threshold_at_the_size_of_a_real_layer_is_the_known_one():
    # 8 heads of width 32: T = 35.05 is significant at 0.1 % over all head maps, according to a separate computation.
    h, d, m = 8, 32, 256
    for statistic, is_significant in ((35.04, False), (35.06, True)):
        log_p = log_p_pattern(statistic, energy=h * d * d, n_haar=m, log_n_maps=math.lgamma(h + 1))
        assert (log_p < math.log(1e-3)) == is_significant


def test_no_energy_and_no_excess_are_no_evidence():
    assert log_p_pattern(0.0, energy=4.0, n_haar=4, log_n_maps=0.0) == 0.0
    assert log_p_pattern(1.0, energy=0.0, n_haar=4, log_n_maps=0.0) == 0.0
    assert log_p_pattern(0.9, energy=4.0, n_haar=4, log_n_maps=0.0) == 0.0


@pytest.mark.parametrize("rank", [12, 5])
def test_on_haar_factors_of_any_rank_the_block_bound_holds(rank):
    h, d = 3, 4
    left = haar(h * d, torch.Generator().manual_seed(9))[:, :rank]

    def pattern(generator):
        return block_pattern(left @ haar(h * d, generator)[:rank], h, h)

    assert_is_a_bound(uniform_log_p(pattern, 3000, h))


def test_on_haar_factors_the_mean_block_energy_is_the_head_width():
    generator = torch.Generator().manual_seed(0)
    energies = [np.trace(block_pattern(haar(12, generator), 3, 3).scores) for _ in range(2000)]
    # T has standard deviation sqrt(2 N) / m = 0.8, so its mean over 2000 draws has one of 0.02
    assert np.mean(energies) == pytest.approx(4.0, abs=0.08)


def test_both_sides_must_agree_that_it_is_significant():
    # The rows hold all of the block's energy and the columns are spread thin, so only one side's bound is small.
    pattern = HeadPattern(np.array([[4.0]]), np.array([8.0]), np.array([400.0]), 32, 32)
    one_side = log_p_pattern(4.0, energy=8.0, n_haar=32, log_n_maps=0.0)
    _, log_p = log_p_head_map(pattern, np.array([0]), np.array([0]), 0.0)
    assert one_side < -10
    assert log_p == 0.0


# --- invariances


@pytest.mark.parametrize("seed", range(5))
def test_rotations_inside_heads_change_no_block_energy(seed):
    h, d, n = 3, 4, 20
    x, y = draw(h * d, n, seed=seed), draw(h * d, n, seed=seed + 100)
    generator = torch.Generator().manual_seed(seed)
    turns = torch.stack([haar(d, generator) for _ in range(h)])
    before = block_pattern(inner_polar(x, y), h, h).scores
    after = block_pattern(inner_polar(mix(turns, x), y), h, h).scores
    np.testing.assert_allclose(after, before, rtol=1e-9)  # float64, with an SVD in between


def test_a_common_rotation_of_the_residual_stream_changes_nothing():
    h, n = 3, 20
    x, y, u = draw(12, n), draw(12, n, seed=1), haar(20, torch.Generator().manual_seed(0))
    before = block_pattern(inner_polar(x, y), h, h).scores
    np.testing.assert_allclose(block_pattern(inner_polar(x @ u, y @ u), h, h).scores, before, rtol=1e-9)


def test_swapping_the_models_transposes_the_pattern():
    x, y = draw(12, 20), draw(18, 20, seed=1)
    there = block_pattern(inner_polar(x, y), 3, 3)
    back = block_pattern(inner_polar(y, x), 3, 3)
    np.testing.assert_allclose(back.scores, there.scores.T, rtol=1e-9)
    np.testing.assert_allclose(back.reference_energy, there.candidate_energy, rtol=1e-9)


def test_block_energies_agree_with_a_loop():
    u = draw(6, 12)
    pattern = block_pattern(u, 3, 4)
    for a in range(3):
        for b in range(4):
            block = u[2 * a : 2 * a + 2, 3 * b : 3 * b + 3]
            assert pattern.scores[a, b] == pytest.approx(float((block**2).sum()), rel=1e-12)
    assert pattern.reference_energy == pytest.approx([3 * float((u[2 * a : 2 * a + 2] ** 2).sum()) for a in range(3)])


# --- detected changes


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_heads_that_were_shuffled_and_mixed_invertibly_are_found(noise):
    h, d, n = 6, 8, 64
    x, order = draw(h * d, n), torch.tensor([3, 0, 5, 1, 4, 2])
    y = mix(invertible(h, d), x.reshape(h, d, n)[order].reshape(h * d, n))
    y = y + noise * y.norm() / y.numel() ** 0.5 * draw(h * d, n, seed=7)
    pattern = block_pattern(inner_polar(unit_heads(x, h), unit_heads(y, h)), h, h)
    reference, candidate, log_n = best_head_map(pattern)
    assert reference[np.argsort(candidate)].tolist() == order.tolist()
    assert log_p_head_map(pattern, reference, candidate, log_n)[1] < math.log(1e-10)


def test_fewer_heads_find_their_origins_among_more():
    x, kept = draw(48, 64), [4, 1, 2]
    y = mix(invertible(3, 8), x.reshape(6, 8, 64)[kept].reshape(24, 64))
    pattern = block_pattern(inner_polar(unit_heads(x, 6), unit_heads(y, 3)), 6, 3)
    reference, candidate, log_n = best_head_map(pattern)
    assert reference[np.argsort(candidate)].tolist() == kept
    assert log_n == pytest.approx(math.log(6 * 5 * 4))
    assert log_p_head_map(pattern, reference, candidate, log_n)[1] < math.log(1e-10)


def test_a_space_that_all_heads_share_is_no_evidence():
    # Two strangers whose heads all read the same 24 of 128 directions: universal features but no common weights.
    shared = haar(128, torch.Generator().manual_seed(3))[:24]
    x, y = draw(16, 24) @ shared, draw(16, 24, seed=1) @ shared
    by_blocks = block_pattern(inner_polar(unit_heads(x, 4), unit_heads(y, 4)), 4, 4)
    assert log_p_head_map(by_blocks, *best_head_map(by_blocks))[1] == 0.0


# --- groups and queries together


def scored(scores, m):
    scores = np.asarray(scores, dtype=float)
    return HeadPattern(scores, scores.sum(axis=1), scores.sum(axis=0), m, m)


def test_queries_stay_inside_their_group_despite_higher_scores():
    # 2 groups of 2 queries. Without groups, query 0 would go to 2 and query 2 to 0; with groups that is not allowed.
    q = np.array([[2.0, 0, 3, 0], [0, 2, 0, 0], [3, 0, 2, 0], [0, 0, 0, 2]])
    found = find_head_map([], [scored(q, 8)], n_kv_heads=(2, 2), n_heads=(4, 4))
    assert found.q_candidate[np.argsort(found.q_reference)].tolist() == [0, 1, 2, 3]
    assert found.kv_candidate.tolist() == [0, 1]


def test_the_group_map_is_the_best_of_all_by_enumeration():
    rng = np.random.default_rng(0)
    kv, q = rng.random((3, 3)), rng.random((6, 6))
    found = find_head_map([scored(kv, 8)], [scored(q, 8)], n_kv_heads=(3, 3), n_heads=(6, 6))

    def value(groups, inner):
        total = sum(kv[g, h] for g, h in enumerate(groups))
        for g, h in enumerate(groups):
            total += sum(q[2 * g + a, 2 * h + inner[g][a]] for a in range(2))
        return total

    swaps = list(itertools.permutations(range(2)))
    best = max(value(g, i) for g in itertools.permutations(range(3)) for i in itertools.product(swaps, repeat=3))
    got = kv[found.kv_reference, found.kv_candidate].sum() + q[found.q_reference, found.q_candidate].sum()
    assert got == pytest.approx(best, rel=1e-12)
