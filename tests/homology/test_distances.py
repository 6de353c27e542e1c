import numpy as np
import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.homology.distances import Alignment, TokenGeometry, common_channels, token_geometry

V, N = 3000, 48


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def chain(*drifts: float, seed: int = 1) -> list[torch.Tensor]:
    """A model and its successive descendants, each further by independent noise of that size."""
    models = [gaussian(V, N, seed=seed)]
    for step, drift in enumerate(drifts):
        models.append(models[-1] + drift * gaussian(V, N, seed=100 * seed + step))
    return models


def star(*drifts: float, seed: int = 2) -> list[torch.Tensor]:
    """Siblings with the same unseen root."""
    root = gaussian(V, N, seed=seed)
    return [root + drift * gaussian(V, N, seed=100 * seed + k) for k, drift in enumerate(drifts)]


def geometry(models: list[torch.Tensor], **options) -> TokenGeometry:
    return token_geometry([models], **options)


# Distances.


def test_distance_is_the_mean_squared_difference_of_an_entry():
    a, b = chain(0.3)
    assert geometry([a, b]).distance(0, 1).value == pytest.approx(float(((a - b) ** 2).mean()), rel=1e-12)


def test_distances_along_a_lineage_add():
    made = geometry(chain(0.2, 0.4, 0.3))
    for k, drift in enumerate((0.2, 0.4, 0.3)):
        step = made.distance(k, k + 1)
        assert step.value == pytest.approx(drift**2, abs=4 * step.standard_error)
    whole = made.distance(0, 3)
    assert whole.value == pytest.approx(0.04 + 0.16 + 0.09, abs=4 * whole.standard_error)


def test_siblings_are_as_far_as_both_branches_together():
    sibling = geometry(star(0.2, 0.5)).distance(0, 1)
    assert sibling.value == pytest.approx(0.04 + 0.25, abs=4 * sibling.standard_error)


def test_four_point_condition_holds_on_a_tree_of_four():
    # ((A, B), (C, D)): the two larger sums of opposite distances agree, the smaller one pairs the neighbours.
    left, right = star(0.4, 0.4, seed=3)
    models = [left + 0.2 * gaussian(V, N, seed=40 + k) for k in range(2)]
    models += [right + 0.2 * gaussian(V, N, seed=50 + k) for k in range(2)]
    d = geometry(models).distances()
    neighbours, first, second = d[0, 1] + d[2, 3], d[0, 2] + d[1, 3], d[0, 3] + d[1, 2]
    assert neighbours < 0.5 * first
    assert first == pytest.approx(second, rel=0.02)  # errors of 0.5 % each


def test_distance_matrix_is_that_of_the_single_distances():
    made = geometry(star(0.1, 0.2, 0.3))
    d = made.distances()
    assert np.array_equal(d, d.T)
    assert not np.diagonal(d).any()
    for i in range(3):
        for j in range(3):
            assert d[i, j] == pytest.approx(made.distance(i, j).value, rel=1e-9, abs=1e-30)


def test_near_copies_lose_no_digits():
    a = 1e3 + gaussian(V, N, seed=6)
    b, c = a + 1e-5 * gaussian(V, N, seed=7), a + 2e-5 * gaussian(V, N, seed=8)
    made = geometry([a, b, c])
    assert made.distance(0, 1).value == pytest.approx(1e-10, rel=0.02)
    assert made.distance(1, 2).value == pytest.approx(5e-10, rel=0.02)


def test_a_model_is_at_distance_nought_from_its_copy():
    a = gaussian(V, N, seed=9)
    estimate = geometry([a, a.clone()]).distance(0, 1)
    assert (estimate.value, estimate.standard_error, estimate.low, estimate.high) == (0.0, 0.0, 0.0, 0.0)


# Errors.


def test_standard_error_is_that_of_fresh_tokens():
    per_draw = [geometry(chain(0.5, seed=seed)).distance(0, 1) for seed in range(40)]
    observed = np.std([estimate.value for estimate in per_draw], ddof=1)
    # A spread over 40 draws is known to 11 %.
    assert np.mean([estimate.standard_error for estimate in per_draw]) == pytest.approx(observed, rel=0.45)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(60):
        estimate = geometry(chain(0.5, seed=seed)).distance(0, 1)
        covered += estimate.low <= 0.25 <= estimate.high
    assert covered >= 50  # binomial(60, 0.95) is below 50 with probability 2e-4


def test_tokens_of_unequal_weight_widen_the_error():
    a, b = chain(0.3)
    heavy = a.clone()
    heavy[:30] += 10.0 * (b - a)[:30]
    assert geometry([heavy, b]).distance(0, 1).standard_error > 3 * geometry([a, b]).distance(0, 1).standard_error


def test_same_seed_gives_the_same_errors_and_another_seed_others():
    models = chain(0.3)
    first, again, other = (geometry(models, seed=seed).distance(0, 1) for seed in (0, 0, 1))
    assert first == again
    assert first.standard_error != other.standard_error
    assert first.standard_error == pytest.approx(other.standard_error, rel=0.15)


# The ancestor check.


def test_middle_of_a_chain_has_cosine_nought():
    made = geometry(chain(0.4, 0.4)).ancestor_cosine(0, 1, 2)
    assert made.value == pytest.approx(0.0, abs=4 * made.standard_error)
    assert made.standard_error < 0.01


def test_common_ancestor_has_cosine_nought():
    root = gaussian(V, N, seed=11)
    a, c = (root + 0.4 * gaussian(V, N, seed=seed) for seed in (12, 13))
    made = geometry([a, root, c]).ancestor_cosine(0, 1, 2)
    assert made.value == pytest.approx(0.0, abs=4 * made.standard_error)


def test_star_with_an_unseen_root_has_cosine_one_half():
    made = geometry(star(0.4, 0.4, 0.4)).ancestor_cosine(0, 1, 2)
    assert made.value == pytest.approx(0.5, abs=4 * made.standard_error)
    assert made.low < 0.5 < made.high
    assert made.low > 0.4


def test_end_of_a_chain_has_the_cosine_of_its_closed_form():
    # cos(A - C, B - C) for A -> B -> C with drifts s, t: t / sqrt(s^2 + t^2).
    made = geometry(chain(0.3, 0.4)).ancestor_cosine(0, 2, 1)
    assert made.value == pytest.approx(0.8, abs=4 * made.standard_error)


def test_cosine_is_symmetric_in_its_ends_and_does_not_depend_on_the_order_of_models():
    models = star(0.4, 0.3, 0.2)
    forward = geometry(models).ancestor_cosine(0, 1, 2)
    backward = geometry(models).ancestor_cosine(2, 1, 0)
    moved = geometry([models[2], models[0], models[1]]).ancestor_cosine(1, 2, 0)
    assert forward.value == pytest.approx(backward.value, rel=1e-12)
    assert forward.value == pytest.approx(moved.value, rel=1e-9)


def test_cosine_with_an_exact_copy_is_refused():
    a, b = chain(0.3)
    with pytest.raises(InputError, match="model 1 equals model 0 or 2 on every token"):
        geometry([a, a.clone(), b]).ancestor_cosine(0, 1, 2)


# Who is closer.


def test_parent_is_closer_than_grandparent():
    difference, share = geometry(chain(0.3, 0.3)[::-1]).is_closer(0, 1, 2)
    assert difference.value == pytest.approx(0.09, abs=4 * difference.standard_error)
    assert share < 0.001


def test_farther_model_is_not_called_closer():
    difference, share = geometry(chain(0.3, 0.3)[::-1]).is_closer(0, 2, 1)
    assert difference.high < 0.0
    assert share == 1.0


def test_equally_distant_models_are_not_told_apart():
    shares = [geometry(star(0.3, 0.3, 0.3, seed=seed)).is_closer(0, 1, 2)[1] for seed in range(30)]
    # Uniform shares: more than 8 of 30 are below a tenth with probability 0.002.
    assert sum(share < 0.1 for share in shares) <= 8
    assert 0.25 < np.mean(shares) < 0.75


def test_paired_comparison_is_sharper_than_the_two_distances():
    a = gaussian(V, N, seed=21)
    scale = torch.exp(gaussian(V, 1, seed=22))  # some tokens drift far in every model
    common = scale * gaussian(V, N, seed=23)
    b, c = (a + common + 0.1 * scale * gaussian(V, N, seed=seed) for seed in (24, 25))
    made = geometry([a, b, c])
    difference, _ = made.is_closer(0, 1, 2)
    assert difference.standard_error < 0.3 * made.distance(0, 1).standard_error


# Streaming.


@pytest.mark.parametrize("sizes", [(1, 2999), (1000, 1000, 1000), (7,) * 428 + (4,)])
def test_blocks_do_not_matter(sizes):
    models = star(0.3, 0.3, 0.3)
    blocks = zip(*(torch.split(model, sizes) for model in models), strict=True)
    whole, streamed = geometry(models), token_geometry(blocks)
    np.testing.assert_allclose(streamed.products, whole.products, rtol=1e-12)
    assert streamed.ancestor_cosine(0, 1, 2).value == pytest.approx(whole.ancestor_cosine(0, 1, 2).value, rel=1e-12)


def test_order_of_tokens_changes_no_value():
    models, order = star(0.3, 0.3), torch.randperm(V, generator=torch.Generator().manual_seed(3))
    shuffled = geometry([model[order] for model in models])
    assert shuffled.distance(0, 1).value == pytest.approx(geometry(models).distance(0, 1).value, rel=1e-12)


def test_half_precision_rows_are_compared_as_they_are():
    a, b = (model.bfloat16() for model in chain(0.3))
    expected = float(((a.double() - b.double()) ** 2).mean())
    assert geometry([a, b]).distance(0, 1).value == pytest.approx(expected, rel=1e-12)


# Alignment.


def test_permuted_signed_and_scaled_descendant_is_as_far_as_the_plain_one():
    a, b = chain(0.3)
    order = np.random.default_rng(0).permutation(N)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=N)
    hidden = 2.5 * (b * torch.from_numpy(signs))[:, order]  # channel k of the candidate is channel order[k] of b
    back = Alignment(source=np.arange(N), target=order, signs=signs[order], scale=1 / 2.5)
    aligned = geometry([a, hidden], alignments=[Alignment.identity(N), back]).distance(0, 1)
    assert aligned.value == pytest.approx(geometry([a, b]).distance(0, 1).value, rel=1e-12)


def test_only_channels_that_every_model_reaches_are_compared():
    a, b, c = star(0.3, 0.2, 0.1)
    pruned = Alignment(source=np.arange(20), target=np.arange(10, 30))
    made = token_geometry(
        [[a, b[:, 10:30], c[:, 5:25]]],
        alignments=[Alignment.identity(N), pruned, Alignment(source=np.arange(20), target=np.arange(5, 25))],
    )
    assert made.n_channels == 15
    expected = float(((b[:, 10:25] - c[:, 10:25]) ** 2).mean())
    assert made.distance(1, 2).value == pytest.approx(expected, rel=1e-12)


def test_common_channels_are_ascending():
    alignments = [Alignment(np.arange(3), np.array([7, 2, 5])), Alignment(np.arange(3), np.array([5, 9, 7]))]
    assert common_channels(alignments).tolist() == [5, 7]


def test_unmatched_channels_cannot_be_carried():
    with pytest.raises(InputError, match="2 target channels are not matched, the first is 3"):
        Alignment(np.arange(3), np.array([2, 0, 9])).carry(torch.zeros(1, 3), np.array([0, 3, 11]))


# What cannot be asked is refused.


def test_models_of_different_width_need_alignments():
    with pytest.raises(InputError, match=r"disagree in tokens or channels: \[\(9, 4\), \(9, 5\)\]; pass alignments"):
        token_geometry([[torch.zeros(9, 4), torch.zeros(9, 5)]])


def test_one_model_has_no_distance():
    with pytest.raises(InputError, match="at least two models, got 1"):
        token_geometry([[torch.zeros(9, 4)]])


def test_alignments_must_be_one_for_each_model():
    with pytest.raises(InputError, match="got 1 alignments for 2 models"):
        token_geometry([[torch.zeros(9, 4)] * 2], alignments=[Alignment.identity(4)])


@pytest.mark.parametrize("blocks", [[], [[torch.zeros(1, 4), torch.zeros(1, 4)]]])
def test_fewer_than_two_tokens_are_too_few(blocks):
    with pytest.raises(InputError, match=rf"at least two common tokens, got {len(blocks)}"):
        token_geometry(blocks)


def test_blocks_that_change_their_models_are_refused():
    with pytest.raises(InputError, match="blocks disagree: 3 models of 4 channels, expected 2 of 4"):
        token_geometry([[torch.zeros(9, 4)] * 2, [torch.zeros(9, 4)] * 3])
