"""Models obfuscated as a whole without a change of function: the layers match although the embeddings do not."""

import math

import numpy as np
import pytest
import torch
from mdir_hf.method.modules import analyse_layer

from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.gauge import ResidualBasisMap, residual_basis_maps
from mdir_hf.method.polar import polar_factor
from mdir_hf.method.rows import pair_rows
from mdir_hf.method.significance import log_p_of_best
from tests.method.obfuscation import SIZES, layers_of, logits, new_model, obfuscate, trained

LOG_ALPHA = math.log(1e-10)
N_LAYERS = SIZES["num_hidden_layers"]
N_TESTS = 23
"""Tests of a layer pair of a gated model with rotary positions."""


def embedding(model):
    return model.model.embed_tokens.weight.detach()


def fitted_rotation(reference, candidate):
    """U~ of Algorithm 1: the polar factor of the common tokens' rows, a nuisance. The evidence is in the layers."""
    rows = pair_rows(embedding(reference), embedding(candidate))
    return polar_factor(rows.reference.T @ rows.candidate).matrix


def analyse(reference, candidate, outer=None):
    """Evidence of every pair of layers, keyed by (reference layer, candidate layer)."""
    outer = ResidualBasisMap.rotation(fitted_rotation(reference, candidate)) if outer is None else outer
    return {
        (i, j): analyse_layer(x, y, outer)
        for i, x in enumerate(layers_of(reference))
        for j, y in enumerate(layers_of(candidate))
    }


def log_p_of_layer(evidence):
    return log_p_of_best(min(found.log_p for found in evidence), len(evidence))


def embedding_log_p(reference, candidate):
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    test.screen(embedding(reference), embedding(candidate), is_last=True)
    return test.log_p


def origin_of_each(transformation):
    return transformation.reference[np.argsort(transformation.candidate)].tolist()


@pytest.fixture(scope="module")
def learnt():
    """Three strangers that learnt the same language from different initialisations and texts."""
    models = []
    for seed in range(3):
        model, losses = trained(new_model("llama", seed, initializer_range=0.05), seed=seed)
        assert np.mean(losses[-10:]) < losses[0] - 1.5  # nats per token: training worked
        models.append(model)
    return models


@pytest.fixture(scope="module")
def tuned_and_hidden(learnt):
    """A fine-tune of the first model on different text, then obfuscated as a whole."""
    tuned, _ = trained(learnt[0], steps=60, learning_rate=2e-3, seed=9)
    return obfuscate(tuned, 1)


# --- the obfuscation works as described


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("skewed_values", [False, True])
def test_the_obfuscated_model_computes_the_same_logits(architecture, skewed_values):
    model = new_model(architecture)
    hidden, _ = obfuscate(model, 1, skewed_values=skewed_values)
    before, after = logits(model), logits(hidden)
    # Everything is float64 except transformers' RMSNorm and rotary tables, which are always float32: 1e-7 per norm.
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * float(before.abs().max()))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_no_matrix_of_the_obfuscated_model_resembles_its_origin(architecture):
    model = new_model(architecture)
    hidden, _ = obfuscate(model, 1)
    for (name, a), (_, b) in zip(model.named_parameters(), hidden.named_parameters(), strict=True):
        if a.ndim == 2:
            cosine = float(torch.nn.functional.cosine_similarity(a.detach().flatten(), b.detach().flatten(), dim=0))
            assert abs(cosine) < 0.15, name  # strangers with at least 2048 entries: 0.15 is seven standard deviations


# --- detection


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_embedding_permutation_test_misses_a_rotated_model(architecture):
    model = new_model(architecture)
    assert embedding_log_p(model, obfuscate(model, 1)[0]) == 0.0


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_fitted_rotation_is_the_one_that_was_applied(architecture):
    model = new_model(architecture)
    hidden, secrets = obfuscate(model, 1)
    torch.testing.assert_close(fitted_rotation(model, hidden), secrets.rotation, rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_every_inner_transformation_is_found_and_explains_all(architecture):
    model = new_model(architecture)
    hidden, secrets = obfuscate(model, 1)
    for layer, evidence in enumerate(analyse(model, hidden)[i, i] for i in range(N_LAYERS)):
        found = {(e.role, e.test): e for e in evidence}
        queries, groups = secrets.q_heads[layer].tolist(), secrets.kv_heads[layer].tolist()
        for role, test, origins in (
            ("q", "planes", queries),
            ("q", "frequencies", queries),
            ("k", "planes", groups),
            ("v", "subspaces", groups),
            ("o", "subspaces", queries),
        ):
            assert found[role, test].log_p < LOG_ALPHA
            assert origin_of_each(found[role, test].transformation) == origins
            assert found[role, test].transformation.residual < 1e-9  # float64, with condition numbers of a few hundred
        neurons = found["mlp", "neurons"]
        assert neurons.log_p < LOG_ALPHA
        assert origin_of_each(neurons.transformation) == secrets.neurons[layer].tolist()
        by_candidate = np.argsort(neurons.transformation.candidate)
        assert neurons.transformation.signs[by_candidate].tolist() == secrets.signs[layer].tolist()


def test_values_mixed_by_rotations_are_distinguished_from_other_maps():
    model = new_model()
    skewness = {}
    for skewed in (False, True):
        hidden, _ = obfuscate(model, 1, skewed_values=skewed)
        found = {(e.role, e.test): e for e in analyse(model, hidden)[0, 0]}
        skewness[skewed] = found["v", "subspaces"].transformation.skewness
    assert skewness[False] < 1e-9
    assert skewness[True] > 0.3


def test_obfuscated_layers_do_not_match_without_the_rotation():
    model = new_model()
    hidden, _ = obfuscate(model, 1)
    evidence = analyse(model, hidden, ResidualBasisMap.identity(SIZES["hidden_size"]))
    assert all(log_p_of_layer(e) == 0.0 for e in evidence.values())


def test_a_new_vocabulary_on_an_old_body_is_found_by_the_identity():
    # The embedding is replaced, so the fitted rotation is noise; the body keeps its old basis.
    model, other = new_model(), new_model(seed=1)
    with torch.no_grad():
        other.load_state_dict({**model.state_dict(), "model.embed_tokens.weight": other.model.embed_tokens.weight})
    assert embedding_log_p(model, other) == 0.0
    tried = residual_basis_maps(64, 64, polar=fitted_rotation(model, other))
    by_kind = {t.kind: log_p_of_layer(analyse(model, other, t)[0, 0]) + math.log(len(tried)) for t in tried}
    assert by_kind["identity"] < LOG_ALPHA
    assert by_kind["rotation"] > math.log(1e-3)


# --- trained models


def test_an_obfuscated_fine_tune_is_found_layer_by_layer(learnt, tuned_and_hidden):
    hidden, secrets = tuned_and_hidden
    assert embedding_log_p(learnt[0], hidden) > math.log(1e-3)
    evidence = analyse(learnt[0], hidden)
    for (i, j), of_pair in evidence.items():
        assert (log_p_of_layer(of_pair) < LOG_ALPHA) == (i == j)
    for layer in range(N_LAYERS):
        found = {(e.role, e.test): e for e in evidence[layer, layer]}
        assert origin_of_each(found["q", "planes"].transformation) == secrets.q_heads[layer].tolist()
        assert origin_of_each(found["v", "subspaces"].transformation) == secrets.kv_heads[layer].tolist()
        neurons = origin_of_each(found["mlp", "neurons"].transformation)
        assert np.mean(np.array(neurons) == secrets.neurons[layer].numpy()) > 0.95


def test_strangers_of_one_language_do_not_match_in_any_test(learnt):
    """The null in practice: universal features, aligned by a rotation fitted on the common tokens.

    3 pairs of models, 9 pairs of layers and 23 tests, after the fitted rotation and after the identity: 1242 tests.
    """
    log_p = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        for outer in (None, ResidualBasisMap.identity(SIZES["hidden_size"])):
            for evidence in analyse(learnt[a], learnt[b], outer).values():
                log_p += [e.log_p for e in evidence]
    assert len(log_p) == 3 * N_LAYERS**2 * N_TESTS * 2
    assert min(log_p) > LOG_ALPHA
    # The bounds are far from tight: of 1242 tests, one in a thousand may fall below 1e-3, and none comes close here.
    assert sum(p < math.log(1e-2) for p in log_p) == 0


def test_strangers_at_initialisation_do_not_match_in_any_test():
    log_p = []
    for architecture in ("llama", "qwen3"):
        for seed in range(3):
            pair = new_model(architecture, 2 * seed), new_model(architecture, 2 * seed + 1)
            for evidence in analyse(*pair).values():
                log_p += [e.log_p for e in evidence]
    assert len(log_p) == 2 * 3 * N_LAYERS**2 * N_TESTS
    assert sum(p < math.log(1e-2) for p in log_p) == 0
