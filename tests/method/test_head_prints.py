"""Prints of heads: what changes them, and when a correlation stands out."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method.head_prints import (
    HeadRows,
    correlations,
    head_prints,
    heads_of,
    least_correlation,
    n_free_products,
    paired_heads,
    prominence,
    prominence_limit,
    stacked,
)
from tests.method.reference import haar

ROUNDED = 1e-5
"""Bound on the rounding of float32 products of unit rows with up to 128 terms; their spread is about 0.1."""


def rows_of_heads(n_heads, d, n, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n_heads * d, n))).float()


def turned(rows, seed):
    return rows @ torch.from_numpy(haar(rows.shape[1], np.random.default_rng(seed))).float()


def with_turned_planes(rows, n_heads, layout, seed, rotary_dim=None):
    """Every rotary plane turned by its own angle and scaled."""
    d = len(rows) // n_heads
    rng = np.random.default_rng(seed)
    result = rows.clone()
    n_planes = (rotary_dim or d) // 2
    for head in range(n_heads):
        for f in range(n_planes):
            pair = [f, f + n_planes] if layout == "half" else [2 * f, 2 * f + 1]
            at = [head * d + row for row in pair]
            angle, scale = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 2)
            turn = scale * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            result[at] = turn.float() @ rows[at]
    return result


@pytest.mark.parametrize(("layout", "rotary_dim"), [(None, None), ("half", None), ("interleaved", None), ("half", 8)])
def test_no_rotation_of_the_stream_and_no_turn_of_a_plane_changes_prints(layout, rotary_dim):
    rows = rows_of_heads(3, 20, 64, 0)
    other = rows if layout is None else with_turned_planes(rows, 3, layout, 1, rotary_dim)
    prints, same = (head_prints(heads_of(each, 3, layout, rotary_dim=rotary_dim)) for each in (rows, turned(other, 2)))
    torch.testing.assert_close(prints, same, rtol=0, atol=ROUNDED)
    assert float(prints.std(dim=1).min()) > 0.02  # products of 64 terms have a deviation of about 1/8


def test_rows_of_any_length_have_the_same_prints():
    rows = rows_of_heads(2, 12, 40, 3)
    lengths = torch.linspace(0.1, 10.0, len(rows))[:, None]
    torch.testing.assert_close(
        head_prints(heads_of(rows, 2, None)), head_prints(heads_of(lengths * rows, 2, None)), rtol=0, atol=ROUNDED
    )


@pytest.mark.parametrize(("n_planes", "n_still"), [(16, 0), (0, 16), (8, 12), (4, 0), (0, 5)])
def test_the_degrees_of_freedom_are_the_rank_of_prints(n_planes, n_still):
    rng = np.random.default_rng(4)
    n_free = n_free_products(n_planes, n_still)
    n_heads = n_free + 20

    def drawn(d):
        return torch.from_numpy(rng.standard_normal((n_heads, d, 48)))

    heads = HeadRows(torch.complex(drawn(n_planes), drawn(n_planes)), drawn(n_still))
    assert int(torch.linalg.matrix_rank(head_prints(heads))) == n_free


def test_the_effect_of_a_row_on_all_its_products_is_removed():
    # Rows that resemble a direction which all rows share have larger products with every other row.
    rng = np.random.default_rng(5)
    share = torch.linspace(0.0, 1.0, 16, dtype=torch.float64)
    products = share[:, None] + share[None, :]
    noise = torch.from_numpy(rng.standard_normal((16, 16)))
    still = torch.linalg.cholesky(4 * torch.eye(16, dtype=torch.float64) + products + 0.01 * (noise + noise.T))
    plain = torch.linalg.cholesky(4 * torch.eye(16, dtype=torch.float64) + 0.01 * (noise + noise.T))
    none = torch.zeros(1, 0, 16, dtype=torch.complex128)
    torch.testing.assert_close(head_prints(HeadRows(none, still[None])), head_prints(HeadRows(none, plain[None])))


def test_copies_of_heads_have_a_correlation_of_one_in_any_order():
    rows = rows_of_heads(6, 16, 80, 6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other = turned(rows.reshape(6, 16, 80)[order].flatten(0, 1), 7)
    correlation = correlations(*(head_prints(heads_of(each, 6, "half")) for each in (rows, other)))
    heads, partners, mean = paired_heads(correlation)
    np.testing.assert_array_equal(heads, np.arange(6))
    np.testing.assert_array_equal(order[partners], heads)
    assert mean == pytest.approx(1.0, abs=ROUNDED)


def test_heads_may_be_fewer_on_either_side():
    rows = rows_of_heads(6, 16, 80, 8)
    kept = rows.reshape(6, 16, 80)[[4, 1, 2]].flatten(0, 1)[:, :60]
    prints = [head_prints(heads_of(each, n, None)) for each, n in ((rows, 6), (kept, 3))]
    heads, partners, mean = paired_heads(correlations(*prints))
    assert list(zip(heads.tolist(), partners.tolist(), strict=True)) == [(1, 1), (2, 2), (4, 0)]
    assert mean > 0.5  # without a quarter of the channels, products keep 0.75 / sqrt(0.75) = 0.87 of their correlation


def test_heads_of_zeros_resemble_nothing():
    zeros = head_prints(heads_of(torch.zeros(16, 10), 2, "half"))
    other = head_prints(heads_of(rows_of_heads(2, 8, 10, 9), 2, "half"))
    assert not correlations(zeros, other).any()


@pytest.mark.parametrize(("n_planes", "n_still"), [(8, 0), (16, 0), (0, 24), (4, 20)])
def test_correlations_of_independent_heads_have_the_stated_size(n_planes, n_still):
    rng = np.random.default_rng(10)

    def drawn():
        planes = rng.standard_normal((40, n_planes, 64)) + 1j * rng.standard_normal((40, n_planes, 64))
        still = rng.standard_normal((40, n_still, 64))
        planes, still = (x / np.linalg.norm(x, axis=2, keepdims=True) for x in (planes, still))
        return head_prints(HeadRows(torch.from_numpy(planes), torch.from_numpy(still)))

    correlation = correlations(drawn(), drawn())
    # 1,600 correlations of deviation 1 / sqrt(D): their root mean square is known to 2 %. Sizes of products are not
    # exactly equal, which leaves a few per cent.
    size = math.sqrt(n_free_products(n_planes, n_still)) * math.sqrt(np.square(correlation).mean())
    assert size == pytest.approx(1.0, abs=0.15)


def test_a_head_that_resembles_many_does_not_stand_out():
    rng = np.random.default_rng(11)
    correlation = 0.03 * rng.standard_normal((12, 20))
    correlation[3] = 0.4 * np.sign(rng.standard_normal(20))
    correlation[7, 5] = 0.4
    prominent = prominence(correlation, 1000)
    limit = prominence_limit(correlation.size)
    assert np.abs(prominent[3]).max() < limit / 2  # about 1 / 1.48
    # At least 0.4 / 0.03, less the error of a median of 12 values.
    assert prominent[7, 5] > limit


def test_copies_of_several_layers_stand_out_of_one_row():
    # A deepened model holds two copies of a layer.
    rng = np.random.default_rng(12)
    correlation = 0.03 * rng.standard_normal((12, 20))
    correlation[3, [4, 14]] = 0.95
    assert prominence(correlation, 1000)[3, [4, 14]].min() > prominence_limit(correlation.size)


def test_prominence_is_monotone_and_finite():
    r = np.array([[-1.0, -0.5, 0.0, 0.5, 1.0]]).T[:4]
    prominent = prominence(r, 100)
    assert np.isfinite(prominent).all()
    assert (np.diff(prominent[:, 0]) > 0).all()


def test_independent_heads_rarely_exceed_the_limit():
    rng = np.random.default_rng(13)
    n_found = 0
    for _ in range(400):
        x, y = rng.standard_normal((16, 100)), rng.standard_normal((20, 100))
        n_found += int(
            (prominence(correlations(torch.from_numpy(x), torch.from_numpy(y)), 100) > prominence_limit(320)).any()
        )
    # Expected: at most 0.001 per draw, so 0.4 of 400; a Poisson variable of this mean exceeds 4 with p < 1e-4.
    assert n_found <= 4


def test_the_limit_grows_with_the_number_of_pairs():
    assert prominence_limit(1) == pytest.approx(3.0902, abs=1e-4)  # the 99.9 % quantile of a normal distribution
    assert prominence_limit(30) < prominence_limit(1000) < 6


def test_the_correlation_at_some_deviations():
    assert least_correlation(10_000, 3.0) == pytest.approx(0.03, rel=1e-3)
    assert least_correlation(4, 3.0) < 1.0


def test_stacked_heads_keep_their_order():
    one, two = (heads_of(rows_of_heads(2, 8, 12, seed), 2, "half") for seed in (14, 15))
    both = stacked([one, two])
    assert len(both) == 4
    chosen = both.chosen(np.array([3, 0]))
    torch.testing.assert_close(chosen.planes, torch.stack((two.planes[1], one.planes[0])))
