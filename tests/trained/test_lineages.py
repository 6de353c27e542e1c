"""Trees of trained models: the known topology is recovered with its support."""

from __future__ import annotations

import json

import pytest

from mdir_hf.cli import main
from mdir_hf.lineage.survey.folder import SurveyFolder
from mdir_hf.lineage.survey.run import survey
from mdir_hf.lineage.trees.tree import grow_tree
from tests.trained.lineages import MERGES, PARENT_OF, ROOT, TREE, lineage_model

pytestmark = pytest.mark.slow


def descendants(name) -> frozenset[str]:
    return frozenset({name}).union(*(descendants(child) for child, parent in PARENT_OF.items() if parent == name))


def expected_splits(members):
    """Branches with at least two models on either side."""
    everything = frozenset(members)
    sides = [descendants(name) & everything for name in members if name in PARENT_OF]
    return {frozenset({side, everything - side}) for side in sides if 1 < len(side) < len(everything) - 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("survey")


@pytest.fixture(scope="module")
def fingerprints(folder):
    name_of = {str(lineage_model(name)): name for name in (ROOT, *PARENT_OF, *MERGES)}
    report = survey([*name_of], n_tokens=1024, all_pairs=True, folder=folder, progress=False)
    assert len(report.groups()) == 1
    return {name_of[path]: kept for path, kept in SurveyFolder(folder).all_rows().items()}


@pytest.fixture(scope="module")
def whole_tree(fingerprints):
    return grow_tree({name: fingerprints[name] for name in (ROOT, *PARENT_OF)})


@pytest.mark.parametrize(
    "members",
    [(ROOT, *TREE), (ROOT, *PARENT_OF), tuple(PARENT_OF)],
    ids=["two levels", "all", "all but the root"],
)
def test_the_trained_tree_is_recovered(fingerprints, whole_tree, members):
    is_whole = len(members) == 1 + len(PARENT_OF)
    tree = whole_tree if is_whole else grow_tree({name: fingerprints[name] for name in members})
    everything = frozenset(members)
    found = {frozenset({frozenset(split.members), everything - frozenset(split.members)}) for split in tree.splits}
    assert found == expected_splits(members)
    assert all(split.support > 0.9 for split in tree.splits)
    assert tree.merges == ()


@pytest.mark.parametrize("name", [ROOT, "left", "right", "chain-1"])
def test_every_ancestor_is_where_its_descendants_branch(whole_tree, name):
    members = (ROOT, *PARENT_OF)
    inner = {one.model: one for one in whole_tree.inner}
    below = [descendants(child) for child, parent in PARENT_OF.items() if parent == name]
    above = frozenset(members) - descendants(name)
    assert {frozenset(branch) for branch in inner[name].branches} == {*below, *([above] if above else [])}


def test_only_ancestors_are_there_and_no_root_is_claimed(whole_tree):
    assert {one.model for one in whole_tree.inner} == set(PARENT_OF.values())
    assert whole_tree.centre is None


def test_merges_are_shown_with_the_shares_of_each_layer(loopback_hub, tmp_path, capsys):
    members = (ROOT, "left", "left-a", "left-b", "right", "right-b", "star-1", *MERGES)
    for name in members:
        loopback_hub.add_repository(f"lab/{name}", lineage_model(name))
    command = ["survey", "--author", "lab", "--output", str(tmp_path), "--tokens", "512", "--quiet"]
    assert main([*command, "--tree", "--layers", "--json"]) == 0
    (tree,) = json.loads(capsys.readouterr().out)["trees"]
    merges = {merge["model"]: merge for merge in tree["merges"]}
    assert merges.keys() == {f"lab/{name}" for name in MERGES}
    for name, (first, second, by_layer, of_embedding) in MERGES.items():
        merge = merges[f"lab/{name}"]
        is_first = merge["parents"][0] == f"lab/{first}"
        assert set(merge["parents"]) == {f"lab/{first}", f"lab/{second}"}
        for layer, share in zip(merge["layers"], by_layer, strict=True):
            # Rounded to BF16, whose steps are a few per cent of the change in 30 steps of training.
            expected = pytest.approx(share if is_first else 1.0 - share, abs=0.03)
            assert layer["attention"] == expected and layer["mlp"] == expected
        assert merge["share"] == pytest.approx(of_embedding if is_first else 1.0 - of_embedding, abs=0.03)
