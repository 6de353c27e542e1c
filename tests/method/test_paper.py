"""Algorithms 1 to 3 as printed: closed forms, invariances, strangers, and numpy."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from mdir_hf.method.paper import P_0, algorithm_1, algorithm_2, algorithm_3, best_match, orthogonal_part
from tests.method import reference as textbook

N = 32

# Entries of an orthogonal factor are at most 1 and take a few hundred roundings of float64.
ENTRY = 1e-10


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def haar(n, seed):
    return torch.from_numpy(textbook.haar(n, np.random.default_rng(seed)))


def order_of(n, seed):
    return torch.from_numpy(np.random.default_rng(seed).permutation(n))


def papers_log_p(trace, n):
    return math.lgamma(n + 1) - trace**2 / 2


# --- the orthogonal part and its best match


@pytest.mark.parametrize("shape", [(16, 16), (12, 30), (30, 12), (1, 8)])
def test_the_orthogonal_part_at_full_rank_is_the_textbooks(shape):
    u, rank = orthogonal_part(draw(*shape))
    np.testing.assert_allclose(u, textbook.polar(draw(*shape).numpy()), atol=ENTRY)
    assert rank == min(shape)


def test_the_orthogonal_part_is_the_papers_formula():
    a = draw(20, 12)
    values, vectors = torch.linalg.eigh(a.T @ a)
    by_formula = a @ vectors @ torch.diag(values**-0.5) @ vectors.T
    torch.testing.assert_close(orthogonal_part(a)[0], by_formula, rtol=0, atol=ENTRY)


def test_a_product_without_full_rank_is_cut_to_its_rank():
    left, right = haar(20, 1)[:, :7], haar(24, 2)[:, :7]
    u, rank = orthogonal_part(left @ torch.diag(torch.arange(1.0, 8.0).double()) @ right.T)
    assert rank == 7
    torch.testing.assert_close(u, left @ right.T, rtol=0, atol=ENTRY)


def test_a_product_of_zeros_has_rank_zero_and_no_evidence():
    u, rank = orthogonal_part(torch.zeros(5, 8))
    match = best_match(u, rank)
    assert (rank, match.trace, match.rank) == (0, 0.0, 0)
    assert match.log_p == pytest.approx(math.lgamma(9))


def test_half_precision_matrices_are_read_as_float64():
    a = draw(12, 12).bfloat16()
    assert torch.equal(orthogonal_part(a)[0], orthogonal_part(a.double())[0])


def test_the_trace_is_the_best_of_all_permutations():
    u = haar(6, 3)
    best = max(sum(float(u[i, j]) for i, j in enumerate(order)) for order in permutations(range(6)))
    match = best_match(u, 6)
    assert match.trace == pytest.approx(best, rel=1e-12)
    assert match.trace == pytest.approx(float(u[match.rows, match.columns].sum()), rel=1e-12)
    assert match.log_p == pytest.approx(papers_log_p(best, 6), rel=1e-12)


def test_a_negative_trace_is_no_evidence():
    match = best_match(-torch.ones(4, 4, dtype=torch.float64) / 4, 1)
    assert match.trace == pytest.approx(-1.0)
    assert match.log_p == pytest.approx(math.lgamma(5))


# --- Algorithm 1


def test_a_permuted_copy_gives_the_permutation_and_the_papers_p():
    e, order = draw(300, N), order_of(N, 1)
    match, u = algorithm_1([(e, 3.0 * e[:, order])])
    assert match.trace == pytest.approx(N, rel=1e-12)
    assert match.log_p == pytest.approx(papers_log_p(N, N), rel=1e-12)
    assert (match.rank, match.rows.tolist(), match.columns.tolist()) == (N, list(range(N)), order.tolist())
    torch.testing.assert_close(u, torch.eye(N, dtype=torch.float64)[order], rtol=0, atol=0)


def test_a_rotated_copy_gives_the_rotation():
    e, q = draw(300, N), haar(N, 2)
    match, u = algorithm_1([(e, e @ q)])
    assert match.log_p >= P_0
    torch.testing.assert_close(u, q.T, rtol=0, atol=ENTRY)


def test_under_noise_the_map_is_still_the_permutation_itself():
    e, order = draw(2000, N), order_of(N, 1)
    match, u = algorithm_1([(e, e[:, order] + draw(2000, N, seed=5))])
    assert P_0 > match.log_p > papers_log_p(N, N)
    torch.testing.assert_close(u, torch.eye(N, dtype=torch.float64)[order], rtol=0, atol=0)


def test_few_tokens_cut_the_rank():
    e, order = draw(10, N), order_of(N, 1)
    match, u = algorithm_1([(e, e[:, order])])
    assert match.rank == 10
    # U is the projection on the span of ten rows, permuted, so the trace is its dimension.
    assert match.trace == pytest.approx(10.0, rel=1e-9)
    assert match.log_p == pytest.approx(papers_log_p(10.0, N), rel=1e-9)
    assert match.log_p > P_0 and not torch.equal(u, torch.eye(N, dtype=torch.float64)[order])


@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_cut_into_blocks_does_not_matter(size):
    e = draw(300, N)
    f = e + draw(300, N, seed=1)
    whole, _ = algorithm_1([(e, f)])
    cut, _ = algorithm_1((e[k : k + size], f[k : k + size]) for k in range(0, 300, size))
    assert cut.trace == pytest.approx(whole.trace, rel=1e-12)  # another order of summation in float64


def test_without_rows_algorithm_1_is_refused():
    with pytest.raises(ValueError, match="at least one common token"):
        algorithm_1([])


@pytest.mark.parametrize("widths", [(24, 40), (40, 24)])
def test_between_two_widths_d_is_the_larger_one(widths):
    kept = order_of(40, 3)[:24]
    wide = draw(400, 40)
    sides = (wide[:, kept], wide) if widths[0] < widths[1] else (wide, wide[:, kept])
    match, u = algorithm_1([sides])
    assert u.shape == widths[::-1]
    matched = match.rows if widths[0] < widths[1] else match.columns
    assert matched[np.argsort(match.columns if widths[0] < widths[1] else match.rows)].tolist() == kept.tolist()
    # The factor of a selection of channels is not exactly the selection: chance correlations of 400 rows remain.
    expected = textbook.polar((sides[1].T @ sides[0]).numpy())
    trace = expected[linear_sum_assignment(expected, maximize=True)].sum()
    assert match.trace == pytest.approx(trace, rel=1e-9)
    assert match.log_p == pytest.approx(papers_log_p(trace, 40), rel=1e-9)


def test_scale_and_order_of_channels_change_no_trace():
    """The paper's theorem on scaling and permutation (appendix)."""
    e = draw(300, 24)
    f = e + 0.5 * draw(300, 24, seed=1)
    before, _ = algorithm_1([(e, f)])
    after, _ = algorithm_1([(e, 3.0 * f[:, order_of(24, 2)])])
    assert after.trace == pytest.approx(before.trace, rel=1e-12)


def test_strangers_have_the_trace_and_p_of_a_haar_matrix():
    # From a separate simulation of 24 draws: at n = 128 the null has mean 27.85 and sd 0.33, so ln n! - c^2 / 2 is 108.
    match, u = algorithm_1([(draw(512, 128, seed=1), draw(512, 128, seed=2))])
    assert match.trace == pytest.approx(27.85, abs=4 * 0.33)
    assert match.log_p == pytest.approx(papers_log_p(27.85, 128), abs=27.85 * 4 * 0.33)
    torch.testing.assert_close(u @ u.T, torch.eye(128, dtype=torch.float64), rtol=0, atol=ENTRY)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_papers_p_is_valid_for_small_haar_matrices(n):
    rng = np.random.default_rng(n)
    n_draws = 600
    log_p = np.array([best_match(torch.from_numpy(textbook.haar(n, rng)), n).log_p for _ in range(n_draws)])
    for alpha in (0.5, 0.2, 0.05, 0.01):
        n_below = int((log_p <= math.log(alpha)).sum())
        assert binomtest(n_below, n_draws, alpha, alternative="greater").pvalue > 1e-4


# --- Algorithms 2 and 3

DEPTH, COLUMNS = 5, 16


def layers(seed, depth=DEPTH, n=N, columns=COLUMNS):
    return [draw(n, columns, seed=100 * seed + i) for i in range(depth)]


@pytest.mark.parametrize("outer", ["permutation", "rotation"])
def test_permuted_layers_of_a_copy_are_found(outer):
    reference, origins = layers(1), [3, 0, 4, 1]
    u = torch.eye(N, dtype=torch.float64)[order_of(N, 4)] if outer == "permutation" else haar(N, 4)
    candidate = [(u @ reference[i])[:, order_of(COLUMNS, 10 + i)] for i in origins]
    log_p = algorithm_2(reference, iter(candidate), u)
    assert log_p.shape == (DEPTH, len(origins))
    assert log_p.argmin(axis=0).tolist() == origins
    expected = papers_log_p(COLUMNS, COLUMNS) + math.log(DEPTH)
    np.testing.assert_allclose(log_p[origins, range(len(origins))], expected, rtol=1e-9)
    others = log_p[[[i for i in range(DEPTH) if i != origin] for origin in origins], np.arange(len(origins))[:, None]]
    assert (others == 0.0).all()


def test_without_the_map_of_the_embeddings_layers_are_not_found():
    reference, u = layers(1), haar(N, 4)
    log_p = algorithm_2(reference, [u @ x for x in reference], torch.eye(N, dtype=torch.float64))
    assert (log_p == 0.0).all()


def test_layers_of_strangers_do_not_match():
    assert (algorithm_2(layers(1), layers(2), haar(N, 4)) > P_0).all()


def test_p_is_corrected_by_the_number_of_the_references_layers():
    noisy = [x + 0.3 * draw(N, COLUMNS, seed=50 + i) for i, x in enumerate(layers(1))]
    identity = torch.eye(N, dtype=torch.float64)
    few, all_layers = algorithm_2(layers(1)[:1], noisy, identity), algorithm_2(layers(1), noisy, identity)
    assert few[0, 0] < -10.0  # not cut at p = 1
    assert all_layers[0, 0] - few[0, 0] == pytest.approx(math.log(DEPTH), rel=1e-9)


@pytest.mark.parametrize(("depths", "shape"), [((0, 3), (0, 3)), ((3, 0), (3, 0))])
def test_a_model_without_layers_has_an_empty_map(depths, shape):
    assert algorithm_2(layers(1, depths[0]), layers(2, depths[1]), torch.eye(N, dtype=torch.float64)).shape == shape


def test_algorithm_3_finds_the_permutation_of_each_projection():
    u = haar(N, 4)
    reference = {name: draw(N, COLUMNS, seed=60 + i) for i, name in enumerate(("q", "k", "v", "up"))}
    orders = {name: order_of(COLUMNS, 70 + i) for i, name in enumerate(reference)}
    candidate = {name: (u @ x)[:, orders[name]] for name, x in reference.items() if name != "up"}
    found = algorithm_3(reference, candidate, u)
    assert list(found) == ["q", "k", "v"]
    for name, match in found.items():
        assert match.columns[orders[name]].tolist() == list(range(COLUMNS))
        assert match.trace == pytest.approx(COLUMNS, rel=1e-9)
        assert match.log_p == pytest.approx(papers_log_p(COLUMNS, COLUMNS), rel=1e-9)


def test_more_neurons_than_channels_are_cut_to_the_width_of_the_stream():
    up, order = draw(N, 3 * N), order_of(3 * N, 5)
    (match,) = algorithm_3({"up": up}, {"up": up[:, order]}, torch.eye(N, dtype=torch.float64)).values()
    assert match.rank == N
    assert match.columns[order].tolist() == list(range(3 * N))
    # U is the projection on N of 3 N dimensions, permuted.
    assert match.trace == pytest.approx(N, rel=1e-9)


def test_projections_of_different_widths_are_matched():
    x, kept = draw(N, COLUMNS), order_of(COLUMNS, 6)[:10]
    (match,) = algorithm_3({"v": x}, {"v": x[:, kept]}, torch.eye(N, dtype=torch.float64)).values()
    assert match.rows[np.argsort(match.columns)].tolist() == kept.tolist()
    assert match.log_p == pytest.approx(papers_log_p(match.trace, COLUMNS), rel=1e-12)
