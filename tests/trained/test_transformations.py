"""Transformations of a trained model are found and described; a stranger with the same change stays a stranger."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, SettledBy, Verdict
from mdir_hf.report import LayerPattern, Outcome
from tests.trained.models import trained_model
from tests.trained.transformed import TRANSFORMATIONS, edited, transformed

pytestmark = pytest.mark.slow

ROTATED = ("deeper-and-hidden", "narrower-and-hidden")
STRANGERS = ("values-skewed", "deeper-and-hidden", "new-embeddings", "noise-3")
"""One stranger for each kind of edit; edits that keep the function cannot make it a relative."""
MLP = ("gate", "up", "down")
ATTENTION = ("q", "k", "v", "o")


@cache  # reports are frozen, and several tests read the same report
def report_on(name, level="layers", *, stranger=False):
    checker = HomologyChecker.from_pretrained(trained_model("llama", "base").folder)
    return checker.compare(transformed(name, stranger=stranger).folder, level=level, progress=False)


def layer_pairs(report):
    return [[*match[:2]] for match in report.layers.matches]


def outcomes(report, layer):
    """Outcomes for one layer of the candidate, keyed by role."""
    return {r.role.value: r.outcome for r in report.projections.results if r.layer.candidate == layer}


def maps_of(report):
    """Maps of heads and neurons, keyed by the candidate's layer."""
    return {maps.layer.candidate: maps for maps in report.arrays.layers}


def origin_of_each(pairs):
    """Reference heads in the order of their partners, from ``(2, g)`` heads."""
    return pairs[0][np.argsort(pairs[1])].tolist()


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
    report = report_on(name, stranger=True)
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0), json.dumps(report.to_dict(), indent=1)
    assert report.layers.matches == () and report.layers.pattern is LayerPattern.NONE
    assert {result.outcome for result in report.projections.results} <= {Outcome.NO_AGREEMENT, Outcome.NOT_COMPARED}


# --- hidden as a whole, then trained further


@pytest.mark.parametrize("name", ["hidden", *ROTATED])
def test_a_hidden_model_is_found_by_its_keys(name):
    report = report_on(name, "auto")
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    assert report.log10_p is None


@pytest.mark.parametrize(
    ("name", "ancestors"),
    [
        ("hidden", [0, 1, 2, 3]),
        ("narrower-and-hidden", [0, 1, 2, 3]),
        ("deeper-and-hidden", [0, 1, 2, 1, 2, 3]),
    ],
)
def test_the_layers_heads_and_neurons_of_a_hidden_model_are_mapped(name, ancestors):
    report, secrets = report_on(name), transformed(name).secrets
    assert report.embedding.log10_p == 0.0 and report.layers.residual_map == "rotation"
    pairs = layer_pairs(report)
    # Keys nominate each layer once, so of two copies of a layer one is mapped.
    assert len(pairs) == 4 and all(ancestors[place] == source for source, place in pairs)
    for _, layer in pairs:
        found, maps = outcomes(report, layer), maps_of(report)[layer]
        assert {found[role] for role in MLP} == {Outcome.PERMUTED}
        assert {found[role] for role in ("q", "v", "o")} == {Outcome.ROTATED_IN_HEADS}
        assert found["k"] is Outcome.NOT_COMPARED  # the map may have been fitted on keys
        for role in ("q", "v", "o"):
            assert origin_of_each(maps.heads[role]) == secrets["kv" if role == "v" else "q"][layer], (layer, role)
        reference, candidate, signs = maps.neurons
        # A few neurons may have moved too far in training; by chance one of 344 would be correct.
        assert np.mean(reference == np.array(secrets["neurons"][layer])[candidate]) > 0.98
        assert np.mean(signs == np.array(secrets["signs"][layer])[candidate]) > 0.98
    for layer in set(range(len(ancestors))) - {place for _, place in pairs}:
        assert set(outcomes(report, layer).values()) <= {Outcome.NO_AGREEMENT, Outcome.NOT_COMPARED}


# --- one inner transformation at a time


def test_permuted_groups_and_queries_are_mapped():
    report, secrets = report_on("heads"), transformed("heads").secrets
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    for layer in range(4):
        expected = dict.fromkeys(ATTENTION, Outcome.PERMUTED) | dict.fromkeys(MLP, Outcome.KEPT)
        assert outcomes(report, layer) == expected
        for role, heads in maps_of(report)[layer].heads.items():
            assert origin_of_each(heads) == secrets["q" if role.value in "qo" else "kv"][layer]


def test_permuted_neurons_alone_are_mapped():
    report, secrets = report_on("neurons"), transformed("neurons").secrets
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    for layer in range(4):
        expected = dict.fromkeys(ATTENTION, Outcome.KEPT) | dict.fromkeys(MLP, Outcome.PERMUTED)
        assert outcomes(report, layer) == expected
        reference, candidate, signs = maps_of(report)[layer].neurons
        assert reference.tolist() == np.array(secrets["neurons"][layer])[candidate].tolist()
        assert set(signs.tolist()) == {1}


@pytest.mark.parametrize("name", ["values-rotated", "values-skewed"])
def test_values_mixed_inside_heads_are_explained_by_a_map_per_head(name):
    report = report_on(name)
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert layer_pairs(report) == [[i, i] for i in range(4)]
    for layer in range(4):
        mixed = dict.fromkeys(("v", "o"), Outcome.ROTATED_IN_HEADS)
        assert outcomes(report, layer) == dict.fromkeys((*ATTENTION, *MLP), Outcome.KEPT) | mixed
        maps = maps_of(report)[layer]
        assert origin_of_each(maps.heads["v"]) == [0, 1]
        spectrum = np.linalg.svd(maps.turns["v"], compute_uv=False)
        # All singular values of a rotation are equal, and a skewed map has values that spread by a factor of e or
        # more. The fine-tune changes v by a tenth.
        spread = spectrum[:, 0] / spectrum[:, -1]
        assert (spread < 1.5).all() if name == "values-rotated" else (spread > 2.5).all()


# --- pruned, deepened, retokenised


@pytest.mark.parametrize(
    ("name", "ancestors", "pattern", "settled_by"),
    [
        ("narrower", [0, 1, 2, 3], "identity", SettledBy.NEAR),
        ("shallower-permuted-retokenised", [0, 2, 3], "pruned", SettledBy.NUMBER),
        ("new-embeddings", [0, 1, 2, 3], "identity", SettledBy.NEAR),
    ],
)
def test_the_layers_of_a_relative_are_mapped(name, ancestors, pattern, settled_by):
    report = report_on(name)
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, settled_by)
    assert layer_pairs(report) == [[there, here] for here, there in enumerate(ancestors)]
    assert report.layers.pattern == pattern
    assert {result.outcome for result in report.projections.results} == {Outcome.KEPT}


@pytest.mark.parametrize("name", ["narrower", "shallower-permuted-retokenised"])
def test_the_channels_of_a_relative_are_mapped(name):
    report = report_on(name)
    reference, candidate = report.arrays.embedding.channels
    assert reference[np.argsort(candidate)].tolist() == transformed(name).secrets["channels"]
    assert report.embedding.transformation == "permutation"


def test_new_embeddings_do_not_agree_and_the_layers_do():
    report = report_on("new-embeddings")
    assert report.embedding.log10_p == 0.0 and report.layers.residual_map == "identity"
    assert 500 < report.embedding.common_tokens < 1024  # of 2048: a different tokenizer, with enough common tokens


# --- noise


def test_noise_of_three_times_the_embeddings_hides_few_channels():
    quiet, loud = (report_on(name) for name in ("noise-1", "noise-3"))
    for report in (quiet, loud):
        assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
        assert report.embedding.transformation == "identity"
    assert quiet.embedding.is_copied and not loud.embedding.is_copied
    assert quiet.embedding.matched_channels == 128 and loud.embedding.matched_channels > 64
    assert 0.5 < loud.embedding.normalized_trace < quiet.embedding.normalized_trace < 1.0
