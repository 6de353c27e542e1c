"""The table of projections names eleven kinds of edit under noise, and finds none in strangers."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport
from mdir_hf.comparison.projections.analysis import compare_layers_in_place, describe_copies
from mdir_hf.comparison.projections.samples import RowSample
from mdir_hf.comparison.projections.tier_one import RoleCells, TierOne
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.row_agreement import RowAgreement
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.report import ModuleRole, Outcome
from tests.specimens import save_pretrained

pytest.importorskip("transformers")

from tests.method.obfuscation import haar, new_model

V = 160
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
NEURON_ORDER = np.random.default_rng(1).permutation(256)


@torch.no_grad()
def noised(model, share, seed=3):
    generator = torch.Generator().manual_seed(seed)
    made = copy.deepcopy(model)
    for weight in made.parameters():
        if weight.ndim == 2:
            weight += share * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return made


@torch.no_grad()
def edited(base):
    """Edit every layer but one, each in a different way, and add noise of 30 % to all weights."""
    made, other = noised(base, 0.3), new_model(seed=77, **SIZES)
    layers, noise = made.model.layers, noised(base, 0.3, seed=4).model.layers
    generator = torch.Generator().manual_seed(5)

    def replace_all(at, source):
        for weight, new in zip(layers[at].parameters(), source.parameters(), strict=True):
            weight.copy_(new)

    layers[0].self_attn.v_proj.weight.copy_(other.model.layers[0].self_attn.v_proj.weight)
    layers[1].mlp.gate_proj.weight.copy_(other.model.layers[1].mlp.gate_proj.weight)
    replace_all(2, other.model.layers[2])
    replace_all(3, noise[4])
    replace_all(4, noise[3])
    layers[5].self_attn.k_proj.weight.copy_(noise[6].self_attn.k_proj.weight)
    mlp, order = layers[7].mlp, torch.from_numpy(NEURON_ORDER)
    signs = torch.where(torch.rand(256, generator=generator) < 0.5, -1.0, 1.0).double()
    mlp.gate_proj.weight.copy_(mlp.gate_proj.weight[order])
    mlp.up_proj.weight.copy_((signs[:, None] * mlp.up_proj.weight)[order])
    mlp.down_proj.weight.copy_((mlp.down_proj.weight * signs)[:, order])
    attention = layers[8].self_attn
    heads = torch.tensor([3, 2, 0, 1])  # reorder the groups, and the queries of one group
    turns = torch.stack([haar(32, generator), haar(32, generator)])
    attention.q_proj.weight.copy_(attention.q_proj.weight.view(4, 32, -1)[heads].flatten(0, 1))
    attention.k_proj.weight.copy_(attention.k_proj.weight.view(2, 32, -1)[[1, 0]].flatten(0, 1))
    values = attention.v_proj.weight.view(2, 32, -1)[[1, 0]]
    attention.v_proj.weight.copy_((turns @ values).flatten(0, 1))
    outputs = attention.o_proj.weight.T.view(4, 32, -1)[heads]
    attention.o_proj.weight.copy_((turns.repeat_interleave(2, dim=0) @ outputs).flatten(0, 1).T)
    mlp = layers[9].mlp
    for mine, new in ((mlp.gate_proj, "gate_proj"), (mlp.up_proj, "up_proj")):
        mine.weight[:128] = getattr(other.model.layers[9].mlp, new).weight[:128]
    mlp.down_proj.weight[:, :128] = other.model.layers[9].mlp.down_proj.weight[:, :128]
    for writer in (layers[10].self_attn.o_proj, layers[10].mlp.down_proj):
        left, right = (torch.randn(n, generator=generator).double() for n in writer.weight.shape)
        writer.weight += 0.3 * writer.weight.norm() * torch.outer(left, right) / (left.norm() * right.norm())
    attention = layers[11].self_attn  # any invertible map inside a head, undone on o
    first, second = (torch.stack([haar(32, generator) for _ in range(2)]) for _ in range(2))
    mixing = first * torch.exp(0.7 * torch.randn(2, 1, 32, generator=generator).double()) @ second
    attention.v_proj.weight.copy_((mixing @ attention.v_proj.weight.view(2, 32, -1)).flatten(0, 1))
    outputs = attention.o_proj.weight.T.view(4, 32, -1)
    undone = torch.linalg.inv(mixing).mT.repeat_interleave(2, dim=0)
    attention.o_proj.weight.copy_((undone @ outputs).flatten(0, 1).T)
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edits")
    base = new_model(seed=0, **SIZES)
    return save_pretrained(folder / "base", base), save_pretrained(folder / "edited", edited(base))


@pytest.fixture(scope="module")
def report(folders):
    checker = HomologyChecker.from_pretrained(folders[0], use_caches=False)
    return checker.compare(folders[1], level="layers", progress=False)


def outcomes(report, layer):
    found = [result for result in report.projections.results if result.layer.candidate == layer]
    return {result.role.value: result for result in found}


EXPECTED = {
    0: {"v": Outcome.REPLACED},
    1: {"gate": Outcome.REPLACED},
    2: dict.fromkeys(("q", "k", "v", "o", "gate", "up", "down"), Outcome.REPLACED),
    3: {},
    4: {},
    5: {"k": Outcome.FROM_LAYER},
    6: {},
    7: dict.fromkeys(("gate", "up", "down"), Outcome.PERMUTED),
    8: {"q": Outcome.PERMUTED, "k": Outcome.PERMUTED, "v": Outcome.ROTATED_IN_HEADS, "o": Outcome.ROTATED_IN_HEADS},
    9: dict.fromkeys(("gate", "up", "down"), Outcome.KEPT_IN_PART),
    10: {},
    11: {"v": Outcome.ROTATED_IN_HEADS, "o": Outcome.ROTATED_IN_HEADS},
}


@pytest.mark.parametrize("layer", range(12))
def test_each_edit_of_a_layer_is_named(report, layer):
    found = {role: result.outcome for role, result in outcomes(report, layer).items()}
    expected = dict.fromkeys(("q", "k", "v", "o", "gate", "up", "down"), Outcome.KEPT) | EXPECTED[layer]
    assert found == expected


def test_layers_that_changed_places_have_their_counterparts(report):
    sources = {result.layer.candidate: result.layer.reference for result in report.projections.results}
    assert [sources[layer] for layer in range(12) if layer != 2] == [0, 1, 4, 3, 5, 6, 7, 8, 9, 10, 11]


def test_a_projection_from_another_layer_names_it(report):
    assert outcomes(report, 5)["k"].source == 6


def test_the_cosines_of_a_kept_projection_show_its_noise(report):
    kept = outcomes(report, 6)["up"]
    assert kept.cosine == pytest.approx(1.0 / np.sqrt(1.0 + 0.3**2), abs=0.02)
    assert kept.deciles[0] > 0.9
    half = outcomes(report, 9)["gate"]
    assert half.share == pytest.approx(0.5, abs=0.15)
    assert half.deciles[0] < 0.3 < 0.9 < half.deciles[-1]


def test_maps_inside_a_layer_are_kept_in_python(report):
    maps = {maps.layer: maps for maps in report.arrays.layers}
    neurons = maps[7, 7].neurons
    assert np.array_equal(NEURON_ORDER[neurons[1]], neurons[0])
    heads = maps[8, 8].heads
    assert heads[ModuleRole.K].tolist() == [[0, 1], [1, 0]]
    assert heads[ModuleRole.Q][1][np.argsort(heads[ModuleRole.Q][0])].tolist() == [2, 3, 1, 0]
    assert maps[8, 8].turns[ModuleRole.V].shape == (2, 32, 32)


def test_the_table_survives_json_and_stands_in_the_text(report):
    again = HomologyReport.from_json(report.to_json())
    assert again.projections == report.projections
    assert "MLP gate permuted: layer 7" in report.details


def test_strangers_have_no_row_in_common(tmp_path):
    folders = [save_pretrained(tmp_path / str(seed), new_model(seed=seed, **SIZES)) for seed in (8, 9)]
    checker = HomologyChecker.from_pretrained(folders[0], use_caches=False)
    table = checker.compare(folders[1], level="layers", progress=False).projections
    assert set(table.counts()) == {Outcome.NO_AGREEMENT}
    assert not table.is_confirmed
    assert min(result.log10_p for result in table.results) == 0.0


def test_without_the_second_witness_rows_only_agree(tmp_path):
    # Attention is kept and the MLPs are replaced, so no neuron can be a second witness.
    base, other = new_model(seed=0, **SIZES), new_model(seed=9, **SIZES)
    kept = {name: weight for name, weight in base.state_dict().items() if "self_attn" in name}
    other.load_state_dict(kept, strict=False)
    folders = save_pretrained(tmp_path / "base", base), save_pretrained(tmp_path / "other", other)
    checker = HomologyChecker.from_pretrained(folders[0], use_caches=False)
    found = checker.compare(folders[1], level="layers", progress=False)
    assert found.verdict.value == "inconclusive"
    assert found.projections.counts() == {Outcome.ROWS_AGREE: 48, Outcome.NO_AGREEMENT: 36}


def cells_of(cosine):
    """A projection whose rows agree by these cosines, in every pair of layers."""
    cosine = np.array(cosine)
    agrees = cosine > 0.2
    agreement = RowAgreement(
        log_p=np.where(agrees, -500.0, 0.0),
        cosine=cosine,
        own_share=np.where(agrees, 1.0, 0.0),
        kept_share=np.where(agrees, 1.0, 0.0),
        kept_error=np.zeros_like(cosine),
        row_cosines=np.repeat(cosine[:, :, None], 4, axis=2).astype(np.float32),
    )
    rows = torch.zeros(len(cosine), 4, 8)
    places = (tuple(range(cosine.shape[0])), tuple(range(cosine.shape[1])))
    return RoleCells(RowSample(Role.V, places, np.arange(4), rows, rows), agreement, 0.0)


@pytest.mark.parametrize(
    ("cosine", "best"),
    [
        ([[0.4, 0.0], [0.0, 0.4]], [0, 1]),
        ([[0.4, 0.38], [0.0, 0.4]], [None, None]),  # neighbours: each layer resembles two
        ([[0.4, 0.0], [0.38, 0.0]], [None, None]),  # one layer resembles two layers of the reference
        ([[0.4, 0.3], [0.0, 0.4]], [0, 1]),  # a clearly weaker rival
        ([[0.95, 0.95], [0.0, 0.0]], [0, 0]),  # one layer twice in a deeper model
        ([[0.95, 0.0], [0.94, 0.0]], [0, None]),  # two equal layers in the reference
    ],
    ids=["apart", "neighbours", "two alike", "weaker rival", "twice", "copies of one"],
)
def test_a_layer_that_resembles_two_alike_has_no_counterpart(cosine, best):
    cells = cells_of(cosine)
    assert [cells.best(column) for column in range(2)] == best
    tier_one = TierOne(ResidualBasisMap.identity(8), {Role.V: cells})
    assert tier_one.counterparts() == {place: row for place, row in enumerate(best) if row is not None}
    without = {place for place in range(2) if best[place] is None}
    assert tier_one.rivalled() == {place for place in without if cells.is_named[:, place].any()}


def opened(model, folder):
    return Model(open_repository(save_pretrained(folder, model)))


def test_copies_in_their_places_are_described_without_other_pairs_of_layers(tmp_path):
    sizes = {**SIZES, "num_hidden_layers": 4}
    base = new_model(seed=0, **sizes)
    models = opened(base, tmp_path / "base"), opened(noised(base, 0.3), tmp_path / "noised")
    copies = describe_copies(*models)
    every = compare_layers_in_place(*models, (ResidualBasisMap.identity(128),))
    for found, expected in zip(copies.table.drift(), every.table.drift(), strict=True):
        assert found == replace(expected, cosine=pytest.approx(expected.cosine, abs=1e-6))
    assert copies.log_n_tests == every.log_n_tests
    assert not copies.tier_one.cells[Role.V].agreement.cosine[0, 1:].any()
    assert every.tier_one.cells[Role.V].agreement.cosine[0, 1:].any()


@torch.no_grad()
def test_a_layer_that_is_not_at_its_place_is_looked_for_everywhere(tmp_path):
    sizes = {**SIZES, "num_hidden_layers": 4}
    base, moved = new_model(seed=0, **sizes), noised(new_model(seed=0, **sizes), 0.3)
    moved.model.layers[3] = copy.deepcopy(moved.model.layers[1])
    found = describe_copies(opened(base, tmp_path / "base"), opened(moved, tmp_path / "moved"))
    assert [layer.layer for layer in found.table.drift()] == [(0, 0), (1, 1), (2, 2), (1, 3)]
