import numpy as np
import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.method.distances import Alignment, TokenGeometry, common_channels, token_geometry

V, N = 3000, 48


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def chain(*drifts: float, seed: int = 1) -> list[torch.Tensor]:
    """A model and its successive descendants, with independent noise of the given size at each step."""
    models = [gaussian(V, N, seed=seed)]
    for step, drift in enumerate(drifts):
        models.append(models[-1] + drift * gaussian(V, N, seed=100 * seed + step))
    return models


def star(*drifts: float, seed: int = 2) -> list[torch.Tensor]:
    """Siblings of the same unseen root."""
    root = gaussian(V, N, seed=seed)
    return [root + drift * gaussian(V, N, seed=100 * seed + k) for k, drift in enumerate(drifts)]


def geometry(models: list[torch.Tensor], **options) -> TokenGeometry:
    return token_geometry([models], **options)


# Distances. Each is a mean of V N = 144000 squares: its standard error is 0.4 %, so 5 % is more than ten of them.


def test_distance_is_the_mean_squared_difference_of_an_entry():
    a, b = chain(0.3)
    assert geometry([a, b]).distances()[0, 1] == pytest.approx(float(((a - b) ** 2).mean()), rel=1e-12)


def test_distances_along_a_lineage_add():
    d = geometry(chain(0.2, 0.4, 0.3)).distances()
    for k, drift in enumerate((0.2, 0.4, 0.3)):
        assert d[k, k + 1] == pytest.approx(drift**2, rel=0.05)
    assert d[0, 3] == pytest.approx(0.04 + 0.16 + 0.09, rel=0.05)


def test_four_point_condition_holds_on_a_tree_of_four():
    # ((A, B), (C, D)): the two larger sums of opposite distances are equal; the smaller one pairs the neighbours.
    left, right = star(0.4, 0.4, seed=3)
    models = [left + 0.2 * gaussian(V, N, seed=40 + k) for k in range(2)]
    models += [right + 0.2 * gaussian(V, N, seed=50 + k) for k in range(2)]
    d = geometry(models).distances()
    neighbours, first, second = d[0, 1] + d[2, 3], d[0, 2] + d[1, 3], d[0, 3] + d[1, 2]
    assert neighbours < 0.5 * first
    assert first == pytest.approx(second, rel=0.02)  # errors of 0.5 % each


def test_near_copies_lose_no_digits():
    a = 1e3 + gaussian(V, N, seed=6)
    b, c = a + 1e-5 * gaussian(V, N, seed=7), a + 2e-5 * gaussian(V, N, seed=8)
    d = geometry([a, b, c]).distances()
    assert d[0, 1] == pytest.approx(1e-10, rel=0.02)
    assert d[1, 2] == pytest.approx(5e-10, rel=0.02)


# Groups for the bootstrap.


def test_the_groups_hold_every_token_once_and_add_up_to_the_whole():
    a, b = chain(0.3)
    made = geometry([a, b], n_groups=16)
    assert made.n_tokens.sum() == V
    assert float(made.products[:, 1, 1].sum()) == pytest.approx(float(((a - b) ** 2).sum()), rel=1e-12)


def test_the_spread_over_groups_matches_fresh_tokens():
    a, b = chain(0.5)
    made = geometry([a, b], n_groups=30)
    of_group = made.products[:, 1, 1] / made.n_tokens / N
    # About 100 tokens of 48 squares each: a spread of sqrt(2 / 4800), which 30 groups determine to 13 %.
    assert of_group.std() / of_group.mean() == pytest.approx((2 / 4800) ** 0.5, rel=0.5)


def test_the_same_seed_gives_the_same_groups_and_another_seed_different_groups():
    models = chain(0.3)
    first, again, other = (geometry(models, seed=seed).n_tokens.tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other


# Streaming.


@pytest.mark.parametrize("sizes", [(1, 2999), (1000, 1000, 1000), (7,) * 428 + (4,)])
def test_blocks_do_not_matter(sizes):
    models = star(0.3, 0.3, 0.3)
    blocks = zip(*(torch.split(model, sizes) for model in models), strict=True)
    whole, streamed = geometry(models), token_geometry(blocks)
    np.testing.assert_allclose(streamed.products, whole.products, rtol=1e-12)


def test_order_of_tokens_changes_no_value():
    models, order = star(0.3, 0.3), torch.randperm(V, generator=torch.Generator().manual_seed(3))
    shuffled = geometry([model[order] for model in models])
    assert shuffled.distances()[0, 1] == pytest.approx(geometry(models).distances()[0, 1], rel=1e-12)


def test_half_precision_rows_are_compared_as_they_are():
    a, b = (model.bfloat16() for model in chain(0.3))
    expected = float(((a.double() - b.double()) ** 2).mean())
    assert geometry([a, b]).distances()[0, 1] == pytest.approx(expected, rel=1e-12)


# Alignment.


def test_a_permuted_descendant_is_as_far_as_the_plain_one():
    a, b = chain(0.3)
    order = np.random.default_rng(0).permutation(N)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=N)
    hidden = 2.5 * (b * torch.from_numpy(signs))[:, order]  # channel k of the candidate is channel order[k] of b
    back = Alignment(source=np.arange(N), target=order, signs=signs[order], scale=1 / 2.5)
    aligned = geometry([a, hidden], alignments=[Alignment.identity(N), back]).distances()[0, 1]
    assert aligned == pytest.approx(geometry([a, b]).distances()[0, 1], rel=1e-12)


def test_only_channels_that_every_model_reaches_are_compared():
    a, b, c = star(0.3, 0.2, 0.1)
    pruned = Alignment(source=np.arange(20), target=np.arange(10, 30))
    made = token_geometry(
        [[a, b[:, 10:30], c[:, 5:25]]],
        alignments=[Alignment.identity(N), pruned, Alignment(source=np.arange(20), target=np.arange(5, 25))],
    )
    assert made.n_channels == 15
    expected = float(((b[:, 10:25] - c[:, 10:25]) ** 2).mean())
    assert made.distances()[1, 2] == pytest.approx(expected, rel=1e-12)


def test_common_channels_are_ascending():
    alignments = [Alignment(np.arange(3), np.array([7, 2, 5])), Alignment(np.arange(3), np.array([5, 9, 7]))]
    assert common_channels(alignments).tolist() == [5, 7]


def test_unmatched_channels_cannot_be_carried():
    with pytest.raises(InputError, match="2 target channels are not matched, the first is 3"):
        Alignment(np.arange(3), np.array([2, 0, 9])).carry(torch.zeros(1, 3), np.array([0, 3, 11]))


# Invalid inputs are refused.


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
