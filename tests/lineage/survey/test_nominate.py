"""Prints nominate relatives, and nothing else is compared; groups equal the groups of a survey of all pairs."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import DisjointSet

from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import count_neurons, count_neurons_of_pairs
from mdir_hf.lineage.survey import nominate, work
from mdir_hf.lineage.survey.nominate import Prints, next_pairs, similar_models
from mdir_hf.lineage.survey.results import NOT_NOMINATED
from mdir_hf.lineage.survey.run import survey
from mdir_hf.report import SettledBy
from tests.specimens import gaussian, write_model

WIDTH, N_FITTED, N_TESTED = 48, 40, 64


def neurons(seed: int, *, noise: float = 0.0, n_layers: int = 3, width: int = WIDTH) -> NeuronSample:
    """Sampled neurons of base 0, of another base, or of a noised copy of base 0."""
    own = torch.randn(n_layers, 2, N_FITTED + N_TESTED, width, generator=torch.Generator().manual_seed(seed))
    if noise:
        base = torch.randn(n_layers, 2, N_FITTED + N_TESTED, width, generator=torch.Generator().manual_seed(0))
        own = base + noise * own
    rows = torch.nn.functional.normalize(own, dim=-1).half()
    return NeuronSample(tuple(range(n_layers)), 256, N_FITTED, rows)


def test_batches_give_the_counts_of_single_comparisons():
    base = neurons(0)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(9))).Q.half()
    moved = NeuronSample((0, 1, 2), 256, N_FITTED, (base.rows @ turn)[[1, 2, 0]])
    tied = base.rows.clone()
    tied[:, :, N_FITTED + 1] = tied[:, :, N_FITTED]  # identical neurons have no partner
    samples = [
        base, neurons(1, noise=0.5), neurons(2, noise=1.5), neurons(3), moved,
        NeuronSample((0, 1, 2), 256, N_FITTED, tied), neurons(4, n_layers=2), neurons(5, width=32),
        NeuronSample((0, 1, 2), 300, N_FITTED, base.rows),
    ]  # fmt: skip
    pairs = [(first, second) for first in samples for second in samples]
    alone = [count_neurons(*pair, SettledBy.NUMBER, alpha=1e-10) for pair in pairs]
    assert count_neurons_of_pairs(pairs, alpha=1e-10) == alone
    assert sum(counts is None for counts in alone) == 16  # with the last one, whose layers have another size
    assert any(counts is not None and counts.matches for counts in alone)


def prints_of(values: torch.Tensor, *, are_ranked: bool = False) -> Prints:
    """One print for each model."""
    rows = torch.nn.functional.normalize(values, dim=1).half()
    return Prints(rows, np.arange(len(rows)), values.shape[1], are_ranked)


def all_open(n: int) -> dict[str, object]:
    return {"groups": np.arange(n), "is_open": np.ones(n, dtype=bool)}


@pytest.mark.parametrize("are_ranked", [False, True])
def test_only_similar_prints_are_nominated(are_ranked):
    values = gaussian(60, 400, 0)
    values[1] = values[0] + gaussian(1, 400, 1)[0]  # correlation 0.7
    assert similar_models(prints_of(values, are_ranked=are_ranked), **all_open(60)).keys() == {(0, 1)}
    groups = np.arange(60)
    groups[1] = 0
    assert similar_models(prints_of(values), groups, is_open=np.ones(60, dtype=bool)) == {}
    assert similar_models(prints_of(values), np.arange(60), is_open=np.arange(60) > 1) == {}


def test_structure_that_all_heads_have_nominates_nothing():
    common = gaussian(60, 400, 0) + gaussian(1, 400, 1)  # correlation 0.5 between all
    assert len(similar_models(prints_of(common), **all_open(60))) > 60
    assert similar_models(prints_of(common, are_ranked=True), **all_open(60)) == {}


def test_many_prints_are_divided_and_relatives_are_found(monkeypatch):
    """Most relatives are found, with products of few of all pairs."""
    monkeypatch.setattr(nominate, "LEAF", 64)
    n, share = 1024, 0.8
    values = gaussian(n, 300, 0)
    values[1::2] = share * values[0::2] + math.sqrt(1 - share**2) * values[1::2]
    sizes = []
    leaves = nominate._leaves
    monkeypatch.setattr(nominate, "_leaves", lambda *a: (sizes.append(len(part)) or part for part in leaves(*a)))
    edges = similar_models(prints_of(values), **all_open(n))
    relatives = {(2 * at, 2 * at + 1) for at in range(n // 2)}
    assert edges.keys() <= relatives
    # A correlation of 0.8 is on the same side of a hyperplane in 80%: of 4 splits in 40%, of 8 trees once in 98%.
    assert len(edges) > 0.93 * len(relatives)
    assert sum(size**2 for size in sizes) < 0.6 * n**2
    # Another seed divides them in other ways.
    again = similar_models(prints_of(values), **all_open(n), seed=1)
    assert again.keys() != edges.keys() and len(again.keys() | edges.keys()) > 0.99 * len(relatives)


def test_every_group_is_compared_with_its_most_similar():
    groups = DisjointSet(range(6))
    groups.merge(0, 1)
    edges = {(0, 2): 3.0, (1, 2): 4.0, (1, 3): 2.0, (2, 3): 1.5, (4, 5): 1.0, (0, 1): 9.0}
    assert next_pairs(edges, groups, set()) == [(1, 2), (1, 3), (4, 5)]
    assert next_pairs(edges, groups, {(1, 2), (4, 5)}) == [(0, 2), (1, 3)]


@pytest.fixture
def families(tmp_path):
    """Sixteen models: four families, and one model that is alone."""
    names = {}
    for at in range(16):
        family = at % 4 if at < 15 else 9
        rows = gaussian(1200, 64, 100 * family) + 0.3 * gaussian(1200, 64, 1000 + at)
        names[str(write_model(tmp_path / f"m{at}", rows))] = family
    return names


def test_few_pairs_give_the_groups_of_all_pairs(families):
    few, whole = (survey([*families], n_tokens=64, all_pairs=every, progress=False) for every in (False, True))
    made = {frozenset(name for name in families if families[name] == family) for family in families.values()}
    assert {frozenset(group) for group in few.groups()} == {frozenset(group) for group in whole.groups()} == made
    within = {pair for pair in combinations(families, 2) if families[pair[0]] == families[pair[1]]}
    assert few.pairs.keys() == within  # all pairs of small groups, and no others
    assert len(whole.pairs) == math.comb(16, 2) and whole.n_not_compared == 0
    alone = few.without_relatives()
    assert len(alone) == 1 and f"no relative found, compared with 0 of 15: {alone[0]}" in str(few)
    assert few.not_found(*list(families)[:2]) == NOT_NOMINATED


def test_a_model_of_a_large_group_is_compared_with_its_nearest(tmp_path, monkeypatch):
    monkeypatch.setattr("mdir_hf.lineage.survey.run.MOST_DESCRIBED", 3)
    names = []
    for at in range(12):
        rows = gaussian(400, 64, 0) + 0.3 * gaussian(400, 64, 10 + at)
        names.append(str(write_model(tmp_path / f"m{at}", rows)))
    report = survey(names, n_tokens=64, all_pairs=False, progress=False)
    assert len(report.groups()) == 1
    assert 11 <= len(report.pairs) <= 24  # a tree has 11 branches; in each round, a group is tested once


def test_models_with_equal_files_are_grouped_without_neurons(loopback_hub, tmp_path):
    for at in range(4):
        folder = write_model(tmp_path / f"m{at}", gaussian(300, 24, at // 2), has_layer=False)
        loopback_hub.add_repository(f"some/m{at}", folder)
    report = survey([f"some/m{at}" for at in range(4)], n_tokens=64, all_pairs=False, progress=False)
    assert report.groups() == (("some/m0", "some/m1"), ("some/m2", "some/m3"))
    assert all(pair.same_files for pair in report.pairs.values()) and len(report.pairs) == 2


def test_a_pair_that_fails_costs_no_other(families, monkeypatch):
    names = list(families)[:4]
    report_on_counts = work.report_on_counts

    def failing(reference, candidate, *rest, **options):
        if (reference.label, candidate.label) == (names[1], names[2]):
            raise RuntimeError("out of memory")
        return report_on_counts(reference, candidate, *rest, **options)

    monkeypatch.setattr(work, "report_on_counts", failing)
    report = survey(names, n_tokens=64, progress=False)
    assert [pair for pair, result in report.pairs.items() if result.error] == [(names[1], names[2])]
    assert report.pairs[names[1], names[2]].error == "out of memory" and len(report.pairs) == 6
