"""Neurons with equal gates are judged by the sum of their outputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.method.neuron_classes import EQUAL_COSINE, equal_neurons, summed_neuron
from mdir_hf.method.neurons import unit_rows
from tests.method.obfuscation import haar

WIDTH, WRITTEN = 24, 20


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parts_of(up, down, n, seed):
    """Split a neuron by noise on up that cancels."""
    noise = drawn(n - 1, WIDTH, seed=seed)
    ups = torch.cat([up / n + noise, (up / n - noise.sum(dim=0))[None]])
    return ups, down.expand(n, -1)


def cosine(x, y):
    return float(torch.nn.functional.cosine_similarity(x, y, dim=0))


@given(st.integers(0, 500), st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_the_parts_of_a_neuron_give_its_up_again(seed, n):
    up, down = drawn(WIDTH, seed=seed), drawn(WRITTEN, seed=seed + 1)
    ups, downs = parts_of(up, down, n, seed + 2)
    assert max(abs(cosine(up, part)) for part in ups) < 0.95  # no part alone is the neuron
    assert abs(cosine(up, summed_neuron(ups, downs))) == pytest.approx(1.0, abs=1e-5)  # float32 rows


@given(st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_the_summed_neuron_is_the_leading_vector_of_the_whole_sum(seed):
    ups, downs = drawn(4, WIDTH, seed=seed), drawn(4, WRITTEN, seed=seed + 1)
    left = torch.linalg.svd(ups.double().T @ downs.double()).U[:, 0]
    assert abs(cosine(left, summed_neuron(ups, downs).double())) == pytest.approx(1.0, abs=1e-6)  # rounded to float32


@given(st.integers(0, 500), st.floats(0.01, 100.0))
@settings(max_examples=20, deadline=None)
def test_order_basis_and_a_scale_between_up_and_down_do_not_matter(seed, scale):
    ups, downs = drawn(3, WIDTH, seed=seed), drawn(3, WRITTEN, seed=seed + 1)
    expected = summed_neuron(ups, downs)
    generator = torch.Generator().manual_seed(seed)
    turn, written_turn = haar(WIDTH, generator).float(), haar(WRITTEN, generator).float()
    scales = torch.tensor([scale, -1.0, 1.0])[:, None]
    changed = summed_neuron((scales * ups @ turn)[[2, 0, 1]], (downs / scales @ written_turn)[[2, 0, 1]])
    assert abs(cosine(expected @ turn, changed)) == pytest.approx(1.0, abs=1e-3)  # leading values may be close


@pytest.mark.parametrize("n_pairs", [1, 3])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_opposite_pairs_vanish(n_pairs, is_rounded):
    ups, downs = drawn(n_pairs, WIDTH, seed=1), drawn(n_pairs, WRITTEN, seed=2)
    ups, downs = torch.cat([ups, 2.0 * ups]), torch.cat([downs, -downs / 2.0])
    if is_rounded:
        ups, downs = ups.bfloat16().float(), downs.bfloat16().float()
    assert not summed_neuron(ups, downs).any()
    downs[0] *= 1.5
    assert summed_neuron(ups, downs).any()


def test_neurons_are_equal_if_direction_length_and_bias_are():
    rows = unit_rows(drawn(3, WIDTH, seed=0))
    rows = torch.cat([rows, rows, rows[:1] + 0.02 * rows[1:2]])
    lengths = torch.tensor([1.0, 2.0, 3.0, 1.001, 2.1, 3.0, 1.0])
    classes = equal_neurons(unit_rows(rows), lengths, torch.tensor([0, 1, 2, 5]))
    assert [members.tolist() for members in classes] == [[0, 3, 6], [1], [2, 5], [2, 5]]
    bias = torch.tensor([0.0, 0.0, 0.3, 0.0, 0.0, 0.6, 0.1])
    classes = equal_neurons(unit_rows(rows), lengths, torch.tensor([0, 2]), bias=bias)
    assert [members.tolist() for members in classes] == [[0, 3], [2]]


def test_negated_and_zero_gates_are_not_equal():
    rows = drawn(1, WIDTH, seed=0)
    rows = torch.cat([rows, -rows, torch.zeros(2, WIDTH)])
    classes = equal_neurons(unit_rows(rows), rows.norm(dim=1), torch.arange(4))
    assert [members.tolist() for members in classes] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(("noise", "are_equal"), [(0.05, True), (0.5, False)])
def test_parts_stay_equal_under_slight_noise(noise, are_equal):
    """Noise of k times the rows leaves a cosine of about 1 / (1 + k^2): 0.998 and 0.8."""
    row = drawn(1, 4096, seed=0)
    rows = row + noise * drawn(2, 4096, seed=1)
    classes = equal_neurons(unit_rows(rows), rows.norm(dim=1), torch.tensor([0]))
    assert (len(classes[0]) == 2) is are_equal
    assert EQUAL_COSINE < 1.0 / (1.0 + 0.14**2)
