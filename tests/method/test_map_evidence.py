import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mdir_hf.method.layer_map import LayerMatch
from mdir_hf.method.map_evidence import (
    N_PLACEBOS,
    TESTS_PER_MAP,
    log_p_of_all_layers,
    log_p_of_map,
    log_p_of_placebos,
    weigh_matches,
)

from mdir_hf.method.gauge import ResidualBasisMap
from tests.method.one_map import map_layers

LOG_ALPHA = math.log(1e-10)
N = 64


def layers(seed, n_layers=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(48, N, dtype=torch.float64, generator=generator) for _ in range(n_layers)]


@pytest.fixture(scope="module")
def copy_map():
    return map_layers(layers(1), layers(1), log_alpha=LOG_ALPHA)


def test_p_of_a_map_is_corrected_for_its_three_readings(copy_map):
    found = replace(copy_map, log_p_map=-50.0, log_p_any=-80.0, log_p_fisher=-90.0)
    shares = math.exp(-80.0 - log_p_of_map(found)), math.exp(-90.0 - log_p_of_all_layers(found))
    assert TESTS_PER_MAP * shares[0] + shares[1] == pytest.approx(1.0)
    assert shares[0] > 0.49  # the evidence that decides verdicts pays next to nothing


def test_a_part_is_not_evidence_if_half_of_the_layers_is_required(copy_map):
    found = replace(copy_map, log_p_map=-0.5, log_p_any=-80.0)
    assert log_p_of_map(found, any_part=False) == 0.0 > log_p_of_map(found)


def test_p_of_a_map_is_at_most_1(copy_map):
    found = replace(copy_map, log_p_map=-0.1, log_p_any=0.0)
    assert log_p_of_map(found) == 0.0


def off_match_share(layer_map, log_alpha):
    """Count every hit off the matches, since no layer here is as strong as itself."""
    return weigh_matches(layer_map, log_alpha, log_p_with_itself=lambda i, j: -1e9).off_match_share


def test_a_copy_has_no_hits_off_its_matches(copy_map):
    assert len(copy_map.matches) == 3
    assert off_match_share(copy_map, LOG_ALPHA) == 0.0


def test_hits_off_the_matches_are_counted_among_such_cells(copy_map):
    log_p = copy_map.log_p.copy()
    log_p[0, 1] = log_p[2, 0] = -1000.0
    assert off_match_share(replace(copy_map, log_p=log_p), LOG_ALPHA) == 2 / 6


def test_a_cell_is_held_to_its_share_of_the_level(copy_map):
    log_p = np.where(np.eye(3, dtype=bool), copy_map.log_p, LOG_ALPHA - 0.1)  # below alpha but not below alpha / 9
    assert off_match_share(replace(copy_map, log_p=log_p), LOG_ALPHA) == 0.0


def test_a_map_of_matches_alone_has_no_share_off_them():
    one = layers(1, n_layers=1)
    assert off_match_share(map_layers(one, one, log_alpha=LOG_ALPHA), LOG_ALPHA) == 0.0


ITSELF = -1000.0
"""Natural log of p of a layer against itself, in the maps below."""


def certain(copy_map, cells):
    """Return certain matches, off-match share and the contested matches whose strength was requested."""
    log_p = np.zeros((3, 3))
    for place, value in cells.items():
        log_p[place] = value
    best = log_p.argmin(axis=0)
    matches = tuple(LayerMatch(int(i), j, float(log_p[i, j])) for j, i in enumerate(best) if log_p[i, j] < 0)
    asked = []
    found = weigh_matches(
        replace(copy_map, log_p=log_p, matches=matches),
        LOG_ALPHA,
        log_p_with_itself=lambda i, j: asked.append((i, j)) or ITSELF,
    )
    return [(match.reference, match.candidate) for match in found.certain], found.off_match_share, asked


def test_matches_without_rivals_are_certain_however_weak(copy_map):
    cells = {(0, 0): -900.0, (1, 1): -60.0, (2, 2): -60.0}
    assert certain(copy_map, cells) == ([(0, 0), (1, 1), (2, 2)], 0.0, [])


def test_neighbours_of_a_matched_layer_do_not_contest_it(copy_map):
    cells = {(0, 0): -900.0, (1, 1): -900.0, (2, 2): -900.0, (0, 1): -60.0, (1, 0): -60.0, (2, 1): -60.0}
    assert certain(copy_map, cells)[:2] == ([(0, 0), (1, 1), (2, 2)], 0.0)


@pytest.mark.parametrize("beside", [(0, 1), (1, 0)])
def test_a_hit_beside_a_layer_that_is_the_same_does_not_count(copy_map, beside):
    assert certain(copy_map, {(0, 0): -900.0, (1, 1): -70.0, beside: -60.0})[1] == 0.0


def test_hits_far_from_matched_layers_count(copy_map):
    cells = {(0, 0): -900.0, (1, 1): -60.0, (0, 2): -60.0, (2, 1): -59.0}
    matches, share, _ = certain(copy_map, cells)
    assert matches == [(0, 0)]
    assert share == 1 / 6  # only (2, 1) counts; (0, 2) is beside a layer that is the same in both


def test_layers_that_resemble_two_neighbours_match_neither(copy_map):
    # MiniLM-L6 and paraphrase-MiniLM-L3: the even layers and three odd layers of one model (docs/LOG.md, 2026-11-24).
    cells = {(0, 0): -87.0, (1, 0): -110.0, (1, 1): -72.0, (2, 1): -112.0}
    assert certain(copy_map, cells)[:2] == ([], 2 / 7)


def test_a_layer_that_resembles_a_matched_one_has_no_ancestor(copy_map):
    # Its only partner is the ancestor of its neighbour.
    assert certain(copy_map, {(0, 0): -900.0, (0, 1): -80.0})[0] == [(0, 0)]


def test_a_repeated_layer_has_all_its_matches(copy_map):
    of_candidate = {(0, 0): -900.0, (0, 1): -400.0}
    assert certain(copy_map, of_candidate)[0] == [(0, 0), (0, 1)]
    of_reference = {(0, 0): -900.0, (1, 0): -880.0}
    assert certain(copy_map, of_reference)[0] == [(0, 0)]


def placebos(reference, candidate, outer):
    carried = []

    def both(carry):
        carried.append(carry)
        return [carry(layer) for layer in reference], candidate

    return log_p_of_placebos(both, outer, log_alpha=LOG_ALPHA, seed=0), carried


def test_the_placebos_of_a_copy_are_not_significant():
    log_p, carried = placebos(layers(1), layers(1), ResidualBasisMap.identity(N))
    assert log_p == 0.0
    assert len(carried) == N_PLACEBOS


def test_the_placebos_of_rows_with_few_large_entries_are_significant():
    # Each row has one large entry, in the same channel for any pairing of channels; nothing else makes the cell.
    spiked = [layer / 1e6 + 1.0 * torch.eye(48, N, dtype=torch.float64)[torch.arange(48)] for layer in layers(1)]
    shuffled_back = [layer[:, torch.randperm(N, generator=torch.Generator().manual_seed(5))] for layer in spiked]
    log_p, _ = placebos(spiked, shuffled_back, ResidualBasisMap.identity(N))
    assert log_p < math.log(1e-3)


def test_each_placebo_shuffles_the_carried_channels_differently():
    outer = ResidualBasisMap.rotation(torch.eye(N, dtype=torch.float64).flip(0))
    _, carried = placebos(layers(1), layers(1), outer)
    weight = torch.arange(N, dtype=torch.float64)[None]
    one, other = (carry(weight)[0].tolist() for carry in carried)
    assert sorted(one) == sorted(other) == list(range(N))
    assert one != other


def test_placebos_are_the_same_for_the_same_seed():
    outer = ResidualBasisMap.identity(N)
    weight = torch.arange(N, dtype=torch.float64)[None]
    first, again = (placebos(layers(1), layers(1), outer)[1] for _ in range(2))
    assert [carry(weight).tolist() for carry in first] == [carry(weight).tolist() for carry in again]
