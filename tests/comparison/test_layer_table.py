"""Level ``layers``: which layers of copies, pruned, reordered and hidden models match, and the table of projections."""

import copy

import pytest
import torch

from mdir_hf import Verdict, compare
from mdir_hf.report import LayerPattern, Outcome
from tests.comparison.relatives import (
    DEPTH,
    IN_PLACE,
    SIZES,
    drift,
    layer_pairs,
    of_layers,
    with_new_embeddings,
    with_permuted_channels,
)
from tests.method.obfuscation import VOCABULARY, new_model, obfuscate
from tests.specimens import tokens

pytest.importorskip("transformers")

PROJECTIONS = {"q", "k", "v", "o", "gate", "up", "down"}


@pytest.mark.parametrize(
    ("origins", "pattern"),
    [
        ([0, 1, 2, 3], LayerPattern.IDENTITY),
        ([0, 2, 3], LayerPattern.PRUNED),
        ([2, 0, 3, 1], LayerPattern.REORDERED),
        ([0, 1, 1, 2, 3], LayerPattern.REPEATED),
    ],
)
def test_changes_of_depth_are_read_off_the_matches(base, save, origins, pattern):
    report = compare(save(base, "base"), save(drift(of_layers(base, origins), 0.2), "candidate"), level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert (report.layers.method, report.layers.pattern) == ("sampled rows", pattern)
    assert layer_pairs(report) == [(origin, place) for place, origin in enumerate(origins)]
    assert all(match.log10_p < -10.0 for match in report.layers.matches)
    assert report.layers.reference_layers == tuple(range(DEPTH))
    assert report.layers.candidate_layers == tuple(range(len(origins)))
    for row, of_reference in zip(report.layers.reference_layers, report.layers.matrix, strict=True):
        assert [row == origin for origin in origins] == [log10_p < -10.0 for log10_p in of_reference]


def test_layers_of_a_stranger_among_a_copys_do_not_match(base, save):
    candidate = of_layers(base, [0, 1, 2, 3])
    candidate.model.layers[2] = new_model(seed=7, **SIZES).model.layers[2]
    report = compare(save(base, "base"), save(candidate, "candidate"), level="layers")
    assert layer_pairs(report) == [(0, 0), (1, 1), (3, 3)]
    assert report.layers.pattern is LayerPattern.PARTIAL


def test_strangers_have_no_matches(base, save):
    report = compare(save(base, "base"), save(new_model(seed=7, **SIZES), "stranger"), level="layers")
    assert report.verdict is Verdict.NO_EVIDENCE
    assert (report.layers.matches, report.layers.pattern) == ((), LayerPattern.NONE)
    assert min(map(min, report.layers.matrix)) > -3.0  # at most one of a thousand, corrected for all tests


def test_the_table_has_every_projection_and_how_much_is_kept(base, save):
    candidate = copy.deepcopy(base)
    with torch.no_grad():
        candidate.model.layers[1].mlp.down_proj.weight.copy_(
            new_model(seed=7, **SIZES).model.layers[1].mlp.down_proj.weight
        )
    report = compare(save(base, "base"), save(candidate, "candidate"), level="layers")
    results = {(result.layer.candidate, result.role.value): result for result in report.projections.results}
    assert {role for _, role in results} >= PROJECTIONS
    for (place, role), result in results.items():
        assert result.layer.reference == place
        if (place, role) == (1, "down"):
            assert (result.outcome, result.share) == (Outcome.REPLACED, None)
        else:
            assert (result.outcome, result.share, result.moved) == (Outcome.KEPT, 1.0, None)
            assert result.cosine == pytest.approx(1.0, abs=1e-6)  # stored as float32


@pytest.mark.parametrize("is_permuted", [True, False])
def test_new_embeddings_do_not_hide_the_layers(base, save, is_permuted):
    candidate = with_new_embeddings(with_permuted_channels(base) if is_permuted else base)
    report = compare(save(base, "base"), save(candidate, "candidate"), level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert not report.embedding.is_significant
    assert layer_pairs(report) == IN_PLACE
    assert report.layers.residual_map == ("permutation" if is_permuted else "identity")
    assert report.layers.fitted_on == ("keys of the layers" if is_permuted else None)
    assert report.projections is not None and report.projections.results


def test_a_vocabulary_without_common_tokens_does_not_hide_the_layers(base, save):
    renamed = save(with_permuted_channels(base), "candidate", words=tokens(VOCABULARY, first=1000))
    report = compare(save(base, "base"), renamed, level="layers")
    assert report.embedding.common_tokens == 0
    assert layer_pairs(report) == IN_PLACE
    assert report.layers.fitted_on == "keys of the layers"


def test_a_rotated_model_with_reordered_heads_and_neurons_has_all_matches(base, save):
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"), level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.layers.residual_map == "rotation"
    assert layer_pairs(report) == IN_PLACE
    moved = {result.role.value for result in report.projections.results if result.moved}
    assert {"gate", "up"} <= moved


def test_level_auto_describes_no_layers_of_a_settled_pair(base, save):
    report = compare(save(base, "base"), save(drift(copy.deepcopy(base), 0.2), "candidate"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert (report.layers, report.projections, report.embedding) == (None, None, None)
