"""Surveys, identification, families and verification agree with ``compare`` on every pair."""

import itertools
import shutil

import pytest
import torch

from mdir_hf import compare, survey
from mdir_hf.comparison.settings import Settings
from mdir_hf.lineage.family import find_family
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import choose_index_tokens
from mdir_hf.lineage.index.identify import identify
from mdir_hf.model.hub import open_repository
from mdir_hf.model.open import NamedModel
from mdir_hf.model.opened import Model
from tests.comparison.relatives import SIZES, drift, edited, new_embeddings, renumbered, turned, with_layers
from tests.method.obfuscation import new_model, obfuscate
from tests.specimens import save_pretrained

pytest.importorskip("transformers")


def base():
    return new_model(seed=0, **SIZES)


MODELS = {
    "base": base,
    "tuned": lambda: drift(base(), 0.2),
    "reembedded": lambda: new_embeddings(drift(base(), 0.1)),
    "turned": lambda: edited(base(), turned(base())),
    "renumbered": lambda: renumbered(drift(base(), 0.1)),
    "pruned": lambda: drift(with_layers(base(), [0, 2, 3]), 0.1),
    "hidden": lambda: new_embeddings(obfuscate(base())[0]),
    "stranger": lambda: new_model(seed=9, **SIZES),
    "stranger with more neurons": lambda: new_model(seed=33, **SIZES | {"intermediate_size": 320}),
}
STRANGERS = {"stranger", "stranger with more neurons"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return {name: str(save_pretrained(place / name.replace(" ", "-"), make())) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def compared(folders):
    """Reports of ``compare``, keyed by the names of the models."""
    pairs = itertools.combinations(MODELS, 2)
    return {pair: compare(*(folders[name] for name in pair), progress=False) for pair in pairs}


@pytest.fixture(scope="module")
def without_layers(folders):
    return survey([*folders.values()], progress=False)


def verdicts_of(report, folders):
    names = {folder: name for name, folder in folders.items()}
    return {(names[a], names[b]): pair.verdict for (a, b), pair in report.pairs.items()}


def test_compare_finds_what_was_made(compared):
    for pair, report in compared.items():
        assert (report.verdict == "homologous") is STRANGERS.isdisjoint(pair), pair


def test_a_survey_with_layers_gives_the_verdict_of_compare(folders, compared, tmp_path):
    report = survey([*folders.values()], layers=True, progress=False, folder=tmp_path / "out")
    assert verdicts_of(report, folders) == {pair: report.verdict for pair, report in compared.items()}
    assert not report.layers_to_compare() and not report.contradictions()
    for pair in report.pairs.values():
        is_related = pair.verdict == "homologous"
        assert is_related == (pair.settled_by is not None) == (pair.agreement is not None)
        assert pair.log10_p is not None or pair.settled_by in ("keys", "embeddings")
        assert pair.layers_compared == (not is_related or pair.settled_by != "number")


def test_a_survey_without_layers_never_contradicts_compare(folders, compared, without_layers):
    for pair, verdict in verdicts_of(without_layers, folders).items():
        if verdict == "homologous":
            assert compared[pair].verdict == "homologous", pair
        else:
            # Neurons in another order are left to the full comparison.
            assert not STRANGERS.isdisjoint(pair) or {"renumbered", "hidden"}.intersection(pair), pair
            assert verdict == "no_evidence" or compared[pair].verdict != "no_evidence", pair


def test_identification_and_families_give_the_verdict_step_and_p_of_their_comparisons(folders, compared):
    models = [Model(open_repository(folders[name])) for name in ("base", "stranger")]
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models], 96))
    for model in models:
        index.add(model)
    for name in ("tuned", "reembedded", "turned", "pruned", "stranger with more neurons"):
        identification = identify(NamedModel(folders[name]), index)
        expected = [] if name in STRANGERS else [folders["base"]]
        assert [ancestor.base.repo for ancestor in identification.found] == expected, name
        for ancestor in identification.found:
            report = ancestor.report
            assert report.verdict == compared["base", name].verdict
            assert report.settled_by == compared["base", name].settled_by
            assert ancestor.log10_p == report.log10_p == pytest.approx(compared["base", name].log10_p, rel=0.1)
            text = str(find_family(NamedModel(folders[name]), index, verifies=False, settings=Settings()))
            assert "shared weight ancestry, p ≤ 10⁻" in text and text.count("p ≤") == 1


def test_an_index_alone_finds_nothing(folders, tmp_path):
    shutil.copytree(folders["base"], tmp_path / "base")
    model = Model(open_repository(str(tmp_path / "base")))
    index = BaseIndex(choose_index_tokens([model.vocabulary], 96))
    index.add(model)
    assert identify(NamedModel(folders["tuned"]), index).found
    shutil.rmtree(tmp_path / "base")  # nothing can be compared with it any more
    unconfirmed = identify(NamedModel(folders["tuned"]), index)
    (ancestor,) = unconfirmed.ancestors
    assert ancestor.is_nominated and ancestor.log10_p is None and not ancestor.p_is_bound
    assert "10⁻" not in str(unconfirmed) and "a proposal is not a finding" in str(unconfirmed)
    (candidate,) = unconfirmed.to_dict()["candidates"]
    assert candidate["log10_p"] is None and candidate["verdict"] is None


@torch.no_grad()
def test_copied_embeddings_alone_nominate_a_base_that_no_comparison_confirms(folders, tmp_path):
    """The model has the embedding of one base, and the layers of another with new numbers of nothing."""
    model = drift(new_model(seed=9, **SIZES), 0.1)
    model.model.embed_tokens.weight.copy_(base().model.embed_tokens.weight)
    save_pretrained(tmp_path / "both", model)
    models = [Model(open_repository(folders[name])) for name in ("base", "stranger")]
    index = BaseIndex(choose_index_tokens([each.vocabulary for each in models], 96))
    for each in models:
        index.add(each)
    identification = identify(NamedModel(str(tmp_path / "both")), index)
    # The tokens propose the base, and neurons then find the owner of the layers.
    assert [ancestor.base.repo for ancestor in identification.found] == [folders["stranger"]]
    of_base = next(one for one in identification.ancestors if one.base.repo == folders["base"])
    assert of_base.is_nominated and of_base.verdict == "inconclusive"
    assert f"proposed by 96 tokens: {folders['base']}; by comparison: " in str(identification)
