"""Algorithm 3 on one pair of layers."""

import math
from dataclasses import replace

import pytest
import torch
from mdir_hf.method.modules import PROJECTIONS, LayerWeights, analyse_layer

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.heads import SUBSPACE_NULL
from mdir_hf.method.matching import best_matching
from mdir_hf.method.neurons import inner_polar, unit_rows
from mdir_hf.method.planes import FREQUENCY_NULL
from tests.method.obfuscation import haar
from tests.method.reference import polar

N, H, G, D, M = 32, 4, 2, 8, 72
LOG_ALPHA = math.log(1e-10)


def draw(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def layer(seed=0, n=N, n_heads=H, n_kv=G, d=D, m=M, **changes):
    g = torch.Generator().manual_seed(seed)
    weights = {
        "q": draw(n_heads * d, n, generator=g),
        "k": draw(n_kv * d, n, generator=g),
        "v": draw(n_kv * d, n, generator=g),
        "o": draw(n, n_heads * d, generator=g),
        "gate": draw(m, n, generator=g),
        "up": draw(m, n, generator=g),
        "down": draw(n, m, generator=g),
    }
    return LayerWeights(**{**weights, "n_heads": n_heads, "n_kv_heads": n_kv, **changes})


def noisy(weights, noise, seed=1):
    g = torch.Generator().manual_seed(seed)
    changed = {}
    for role in PROJECTIONS:
        w = weights.weight(role)
        changed[role] = w + noise * w.norm() / w.numel() ** 0.5 * draw(*w.shape, generator=g)
    return replace(weights, **changed)


def identity(n=N):
    return ResidualBasisMap.identity(n)


def by_test(evidence):
    return {(e.role, e.test): e for e in evidence}


def test_every_role_gets_the_tests_that_its_transformations_allow():
    tests = [(e.role, e.test) for e in analyse_layer(layer(), layer(1), identity())]
    permutations = [(r, t) for r in PROJECTIONS for t in ("permutation", "signed_permutation")]
    assert tests == [
        *permutations,
        ("q", "planes"),
        ("q", "frequencies"),
        ("k", "planes"),
        ("k", "frequencies"),
        ("v", "blocks"),
        ("v", "subspaces"),
        ("o", "blocks"),
        ("o", "subspaces"),
        ("mlp", "neurons"),
    ]


def test_a_fine_tune_is_detected_in_every_role_by_every_test():
    evidence = analyse_layer(layer(), noisy(layer(), 0.1), identity())
    # one KV head pair of 16 rows is at the limit of permutations and blocks, hence 1e-3 for each
    assert all(e.log_p < math.log(1e-3) for e in evidence)
    assert min(e.log_p for e in evidence) + math.log(len(evidence)) < LOG_ALPHA


def test_strangers_do_not_match_in_any_role_or_test():
    assert all(e.log_p > math.log(1e-3) for e in analyse_layer(layer(), layer(1), identity()))


@pytest.mark.parametrize("role", ["q", "k", "v", "gate", "up"])
def test_on_rows_of_one_length_the_test_is_the_papers(role):
    x, y = layer(), noisy(layer(), 0.5)
    u = polar((unit_rows(x.weight(role)) @ unit_rows(y.weight(role)).T).numpy())
    d = u.shape[0]
    found = by_test(analyse_layer(x, y, identity(), roles=[role]))[role, "permutation"]
    if d <= N:  # full rank: exactly the paper's formula
        textbook = best_matching(torch.from_numpy(u), signed=False)
        assert found.statistic == pytest.approx(textbook.trace, rel=1e-9)
        assert found.log_p == pytest.approx(math.lgamma(d + 1) - found.statistic**2 / 2, rel=1e-9)
    else:  # rank n < d, never completed
        bound = math.lgamma(d + 1) - found.statistic**2 * d / (2 * N)
        assert found.log_p == pytest.approx(bound, rel=1e-9)


def heavy(seed):
    """A layer whose rows, planes, heads and neurons vary widely in norm, as training can make them."""
    g = torch.Generator().manual_seed(1000 + seed)
    x = layer(seed, n=64, n_heads=8, n_kv=8, m=96)
    lengths = {r: torch.exp(2.0 * draw(w.shape[0] if r not in ("o", "down") else w.shape[1], generator=g))
               for r in PROJECTIONS if (w := x.weight(r)) is not None}  # fmt: skip
    per_head = torch.exp(1.5 * draw(8, generator=g)).repeat_interleave(D)
    scaled = {r: x.weight(r) * lengths[r][:, None] for r in ("q", "k", "gate", "up")}
    return replace(
        x, **scaled, v=x.v * per_head[:, None], o=x.o * per_head, down=x.down * lengths["down"]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_different_length_do_not_relate_strangers(seed):
    evidence = analyse_layer(heavy(2 * seed), heavy(2 * seed + 1), identity(64))
    assert all(e.log_p > math.log(1e-3) for e in evidence)


def test_raw_rows_of_different_length_would_relate_strangers():
    # the test above without normalising the rows
    worst = [best_matching(inner_polar(heavy(2 * s).q, heavy(2 * s + 1).q), signed=False).log_p for s in range(3)]
    assert min(worst) < LOG_ALPHA


@pytest.mark.parametrize("role", ["o", "down"])
def test_the_permutation_test_of_a_writer_looks_at_its_columns(role):
    x = layer()
    order = torch.randperm(x.weight(role).shape[1], generator=torch.Generator().manual_seed(0))
    y = replace(x, **{role: x.weight(role)[:, order]})
    found = by_test(analyse_layer(x, y, identity(), roles=[role]))[role, "permutation"]
    by_candidate = found.transformation.candidate.argsort()
    assert found.transformation.reference[by_candidate].tolist() == order.tolist()
    assert found.log_p < LOG_ALPHA


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scaling_a_whole_model_changes_no_evidence(factor):
    x, y = layer(), noisy(layer(), 0.7)
    scaled = replace(y, **{role: factor * y.weight(role) for role in PROJECTIONS})
    before, after = analyse_layer(x, y, identity()), analyse_layer(x, scaled, identity())
    for b, a in zip(before, after, strict=True):
        assert a.log_p == pytest.approx(b.log_p, rel=1e-7, abs=1e-7)


def test_turning_both_models_alike_changes_no_evidence():
    x, y, u = layer(), noisy(layer(), 0.7), haar(N, torch.Generator().manual_seed(0))

    def turned(weights):
        changed = {r: weights.weight(r) @ u for r in ("q", "k", "v", "gate", "up")}
        return replace(weights, **changed, o=u.T @ weights.o, down=u.T @ weights.down)

    before, after = analyse_layer(x, y, identity()), analyse_layer(turned(x), turned(y), identity())
    for b, a in zip(before, after, strict=True):
        assert a.log_p == pytest.approx(b.log_p, rel=1e-7, abs=1e-7)


def test_swapping_the_models_gives_the_same_p_everywhere():
    x, y = layer(), noisy(layer(), 0.7)
    for there, back in zip(analyse_layer(x, y, identity()), analyse_layer(y, x, identity()), strict=True):
        assert back.log_p == pytest.approx(there.log_p, rel=1e-7, abs=1e-7)


def test_gains_are_folded_before_the_comparison():
    g = torch.Generator().manual_seed(5)
    gain = torch.rand(N, dtype=torch.float64, generator=g) + 0.1
    with_gain = replace(layer(), attention_gain=gain, mlp_gain=2 * gain)
    by_hand = replace(
        layer(), q=layer().q * gain, k=layer().k * gain, v=layer().v * gain, gate=layer().gate * 2 * gain,
        up=layer().up * 2 * gain,
    )  # fmt: skip
    first, second = analyse_layer(with_gain, layer(), identity()), analyse_layer(by_hand, layer(), identity())
    assert [e.statistic for e in first] == [e.statistic for e in second]


@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_an_unknown_layout_of_planes_is_found_at_a_factor_of_two(rope):
    x = replace(layer(), rope="unknown")
    y = replace(noisy(layer(), 0.2), rope=rope)
    found = by_test(analyse_layer(x, y, identity(), roles=["q"]))["q", "planes"]
    known = by_test(analyse_layer(replace(x, rope=rope), y, identity(), roles=["q"]))["q", "planes"]
    assert found.transformation.reference_layout == rope
    assert found.log_p == pytest.approx(known.log_p + math.log(2), rel=1e-9)


def test_without_rotary_positions_q_and_k_are_tested_like_v():
    x = layer(rope="none")
    g = torch.Generator().manual_seed(0)
    mixing = draw(G, D, D, generator=g) + 2 * torch.eye(D, dtype=torch.float64)
    y = replace(x, k=(mixing @ x.k.reshape(G, D, N)).reshape(G * D, N))
    found = by_test(analyse_layer(x, y, identity(), roles=["k"]))
    assert ("k", "planes") not in found
    assert found["k", "subspaces"].transformation.residual < 1e-10
    assert found["k", "subspaces"].normalized == pytest.approx(1.0, abs=1e-9)


def test_fewer_heads_are_matched_into_more():
    x = layer(n=64, n_heads=8, n_kv=4)
    kept_q = torch.tensor([4, 5, 0, 1])  # groups 2 and 0
    q = x.q.reshape(8, D, 64)[kept_q].reshape(-1, 64)
    k, v = (w.reshape(4, D, 64)[[2, 0]].reshape(-1, 64) for w in (x.k, x.v))
    o = x.o.T.reshape(8, D, 64)[kept_q].reshape(-1, 64).T
    y = replace(x, q=q, k=k, v=v, o=o, n_heads=4, n_kv_heads=2)
    found = by_test(analyse_layer(x, y, identity(64), roles=["q", "k", "v", "o"]))
    for key, kept in ((("v", "subspaces"), [2, 0]), (("q", "planes"), [4, 5, 0, 1])):
        t = found[key].transformation
        assert t.reference[t.candidate.argsort()].tolist() == kept
        assert t.residual < 1e-10
    assert found["q", "planes"].log_p < LOG_ALPHA


def test_a_level_spares_the_permutations_that_cannot_reach_it():
    evidence = analyse_layer(layer(), layer(1), identity(), log_alpha=LOG_ALPHA)
    assert not [e for e in evidence if "permutation" in e.test]


def test_each_test_states_its_null():
    outer = ResidualBasisMap.rotation(haar(N, torch.Generator().manual_seed(0)))
    for e in analyse_layer(layer(), layer(1), outer):
        assert e.null.startswith(outer.null)
        assert (SUBSPACE_NULL in e.null) == (e.test == "subspaces")
        assert (FREQUENCY_NULL in e.null) == (e.test == "frequencies")


def test_a_narrower_model_is_found_after_a_selection_of_channels():
    x, kept = layer(n=64, n_heads=8, n_kv=4), torch.randperm(64, generator=torch.Generator().manual_seed(0))[:48]
    readers = {r: x.weight(r)[:, kept] for r in ("q", "k", "v", "gate", "up")}
    y = noisy(replace(x, **readers, o=x.o[kept], down=x.down[kept]), 0.2)
    u = torch.zeros(64, 48, dtype=torch.float64)
    u[kept, torch.arange(48)] = 1.0
    outer = ResidualBasisMap.from_matching(best_matching(u, signed=False), 64, 48)
    found = by_test(analyse_layer(x, y, outer))
    assert found["mlp", "neurons"].log_p < LOG_ALPHA
    assert found["q", "planes"].log_p < LOG_ALPHA
    assert found["o", "subspaces"].log_p < LOG_ALPHA


def test_rows_that_do_not_divide_into_heads_are_refused():
    with pytest.raises(ValueError, match=r"q: 32 and 32 rows do not divide into \(5, 4\) heads"):
        analyse_layer(replace(layer(), n_heads=5), layer(), identity(), roles=["q"])


def test_no_statistic_of_a_copy_exceeds_the_largest_it_can_be():
    # Few residual channels for many rows: one factor for all rows has rank n, one factor per frequency does not.
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "q": (96, 24),
        "k": (48, 24),
        "v": (48, 24),
        "o": (24, 96),
        "up": (60, 24),
        "gate": (60, 24),
        "down": (24, 60),
    }
    weights = {role: torch.randn(shape, dtype=torch.float64, generator=generator) for role, shape in shapes.items()}
    layer = LayerWeights(**weights, n_heads=8, n_kv_heads=4)
    for found in analyse_layer(layer, layer, ResidualBasisMap.identity(24)):
        assert found.normalized <= 1 + 1e-9, (found.role, found.test)
