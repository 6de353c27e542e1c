"""Transformations of a trained model are found and described; a stranger with the same change stays a stranger."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.comparison.layer_weights import layer_weights
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.polar import polar_factor
from mdir_hf.method.rows import pair_rows
from mdir_hf.model.roles import read_part
from tests.trained.models import trained_model
from tests.trained.transformed import TRANSFORMATIONS, edited, transformed

pytestmark = pytest.mark.slow

ROTATED = ("deeper-and-hidden", "narrower-and-hidden")
STRANGERS = ("values-skewed", "deeper-and-hidden", "new-embeddings", "noise-3")
"""One stranger for each kind of edit; edits that keep the function cannot make it a relative."""


@cache  # reports are frozen, and several tests read the same report
def report_on(name, level="auto", *, stranger=False):
    checker = HomologyChecker.from_pretrained(trained_model("llama", "base").folder)
    return checker.compare(transformed(name, stranger=stranger).folder, level=level, progress=False)


def layer_pairs(report):
    return [[*match[:2]] for match in report.layers.matches]


def moved(report, role):
    """What was found to have moved in a projection, for each layer of the candidate."""
    return [result.moved for result in report.projections.results if result.role.value == role]


def is_turned(report, role):
    return [result.is_turned for result in report.projections.results if result.role.value == role]


# --- the edits work as described


@pytest.mark.parametrize("name", [name for name, t in TRANSFORMATIONS.items() if t.keeps_function])
def test_an_edit_that_hides_a_model_keeps_its_logits(name):
    before, after, _ = edited(name)
    tokens = torch.randint(before.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, got = before(tokens).logits, after(tokens).logits
    # Weights are float64, but norms and rotary tables in transformers are float32: errors of 1e-7 each.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "stranger"),
    [
        *((name, False) for name, transformation in TRANSFORMATIONS.items() if transformation.steps),
        *((name, True) for name in STRANGERS if TRANSFORMATIONS[name].steps),
    ],
)
def test_a_model_that_was_trained_on_has_learnt(name, stranger):
    losses = transformed(name, stranger=stranger).losses
    # Twice the change in loss of a batch of 512 tokens between steps.
    assert np.mean(losses[-5:]) < losses[0] - 0.3


# --- strangers


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_with_the_same_change_does_not_match(name):
    report = report_on(name, "layers", stranger=True)
    assert report.verdict is Verdict.NO_EVIDENCE, json.dumps(report.to_dict(), indent=1)
    assert report.log10_p > -3.0
    assert report.layers.matches == ()


# --- hidden as a whole, then trained further


@pytest.mark.parametrize("name", ROTATED)
def test_a_hidden_model_trained_further_is_found_and_named(name):
    assert report_on(name).verdict is Verdict.HOMOLOGOUS
    report = report_on(name, "layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert not report.embedding.is_significant  # no permutation of channels explains a rotation
    assert report.layers.residual_map == "rotation"


def test_the_layers_of_a_hidden_model_are_mapped():
    report = report_on("narrower-and-hidden", "layers")
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    assert report.layers.pattern == "identity"


def test_layers_of_a_hidden_and_deepened_model_are_mapped_by_their_heads():
    found = layer_pairs(report_on("deeper-and-hidden", "layers"))
    assert found and all(pair in [[0, 0], [1, 1], [2, 2], [1, 3], [2, 4], [3, 5]] for pair in found)


@pytest.mark.parametrize("name", ROTATED)
def test_the_neurons_of_a_hidden_model_are_mapped_with_their_signs(name):
    report, secrets = report_on(name, "layers"), transformed(name).secrets
    reference, candidate = (
        HomologyChecker.from_pretrained(folder).reference
        for folder in (trained_model("llama", "base").folder, transformed(name).folder)
    )
    rotation = ResidualBasisMap.rotation(fitted_rotation(reference, candidate))
    for ancestor, layer in layer_pairs(report):
        mine, other = layer_weights(reference, ancestor).mlp, layer_weights(candidate, layer).mlp
        found = fit_neurons(mine.carried(rotation), other)
        order = np.argsort(found.candidate)
        # A few of 344 neurons may have moved too far in training; by chance one would be correct.
        assert np.mean(found.reference[order] == secrets["neurons"][layer]) > 0.98
        assert np.mean(torch.sign(found.scales[order]).numpy() == secrets["signs"][layer]) > 0.98


def fitted_rotation(reference, candidate):
    rows = pair_rows(*(read_part(model.tensors, model.anatomy.embedding) for model in (reference, candidate)))
    return polar_factor(rows.reference.T @ rows.candidate).matrix.double()


# --- one inner transformation at a time


def test_permuted_groups_and_queries_are_described():
    report = report_on("heads", "layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    for role in ("q", "k", "v", "o"):
        assert moved(report, role) == ["heads"] * 4
    for role in ("gate", "up", "down"):
        assert moved(report, role) == [None] * 4


def test_permuted_neurons_alone_are_described():
    report, secrets = report_on("neurons", "layers"), transformed("neurons").secrets
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    for role in ("q", "k", "v", "o"):
        assert moved(report, role) == [None] * 4
    for role in ("gate", "up", "down"):
        assert moved(report, role) == ["neurons"] * 4
    checkers = [
        HomologyChecker.from_pretrained(folder)
        for folder in (trained_model("llama", "base").folder, transformed("neurons").folder)
    ]
    for layer in range(4):
        mine, other = (layer_weights(checker.reference, layer).mlp for checker in checkers)
        matched = fit_neurons(mine, other)
        assert matched.reference[np.argsort(matched.candidate)].tolist() == secrets["neurons"][layer]


@pytest.mark.parametrize("name", ["values-rotated", "values-skewed"])
def test_values_mixed_inside_heads_are_turned(name):
    report = report_on(name, "layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    assert is_turned(report, "v") == is_turned(report, "o") == [True] * 4
    for role in ("q", "k", "gate", "up", "down"):
        assert is_turned(report, role) == [False] * 4


# --- pruned, deepened, retokenised


@pytest.mark.parametrize(
    ("name", "ancestors", "pattern"),
    [
        ("narrower", [0, 1, 2, 3], "identity"),
        ("shallower-permuted-retokenised", [0, 2, 3], "pruned"),
        ("new-embeddings", [0, 1, 2, 3], "identity"),
    ],
)
def test_the_layers_of_a_relative_are_mapped(name, ancestors, pattern):
    report = report_on(name, "layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[there, here] for here, there in enumerate(ancestors)]
    assert report.layers.pattern == pattern


@pytest.mark.parametrize("name", ["narrower", "shallower-permuted-retokenised"])
def test_the_channels_of_a_relative_are_mapped(name):
    report = report_on(name, "layers")
    reference, candidate = report.arrays.embedding.channels
    assert reference[np.argsort(candidate)].tolist() == transformed(name).secrets["channels"]
    assert report.embedding.transformation == "permutation"


def test_a_new_tokenizer_and_embeddings_leave_the_layers():
    report = report_on("new-embeddings", "layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.log10_p == 0.0  # early in training, as in the paper
    assert report.layers.residual_map == "identity"
    assert 500 < report.embedding.common_tokens < 1024  # of 2048: a different tokenizer, with enough common tokens


# --- noise


def test_noise_of_three_times_the_embeddings_hides_no_channel():
    quiet, loud = (report_on(name, "layers") for name in ("noise-1", "noise-3"))
    for report in (quiet, loud):
        assert report.verdict is Verdict.HOMOLOGOUS
        assert report.embedding.transformation == "identity"
    assert 0.3 < loud.embedding.normalized_trace < quiet.embedding.normalized_trace < 1.0
