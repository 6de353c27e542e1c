"""Check the moment inequality behind every p-value here, in exact rational numbers.

docs/moment-bound.md proves, for O Haar on O(n) and any fixed X with S = X X^T,

    E (Tr X O)^2k <= (2k - 1)!! (Tr S / n)^k.

The script checks the inequality and each step of the proof without rounding: zonal polynomials are computed in the
basis of monomials by James' recurrence, moments from them, and every number is a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement

Partition = tuple[int, ...]
Polynomial = dict[Partition, Fraction]
"""Coefficients of monomial symmetric functions."""

LARGEST_EIGENVALUE = 3
"""Largest eigenvalue of S: every nonzero S with integer eigenvalues from 0 is checked, up to order."""


@cache
def partitions(k: int, largest: int | None = None) -> tuple[Partition, ...]:
    """Return the partitions of k, the ones with larger first parts first."""
    if k == 0:
        return ((),)
    top = k if largest is None else min(k, largest)
    return tuple((part, *rest) for part in range(top, 0, -1) for rest in partitions(k - part, part))


def sorted_partition(parts: list[int]) -> Partition:
    """Return the positive parts, the largest first."""
    return tuple(sorted((part for part in parts if part), reverse=True))


def rho(kappa: Partition) -> int:
    """Return the sum of the contents 2 (column - 1) - (row - 1) of all cells."""
    return sum(part * (part - row) for row, part in enumerate(kappa, start=1))


@cache
def zonal(kappa: Partition) -> Polynomial:
    """Return the zonal polynomial Z of a partition, whose coefficient at the product of all variables is k!.

    James' recurrence (Muirhead, Aspects of Multivariate Statistical Theory, section 7.2.1).
    """
    k = sum(kappa)
    coefficients: Polynomial = {kappa: Fraction(1)}
    for mu in partitions(k):
        if mu >= kappa:
            continue
        total = Fraction(0)
        for j in range(1, len(mu)):
            for i in range(j):
                for t in range(1, mu[j] + 1):
                    moved = [*mu]
                    moved[i], moved[j] = mu[i] + t, mu[j] - t
                    total += (moved[i] - moved[j]) * coefficients.get(sorted_partition(moved), Fraction(0))
        if total:
            coefficients[mu] = total / (rho(kappa) - rho(mu))
    scale = math.factorial(k) / coefficients[(1,) * k]
    return {mu: scale * value for mu, value in coefficients.items()}


def value_at_identity(kappa: Partition, n: int) -> int:
    """Return Z at the identity of n variables: the product of n + content over all cells."""
    return math.prod(n + 2 * column - row for row, part in enumerate(kappa) for column in range(part))


@cache
def monomials(spectrum: tuple[int, ...], k: int) -> Polynomial:
    """Return the monomial symmetric functions of degree k at a spectrum."""
    values: Polynomial = {(): Fraction(1)}
    for eigenvalue in spectrum:
        longer: Polynomial = {}
        for mu, value in values.items():
            for power in range(k - sum(mu) + 1):
                key = sorted_partition([*mu, power])
                longer[key] = longer.get(key, Fraction(0)) + value * eigenvalue**power
        values = longer
    return {mu: value for mu, value in values.items() if sum(mu) == k}


@cache
def omega(kappa: Partition, spectrum: tuple[int, ...]) -> Fraction:
    """Return Z at a spectrum over Z at the identity; 0 for more rows than variables."""
    if len(kappa) > len(spectrum):
        return Fraction(0)
    at = monomials(spectrum, sum(kappa))
    value = sum((coefficient * at.get(mu, Fraction(0)) for mu, coefficient in zonal(kappa).items()), Fraction(0))
    return value / value_at_identity(kappa, len(spectrum))


def in_zonals(polynomial: Polynomial, k: int) -> Polynomial:
    """Return the coefficients of a symmetric polynomial of degree k in the basis of zonal polynomials."""
    rest, coefficients = dict(polynomial), {}
    for kappa in partitions(k):
        coefficients[kappa] = rest.get(kappa, Fraction(0)) / zonal(kappa)[kappa]
        for mu, value in zonal(kappa).items():
            rest[mu] = rest.get(mu, Fraction(0)) - coefficients[kappa] * value
    return {kappa: value for kappa, value in coefficients.items() if value}


@cache
def branches(kappa: Partition) -> Polynomial:
    """Return b: the coefficients of (sum of the variables) Z_kappa in the basis of zonal polynomials."""
    k = sum(kappa) + 1
    product: Polynomial = {}
    for nu in partitions(k):
        lowered = ([*nu[:i], nu[i] - 1, *nu[i + 1 :]] for i in range(len(nu)))
        product[nu] = sum((zonal(kappa).get(sorted_partition(mu), Fraction(0)) for mu in lowered), Fraction(0))
    return in_zonals(product, k)


@cache
def weights(k: int) -> Polynomial:
    """Return w: the coefficients of (sum of the variables)^k in the basis of zonal polynomials."""
    if k == 0:
        return {(): Fraction(1)}
    sums: Polynomial = {}
    for kappa, weight in weights(k - 1).items():
        for larger, share in branches(kappa).items():
            sums[larger] = sums.get(larger, Fraction(0)) + weight * share
    return sums


def moment(spectrum: tuple[int, ...], k: int) -> Fraction:
    """Return E (Tr X O)^2k / (2k - 1)!! for X X^T of this spectrum."""
    return sum((weight * omega(kappa, spectrum) for kappa, weight in weights(k).items()), Fraction(0))


def bound(spectrum: tuple[int, ...], k: int) -> Fraction:
    """Return (Tr S / n)^k."""
    return Fraction(sum(spectrum), len(spectrum)) ** k


def spectra(n: int) -> Iterator[tuple[int, ...]]:
    """Yield every spectrum of n eigenvalues to check."""
    for spectrum in combinations_with_replacement(range(LARGEST_EIGENVALUE, -1, -1), n):
        if any(spectrum):
            yield spectrum


def is_branching(kappa: Partition) -> bool:
    """Return whether b is a distribution over the cells that can be added, with mean content 0."""
    shares = branches(kappa)
    contents = {larger: rho(larger) - rho(kappa) for larger in shares}
    return (
        min(shares.values()) > 0
        and sum(shares.values()) == 1
        and sum(shares[larger] * contents[larger] for larger in shares) == 0
        and len(shares) == len({0, *kappa})  # one cell for each run of rows of equal length, and one below
        and all(len(larger) - len(kappa) in (0, 1) for larger in shares)
    )


def is_monotone(kappa: Partition, spectrum: tuple[int, ...]) -> bool:
    """Return whether omega grows with the content of the added cell, at this spectrum."""
    in_order = sorted(branches(kappa), key=rho)
    values = [omega(larger, spectrum) for larger in in_order]
    return values == sorted(values)


@dataclass(frozen=True)
class Count:
    """Numbers of cases that hold, and of all cases."""

    what: str
    holds: int
    of: int

    def __str__(self) -> str:
        return f"{self.what}: {self.holds:,} of {self.of:,}"


def count(n_most: int, k_most: int) -> list[Count]:
    """Check the inequality and the steps of its proof up to these sizes."""
    cases = [(spectrum, k) for n in range(1, n_most + 1) for spectrum in spectra(n) for k in range(1, k_most + 1)]
    shapes = [kappa for k in range(k_most) for kappa in partitions(k)]
    steps = [(kappa, spectrum) for n in range(1, n_most + 1) for spectrum in spectra(n) for kappa in shapes]
    return [
        Count("moment at most its bound", sum(moment(*case) <= bound(*case) for case in cases), len(cases)),
        Count("shares of added cells: positive, sum 1, mean content 0", sum(map(is_branching, shapes)), len(shapes)),
        Count("omega grows with the content of the added cell", sum(is_monotone(*step) for step in steps), len(steps)),
    ]


def print_counts() -> None:
    """Print the counts up to six channels and the twelfth moment."""
    for counts in count(6, 6):
        print(counts)
