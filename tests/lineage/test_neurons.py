"""Neurons by number find relatives with new embeddings, rotations or no tokenizer in surveys and indexes."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import survey
from mdir_hf.comparison.neuron_sample import NeuronSample, take_neurons
from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.family import find_family
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, take_fingerprint
from mdir_hf.lineage.index import base_index
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import choose_index_tokens, plan_identification
from mdir_hf.lineage.index.identify import identify
from mdir_hf.lineage.survey.folder import SurveyFolder
from mdir_hf.lineage.survey.reads import plan_reads
from mdir_hf.lineage.survey.run import SurveyPlan
from mdir_hf.lineage.trees.tree import grow_tree
from mdir_hf.model.hub import open_repository
from mdir_hf.model.open import NamedModel
from mdir_hf.model.opened import Model
from mdir_hf.render.layer_words import layers_text
from tests.comparison.relatives import SIZES, drift, edited, new_embeddings, turned, with_layers, write
from tests.method.obfuscation import new_model, obfuscate

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, models derived from it, and a stranger; all except the base have new embeddings."""
    base = new_model(seed=0, **SIZES)
    models = {
        "base": base,
        "new": new_embeddings(drift(copy.deepcopy(base), 0.3)),
        "turned": new_embeddings(edited(base, turned(base))),
        "part": new_embeddings(drift(with_layers(base, [1, 3]), 0.1)),
        "stranger": new_model(seed=9, **SIZES),
    }
    place = tmp_path_factory.mktemp("models")
    return {name: str(write(place / name, model)) for name, model in models.items()}


@pytest.fixture(scope="module")
def index(folders):
    models = [Model(open_repository(folders[name])) for name in ("stranger", "base")]
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models], 96))
    for model in models:
        index.add(model)
    return index


def test_a_survey_finds_relatives_by_neurons(folders, tmp_path):
    report = survey([*folders.values()], folder=tmp_path / "out", progress=False)
    family, *rest = report.groups()
    assert set(family) >= {folders["base"], folders["new"], folders["turned"]}
    assert (folders["stranger"],) in rest
    pair = report.pairs[folders["base"], folders["turned"]]
    assert pair.settled_by == "number" and pair.log10_p < -30.0


def test_a_survey_takes_the_options_of_compare_by_name(folders):
    names = [folders["base"], folders["turned"]]
    report = survey(names, alpha=1e-6, seed=3, progress=False, local_files_only=True)
    assert (report.settings["alpha"], report.settings["seed"]) == (1e-6, 3)
    with pytest.raises(TypeError, match="did you mean 'alpha'"):
        survey(names, alpah=1e-6)


def test_a_survey_takes_models_in_memory():
    base = new_model(seed=0, **SIZES)
    models = {"base": base, "hidden": obfuscate(base)[0], "stranger": new_model(seed=9, **SIZES)}
    report = survey(models, progress=False)
    assert report.groups() == (("base", "hidden"), ("stranger",)) and len(report.pairs) == 3
    assert report.pairs["base", "hidden"].layers_compared
    with pytest.raises(InputError, match="models in memory cannot be resumed"):
        survey(models, folder="out", progress=False)


@torch.no_grad()
def test_copied_neurons_that_do_nothing_are_copied_neurons(folders, tmp_path):
    """The effect of copied rows is not measured: a model whose down projections are zero still holds the rows."""
    idle = new_embeddings(new_model(seed=0, **SIZES))
    for layer in idle.model.layers:
        layer.mlp.down_proj.weight.zero_()
    idle.float().save_pretrained(tmp_path / "idle")
    shutil.copy(Path(folders["base"]) / "tokenizer.json", tmp_path / "idle")
    names = [folders["base"], folders["stranger"], str(tmp_path / "idle")]
    report = survey(names, progress=False)
    assert report.pairs[names[0], names[2]].verdict == "homologous"
    assert report.pairs[names[1], names[2]].verdict == "no_evidence"


def test_a_survey_goes_on_to_the_layers_if_requested(folders, tmp_path):
    hidden = tmp_path / "hidden"
    base = new_model(seed=0, **SIZES)
    new_embeddings(obfuscate(base)[0]).float().save_pretrained(hidden)
    shutil.copy(Path(folders["base"]) / "tokenizer.json", hidden)
    names = [str(hidden), folders["base"], folders["stranger"]]
    found = survey(names, folder=tmp_path / "out", progress=False)
    # Heads nominate the hidden copy, and the full comparison of this pair finds it.
    assert found.groups() == ((str(hidden), folders["base"]), (folders["stranger"],))
    assert found.pairs[str(hidden), folders["base"]].found_by == "keys"
    assert sum(pair.layers_compared for pair in found.pairs.values()) == 1 and len(found.layers_to_compare()) == 2
    # In the same folder, stored results are not computed again.
    deep = survey(names, folder=tmp_path / "out", progress=False, layers=True)
    assert deep.groups() == found.groups() and not deep.layers_to_compare()
    assert deep.models == found.models


def layers_alone(folder, place):
    """Write one layer of a model without embedding and head, as in a draft model."""
    shutil.copytree(folder, place)
    weights = load_file(place / "model.safetensors")
    save_file({name: w for name, w in weights.items() if ".layers.3." in name}, place / "model.safetensors")
    return str(place)


def test_a_survey_takes_models_without_a_tokenizer_or_an_embedding(folders, tmp_path):
    layers_alone(folders["turned"], tmp_path / "turned")
    shutil.copytree(folders["stranger"], tmp_path / "stranger")
    (tmp_path / "stranger" / "tokenizer.json").unlink()
    names = [folders["base"], folders["new"], str(tmp_path / "turned"), str(tmp_path / "stranger")]
    for folder in (None, tmp_path / "out"):
        report = survey(names, folder=folder, progress=False)
        assert report.groups() == (tuple(names[:3]), (names[3],))
        assert report.pairs[names[0], names[2]].found_by == "number"
        assert report.pairs[names[0], names[3]].verdict != "homologous"
    rows = SurveyFolder(tmp_path / "out").all_rows()
    tree = grow_tree({name: rows[name] for name in names[:3]})
    assert f"{names[2]} is not in the tree: it has too few rows of the sample." in tree.notes
    planned = plan_reads(SurveyPlan(tuple(names)))
    assert planned.n_rows[names[2]] == 0 and planned.n_bytes[names[2]] > 0


def test_sketches_of_neurons_pick_the_base_from_a_large_index(index, folders, monkeypatch):
    monkeypatch.setattr(base_index, "SCANNED_BASES", 0)
    monkeypatch.setattr(base_index, "PICKED_BASES", 1)
    for name in ("new", "turned"):
        query = take_neurons(Model(open_repository(folders[name])), every=True).for_storage()
        (picked,) = index.search_by_neurons(query)
        assert picked.model.repo == folders["base"]


@pytest.mark.parametrize("name", ["new", "turned", "part"])
def test_an_index_finds_a_base_by_neurons(index, folders, name):
    found = identify(NamedModel(folders[name]), index)
    assert [one.base.repo for one in found.found] == [folders["base"]]
    assert found.found[0].neurons.matches and found.found[0].report.settled_by in ("near", "number")
    assert "by neuron numbers in its" in str(found)
    planned = plan_identification(NamedModel(folders[name]), index)
    assert 0 < planned.n_bytes_of_neurons <= found.bytes_read


def test_without_a_tokenizer_a_base_is_found(index, folders, tmp_path):
    folder = tmp_path / "no-tokenizer"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{folders['new']}/{name}", folder)
    found = identify(NamedModel(str(folder)), index)
    assert [one.base.repo for one in found.found] == [folders["base"]]


def test_the_base_of_a_draft_model_is_found(index, folders, tmp_path):
    draft = NamedModel(layers_alone(folders["new"], tmp_path / "draft"))
    planned = plan_identification(draft, index)
    assert planned.n_bytes == 0 < planned.n_bytes_of_neurons
    family = find_family(draft, index, verifies=False)
    assert family.relatives == (folders["base"],)
    assert layers_text(family.layers[folders["base"]]) == "layer 0 matches its layer 3"


def test_neurons_survive_files(index, folders, tmp_path):
    model = Model(open_repository(folders["base"]))
    taken = take_fingerprint(model, [b"w1"])
    (tmp_path / "kept").write_bytes(taken.to_bytes())
    index.save(tmp_path / "index.safetensors")
    of_index = BaseIndex.load(tmp_path / "index.safetensors").bases[1].neurons
    for read in (Fingerprint.load(tmp_path / "kept").neurons, of_index):
        assert torch.equal(read.rows, taken.neurons.rows) and read.is_like(taken.neurons)
        assert read.layers == taken.neurons.layers == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "rows", [torch.zeros(3, 2, 128, 8), torch.zeros(4, 2, 120, 8), torch.full((4, 2, 128, 8), torch.inf)]
)
def test_rows_of_other_neurons_are_refused(folders, tmp_path, rows):
    taken = take_fingerprint(Model(open_repository(folders["base"])), [b"w1"])
    wrong = NeuronSample(taken.neurons.layers, taken.neurons.n_neurons, taken.neurons.n_fitted, rows)
    (tmp_path / "kept").write_bytes(Fingerprint(taken.model, taken.tokens, taken.rows, 1, neurons=wrong).to_bytes())
    with pytest.raises(CorruptCheckpointError, match="neurons"):
        Fingerprint.load(tmp_path / "kept")
