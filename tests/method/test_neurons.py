"""One joint matching of neurons, and the origins of experts."""

import itertools
import math

import numpy as np
import pytest
import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import best_matching
from mdir_hf.method.neurons import MlpWeights, inner_polar, match_experts, match_neurons, unit_rows
from tests.method.obfuscation import haar
from tests.method.reference import polar

N, M = 24, 60


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mlp(n=N, m=M, seed=0, *, gated=True):
    gate = draw(m, n, seed=3 * seed + 2) if gated else None
    return MlpWeights(draw(m, n, seed=3 * seed), draw(n, m, seed=3 * seed + 1), gate)


def moved(weights, order, *, signs=None, scales=None, noise=0.0):
    """Reordered neurons (fewer if ``order`` is short), with signs and scales on up and down, and noise."""
    factor = torch.ones(len(order), dtype=torch.float64)
    for part in (signs, scales):
        factor = factor if part is None else factor * part

    def noisy(w, seed):
        return w + noise * w.norm() / w.numel() ** 0.5 * draw(*w.shape, seed=seed)

    gate = None if weights.gate is None else noisy(weights.gate[order], 91)
    return MlpWeights(noisy(weights.up[order] * factor[:, None], 92), noisy(weights.down[:, order] / factor, 93), gate)


def origins(found):
    return found.reference[np.argsort(found.candidate)]


def test_the_inner_polar_factor_has_the_rank_of_the_stream():
    u = inner_polar(draw(40, 16), draw(50, 16, seed=1))
    assert float(u.square().sum()) == pytest.approx(16.0, abs=1e-9)


def test_a_truncated_factor_does_not_call_strangers_related():
    # Two strangers with 64 channels and 256 neurons. The null bases that a library returns are arbitrary; these are
    # chosen for the largest trace.
    x, y = draw(256, 64), draw(256, 64, seed=1)
    truncated = inner_polar(x, y)
    left, right = (torch.linalg.qr(rows, mode="complete").Q[:, 64:] for rows in (x, y))
    completed = truncated + left @ torch.from_numpy(polar((left.T @ right).numpy())) @ right.T
    np.testing.assert_allclose((completed @ completed.T).numpy(), np.eye(256), atol=1e-10)
    assert best_matching(completed, signed=False).log_p < math.log(1e-10)
    assert best_matching(truncated, signed=False).log_p == 0.0


def test_on_a_relative_the_rank_aware_bound_is_stronger():
    x = draw(512, 128)
    found = best_matching(inner_polar(x, x + 0.3 * draw(512, 128, seed=1)), signed=False)
    papers = math.lgamma(513) - found.trace**2 / 2
    assert found.log_p < 3 * papers


@pytest.mark.parametrize("signed", [False, True])
def test_the_trace_is_the_best_of_all_by_enumeration(signed):
    a, b = mlp(3, 4, seed=0, gated=signed), mlp(3, 4, seed=1, gated=signed)
    updown = polar(
        torch.cat((unit_rows(a.up), unit_rows(a.down.T)), 1).numpy()
        @ torch.cat((unit_rows(b.up), unit_rows(b.down.T)), 1).numpy().T
    )
    score = updown
    if signed:
        left, scale, right_t = np.linalg.svd((unit_rows(a.gate) @ unit_rows(b.gate).T).numpy())
        score = left[:, :3] @ right_t[:3] + np.abs(updown)
        assert scale[3] < 1e-12
    best = max(sum(score[i, p[i]] for i in range(4)) for p in itertools.permutations(range(4)))
    assert match_neurons(a, b).trace == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("heavy", [False, True])
def test_on_independent_neurons_the_bound_of_a_fixed_map_holds(heavy):
    # It also holds if the same residual channels have larger weights in all models.
    m, n, n_draws = 12, 6, 2000
    weight = torch.exp(draw(n, seed=8)) if heavy else torch.ones(n, dtype=torch.float64)
    b = MlpWeights(draw(m, n, seed=5) * weight, draw(n, m, seed=6) * weight[:, None], draw(m, n, seed=7) * weight)
    log_p = []
    for seed in range(n_draws):
        a = mlp(n, m, seed=100 + seed)
        gate = inner_polar(unit_rows(a.gate * weight), unit_rows(b.gate))
        stacks = [torch.cat((unit_rows(w.up), unit_rows(w.down.T)), 1) for w in (a, b)]
        stacks[0] = torch.cat((unit_rows(a.up * weight), unit_rows(a.down.T * weight)), 1)
        w = gate + inner_polar(*stacks)
        c = float(w.diagonal().sum())
        log_p.append(-m * c**2 / (2 * float(w.square().sum())) if c > 0 else 0.0)
    for a in (0.5, 0.2, 0.05, 0.01):
        # three standard errors of the count
        assert np.mean(np.array(log_p) <= math.log(a)) <= a + 3 * math.sqrt(a * (1 - a) / n_draws)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_shuffled_neurons_with_signs_and_scales_are_found(noise):
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    signs = torch.where(draw(M, seed=50) < 0, -1.0, 1.0).double()
    scales = draw(M, seed=51).exp()
    found = match_neurons(mlp(), moved(mlp(), order, signs=signs, scales=scales, noise=noise))
    assert found.log_p < math.log(1e-10)
    assert (origins(found) == order.numpy()).mean() > 0.95
    if not noise:
        expected = (signs * scales).numpy()
        by_candidate = np.argsort(found.candidate)
        np.testing.assert_allclose(found.up_scales[by_candidate], expected, rtol=1e-9)
        np.testing.assert_allclose(found.down_scales[by_candidate], 1 / expected, rtol=1e-9)
        assert found.signs[by_candidate].tolist() == signs.tolist()
        assert found.normalized_trace == pytest.approx(1.0, abs=1e-9)


def test_the_joint_matching_is_stronger_than_any_factor_alone():
    a = mlp()
    b = moved(a, torch.arange(M), noise=1.5)
    alone = [
        best_matching(inner_polar(x, y), signed=False).log_p
        for x, y in ((a.gate, b.gate), (a.up, b.up), (a.down.T, b.down.T))
    ]
    assert match_neurons(a, b).log_p < min(alone)


def test_scales_of_neurons_do_not_change_the_evidence():
    a, b = mlp(), moved(mlp(), torch.arange(M), noise=1.0)
    scales = draw(M, seed=4).exp()
    scaled = MlpWeights(b.up * scales[:, None], b.down / scales, b.gate)
    assert match_neurons(a, scaled).log_p == pytest.approx(match_neurons(a, b).log_p, rel=1e-9)


def test_swapping_the_models_gives_the_inverse_matching():
    a, b = mlp(), moved(mlp(), torch.randperm(M, generator=torch.Generator().manual_seed(0))[:40], noise=0.3)
    there, back = match_neurons(a, b), match_neurons(b, a)
    order = np.argsort(back.candidate)
    assert back.candidate[order].tolist() == there.reference.tolist()
    assert back.reference[order].tolist() == there.candidate.tolist()
    assert back.log_p == pytest.approx(there.log_p, rel=1e-9)


def test_without_a_gate_neurons_are_matched_without_signs():
    a = mlp(gated=False)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    found = match_neurons(a, moved(a, order))
    assert (origins(found) == order.numpy()).all()
    assert (found.signs == 1).all()
    flipped = moved(a, order, signs=-torch.ones(M, dtype=torch.float64))
    assert match_neurons(a, flipped).log_p == 0.0


def test_pruned_neurons_find_their_origins():
    kept = torch.randperm(M, generator=torch.Generator().manual_seed(0))[:36]
    found = match_neurons(mlp(), moved(mlp(), kept, noise=0.2))
    assert found.log_p < math.log(1e-10)
    assert (origins(found) == kept.numpy()).mean() > 0.95


def test_a_neuron_of_zeros_does_no_harm():
    a = mlp()
    b = moved(a, torch.arange(M))
    b.up[0], b.gate[0] = 0.0, 0.0
    b.down[:, 0] = 0.0
    found = match_neurons(a, b)
    assert (found.reference == found.candidate)[1:].all()
    assert math.isfinite(found.log_p)


# --- experts


def identity():
    return ResidualBasisMap.identity(N)


def test_every_upcycled_expert_is_traced_to_its_dense_mlp():
    generator = torch.Generator().manual_seed(0)
    experts = [moved(mlp(), torch.randperm(M, generator=generator), noise=0.3) for _ in range(4)]
    found = match_experts([mlp()], experts, identity(), log_alpha=math.log(1e-10))
    assert found.origins == (0, 0, 0, 0)
    assert found.multiplicity == {0: 4}


def test_shuffled_experts_are_mapped_and_a_new_one_is_not():
    reference = [mlp(seed=s) for s in range(3)]
    candidate = [moved(reference[i], torch.arange(M), noise=0.3) for i in (2, 0, 2)] + [mlp(seed=9)]
    found = match_experts(reference, candidate, identity(), log_alpha=math.log(1e-10))
    assert found.origins == (2, 0, 2, None)
    assert found.multiplicity == {0: 1, 2: 2}
    assert found.log_p[3] == 0.0


def test_finer_experts_of_one_mlp_are_traced_with_their_neurons():
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    parts = [order[:20], order[20:40], order[40:]]
    found = match_experts([mlp()], [moved(mlp(), part) for part in parts], identity(), log_alpha=math.log(1e-10))
    assert found.origins == (0, 0, 0)
    for matching, part in zip(found.matchings, parts, strict=True):
        assert (origins(matching) == part.numpy()).all()


def test_experts_are_carried_into_the_basis_of_the_candidate():
    u = haar(N, torch.Generator().manual_seed(0))
    turned = mlp().carried(ResidualBasisMap.rotation(u))
    found = match_experts([mlp()], [turned], ResidualBasisMap.rotation(u), log_alpha=math.log(1e-10))
    assert found.origins == (0,)
    assert match_experts([mlp()], [turned], identity(), log_alpha=math.log(1e-10)).origins == (None,)


def test_p_is_corrected_for_every_pair_of_experts():
    reference, candidate = [mlp(seed=s) for s in range(3)], [mlp(seed=0)]
    found = match_experts(reference, candidate, identity(), log_alpha=math.log(1e-10))
    assert found.log_p[0] == pytest.approx(found.matrix[0, 0] + math.log(3), rel=1e-12)


def test_no_expert_is_an_error():
    for reference, candidate in (([], [mlp()]), ([mlp()], [])):
        with pytest.raises(ValueError, match=f"got {len(reference)} of the reference's"):
            match_experts(reference, candidate, identity(), log_alpha=-23.0)


def test_few_of_many_experts_are_matched_in_full_and_none_is_lost(monkeypatch):
    from mdir_hf.method import neurons

    reference = [mlp(seed=s) for s in range(12)]
    generator = torch.Generator().manual_seed(0)
    candidate = [moved(expert, torch.randperm(M, generator=generator), noise=0.8) for expert in reference[::-1]]
    tried = []
    monkeypatch.setattr(neurons, "match_neurons", lambda a, b: tried.append(1) or match_neurons(a, b))
    found = match_experts(reference, candidate, identity(), log_alpha=math.log(1e-10))
    assert len(tried) == 12 * neurons.SHORTLIST
    every_pair = np.array([[match_neurons(a, b).log_p for b in candidate] for a in reference])
    np.testing.assert_array_equal(found.matrix.min(axis=0), every_pair.min(axis=0))
    significant = every_pair.min(axis=0) + math.log(144) < math.log(1e-10)
    assert significant.sum() > 0
    assert [o is not None for o in found.origins] == significant.tolist()
    assert [o for o in found.origins if o is not None] == [11 - j for j in range(12) if significant[j]]


def test_experts_of_the_candidate_may_come_one_by_one():
    found = match_experts([mlp()], (mlp(seed=s) for s in (0, 5)), identity(), log_alpha=math.log(1e-10))
    assert found.origins == (0, None)


def test_experts_of_strangers_do_not_match_in_five_hundred_pairs():
    smallest = 0.0
    for draw_number in range(50):
        reference = [mlp(16, 24, seed=1000 + 10 * draw_number + k) for k in range(2)]
        candidate = [mlp(16, 24 if k % 2 else 12, seed=5000 + 10 * draw_number + k) for k in range(5)]
        found = match_experts(reference, candidate, ResidualBasisMap.identity(16), log_alpha=math.log(1e-10))
        assert found.origins == (None,) * 5
        smallest = min(smallest, float(found.matrix.min()))
    assert smallest > math.log(1.0 / 500)  # a valid but not a tight bound: none of 500 comes close to its level
