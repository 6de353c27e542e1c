"""Exact moments of Tr XO against formulas without zonal polynomials, and the bound on a few of them."""

from fractions import Fraction
from math import comb, factorial, prod

import pytest

from benchmarks.moment_bound import (
    bound,
    branches,
    count,
    moment,
    partitions,
    spectra,
    value_at_identity,
    weights,
    zonal,
)


def double_factorial(k):
    return prod(range(1, 2 * k, 2))


@pytest.mark.parametrize("k", range(1, 6))
def test_one_channel_is_a_sign(k):
    assert moment((3,), k) * double_factorial(k) == 3**k


@pytest.mark.parametrize("k", range(1, 6))
@pytest.mark.parametrize("values", [(1, 0), (2, 1), (3, 3)])
def test_two_channels_are_a_cosine_of_the_sum_or_of_the_difference(values, k):
    a, b = values
    expected = Fraction(comb(2 * k, k), 4**k) * Fraction((a + b) ** (2 * k) + (a - b) ** (2 * k), 2)
    assert moment((a * a, b * b), k) * double_factorial(k) == expected


@pytest.mark.parametrize("spectrum", [(1, 1, 1), (3, 1, 0), (2, 2, 1, 0), (3, 3, 2, 1, 1)])
def test_the_fourth_moment_matches_weingarten(spectrum):
    n = len(spectrum)
    total, squares = sum(spectrum), sum(value * value for value in spectrum)
    assert moment(spectrum, 2) == Fraction((n + 1) * total**2 - 2 * squares, n * (n - 1) * (n + 2))


@pytest.mark.parametrize("k", range(1, 5))
def test_the_identity_of_as_many_channels_reaches_the_bound(k):
    assert moment((1,) * k, k) == 1 == bound((1,) * k, k)
    assert moment((1,) * (k - 1), k) < 1 or k == 1


@pytest.mark.parametrize("k", range(1, 5))
def test_zonal_polynomials_add_up_to_a_power_of_the_trace(k):
    assert sum(weights(k).values()) == 1
    for mu in partitions(k):
        total = sum(weight * zonal(kappa).get(mu, 0) for kappa, weight in weights(k).items())
        assert total == Fraction(factorial(k), prod(map(factorial, mu)))


def test_their_values_at_the_identity_are_products_over_cells():
    for kappa in partitions(4):
        ones = sum(value * orders(mu, 4) for mu, value in zonal(kappa).items())
        assert ones == value_at_identity(kappa, 4)


def orders(mu, n):
    """Number of arrangements of the parts over n variables."""
    parts = [*mu, *[0] * (n - len(mu))]
    return factorial(n) // prod(factorial(parts.count(part)) for part in set(parts))


def test_a_cell_goes_to_rows_with_shares_that_are_known():
    assert branches((1,)) == {(2,): Fraction(1, 3), (1, 1): Fraction(2, 3)}


def test_every_step_of_the_proof_holds_on_small_cases():
    counts = count(3, 4)
    assert all(found.holds == found.of for found in counts)
    assert counts[0].of == 4 * sum(len(list(spectra(n))) for n in (1, 2, 3)) == 124
