import numpy as np
import pytest
import torch

from mdir_hf.method.gauge import LEFT_INVARIANCE, ResidualBasisMap, fold_gain, residual_basis_maps
from mdir_hf.method.matching import best_matching
from tests.method.obfuscation import haar


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matching_of(reference, candidate, signs, n_reference, n_candidate):
    u = torch.zeros(n_reference, n_candidate, dtype=torch.float64)
    u[reference, candidate] = torch.tensor(signs, dtype=torch.float64)
    return best_matching(u, signed=bool((np.array(signs) < 0).any())), u


def test_a_rotation_carries_readers_right_and_writers_left():
    u = haar(6, torch.Generator().manual_seed(0))
    outer = ResidualBasisMap.rotation(u)
    reader, writer = draw(5, 6), draw(6, 4)
    torch.testing.assert_close(outer.carry_in(reader), reader @ u)
    torch.testing.assert_close(outer.carry_out(writer), u.T @ writer)


def test_reading_after_writing_does_not_depend_on_the_basis():
    # reader @ writer is the effect of one sublayer on the next; no change of basis in between may alter it.
    outer = ResidualBasisMap.rotation(haar(6, torch.Generator().manual_seed(1)))
    reader, writer = draw(5, 6), draw(6, 4)
    torch.testing.assert_close(outer.carry_in(reader) @ outer.carry_out(writer), reader @ writer)


def test_a_signed_matching_carries_like_the_matrix_it_stands_for():
    reference, candidate, signs = [0, 1, 2, 3], [2, 0, 3, 1], [1.0, -1.0, 1.0, -1.0]
    matching, u = matching_of(reference, candidate, signs, 4, 4)
    outer = ResidualBasisMap.from_matching(matching, 4, 4)
    weight = draw(3, 4)
    assert outer.kind == "signed_permutation"
    torch.testing.assert_close(outer.carry_in(weight), weight @ u)
    torch.testing.assert_close(outer.carry_out(weight.T), u.T @ weight.T)


@pytest.mark.parametrize(("n_reference", "n_candidate"), [(5, 3), (3, 5)])
def test_a_selection_leaves_zeros_without_a_counterpart(n_reference, n_candidate):
    matching, u = matching_of([0, 1, 2], [1, 2, 0], [1.0, 1.0, 1.0], n_reference, n_candidate)
    outer = ResidualBasisMap.from_matching(matching, n_reference, n_candidate)
    weight = draw(2, n_reference)
    assert outer.kind == "channels"
    torch.testing.assert_close(outer.carry_in(weight), weight @ u)


def test_the_identity_returns_the_weight_itself():
    weight = draw(3, 4)
    assert ResidualBasisMap.identity(4).carry_in(weight) is weight


@pytest.mark.parametrize("method", ["carry_in", "carry_out"])
def test_a_weight_of_another_width_is_refused(method):
    with pytest.raises(ValueError, match=r"shape \(3, 3\).*expected 4 (in|out)put channels"):
        getattr(ResidualBasisMap.identity(4), method)(draw(3, 3))


def test_a_significant_matching_is_the_only_candidate():
    matching, _ = matching_of([0, 1, 2], [1, 2, 0], [1.0, 1.0, 1.0], 3, 3)
    tried = residual_basis_maps(3, 3, polar=draw(3, 3), matching=matching)
    assert [t.kind for t in tried] == ["permutation"]


def test_without_a_matching_rotation_and_identity_are_tried():
    tried = residual_basis_maps(3, 3, polar=draw(3, 3))
    assert [t.kind for t in tried] == ["rotation", "identity"]


def test_between_other_widths_the_identity_is_not_tried():
    assert [t.kind for t in residual_basis_maps(3, 4, polar=draw(3, 4))] == ["rotation"]


def test_without_a_common_vocabulary_the_identity_alone_is_tried():
    tried = residual_basis_maps(3, 3)
    assert [t.kind for t in tried] == ["identity"]


def test_without_vocabulary_and_width_in_common_nothing_is_tried():
    assert residual_basis_maps(3, 4) == ()


def test_every_kind_states_the_assumption_of_its_null():
    matching, _ = matching_of([0, 1], [1, 0], [1.0, 1.0], 2, 2)
    outers = (
        ResidualBasisMap.identity(2),
        ResidualBasisMap.rotation(draw(2, 2)),
        ResidualBasisMap.from_matching(matching, 2, 2),
    )
    assert all(o.null.startswith(LEFT_INVARIANCE) for o in outers)
    assert len({o.null for o in outers}) == 3


def test_a_folded_gain_does_what_the_norm_did():
    weight, gain, x = draw(3, 4), draw(4, seed=1), draw(4, seed=2)
    torch.testing.assert_close(fold_gain(weight, gain) @ x, weight @ (gain * x))
    torch.testing.assert_close(fold_gain(weight, gain, plus_one=True) @ x, weight @ ((1 + gain) * x))
    assert fold_gain(weight, None) is weight


@pytest.mark.parametrize("kind", ["rotation", "permutation", "identity"])
def test_a_reversed_map_takes_carried_weights_back(kind):
    n = 24
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(7, n, generator=generator, dtype=torch.float64)
    if kind == "rotation":
        outer = ResidualBasisMap.rotation(torch.linalg.qr(torch.randn(n, n, generator=generator).double())[0])
    elif kind == "permutation":
        order = torch.randperm(n, generator=generator)
        signs = torch.ones(n)
        signs[::3] = -1.0
        outer = ResidualBasisMap("signed_permutation", n, n, reference=torch.arange(n), candidate=order, signs=signs)
    else:
        outer = ResidualBasisMap.identity(n)
    # One product in each direction: rounding of a few eps of entries of size one.
    assert torch.allclose(outer.reversed.carry_in(outer.carry_in(weight)), weight, atol=1e-12)


def test_a_reversed_selection_of_channels_swaps_the_widths():
    outer = ResidualBasisMap(
        "channels", 6, 4, reference=torch.tensor([0, 3]), candidate=torch.tensor([2, 1]), signs=torch.ones(2)
    )
    back = outer.reversed
    assert (back.n_reference, back.n_candidate) == (4, 6)
    carried = back.carry_in(torch.tensor([[0.0, 5.0, 7.0, 9.0]]))
    assert carried.tolist() == [[7.0, 0.0, 0.0, 5.0, 0.0, 0.0]]
