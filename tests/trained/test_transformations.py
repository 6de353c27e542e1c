"""Transformations of a trained model are found and described; a stranger with the same change stays a stranger."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, Reason, Verdict
from mdir_hf.comparison.layer_weights import layer_weights
from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neurons import match_neurons
from mdir_hf.model.roles import read_part
from mdir_hf.report import NeuronsFound
from tests.trained.models import trained_model
from tests.trained.transformed import TRANSFORMATIONS, edited, transformed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_neuron_numbers")]

LOG10_ALPHA = -10.0
ROTATED = ("deeper-and-hidden", "narrower-and-hidden")
STRANGERS = ("values-skewed", "deeper-and-hidden", "new-embeddings", "noise-3")
"""One stranger for each kind of edit; edits that keep the function cannot make it a relative."""
HEAD_TESTS = (("q", "planes"), ("k", "planes"), ("v", "subspaces"), ("o", "subspaces"))


@cache  # reports are frozen, and several tests read the same report
def report_on(name, level="auto", *, stranger=False):
    checker = HomologyChecker.from_pretrained(trained_model("llama", "base").folder)
    return checker.compare(transformed(name, stranger=stranger).folder, level=level, progress=False)


def layer_pairs(report):
    return [[*match[:2]] for match in report.layers.matches]


def modules(report, layer):
    """Results for one layer of the candidate, by role and test."""
    return {(m.role, m.test): m for m in report.modules if m.layer[1] == layer}


def origin_of_each(pairs):
    return [reference for reference, _ in sorted(pairs, key=lambda pair: pair[1])]


def analysed_layers(report):
    return sorted({m.layer[1] for m in report.modules})


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
    assert report.log10_p > -3.0  # of the accepted p, the channels in their own order reach 0.02 here
    assert report.layers.matches == ()
    assert report.layers.off_match_share == 0.0


# --- hidden as a whole, then trained further


@pytest.mark.parametrize("name", ROTATED)
def test_a_hidden_model_trained_further_is_found_and_named(name):
    report = report_on(name)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "layers"
    assert report.embedding.log10_p == report.unembedding.log10_p == 0.0
    assert report.embedding.transformation == "rotation"
    assert report.layers.residual_map == "rotation"
    assert report.layers.off_match_share == 0.0
    assert any("rotation" in caveat for caveat in report.caveats)


@pytest.mark.parametrize(
    ("name", "ancestors", "pattern"),
    [("narrower-and-hidden", [0, 1, 2, 3], "identity"), ("deeper-and-hidden", [0, 1, 2, 1, 2, 3], "repeated")],
)
def test_the_layers_of_a_hidden_model_are_mapped(name, ancestors, pattern):
    report = report_on(name)
    assert layer_pairs(report) == [[there, here] for here, there in enumerate(ancestors)]
    assert report.layers.pattern == pattern


@pytest.mark.parametrize("name", ROTATED)
def test_the_heads_of_a_hidden_model_are_mapped(name):
    report, secrets = report_on(name), transformed(name).secrets
    assert analysed_layers(report)
    for layer in analysed_layers(report):
        found = modules(report, layer)
        for role, test in HEAD_TESTS:
            origins = secrets["q" if role in ("q", "o") else "kv"][layer]
            assert found[role, test].log10_p < LOG10_ALPHA, (layer, role)
            assert origin_of_each(found[role, test].found.heads) == origins, (layer, role)


@pytest.mark.parametrize("name", ROTATED)
def test_the_neurons_of_a_hidden_model_are_mapped_with_their_signs(name):
    report, secrets = report_on(name), transformed(name).secrets
    reference, candidate = (
        HomologyChecker.from_pretrained(folder).reference
        for folder in (trained_model("llama", "base").folder, transformed(name).folder)
    )
    rotation = ResidualBasisMap.rotation(fitted_rotation(reference, candidate))
    for layer in analysed_layers(report):
        (ancestor,) = (there for there, here in layer_pairs(report) if here == layer)
        mine, other = layer_weights(reference, ancestor).mlp, layer_weights(candidate, layer).mlp
        found = match_neurons(mine.carried(rotation), other)
        order = np.argsort(found.candidate)
        # A few of 344 neurons may have moved too far in training; by chance one would be correct.
        assert np.mean(found.reference[order] == secrets["neurons"][layer]) > 0.98
        assert np.mean(found.signs[order] == secrets["signs"][layer]) > 0.98
        assert modules(report, layer)["mlp", "neurons"].log10_p < LOG10_ALPHA


def fitted_rotation(reference, candidate):
    rows = [read_part(model.tensors, model.anatomy.embedding) for model in (reference, candidate)]
    test = EmbeddingTest(log_alpha=-23.0)
    test.screen(*rows, is_last=True)
    test.full([tuple(rows)])
    return test.polar


# --- one inner transformation at a time


def test_permuted_groups_and_queries_are_mapped():
    report, secrets = report_on("heads", "full"), transformed("heads").secrets
    assert report.verdict is Verdict.HOMOLOGOUS
    assert analysed_layers(report) == [0, 1, 2, 3]
    for layer in range(4):
        found = modules(report, layer)
        for role, test in (*HEAD_TESTS, ("v", "blocks"), ("o", "blocks")):
            origins = secrets["q" if role in ("q", "o") else "kv"][layer]
            assert origin_of_each(found[role, test].found.heads) == origins
            assert found[role, test].log10_p < LOG10_ALPHA
        for role in ("q", "k", "v", "o", "gate", "up", "down"):
            assert found[role, "permutation"].found.moves == (role in "qkvo")
            assert found[role, "permutation"].log10_p < LOG10_ALPHA
        assert found["mlp", "neurons"].found == NeuronsFound(0, 344)


def test_permuted_neurons_alone_are_mapped():
    report, secrets = report_on("neurons", "full"), transformed("neurons").secrets
    assert report.verdict is Verdict.HOMOLOGOUS
    assert analysed_layers(report) == [0, 1, 2, 3]
    checkers = [
        HomologyChecker.from_pretrained(folder)
        for folder in (trained_model("llama", "base").folder, transformed("neurons").folder)
    ]
    for layer in range(4):
        found = modules(report, layer)
        for role in ("q", "k", "v", "o", "gate", "up", "down"):
            assert found[role, "permutation"].found.moves == (role not in "qkvo")
            assert found[role, "permutation"].log10_p < LOG10_ALPHA
        mine, other = (layer_weights(checker.reference, layer).mlp for checker in checkers)
        matched = match_neurons(mine, other)
        assert matched.reference[np.argsort(matched.candidate)].tolist() == secrets["neurons"][layer]
        moved = sum(here != there for here, there in enumerate(secrets["neurons"][layer]))
        assert found["mlp", "neurons"].found == NeuronsFound(moved, 344)


@pytest.mark.parametrize("name", ["values-rotated", "values-skewed"])
def test_values_mixed_inside_heads_are_explained_by_a_map_per_head(name):
    report = report_on(name, "full")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    for layer in range(4):
        found = modules(report, layer)
        for role in ("v", "o"):
            explained = found[role, "subspaces"]
            assert explained.log10_p < LOG10_ALPHA
            assert all(here == there for here, there in explained.found.heads)
            # The rest is the fine-tune, which by itself moves v and o by 0.07 to 0.13 of their norm.
            assert explained.found.residual < 0.15
            assert explained.normalized_trace > 0.9
            assert found[role, "permutation"].normalized_trace < 0.5


def test_rotations_inside_heads_are_distinguished_from_other_maps():
    rotated, skewed = (report_on(name, "full") for name in ("values-rotated", "values-skewed"))
    for layer in range(4):
        for role in ("v", "o"):
            shares = []
            for report in (rotated, skewed):
                found = modules(report, layer)
                shares.append(found[role, "blocks"].normalized_trace / found[role, "subspaces"].normalized_trace)
            assert shares[0] > 0.99
            assert shares[1] < 0.95


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
    report = report_on(name, "full")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert layer_pairs(report) == [[there, here] for here, there in enumerate(ancestors)]
    assert report.layers.pattern == pattern
    assert analysed_layers(report) == list(range(len(ancestors)))


@pytest.mark.parametrize("name", ["narrower", "shallower-permuted-retokenised"])
def test_the_channels_of_a_relative_are_mapped(name):
    report = report_on(name, "full")
    reference, candidate = report.arrays.embedding.channels
    assert reference[np.argsort(candidate)].tolist() == transformed(name).secrets["channels"]
    assert report.embedding.transformation == "permutation"
    assert report.embedding.coverage == 1.0


@pytest.mark.parametrize("name", ["narrower", "shallower-permuted-retokenised"])
def test_a_relative_with_its_embeddings_is_settled_by_the_screen(name):
    report = report_on(name)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "screen"


def test_a_new_tokenizer_and_embeddings_leave_the_layers():
    report = report_on("new-embeddings")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "layers"
    assert report.embedding.log10_p == report.unembedding.log10_p == 0.0  # early in training, as in the paper
    assert report.layers.residual_map == "identity"
    assert 500 < report.embedding.common_tokens < 1024  # of 2048: a different tokenizer, with enough common tokens
    assert any("A new tokenizer or retrained" in caveat for caveat in report.caveats)


# --- noise


def test_noise_of_three_times_the_embeddings_hides_no_channel():
    quiet, loud = (report_on(name, "embedding") for name in ("noise-1", "noise-3"))
    for report in (quiet, loud):
        assert report.embedding.transformation == "identity" and report.embedding.matched_channels == 128
        assert report.reason is Reason.EMBEDDINGS_ONLY  # no second witness: this level does not search for neurons
    assert 0.5 < loud.embedding.normalized_trace < quiet.embedding.normalized_trace < 1.0
