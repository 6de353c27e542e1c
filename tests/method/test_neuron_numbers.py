"""Neurons by number: the exact bound for few neurons, partners found without numbers, rotations, and a forger."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.method.neuron_numbers import (
    WHITENING_RIDGE,
    in_span,
    log_p_own_numbers,
    match_neurons_by_number,
    mutual_partners,
    sample_neurons,
)
from mdir_hf.method.neurons import unit_rows
from tests.method.obfuscation import haar

WIDTH, FITTED, TESTED = 48, 32, 16


def neurons(seed, n=FITTED + TESTED, width=WIDTH, n_matrices=2):
    generator = torch.Generator().manual_seed(seed)
    return [unit_rows(torch.randn(n, width, generator=generator)) for _ in range(n_matrices)]


def noisy(model, seed, strength):
    noise = neurons(seed, len(model[0]), model[0].shape[1], len(model))
    return [unit_rows(rows + strength * more) for rows, more in zip(model, noise, strict=True)]


def counted(reference, candidate, n_neurons=1024, n_fitted=FITTED):
    sides = (in_span(model, n_fitted) for model in (reference, candidate))
    return match_neurons_by_number(*sides, n_fitted=n_fitted, n_neurons=n_neurons).counts


def naive(reference, candidate):
    """Number of own numbers in the whole polar factor of the fitted rows, in float64."""
    x, y = ([rows.double().numpy() for rows in model] for model in (reference, candidate))
    left, values, right = np.linalg.svd(sum(a[:FITTED].T @ b[:FITTED] for a, b in zip(x, y, strict=True)))
    rank = int((values > 1e-9 * values[0]).sum())
    rotation = left[:, :rank] @ right[:rank]
    span = right[:rank].T @ right[:rank]
    cosines = 0.0
    for a, b in zip(x, y, strict=True):
        carried, seen = a[FITTED:] @ rotation, b[FITTED:] @ span
        carried /= np.linalg.norm(carried, axis=1, keepdims=True)
        cosines = cosines + carried @ (seen / np.linalg.norm(seen, axis=1, keepdims=True)).T
    best = [int(i == cosines[:, i].argmax() and i == cosines[i].argmax()) for i in range(TESTED)]
    return sum(best)


@pytest.mark.parametrize(("n", "n_layers"), [(3, 1), (4, 1), (5, 1), (3, 2), (4, 2), (3, 3)])
def test_the_bound_holds_for_all_numberings_of_few_neurons(n, n_layers):
    fixed = [sum(i == j for i, j in enumerate(order)) for order in permutations(range(n))]
    totals = np.array([sum(cells) for cells in product(fixed, repeat=n_layers)])
    for k in range(1, n * n_layers + 1):
        assert (totals >= k).mean() <= math.exp(log_p_own_numbers(k, n_layers)) * (1 + 1e-12)  # lgamma rounds


def test_in_one_layer_the_bound_is_one_over_k_factorial():
    assert log_p_own_numbers(32) == pytest.approx(-math.log(math.factorial(32)))
    assert log_p_own_numbers(0) == 0.0
    assert log_p_own_numbers(128, 4) == pytest.approx(128 * math.log(4) - math.log(math.factorial(128)))
    assert log_p_own_numbers(3, 30) == 0.0


@pytest.mark.parametrize("n_matrices", [1, 2])
@pytest.mark.parametrize("width", [WIDTH, 96])
def test_a_rotated_copy_has_all_numbers_and_all_certain(n_matrices, width):
    model = neurons(0, n=2 * FITTED + TESTED, width=width, n_matrices=n_matrices)
    turned = [rows @ haar(width, torch.Generator().manual_seed(1)).float() for rows in model]
    mirrored = [rows.flip(1) for rows in model]
    for other in (model, turned, mirrored):
        found = counted(model, other, 256, 2 * FITTED)
        assert found == (TESTED, TESTED)


def test_channels_that_were_cut_do_not_hide_a_copy():
    model = neurons(0)
    assert counted(model, [unit_rows(rows[:, :40]) for rows in model]).own == TESTED


@given(st.integers(0, 500), st.floats(0.0, 2.0))
@settings(max_examples=30, deadline=None)
def test_the_counts_equal_the_whole_polar_factor(seed, strength):
    model = neurons(seed)
    other = noisy(model, seed + 1, strength)
    assert counted(model, other).own == naive(model, other)


@given(st.integers(0, 500))
@settings(max_examples=30, deadline=None)
def test_renumbering_tested_neurons_changes_only_the_count(seed):
    model = neurons(seed)
    other = noisy(model, seed + 1, 0.1)
    order = torch.randperm(TESTED, generator=torch.Generator().manual_seed(seed))
    place = torch.cat([torch.arange(FITTED), FITTED + order])
    assert counted(model, [rows[place] for rows in other]).own == int((order == torch.arange(TESTED)).sum())


def test_own_numbers_of_strangers_are_at_most_as_frequent_as_the_bound():
    n_pairs = 400
    own = np.array([counted(neurons(2 * seed), neurons(2 * seed + 1)).own for seed in range(n_pairs)])
    # One own number has probability at most 1, two at most 1/2, three 1/6 and four 1/24.
    for k in (2, 3, 4):
        p = 1 / math.factorial(k)
        assert (own >= k).mean() <= p + 3 * math.sqrt(p * (1 - p) / n_pairs)  # three deviations of the binomial


def test_a_forger_who_knows_the_sample_is_not_certain():
    n_neurons = 1024
    model, stranger = neurons(0), neurons(1, n=n_neurons)
    fitted = [rows[:FITTED] for rows in stranger]
    x, y = (torch.cat([rows[:FITTED] for rows in each]) for each in (model, stranger))
    left, _, right = torch.linalg.svd(x.T @ y, full_matrices=False)
    likeness = sum(a[FITTED:] @ (left @ right) @ b[FITTED:].T for a, b in zip(model, stranger, strict=True))
    chosen = FITTED + likeness.argmax(dim=1)
    forged = [torch.cat([first, rows[chosen]]) for first, rows in zip(fitted, stranger, strict=True)]
    found = counted(model, forged, n_neurons)
    assert found.own >= TESTED // 2  # numbers alone would have given a false verdict
    assert found.certain == 0


def test_equal_neurons_have_no_partner():
    model = neurons(0)
    for rows in model:
        rows[FITTED:] = rows[FITTED]
    assert counted(model, model) == (0, 0)


# --- whitened, for strong noise and many fitted rows

MANY = 8 * WIDTH


def uneven(seed, n=MANY + TESTED):
    """Neurons whose channels have different scales, as in real weights, in a random basis."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.2, 2.0, WIDTH)
    basis = haar(WIDTH, generator).float()
    return [unit_rows(torch.randn(n, WIDTH, generator=generator) * scales @ basis) for _ in range(2)]


def shaped(model, seed, strength):
    """Add noise in a few strong directions."""
    generator = torch.Generator().manual_seed(seed)
    directions = haar(WIDTH, generator).float()[:6]
    return [
        unit_rows(rows + strength * torch.randn(len(rows), 6, generator=generator) @ directions / 6**0.5)
        for rows in model
    ]


def whitened(reference, candidate, n_fitted=MANY, n_neurons=1024):
    matches = match_neurons_by_number(reference, candidate, n_fitted=n_fitted, n_neurons=n_neurons, is_whitened=True)
    return matches.counts


def oracle(reference, candidate):
    """Own numbers with symmetric whiteners and every quantity in float64."""
    x, y = (np.stack([rows.double().numpy() for rows in model]) for model in (reference, candidate))
    roots = []
    for rows in (x, y):
        moments = sum(matrix[:MANY].T @ matrix[:MANY] for matrix in rows)
        values, vectors = np.linalg.eigh(moments + WHITENING_RIDGE * np.trace(moments) / WIDTH * np.eye(WIDTH))
        roots.append(vectors / np.sqrt(values) @ vectors.T)
    cross = sum(a[:MANY].T @ b[:MANY] for a, b in zip(x, y, strict=True))
    left, scale, right = np.linalg.svd(roots[0] @ cross @ roots[1])
    a, b = x[:, MANY:] @ roots[0] @ left * scale**0.25, y[:, MANY:] @ roots[1] @ right.T * scale**0.25
    a, b = (rows / np.linalg.norm(rows, axis=2, keepdims=True) for rows in (a, b))
    cosines = (a @ b.transpose(0, 2, 1)).sum(axis=0)
    return sum(int(i == cosines[:, i].argmax() and i == cosines[i].argmax()) for i in range(TESTED))


@given(st.integers(0, 500), st.floats(0.0, 6.0))
@settings(max_examples=20, deadline=None)
def test_whitened_counts_equal_symmetric_whitening(seed, strength):
    model = uneven(seed)
    other = noisy(model, seed + 1, strength)
    # A float32 cosine may win a close tie against a float64 one.
    assert abs(whitened(model, other).own - oracle(model, other)) <= 1


@given(st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_whitened_counts_do_not_depend_on_basis_sign_or_scale(seed):
    model = uneven(seed)
    other = noisy(model, seed + 1, 2.0)
    turn = haar(WIDTH, torch.Generator().manual_seed(seed)).float()
    expected = whitened(model, other)
    for changed in ([rows @ turn for rows in other], [-rows for rows in other], [3.0 * rows for rows in other]):
        found = whitened(model, changed)
        # Rounding may decide a close tie or a cosine at the threshold.
        assert abs(found.own - expected.own) <= 1 and abs(found.certain - expected.certain) <= 1
    swapped = whitened(other, model)
    assert abs(swapped.own - expected.own) <= 1


def test_a_copy_is_certain_if_whitened():
    model = uneven(0)
    assert whitened(model, model) == (TESTED, TESTED)
    assert whitened(model, [unit_rows(rows[:, :40]) for rows in model]).own == TESTED


def test_whitening_finds_more_under_noise_in_a_few_directions():
    model = uneven(0)
    other = shaped(model, 1, 2.0)
    plain = counted(model, other, 1024, MANY)
    assert whitened(model, other).certain >= plain.certain + TESTED // 4


def test_more_fitted_rows_find_stronger_noise():
    model = uneven(0)
    other = noisy(model, 1, 2.0)
    few = (
        [torch.cat([rows[:16], rows[-TESTED:]]) for rows in model],
        [torch.cat([rows[:16], rows[-TESTED:]]) for rows in other],
    )
    assert whitened(*few, n_fitted=16).own < TESTED // 2 <= whitened(model, other).own


def test_own_numbers_of_whitened_strangers_are_at_most_as_frequent_as_the_bound():
    n_pairs = 200
    found = [whitened(uneven(2 * seed), uneven(2 * seed + 1)) for seed in range(n_pairs)]
    own = np.array([counts.own for counts in found])
    for k in (2, 3, 4):
        p = 1 / math.factorial(k)
        assert (own >= k).mean() <= p + 3 * math.sqrt(p * (1 - p) / n_pairs)  # three deviations of the binomial
    assert max(counts.certain for counts in found) <= 1


def test_whitening_zeros_gives_no_partner():
    zeros = [torch.zeros(MANY + TESTED, WIDTH)] * 2
    assert whitened(zeros, uneven(0)) == (0, 0) == whitened(zeros, zeros)


def test_a_neuron_needs_each_matrix_to_be_certain():
    model = neurons(0, n=2 * FITTED + TESTED)
    stranger = neurons(1, n=2 * FITTED + TESTED)
    gates_copied = [model[0], stranger[1]]
    assert counted(model, gates_copied, 256, 2 * FITTED).certain <= 1  # an up exceeds three deviations by chance


def test_the_sample_consists_of_whole_runs_fixed_by_the_seed():
    numbers = sample_neurons(1000, 96, run=16, seed=0)
    assert len(set(numbers.tolist())) == 96 and numbers.max() < 1000
    starts = numbers.reshape(-1, 16)
    assert (starts == starts[:, :1] + np.arange(16)).all() and (starts[:, 0] % 16 == 0).all()
    assert np.array_equal(numbers, sample_neurons(1000, 96, run=16, seed=0))
    assert not np.array_equal(numbers, sample_neurons(1000, 96, run=16, seed=1))
    assert len(sample_neurons(70, 96, run=16, seed=0)) == 64


# --- partners found without numbers


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


def test_partners_equal_the_whole_factor_for_any_cut(monkeypatch):
    polar = haar(50, torch.Generator().manual_seed(5))[:, :40]
    size = polar.abs()
    expected = [(i, int(j)) for i, j in enumerate(size.argmax(dim=1)) if int(size[:, j].argmax()) == i]
    for rows in (1, 7, 64):
        monkeypatch.setattr("mdir_hf.method.neuron_numbers.ROWS_AT_ONCE", rows)
        assert [tuple(map(int, pair)) for pair in zip(*mutual_partners(polar), strict=True)] == expected
