import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from mdir_hf.method.layer_map import LayerMap, log_p_of_layers
from mdir_hf.method.layer_map import map_layers as map_in_step
from mdir_hf.method.screening import row_maximum_moments
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from mdir_hf.errors import InputError
from mdir_hf.method.layer_order import LayerRun, classify_layers, layer_runs, ordered_matching
from tests.method.one_map import map_layers

LOG_ALPHA = math.log(1e-10)
N = 256
D = 160
"""Wide enough to be screened and narrow enough to be fast."""


def model(n_layers: int, seed: int, *, channels: int = D, width: int = N) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(channels, width, generator=generator) for _ in range(n_layers)]


def descend(
    layers: list[torch.Tensor], order: list[int], seed: int, *, noise: float = 0.5, signs: bool = False
) -> list[torch.Tensor]:
    """Copies of some layers with permuted (and signed) output channels, and noise relative to their size."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in order:
        layer = layers[i][torch.randperm(len(layers[i]), generator=generator)]
        if signs:
            layer = layer * (torch.randint(0, 2, (len(layer), 1), generator=generator) * 2 - 1)
        made.append(layer + noise * torch.randn(layer.shape, generator=generator))
    return made


def pairs(found: LayerMap) -> list[tuple[int, int]]:
    return [(match.reference, match.candidate) for match in found.matches]


def naive_log_p(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Algorithm 2 for one square full-rank cell, in float64, permutation and signed permutation."""
    left, _, right = torch.linalg.svd(reference.double() @ candidate.double().T)
    polar = (left @ right).numpy()
    n = len(polar)
    plain = polar[linear_sum_assignment(polar, maximize=True)].sum()
    signed = np.abs(polar)[linear_sum_assignment(np.abs(polar), maximize=True)].sum()
    best = gammaln(n + 1) + min(-(plain**2) / 2, n * math.log(2) - signed**2 / 2)
    return min(0.0, min(0.0, best) + math.log(2))


# Planted changes are found.


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("refine", ["hits", "undecided"])
def test_a_fine_tuned_model_keeps_every_layer_in_place(noise, refine):
    reference = model(6, 1)
    found = map_layers(
        reference, descend(reference, list(range(6)), 2, noise=noise), log_alpha=LOG_ALPHA, refine=refine
    )
    assert pairs(found) == [(i, i) for i in range(6)]
    assert found.pattern == "identity"
    assert found.runs == (LayerRun(0, 0, 6),)
    assert found.ordered == tuple((i, i) for i in range(6))
    assert found.n_related == 6
    assert max(found.log_p_map, found.log_p_any, found.log_p_fisher) < LOG_ALPHA


@pytest.mark.parametrize("refine", ["hits", "undecided"])
def test_depth_pruning_is_read_off_as_llama_1b_out_of_8b(refine):
    kept = [0, 1, 2, 3, 4, 5, 8, 11, 14, 17, 20, 23, 26, 29, 30, 31]
    reference = model(32, 3)
    found = map_layers(reference, descend(reference, kept, 4), log_alpha=LOG_ALPHA, refine=refine)
    assert [i for i, _ in pairs(found)] == kept
    assert found.pattern == "pruned"
    assert found.ordered == tuple(zip(kept, range(16), strict=True))
    assert found.runs[0] == LayerRun(0, 0, 6)
    assert found.runs[-1] == LayerRun(29, 13, 3)
    assert found.n_related == 16


@pytest.mark.parametrize("refine", ["hits", "undecided"])
def test_depth_upscaling_is_read_off_as_solar_out_of_mistral(refine):
    order = [*range(24), *range(8, 32)]
    reference = model(32, 5)
    found = map_layers(reference, descend(reference, order, 6), log_alpha=LOG_ALPHA, refine=refine)
    assert pairs(found) == list(zip(order, range(48), strict=True))
    assert found.pattern == "repeated"
    assert found.runs == (LayerRun(0, 0, 24), LayerRun(8, 24, 24))
    assert len(found.ordered) == 32
    assert found.n_related == 32


def test_an_upscaled_reference_gives_each_layer_one_copy():
    base = model(6, 7)
    reference = descend(base, [0, 1, 2, 3, 2, 3, 4, 5], 8)
    found = map_layers(reference, descend(base, list(range(6)), 9), log_alpha=LOG_ALPHA)
    ancestors = {candidate: i for i, candidate in pairs(found)}
    assert (ancestors[0], ancestors[1], ancestors[4], ancestors[5]) == (0, 1, 6, 7)
    assert ancestors[2] in (2, 4)
    assert ancestors[3] in (3, 5)
    assert int((found.log_p + math.log(found.multiplicity) < LOG_ALPHA).sum()) == 8


def test_layers_in_reverse_order_are_called_reordered():
    reference = model(6, 10)
    found = map_layers(reference, descend(reference, list(range(6))[::-1], 11), log_alpha=LOG_ALPHA)
    assert pairs(found) == [(5 - j, j) for j in range(6)]
    assert found.pattern == "reordered"
    assert len(found.ordered) == 1


def test_a_model_with_some_of_its_layers_is_partial():
    reference = model(8, 12)
    candidate = model(8, 13)
    candidate[2:5] = descend(reference, [4, 5, 6], 14)
    found = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    assert pairs(found) == [(4, 2), (5, 3), (6, 4)]
    assert found.pattern == "partial"
    assert found.n_related == 3
    assert found.log_p_any < LOG_ALPHA
    assert found.log_p_map == 0.0  # fewer than half of the layers are related, and the p says so


def test_strangers_have_no_map():
    found = map_layers(model(6, 15), model(9, 16), log_alpha=LOG_ALPHA)
    assert found.matches == found.ordered == found.runs == ()
    assert found.pattern == "none"
    assert found.n_related == 0
    assert (found.log_p_map, found.log_p_any, found.log_p_fisher) == (0.0, 0.0, 0.0)


def test_signs_are_free():
    reference = model(4, 17)
    candidate = [-layer for layer in descend(reference, [0, 1, 2, 3], 18)]
    assert map_layers(reference, candidate, log_alpha=LOG_ALPHA).pattern == "identity"


@pytest.mark.parametrize(("channels", "kept"), [(320, 160), (160, 40), (40, 20)])
def test_width_pruned_layers_are_found_from_either_side(channels, kept):
    wide = model(5, 19, channels=channels)
    generator = torch.Generator().manual_seed(20)
    narrow = []
    for i in (0, 2, 4):
        rows = wide[i][torch.randperm(channels, generator=generator)[:kept]]
        narrow.append(rows + 0.3 * torch.randn(rows.shape, generator=generator))
    assert pairs(map_layers(wide, narrow, log_alpha=LOG_ALPHA)) == [(0, 0), (2, 1), (4, 2)]
    assert pairs(map_layers(narrow, wide, log_alpha=LOG_ALPHA)) == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.parametrize("refine", ["hits", "undecided"])
def test_layers_wider_than_the_stream_are_mapped(refine):
    reference = model(4, 21, channels=200, width=64)
    found = map_layers(
        reference,
        [*descend(reference, [3, 1], 22), *model(2, 23, channels=200, width=64)],
        log_alpha=LOG_ALPHA,
        refine=refine,
    )
    assert pairs(found) == [(3, 0), (1, 1)]
    assert found.pattern == "partial"


def test_strangers_wider_than_the_residual_stream_do_not_match():
    found = map_layers(
        model(5, 24, channels=200, width=64), model(5, 25, channels=200, width=64), log_alpha=LOG_ALPHA, n_screened=0
    )
    assert found.is_full.all()
    assert not found.log_p.any()


def test_layers_of_different_widths_in_one_model_are_mapped():
    generator = torch.Generator().manual_seed(26)
    reference = [torch.randn(d, N, generator=generator) for d in (150, 200, 170)]
    found = map_layers(reference, descend(reference, [2, 0, 1], 27), log_alpha=LOG_ALPHA)
    assert pairs(found) == [(2, 0), (0, 1), (1, 2)]


# Numbers from the paper, computed naively.


def test_log_p_equals_the_naive_float64_reference():
    reference = model(4, 28, channels=96, width=N)
    candidate = [
        *descend(reference, [1, 3], 29, noise=2.0),
        *descend(reference, [0], 30, signs=True),
        *model(2, 31, channels=96),
    ]
    found = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    expected = np.array([[naive_log_p(a, b) for b in candidate] for a in reference])
    assert (expected < LOG_ALPHA).sum() == 3
    # The trace is a sum of float64 numbers, and the bound squares it.
    np.testing.assert_allclose(found.log_p, expected, rtol=1e-6)


@pytest.mark.parametrize(("refine", "noise"), [("undecided", 4.0), ("hits", 6.0)])
def test_screened_map_decides_as_the_full_one(refine, noise):
    reference = model(10, 32)
    candidate = [*descend(reference, [0, 4, 4, 9, 2], 33, noise=noise), *model(4, 34)]
    full = map_layers(reference, candidate, log_alpha=LOG_ALPHA, n_screened=0)
    fast = map_layers(reference, candidate, log_alpha=LOG_ALPHA, refine=refine)
    assert full.is_full.all()
    assert fast.is_full.sum() < 0.2 * full.is_full.size
    assert pairs(fast) == pairs(full)
    hits = full.log_p + math.log(full.multiplicity) < LOG_ALPHA
    assert np.array_equal(hits, fast.log_p + math.log(fast.multiplicity) < LOG_ALPHA)
    if refine == "hits":
        np.testing.assert_allclose(fast.log_p[hits], full.log_p[hits], rtol=1e-6)


def test_screen_never_gives_a_cell_more_evidence_than_its_full_test():
    reference = model(8, 35)
    candidate = [*descend(reference, [0, 5], 36, noise=6.0), *model(6, 37)]
    full = map_layers(reference, candidate, log_alpha=LOG_ALPHA, n_screened=0)
    fast = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    assert (fast.log_p >= full.log_p * (1 + 1e-6)).all()


def test_cells_that_the_screen_decides_cost_twice_the_tests():
    reference = model(3, 38)
    tests = {
        refine: map_layers(reference, reference, log_alpha=LOG_ALPHA, refine=refine).tests_per_cell
        for refine in ("hits", "undecided")
    }
    assert tests == {"hits": 2, "undecided": 4}


def test_rivals_for_one_ancestry_are_compared_by_their_full_tests():
    base = model(6, 39)
    # The first rival is closer to the candidate than the second.
    reference = [*descend(base, [0], 40, noise=0.5), *descend(base, [0], 41, noise=2.0), *base[1:]]
    found = map_layers(reference, descend(base, [0, 3], 42), log_alpha=LOG_ALPHA, refine="undecided")
    assert pairs(found) == [(0, 0), (4, 1)]
    assert np.argwhere(found.is_full).tolist() == [[0, 0], [1, 0]]


def test_a_layer_that_resembles_all_is_not_taken_for_the_null():
    # Upscaled from a single layer: the column has no null cell, so its bulk does not show the null.
    base = model(1, 72)
    reference = descend(base, [0] * 10, 73, noise=1.0)
    found = map_layers(reference, descend(base, [0], 74), log_alpha=LOG_ALPHA)
    assert found.is_full.all()
    assert (found.log_p + math.log(10) < LOG_ALPHA).all()


def test_the_number_of_related_layers_is_corrected_for_the_other_tests():
    layer = model(1, 75, channels=40, width=40)
    candidate = descend(layer, [0], 76, noise=1.0)
    level = log_p_of_layers(layer[0], candidate[0]) + 0.1
    related = [map_layers(layer, candidate, log_alpha=level, n_tests=k).n_related for k in (1, 2)]
    assert related == [1, 0]


def test_channels_of_the_narrower_model_are_screened():
    # One channel in 16 of the wide model has a partner; among 64 screened ones only 4 would have one.
    generator = torch.Generator().manual_seed(77)
    wide = model(3, 78, channels=16 * 136)
    narrow = [w[torch.randperm(len(w), generator=generator)[:136]] for w in wide]
    narrow = [w + 2.0 * torch.randn(w.shape, generator=generator) for w in narrow]
    for reference, candidate in ((wide, narrow), (narrow, wide)):
        found = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
        assert found.pattern == "identity"


def test_every_p_is_multiplied_by_the_pairs_and_by_the_other_tests():
    reference = model(3, 43)
    candidate = descend(reference, [0, 1], 44)
    one, four = (map_layers(reference, candidate, log_alpha=LOG_ALPHA, n_tests=k) for k in (1, 4))
    assert (one.multiplicity, four.multiplicity) == (6, 24)
    assert one.matches[0].log_p == pytest.approx(float(one.log_p[0, 0]) + math.log(6))
    for name in ("log_p_map", "log_p_any", "log_p_fisher"):
        assert getattr(four, name) == pytest.approx(getattr(one, name) + math.log(4))


def test_a_cell_significant_only_without_correction_is_not_a_match():
    torch.manual_seed(0)
    layer = torch.randn(40, 40)
    candidate = layer[torch.randperm(40)] + 1.6 * torch.randn(40, 40)
    alone = log_p_of_layers(layer, candidate)
    assert alone < -1.0
    level = alone + 0.5 * math.log(36)
    filler = model(5, 45, channels=40, width=40)
    assert len(map_layers([layer], [candidate], log_alpha=level).matches) == 1
    assert (
        map_layers([layer, *filler], [candidate, *model(5, 46, channels=40, width=40)], log_alpha=level).matches == ()
    )


# Invariances.


def test_turning_the_residual_side_of_both_models_changes_nothing():
    reference = model(4, 47, channels=100)
    candidate = [*descend(reference, [1, 2], 48, noise=1.5), *model(1, 49, channels=100)]
    turn = torch.linalg.qr(torch.randn(N, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    before = map_layers([w.double() for w in reference], [w.double() for w in candidate], log_alpha=LOG_ALPHA)
    after = map_layers(
        [w.double() @ turn for w in reference], [w.double() @ turn for w in candidate], log_alpha=LOG_ALPHA
    )
    np.testing.assert_allclose(after.log_p, before.log_p, rtol=1e-9)


@pytest.mark.parametrize("channels", [100, D])
def test_permuting_output_channels_changes_no_decision(channels):
    reference = model(4, 50, channels=channels)
    candidate = [*descend(reference, [1, 2], 51, noise=1.5), *model(1, 52, channels=channels)]
    generator = torch.Generator().manual_seed(2)

    def shuffle(layers: list[torch.Tensor]) -> list[torch.Tensor]:
        return [w[torch.randperm(channels, generator=generator)] for w in layers]

    before = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    after = map_layers(shuffle(reference), shuffle(candidate), log_alpha=LOG_ALPHA)
    np.testing.assert_allclose(after.log_p, before.log_p, rtol=1e-6)


def test_scaling_either_model_changes_nothing():
    reference = model(4, 53)
    candidate = descend(reference, [1, 2], 54, noise=1.5)
    before = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    after = map_layers([1e-3 * w for w in reference], [50.0 * w for w in candidate], log_alpha=LOG_ALPHA)
    np.testing.assert_allclose(after.log_p, before.log_p, rtol=1e-5)  # float32 products


def test_swapping_the_models_transposes_the_answer():
    reference = model(5, 55)
    candidate = [*descend(reference, [4, 0], 56, noise=2.0), *model(1, 57)]
    one = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    other = map_layers(candidate, reference, log_alpha=LOG_ALPHA)
    np.testing.assert_allclose(other.log_p.T, one.log_p, rtol=1e-6)
    assert sorted((j, i) for i, j in pairs(other)) == sorted(pairs(one))
    assert other.log_p_map == pytest.approx(one.log_p_map)


def test_layers_in_another_order_give_the_same_cells():
    reference, candidate = model(9, 58), []
    candidate = [*descend(reference, [4, 0, 7], 59, noise=2.0), *model(2, 60)]
    before = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    rows, columns = [3, 8, 0, 1, 7, 2, 6, 5, 4], [4, 2, 0, 1, 3]
    after = map_layers([reference[i] for i in rows], [candidate[j] for j in columns], log_alpha=LOG_ALPHA)
    np.testing.assert_allclose(after.log_p, before.log_p[np.ix_(rows, columns)], rtol=1e-6)


def test_the_seed_of_the_screen_changes_no_full_p():
    reference = model(4, 61)
    candidate = [*descend(reference, [1, 2], 62, noise=2.0), *model(2, 63)]
    first, second = (map_layers(reference, candidate, log_alpha=LOG_ALPHA, seed=seed) for seed in (0, 1))
    np.testing.assert_allclose(first.log_p, second.log_p, rtol=1e-9)


def test_half_precision_layers_are_read_as_they_are():
    reference = model(3, 64)
    candidate = descend(reference, [0, 1, 2], 65)
    found = map_layers([w.bfloat16() for w in reference], [w.half() for w in candidate], log_alpha=LOG_ALPHA)
    assert found.pattern == "identity"


# Unrelated models do not match.


def slow(*kinds):
    """Kinds of strangers that are drawn only in slow runs."""
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def null_sides(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """24 x 24 unrelated layers of models that share some structure other than ancestry."""
    channels, width, head = 96, 128, 16
    reference, candidate = model(24, 66, channels=channels, width=width), model(24, 67, channels=channels, width=width)
    generator = torch.Generator().manual_seed(68)
    if kind == "shared_residual":
        # One spectrum, one set of outlier channels and one set of directions for all layers of both models.
        shared = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
        shared = (torch.arange(1, width + 1) ** -0.5)[:, None] * shared
        shared[:, :4] *= 10.0
        return [w @ shared for w in reference], [w @ shared for w in candidate]
    if kind == "heads":
        # Heads of random size that read a low-dimensional part of the residual stream, as trained K and V do.
        def shape(layers: list[torch.Tensor]) -> list[torch.Tensor]:
            shaped = []
            for layer in layers:
                blocks = layer.view(-1, head, width)
                directions = torch.randn(len(blocks), head // 2, width, generator=generator)
                loading = torch.randn(len(blocks), head, head // 2, generator=generator)
                size = torch.exp(0.5 * torch.randn(len(blocks), 1, 1, generator=generator))
                shaped.append((size * (0.5 * blocks + loading @ directions)).reshape(channels, width))
            return shaped

        return shape(reference), shape(candidate)
    if kind == "one_privileged":
        # One model's channels are axes of the residual stream; the other is rotation invariant.
        return [torch.eye(channels, width) * 5.0 + 0.1 * w for w in reference], candidate
    return reference, candidate


@pytest.mark.parametrize("kind", ["gaussian", *slow("shared_residual", "heads"), "one_privileged"])
def test_no_cell_among_576_unrelated_ones_is_significant(kind):
    reference, candidate = null_sides(kind)
    found = map_layers(reference, candidate, log_alpha=LOG_ALPHA, n_screened=0)
    assert found.is_full.sum() == 576
    assert found.log_p.min() == 0.0
    assert (found.pattern, found.n_related) == ("none", 0)


def test_traces_of_unrelated_layers_follow_the_null():
    reference, candidate = null_sides("heads")
    traces = []
    for a, b in itertools.product(reference, candidate):
        left, _, right = torch.linalg.svd(a @ b.T)
        traces.append(float((left @ right).amax(dim=1).sum()))
    mean, sd = row_maximum_moments(96, signed=False)
    expected, spread = 96 * mean, math.sqrt(96) * sd
    # 576 cells from 48 layers; four standard errors for 48 of them.
    assert np.mean(traces) == pytest.approx(expected, abs=4 * spread / math.sqrt(48))
    assert np.std(traces) == pytest.approx(spread, rel=0.25)
    assert max(traces) < math.sqrt(2 * float(gammaln(97)))


# Invalid inputs are refused, and layers are loaded lazily.


class Stored:
    """A stored layer that records how many channels each load read."""

    alive: ClassVar[set[int]] = set()
    most: ClassVar[int] = 0

    def __init__(self, matrix):
        self._matrix = matrix
        self.loads = []

    @property
    def n_channels(self):
        return len(self._matrix)

    def load(self, channels=None):
        tensor = (self._matrix if channels is None else self._matrix[channels]).clone().as_subclass(Tracked)
        self.loads.append(len(tensor))
        if channels is None:
            Stored.alive.add(id(tensor))
            Stored.most = max(Stored.most, len(Stored.alive))
        return tensor


class Tracked(torch.Tensor):
    """A tensor that reports when it is freed."""

    def __del__(self):
        Stored.alive.discard(id(self))


def test_whole_layers_are_loaded_one_at_a_time():
    reference = model(6, 69)
    candidate = [*descend(reference, [5, 2], 70), *model(2, 71)]
    sides = [[Stored(layer) for layer in side] for side in (reference, candidate)]
    Stored.most = 0
    found = map_layers(*sides, log_alpha=LOG_ALPHA)
    assert pairs(found) == [(5, 0), (2, 1)]
    whole = map_layers(reference, candidate, log_alpha=LOG_ALPHA)
    assert np.array_equal(found.log_p, whole.log_p)
    # One side loads 64 channels for the screen and all channels for a full cell; the other side loads everything once.
    assert [layer.loads for layer in sides[0]] == [[64], [64], [64, D], [64], [64], [64, D]]
    assert [layer.loads for layer in sides[1]] == [[D], [D], [D], [D]]
    assert Stored.most <= 3  # a cell needs two, and the next is loaded before the last is freed


def test_layers_of_few_channels_are_loaded_once():
    reference = [layer[:100] for layer in model(6, 69)]
    candidate = [*descend(reference, [5, 2], 70), *(layer[:100] for layer in model(2, 71))]
    sides = [[Stored(layer) for layer in side] for side in (reference, candidate)]
    found = map_layers(*sides, log_alpha=LOG_ALPHA)
    assert pairs(found) == [(5, 0), (2, 1)]
    assert [layer.loads for side in sides for layer in side] == [[100]] * 10


@pytest.mark.parametrize("is_reference_wider", [False, True])
def test_maps_computed_together_equal_maps_computed_alone(is_reference_wider):
    reference, candidate = model(4, 72), descend(model(4, 72), [2, 0], 73) + model(1, 74)
    turned = [layer @ torch.linalg.qr(model(1, 75, channels=N)[0]).Q for layer in reference]
    if is_reference_wider:
        reference, turned = ([torch.cat([layer, layer]) for layer in side] for side in (reference, turned))
    asked = []

    class Shared(Stored):
        """A layer that records each load of the whole matrix."""

        def load(self, channels=None):
            if channels is None:
                asked.append(self)
            return super().load(channels)

    wide = [Shared(layer) for layer in (reference if is_reference_wider else candidate)]
    sides = [
        (wide, candidate) if is_reference_wider else (first, wide)
        for first in (reference, reference if is_reference_wider else turned)
    ]
    together = map_in_step(sides, log_alpha=LOG_ALPHA)
    assert asked[: 2 * len(wide)] == [layer for layer in wide for _ in range(2)]
    for (first, second), found in zip(sides, together, strict=True):
        assert np.array_equal(map_layers(first, second, log_alpha=LOG_ALPHA).log_p, found.log_p)
    assert pairs(together[0]) == [(2, 0), (0, 1)]


@pytest.mark.parametrize("sides", [(0, 3), (3, 0)])
def test_a_side_without_layers_is_refused(sides):
    with pytest.raises(InputError, match=rf"layers on both sides, got {sides[0]} and {sides[1]}"):
        map_layers(model(sides[0], 1), model(sides[1], 2), log_alpha=LOG_ALPHA)


def test_residual_widths_that_differ_are_refused_with_what_to_do():
    with pytest.raises(
        InputError, match="layer 0 of the candidate has residual width 128, expected 256; carry the ref"
    ):
        map_layers(model(2, 1), model(2, 2, width=128), log_alpha=LOG_ALPHA)


def test_a_vector_is_not_a_layer():
    with pytest.raises(InputError, match=r"layer 1 of the reference is not a matrix .* shape \(256,\)"):
        map_layers([torch.randn(D, N), torch.randn(N)], model(2, 2), log_alpha=LOG_ALPHA)


def test_values_that_are_not_finite_are_refused():
    broken = model(3, 1)
    broken[2][:] = float("nan")
    with pytest.raises(InputError, match="layer 2 of the candidate holds values that are not finite"):
        map_layers(model(2, 2), broken, log_alpha=LOG_ALPHA)


# Order, runs and patterns on their own.


def brute_force_matching(gain: np.ndarray) -> float:
    n_reference, n_candidate = gain.shape
    best = 0.0
    for k in range(1, min(gain.shape) + 1):
        for rows in itertools.combinations(range(n_reference), k):
            for columns in itertools.combinations(range(n_candidate), k):
                best = max(best, float(gain[list(rows), list(columns)].sum()))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_ordered_matching_is_the_best_of_all_ordered_matchings(seed):
    rng = np.random.default_rng(seed)
    log_p = -rng.exponential(10.0, size=tuple(rng.integers(1, 6, size=2)))
    found = ordered_matching(log_p, penalty=5.0)
    gain = np.maximum(0.0, -log_p - 5.0)
    assert sum(gain[pair] for pair in found) == pytest.approx(brute_force_matching(gain))
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(found))
    assert all(gain[pair] > 0 for pair in found)


@pytest.mark.parametrize(
    ("ancestors", "depths", "pattern"),
    [
        ([], (3, 3), "none"),
        ([(0, 0), (1, 1), (2, 2)], (3, 3), "identity"),
        ([(0, 0), (2, 1)], (3, 2), "pruned"),
        ([(1, 0), (0, 1)], (3, 2), "reordered"),
        ([(0, 0), (1, 1), (1, 2)], (2, 3), "repeated"),
        ([(0, 0), (0, 1)], (3, 2), "repeated"),
        ([(0, 0), (1, 2)], (2, 3), "partial"),
    ],
)
def test_patterns_are_named(ancestors, depths, pattern):
    assert classify_layers(ancestors, *depths) == pattern


def test_runs_break_where_either_model_skips_a_layer():
    assert layer_runs([(0, 0), (1, 1), (3, 2), (4, 4)]) == (LayerRun(0, 0, 2), LayerRun(3, 2, 1), LayerRun(4, 4, 1))
    assert layer_runs([]) == ()
