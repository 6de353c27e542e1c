"""Trees of synthetic lineages with random drifts and a known topology."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from Bio import Phylo

import mdir_hf
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.trees.aligning import CloserLook, LayerRows
from mdir_hf.lineage.trees.tree import grow_tree
from mdir_hf.report import ModelSummary

R, N = 600, 96
WORDS = tuple(f"w{i}".encode() for i in range(R))


def drift(seed: int, size: float = 0.3) -> torch.Tensor:
    return size * torch.randn(R, N, generator=torch.Generator().manual_seed(seed))


def kept(name: str, rows: torch.Tensor) -> Fingerprint:
    return Fingerprint(ModelSummary(name, None, None, "llama", rows.shape[1], 2, R), WORDS, rows, 1)


def family(rows) -> dict[str, Fingerprint]:
    return {name: kept(name, values) for name, values in rows.items()}


@pytest.fixture
def lineage():
    """A two-level tree of seven leaves with a chain and no merge."""
    base = drift(0, 1.0)
    left, right = base + drift(1), base + drift(2)
    return {
        "base": base,
        "left": left,
        "left/a": left + drift(3),
        "left/b": left + drift(4),
        "right": right,
        "right/a": right + drift(5),
        "right/b": right + drift(6),
        "right/b/c": right + drift(6) + drift(7),
    }


def splits(tree) -> dict[frozenset[str], float]:
    return {frozenset(split.members): split.support for split in tree.splits}


def has(tree, *members: str) -> float:
    """Return the support of the branch that separates these models from the rest, or 0 without such a branch."""
    found, side = splits(tree), frozenset(members)
    return found.get(side, found.get(frozenset(tree.members) - side, 0.0))


def test_a_two_level_tree_and_its_chain_are_recovered_with_support(lineage):
    tree = grow_tree(family(lineage))
    assert set(tree.members) == set(lineage)
    assert tree.merges == ()
    assert max(splits(tree).values()) <= 1.0
    assert has(tree, "left", "left/a", "left/b") > 0.95
    assert has(tree, "right", "right/a", "right/b", "right/b/c") > 0.95
    assert has(tree, "right/b", "right/b/c") > 0.95


def test_permuted_rescaled_pruned_members_are_aligned_first(lineage):
    generator = torch.Generator().manual_seed(9)
    order = torch.randperm(N, generator=generator)
    signs = torch.where(torch.rand(N, generator=generator) < 0.5, -1.0, 1.0)
    lineage["left/a"] = (lineage["left/a"] * signs)[:, order]
    lineage["right/a"] = 3.0 * lineage["right/a"][:, order]
    lineage["left/b"] = lineage["left/b"][:, : N - 16]
    tree = grow_tree(family(lineage))
    assert has(tree, "left", "left/a", "left/b") > 0.95
    assert has(tree, "right", "right/a", "right/b", "right/b/c") > 0.95
    assert any("right/a was divided by" in note for note in tree.notes)


def test_a_few_huge_rows_are_left_out_of_distances(lineage):
    plain = grow_tree(family(lineage))
    lineage["left/a"] = lineage["left/a"].clone()
    lineage["left/a"][::50] *= 1e30
    tree = grow_tree(family(lineage))
    assert tree.members == plain.members
    assert torch.tensor(tree.distances) == pytest.approx(torch.tensor(plain.distances), rel=0.2, abs=1e-6)
    assert any(f"{len(range(0, R, 50))} tokens were left out" in note for note in tree.notes)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_merge_has_two_parents_and_their_shares(lineage, share):
    lineage["merge"] = share * lineage["left/a"] + (1.0 - share) * lineage["right/a"]
    tree = grow_tree(family(lineage))
    (merge,) = tree.merges
    assert merge.model == "merge"
    shares = dict(zip(merge.parents, (merge.share, 1.0 - merge.share), strict=True))
    assert shares == pytest.approx({"left/a": share, "right/a": 1.0 - share}, abs=0.02)
    assert "merge" not in tree.members
    assert has(tree, "left", "left/a", "left/b") > 0.95


def test_neither_an_ancestor_nor_the_middle_of_a_chain_is_a_merge():
    base = drift(0, 1.0)
    middle = base + drift(1)
    chain = {"base": base, "middle": middle, "end": middle + drift(2), "other": base + drift(3)}
    assert grow_tree(family(chain)).merges == ()


def test_other_programs_read_the_newick_and_names_are_quoted(lineage):
    lineage["o'hara/(x,y):1"] = lineage.pop("left/a")
    tree = grow_tree(family(lineage))
    read = Phylo.read(io.StringIO(tree.newick), "newick")
    names = {leaf.name.replace("\\'", "'").replace("''", "'") for leaf in read.get_terminals()}
    assert len(names) == len(lineage)
    assert "right/b/c" in names


def test_a_group_without_common_tokens_gets_no_tree():
    base = drift(0, 1.0)
    other = Fingerprint(ModelSummary("x", None, None, "llama", N, 2, R), (b"else",) * 1, base[:1], 1)
    tree = grow_tree({"a": kept("a", base), "x": other})
    assert tree.newick is None and "x is not in the tree" in tree.notes[0]
    apart = replace(kept("a", base), tokens=tuple(f"other{at}".encode() for at in range(len(base))))
    tree = grow_tree({"a": kept("a", base), "x": apart})
    assert tree.newick is None and "in common" in tree.notes[0]


def test_models_at_branching_points_are_named_with_their_branches(lineage):
    inner = {one.model: {frozenset(branch) for branch in one.branches} for one in grow_tree(family(lineage)).inner}
    rest = frozenset(lineage)
    assert inner.keys() == {"base", "left", "right", "right/b"}
    assert inner["left"] == {frozenset({"left/a"}), frozenset({"left/b"}), rest - {"left", "left/a", "left/b"}}
    assert inner["right/b"] == {frozenset({"right/b/c"}), rest - {"right/b", "right/b/c"}}


def test_a_common_bias_of_siblings_makes_no_branch(lineage):
    base, bent = drift(0, 1.0), drift(50, 0.06)
    rows = {"base": base, **{f"tuned/{i}": base + drift(10 + i) + (i < 3) * bent for i in range(6)}}
    tree = grow_tree(family(rows))
    assert splits(tree) == {}
    assert tree.centre == "base"


def layer_rows(*seeds: int) -> LayerRows:
    one = [torch.randn(16, N, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return LayerRows(tuple(one), tuple(2.0 * rows for rows in one))


def test_shares_of_a_merge_are_measured_layer_by_layer(lineage):
    first, second = layer_rows(1, 2, 3, 9), layer_rows(4, 5, 6, 9)
    shares = (0.2, 0.5, 0.9)
    made = [s * a + (1.0 - s) * b for s, a, b in zip(shares, first.attention, second.attention, strict=False)]
    merged = LayerRows((*made, first.attention[3]), (*(2.0 * rows for rows in made[:2]), None, first.mlp[3]))
    lineage["merge"] = 0.5 * lineage["left/a"] + 0.5 * lineage["right/a"]
    closer = CloserLook({"merge": merged, "left/a": first, "right/a": second})
    (merge,) = grow_tree(family(lineage), closer=closer).merges
    flip = merge.parents == ("right/a", "left/a")
    found = [(layer.attention, layer.mlp) for layer in merge.layers]
    # The parents share the last layer, so it is not informative.
    assert found[3] == (None, None) and found[2][1] is None
    for at, share in enumerate(shares):
        assert found[at][0] == pytest.approx(1.0 - share if flip else share, abs=1e-5)
    assert found[1][1] == pytest.approx(0.5, abs=1e-5)
    assert "by layer, attention: " in str(grow_tree(family(lineage), closer=closer))


def test_without_layers_a_merge_has_no_shares_by_layer(lineage):
    lineage["merge"] = 0.5 * lineage["left/a"] + 0.5 * lineage["right/a"]
    (merge,) = grow_tree(family(lineage)).merges
    assert merge.layers == ()


def test_no_root_is_named_and_no_model_is_the_first(lineage):
    """Rounding can be undone by adding digits, so a rounded member roots no tree."""
    scale = lineage["left"].abs().amax(dim=1, keepdim=True) / 7
    lineage["left/quantised"] = (lineage["left"] / scale).round() * scale
    lineage["merge"] = 0.5 * lineage["left/a"] + 0.5 * lineage["right/a"]
    tree = grow_tree(family(lineage))
    assert "No root: distances have no direction" in str(tree)
    assert "came first" not in str(tree) and "descend" not in str(tree)
    assert "Each of three models on a line is a weighted sum of the other two: none is the first" in str(tree)
    assert not {"root_candidates", "evidence"} & tree.to_dict().keys()


@pytest.mark.parametrize("size", [0.02, 0.05, 0.1])
def test_a_leaf_that_drifted_little_is_not_between(size):
    """Its way to any other model begins with its own short branch, and the cosine of long and short ways is small."""
    base = drift(0, 1.0)
    rows = {"base": base, "leaf": base + drift(1, size), "third": base + drift(2, 0.5)}
    assert {one.model for one in grow_tree(family(rows)).inner} == {"base"}


def test_a_member_that_was_rescaled_in_place_is_brought_back(lineage):
    lineage["left/a"] = 3.0 * lineage["left/a"]
    tree = grow_tree(family(lineage))
    assert has(tree, "left", "left/a", "left/b") > 0.95
    assert any("left/a was divided by 3" in note for note in tree.notes)


def test_a_noised_member_is_not_taken_for_a_rescaled_one(lineage):
    lineage["left/a"] = lineage["left/a"] + drift(77, 1.2)
    assert not any("divided" in note for note in grow_tree(family(lineage)).notes)


def test_copies_are_named_and_make_no_branches(lineage):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(9))
    lineage["left/a-permuted"] = lineage["left/a"][:, order]
    lineage["copy"] = lineage["base"].clone()
    tree = grow_tree(family(lineage))
    assert tree.copies == {"left/a-permuted": "left/a", "copy": "base"}
    assert not set(tree.members) & set(tree.copies)
    assert "once aligned, copy has the same rows of these tokens as base" in str(tree)
    assert has(tree, "left", "left/a", "left/b") > 0.95


def test_without_biopython_the_tree_is_missing_and_nothing_else(lineage, monkeypatch):
    whole = grow_tree(family(lineage))
    monkeypatch.setitem(sys.modules, "Bio.Phylo.TreeConstruction", None)
    found = grow_tree(family(lineage))
    assert (found.newick, found.splits) == (None, ())
    assert replace(found, newick=whole.newick, splits=whole.splits, notes=whole.notes) == whole
    (note,) = set(found.notes) - set(whole.notes)
    assert note.startswith("No tree is drawn, because biopython is missing: pip install ") and "[tree]" in note
    assert note in str(found) and str(Path(mdir_hf.__file__).parent.parent) not in note
