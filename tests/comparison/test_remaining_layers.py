"""Layers that lack a map's matrix are tested by another one and are not reported as missing."""

import pytest
import torch

from mdir_hf import Verdict, compare
from tests.comparison.test_partial_refusal import changed
from tests.method.obfuscation import new_model
from tests.model.roles.test_draft_models import SIZES, write

BORROWING = ("layers.2.self_attn.", "layers.3.self_attn.")


def is_borrowed(name):
    """Whether a layer without keys and values of its own has this tensor only in some files."""
    return any(layer in name for layer in BORROWING) and ("k_proj" in name or "v_proj" in name)


def drop(tensors):
    for name in [name for name in tensors if is_borrowed(name)]:
        del tensors[name]


def replace_by_chance(tensors):
    draw = torch.Generator().manual_seed(5)
    for name in tensors:
        if is_borrowed(name):
            tensors[name] = torch.randn(tensors[name].shape, generator=draw) * tensors[name].std()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model as its authors save it, with unused keys and values, and as tools save it, without them."""
    folder = tmp_path_factory.mktemp("shared")
    made = {"makers": (0, replace_by_chance), "saved": (0, drop), "stranger": (9, drop)}
    return {
        name: changed(write(folder / name, new_model(seed=seed, **SIZES)), change)
        for name, (seed, change) in made.items()
    }


@pytest.mark.parametrize("pair", [("makers", "saved"), ("saved", "makers"), ("saved", "saved")])
def test_layers_without_keys_and_values_are_matched_by_another_matrix(pair, models):
    found = compare(models[pair[0]], models[pair[1]], level="layers", progress=False)
    assert found.verdict is Verdict.HOMOLOGOUS
    assert [(match.reference, match.candidate) for match in found.layers.matches] == [(i, i) for i in range(4)]
    assert found.layers.pattern.value == "identity"
    assert "match none" not in found.sentence and "left out" not in found.sentence
    assert len(found.layers.matrix) == len(found.layers.matrix[0]) == 4


def test_a_stranger_without_keys_and_values_stays_one(models):
    found = compare(models["makers"], models["stranger"], level="layers", progress=False)
    assert found.verdict is Verdict.NO_EVIDENCE and found.layers.matches == ()
