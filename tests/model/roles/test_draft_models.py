"""Companions of other models, without an embedding: published draft models and heads for later tokens."""

import copy

import pytest
import torch

from mdir_hf import Reason, Verdict, compare
from mdir_hf.comparison.inspection import inspect_model, lines_of
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from tests.comparison.relatives import SIZES, new_embeddings, weights_of, write
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")

N = SIZES["hidden_size"]


def eagle_3(model):
    """A layer, here from the base, that reads embedding and state side by side, and a head for some tokens only."""
    weights = weights_of(model)
    made = {n.replace("model.layers.1", "midlayer"): w for n, w in weights.items() if ".layers.1." in n}
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        made[name] = torch.cat([made[name], torch.randn_like(made[name])], 1)
    rows = torch.arange(0, len(weights["lm_head.weight"]), 3)
    return made | {
        "midlayer.hidden_norm.weight": torch.ones(N), "norm.weight": torch.ones(N), "fc.weight": torch.randn(N, 3 * N),
        "lm_head.weight": weights["lm_head.weight"][rows], "d2t": rows - torch.arange(len(rows)),
    }  # fmt: skip


def medusa(model):
    """Two heads, each the base's head after a linear map."""
    head = weights_of(model)["lm_head.weight"]
    return {
        f"{at}.{rest}": weight
        for at in range(2)
        for rest, weight in (
            ("0.linear.weight", torch.randn(N, N)), ("0.linear.bias", torch.zeros(N)),
            ("1.weight", head + 0.1 * head.std() * torch.randn(head.shape)),
        )
    }  # fmt: skip


def layers_only(model):
    return {name: weight for name, weight in weights_of(model).items() if ".layers." in name}


OF_MEDUSA = {"base_model_name_or_path": "owner/base", "medusa_num_heads": 2, "medusa_num_layers": 1}


@pytest.fixture(scope="module")
def base():
    return new_model(seed=0, **SIZES)


def retrained(base):
    """The base with a new embedding and head; only its layers remain."""
    return new_embeddings(copy.deepcopy(base))


def test_eagle_3_has_one_layer_and_neither_embedding_nor_head(base, tmp_path):
    anatomy = Model(open_repository(str(write(tmp_path / "draft", base, eagle_3)))).anatomy
    assert anatomy.embedding is None and anatomy.unembedding is None  # the rows of its head belong to other tokens
    (layer,) = anatomy.layers
    assert {role for role in layer.parts if not role.is_norm} == {
        *(Role.Q, Role.K, Role.V, Role.O), *(Role.GATE, Role.UP, Role.DOWN),
    }  # fmt: skip
    assert anatomy.unplaced == ("midlayer.hidden_norm.weight",)


@pytest.mark.parametrize("make", [eagle_3, layers_only])
def test_layers_without_an_embedding_are_found_in_their_base_and_not_in_a_stranger(make, base, tmp_path):
    reference = write(tmp_path / "base", retrained(base))
    report = compare(reference, write(tmp_path / "relative", base, make), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.embedding is None
    assert report.neurons.matches[0].reference == (1 if make is eagle_3 else report.neurons.matches[0].candidate)
    stranger = compare(reference, write(tmp_path / "stranger", new_model(seed=9, **SIZES), make), progress=False)
    assert stranger.verdict is Verdict.NO_EVIDENCE
    assert any("No embeddings" in caveat for caveat in stranger.caveats)


@pytest.mark.parametrize("file", ["model.safetensors", "medusa_lm_head.safetensors"])
def test_heads_of_medusa_are_copies_of_the_head_that_they_began_as(file, base, tmp_path):
    reference = write(tmp_path / "base", base)
    report = compare(reference, write(tmp_path / "heads", base, medusa, OF_MEDUSA, file), progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert report.embedding is None and report.unembedding.is_copied
    other = write(tmp_path / "others", new_model(seed=9, **SIZES), medusa, OF_MEDUSA, file)
    stranger = compare(reference, other, progress=False)
    assert stranger.verdict is Verdict.NO_EVIDENCE and "unembeddings" in str(stranger)


def test_a_head_is_compared_with_the_embedding_that_it_is_tied_to(tmp_path):
    tied = new_model(seed=0, tie_word_embeddings=True, **SIZES)
    report = compare(write(tmp_path / "base", tied), write(tmp_path / "heads", tied, medusa, OF_MEDUSA), progress=False)
    assert report.unembedding.is_copied


def test_an_inspected_draft_model_has_no_embedding(base, tmp_path):
    text = "\n".join(lines_of(inspect_model(str(write(tmp_path / "layers", base, layers_only)))))
    assert "embedding      none found" in text and "there is no embedding" in text


def test_a_head_and_layers_with_nothing_in_common_are_inconclusive(base, tmp_path):
    layers, heads = write(tmp_path / "layers", base, layers_only), write(tmp_path / "heads", base, medusa, OF_MEDUSA)
    report = compare(layers, heads, progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
