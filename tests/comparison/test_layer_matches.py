"""The report names layers as matching only if an accepted map says that they are the same layer."""

import json
from itertools import pairwise

import pytest
import torch

from mdir_hf import Reason, Verdict
from mdir_hf.render.description import describe
from mdir_hf.report import LayerPattern
from tests.comparison.test_body import SIZES, base, compare, save, with_layers  # noqa: F401 - fixtures
from tests.method.obfuscation import haar, new_model

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

pytest.importorskip("transformers")

LIKENESS = 0.45
"""Correlation of a layer with the next one: significant at 64 rows of values, with a tenth of the log p of a copy."""


@torch.no_grad()
def like_their_neighbours(n_layers):
    """A model in which each layer resembles the one before it, but hardly the one before that."""
    model = new_model(seed=0, **{**SIZES, "num_hidden_layers": n_layers})
    layers = [dict(layer.named_parameters()) for layer in model.model.layers]
    for before, here in pairwise(layers):
        for name, weight in here.items():
            if weight.ndim == 2:
                weight.mul_((1.0 - LIKENESS**2) ** 0.5).add_(LIKENESS * before[name])
    return model


def every_form(report):
    """Everything that people and programs read in a report."""
    return "\n".join([report.to_json(), str(report), str(describe(report)), report.sentence, str(report.to_frame())])


@pytest.mark.parametrize(
    ("n_layers", "pattern", "reason"),
    [
        (6, LayerPattern.NOT_ACCEPTED, Reason.NULL_NOT_VALIDATED),
        pytest.param(32, LayerPattern.NEIGHBOURS, Reason.LAYERS_UNCONFIRMED, marks=pytest.mark.slow),
    ],
    ids=["few", "many"],
)
def test_two_prunings_without_a_layer_in_common_match_in_none(save, n_layers, pattern, reason):  # noqa: F811
    pytest.importorskip("pandas")
    parent = like_their_neighbours(n_layers)
    folders = [save(with_layers(parent, list(range(at, n_layers, 2))), f"half-{at}") for at in (0, 1)]
    report = compare(*folders, level="layers")
    # They share their embeddings but no layer, so there is no second witness.
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, reason)
    assert report.layers.log10_p < -10, "layers of the two models must resemble each other"
    assert report.layers.pattern is pattern
    assert (report.layers.matches, report.layers.related_layers_at_least, report.modules) == ((), 0, None)
    said = every_form(report)
    assert "have a partner" not in said and "matches layer" not in said and "match layers" not in said
    if pattern is LayerPattern.NEIGHBOURS:
        assert "as neighbours in one model do, and none is said to match" in str(report).replace(
            "\n               ", " "
        )
    else:
        assert "not accepted as a match of any of them" in said
        assert any("descend from different layers of a common ancestor" in caveat for caveat in report.caveats)


def test_the_figure_of_a_map_that_was_not_accepted_marks_no_cell(save):  # noqa: F811
    pytest.importorskip("matplotlib")
    parent = like_their_neighbours(6)
    report = compare(*(save(with_layers(parent, [at, at + 2, at + 4]), str(at)) for at in (0, 1)), level="layers")
    figures = report.figures()
    assert "flow" not in figures and "modules" not in figures
    assert "0 of 3 layers" in figures["layers"].get_label()


def test_layers_in_common_match_beside_neighbours(save):  # noqa: F811
    parent = like_their_neighbours(12)
    every = save(with_layers(parent, list(range(12))), "whole")
    half = save(with_layers(parent, [1, 4, 7, 10]), "pruned")
    report = compare(every, half, level="layers")
    assert [[*match[:2]] for match in report.layers.matches] == [[1, 0], [4, 1], [7, 2], [10, 3]]
    turned_round = compare(half, every, level="layers")
    assert [[*match[:2]] for match in turned_round.layers.matches] == [[0, 1], [1, 4], [2, 7], [3, 10]]


@torch.no_grad()
def in_a_basis_for_each_layer(model, n_in_first=1):
    """A model with one rotated basis for the embedding and first layers, and another for every later layer."""
    generator = torch.Generator().manual_seed(3)
    first = haar(model.config.hidden_size, generator)
    for matrix in (model.model.embed_tokens, model.lm_head):
        matrix.weight.copy_(matrix.weight @ first)
    for at, layer in enumerate(model.model.layers):
        turn = first if at < n_in_first else haar(model.config.hidden_size, generator)
        readers = {
            layer.input_layernorm: (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            layer.post_attention_layernorm: (layer.mlp.gate_proj, layer.mlp.up_proj),
        }
        for norm, each in readers.items():
            for reader in each:
                reader.weight.copy_(reader.weight * norm.weight @ turn)
            norm.weight.fill_(1.0)
        for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
            writer.weight.copy_(turn.T @ writer.weight)
    return model


def test_a_basis_for_each_layer_is_found_by_keys(base, save):  # noqa: F811
    # SliceGPT leaves such models. They were once reported as no evidence although a layer had a log10 p of -707.
    other = new_model(seed=0, **SIZES)
    other.load_state_dict(base.state_dict())
    report = compare(save(base, "base"), save(in_a_basis_for_each_layer(other), "sliced"))
    # Reordered neurons are found only in layers whose basis is close to the one that the keys share.
    assert report.verdict is not Verdict.NO_EVIDENCE
    pairs = [match[:2] for match in report.layers.matches]
    assert pairs and all(reference == candidate for reference, candidate in pairs)


@torch.no_grad()
def test_one_mlp_behind_a_rotation_fitted_on_tokens_is_not_enough(base, save):  # noqa: F811
    # The last layers of SmolLM2 and Qwen have neurons for the same tokens, which the rotation aligns: log10 p was
    # -2,452.
    turn = haar(base.config.hidden_size, torch.Generator().manual_seed(4))
    other = new_model(seed=9, **SIZES)
    for matrix, mine in ((other.model.embed_tokens, base.model.embed_tokens), (other.lm_head, base.lm_head)):
        matrix.weight.copy_(mine.weight @ turn)
    layer, mine = other.model.layers[-1], base.model.layers[-1]
    layer.post_attention_layernorm.weight.fill_(1.0)
    for name in ("gate_proj", "up_proj"):
        carried = getattr(mine.mlp, name).weight * mine.post_attention_layernorm.weight @ turn
        getattr(layer.mlp, name).weight.copy_(carried)
    layer.mlp.down_proj.weight.copy_(turn.T @ mine.mlp.down_proj.weight)
    report = compare(save(base, "base"), save(other, "one-mlp"), level="layers")
    assert report.verdict is Verdict.NO_EVIDENCE


def test_a_significant_unaccepted_layer_is_never_no_evidence(base, save, monkeypatch):  # noqa: F811
    monkeypatch.setattr("mdir_hf.comparison.decide.SURE_TESTS", ())
    other = new_model(seed=0, **SIZES)
    other.load_state_dict(base.state_dict())
    report = compare(save(base, "base"), save(in_a_basis_for_each_layer(other), "sliced"))
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert report.layers.matches == () and report.layers.pattern is LayerPattern.NOT_ACCEPTED
    assert report.log10_p_not_accepted < -10
    assert json.loads(report.to_json())["layers"]["matches"] == []
