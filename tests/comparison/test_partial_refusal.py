"""A weight that cannot be read is left out of a comparison; the rest of the model is compared."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf import Verdict, compare
from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.comparison.relatives import SIZES, changed, new_embeddings, write
from tests.method.obfuscation import new_model

N = SIZES["hidden_size"]


def widen(*names):
    def change(tensors):
        for name in list(tensors):
            if any(name.endswith(f"{end}.weight") for end in names):
                tensors[name] = torch.cat([tensors[name], torch.randn_like(tensors[name])], 1)

    return change


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write(tmp_path_factory.mktemp("partial") / "base", new_model(seed=0, **SIZES))


def test_one_misshapen_value_matrix_does_not_stop_the_layers(base, tmp_path):
    candidate = changed(write(tmp_path / "x", new_model(seed=0, **SIZES)), widen("layers.1.self_attn.v_proj"))
    found = compare(base, candidate, level="layers", progress=False)
    assert found.verdict is Verdict.HOMOLOGOUS
    assert [(match.reference, match.candidate) for match in found.layers.matches] == [(i, i) for i in range(4)]
    assert any("layers.1.self_attn.v_proj.weight' was not compared" in caveat for caveat in found.caveats)


def test_attention_of_twice_the_width_leaves_the_mlps(base, tmp_path):
    model = new_embeddings(new_model(seed=0, **SIZES))
    candidate = changed(write(tmp_path / "draft", model), widen("q_proj", "k_proj", "v_proj"))
    found = compare(base, candidate, progress=False)
    assert found.verdict is Verdict.HOMOLOGOUS
    assert all(match.reference == match.candidate for match in found.neurons.matches)
    other = new_embeddings(new_model(seed=9, **SIZES))
    stranger = changed(write(tmp_path / "stranger", other), widen("q_proj", "k_proj", "v_proj"))
    assert compare(base, stranger, progress=False).verdict is Verdict.NO_EVIDENCE


def test_an_empty_embedding_leaves_head_and_layers(base, tmp_path):
    def empty(tensors):
        tensors["model.embed_tokens.weight"] = torch.zeros(0, N)

    candidate = changed(write(tmp_path / "x", new_model(seed=0, **SIZES)), empty)
    model = Model(open_repository(str(candidate)))
    assert model.anatomy.embedding is None and model.anatomy.unembedding is not None
    assert any("is empty" in note for note in model.anatomy.notes)
    assert compare(base, candidate, progress=False).verdict is Verdict.HOMOLOGOUS


def test_an_embedding_in_unknown_codes_leaves_the_layers(base, tmp_path):
    def code(tensors):
        name = "model.embed_tokens"
        n_rows = len(tensors[f"{name}.weight"])
        tensors[f"{name}.weight"] = torch.zeros(n_rows, N // 8, dtype=torch.int32).view(torch.uint32)
        tensors |= {f"{name}.{part}": torch.ones(n_rows, N // 32) for part in ("scales", "biases")}

    candidate = changed(write(tmp_path / "x", new_model(seed=0, **SIZES)), code)
    model = Model(open_repository(str(candidate)))
    assert model.anatomy.embedding is None and any("is not compared" in note for note in model.anatomy.notes)
    found = compare(base, candidate, progress=False)
    assert found.verdict is Verdict.HOMOLOGOUS and found.embedding is None


def test_a_model_with_only_an_empty_embedding_is_refused(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    save_file({"model.embed_tokens.weight": torch.zeros(0, 8)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    with pytest.raises(UnsupportedFormatError, match="holds only empty placeholders"):
        Model(open_repository(str(folder)))
