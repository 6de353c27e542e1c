"""Bounds from numbers: exact by enumeration for few channels, by simulation beyond; partners that see no numbers."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.method.matching import best_matching, matching_in_order
from mdir_hf.method.neuron_numbers import (
    TESTS,
    log_p_in_order,
    log_p_own_number,
    longest_increasing,
    mutual_partners,
    numbering_of,
)
from tests.method.obfuscation import haar


def naive_longest(values):
    best = [1] * len(values)
    for i in range(len(values)):
        best[i] = 1 + max((best[j] for j in range(i) if values[j] < values[i]), default=0)
    return max(best, default=0)


@pytest.mark.parametrize("n", range(1, 8))
def test_both_bounds_hold_for_every_numbering_of_few_channels(n):
    every = [np.array(order) for order in permutations(range(n))]
    own = np.array([(order == np.arange(n)).sum() for order in every])
    in_order = np.array([len(longest_increasing(order)) for order in every])
    for k in range(1, n + 1):
        assert (own >= k).mean() <= math.exp(log_p_own_number(k)) * (1 + 1e-12)  # lgamma rounds
        assert (in_order >= k).mean() <= math.exp(log_p_in_order(n, k)) * (1 + 1e-12)
    # All of them: one numbering of n!, which is what the bounds say.
    assert (own == n).mean() == pytest.approx(math.exp(log_p_own_number(n)))
    assert (in_order == n).mean() == pytest.approx(math.exp(log_p_in_order(n, n)))


@pytest.mark.parametrize(("n_narrow", "n_wide"), [(3, 5), (4, 6), (2, 7)])
def test_the_bounds_hold_for_different_widths(n_narrow, n_wide):
    # All channels of the narrower model have a partner; the numbering of the wider one is uniform.
    every = [np.array(order) for order in permutations(range(n_wide), n_narrow)]
    own = np.array([(order == np.arange(n_narrow)).sum() for order in every])
    in_order = np.array([naive_longest(order) for order in every])
    for k in range(1, n_narrow + 1):
        assert (own >= k).mean() <= math.exp(log_p_own_number(k))
        assert (in_order >= k).mean() <= math.exp(log_p_in_order(n_narrow, k)) * (1 + 1e-12)


@given(st.permutations(range(30)))
def test_a_longest_increasing_subsequence_is_one(order):
    order = np.array(order)
    places = longest_increasing(order)
    assert len(places) == naive_longest(order.tolist())
    assert (np.diff(places) > 0).all() and (np.diff(order[places]) > 0).all()


def test_nothing_has_no_longest_subsequence():
    assert len(longest_increasing(np.array([], dtype=np.int64))) == 0


def polar_of(seed, n, n_wide=None, noise=0.7):
    generator = torch.Generator().manual_seed(seed)
    n_wide = n_wide or n
    near = torch.eye(n, n_wide, dtype=torch.float64)
    drawn = torch.randn(n, n_wide, dtype=torch.float64, generator=generator) / n_wide**0.5
    u, _, v = torch.linalg.svd(near + noise * drawn, full_matrices=False)
    return u @ v


@given(st.integers(0, 1000), st.booleans())
def test_renumbering_one_model_moves_the_partners_and_nothing_else(seed, of_reference):
    polar = polar_of(seed % 7, 24, noise=2.0)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    moved = polar[order] if of_reference else polar[:, order]
    where = order.numpy()
    before = {tuple(map(int, pair)) for pair in zip(*mutual_partners(polar), strict=True)}
    after = {
        (int(where[i]), int(j)) if of_reference else (int(i), int(where[j]))
        for i, j in zip(*mutual_partners(moved), strict=True)
    }
    assert before == after
    assert numbering_of(polar, None).n_pairs == numbering_of(moved, None).n_pairs


def test_a_copy_has_every_channel_under_its_own_number():
    polar = polar_of(0, 96, noise=0.3)
    found = numbering_of(polar, matching_in_order(polar))
    assert (found.n_pairs, found.own_number, found.in_order, found.n_certain) == (96, 96, 96, 96)
    assert found.log_p == pytest.approx(-math.lgamma(97) + math.log(TESTS))


def test_channels_that_were_cut_out_are_in_order():
    kept = np.sort(np.random.default_rng(0).permutation(192)[:96])
    polar = torch.eye(192, dtype=torch.float64)[:, kept]
    found = numbering_of(polar, best_matching(polar, signed=False))
    assert (found.n_pairs, found.in_order, found.n_certain) == (96, 96, 96)
    assert found.own_number < 10
    assert found.log_p == pytest.approx(-math.lgamma(97) + math.log(TESTS))


def test_rows_that_stand_for_some_channels_keep_the_numbers_of_those():
    polar = polar_of(1, 96, noise=0.3)
    some = np.array([3, 20, 21, 50, 95])
    found = numbering_of(polar[some], None, some)
    assert (found.own_number, found.n_certain) == (5, 0)


def test_the_bound_holds_on_strangers():
    # 300 pairs: a p of at most 1 % is to come 3 times; a binomial band of 5 standard deviations ends at 12.
    generator = torch.Generator().manual_seed(0)
    p = [numbering_of(haar(40, generator), None).log_p for _ in range(300)]
    assert sum(value < math.log(0.01) for value in p) <= 12
    assert min(p) > math.log(1e-5)


def test_strangers_arranged_to_match_are_not_certain():
    # Whoever renumbers a stranger by the best assignment has many channels under their own number, and p says so.
    # None of them is significant by itself, which is what a verdict asks for beside p.
    polar = haar(256, torch.Generator().manual_seed(3))
    matching = best_matching(polar, signed=True)
    order = np.empty(256, dtype=np.int64)
    order[matching.reference] = matching.candidate
    arranged = polar[:, torch.from_numpy(order)]
    found = numbering_of(arranged, matching_in_order(arranged))
    assert found.own_number > 40 and found.log_p < math.log(1e-10)
    assert found.n_certain == 0


def test_partners_equal_the_whole_factor_for_any_cut(monkeypatch):
    polar = haar(50, torch.Generator().manual_seed(5))[:, :40]
    size = polar.abs()
    expected = [(i, int(j)) for i, j in enumerate(size.argmax(dim=1)) if int(size[:, j].argmax()) == i]
    for rows in (1, 7, 64):
        monkeypatch.setattr("mdir_hf.method.neuron_numbers.ROWS_AT_ONCE", rows)
        assert [tuple(map(int, pair)) for pair in zip(*mutual_partners(polar), strict=True)] == expected
