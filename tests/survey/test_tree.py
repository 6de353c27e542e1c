"""Trees of lineages whose drifts are drawn: the topology is known, and must come back."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from Bio import Phylo

from mdir_hf.report import ModelSummary
from mdir_hf.survey.fingerprint import Fingerprint
from mdir_hf.survey.tree import grow_tree

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
    """A two-level tree of seven leaves, a chain in it, and no merge."""
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
    """Support of the branch that parts these models from the rest, 0 where there is none."""
    found, side = splits(tree), frozenset(members)
    return found.get(side, found.get(frozenset(tree.members) - side, 0.0))


def test_a_two_level_tree_and_its_chain_come_back_with_support(lineage):
    tree = grow_tree(family(lineage))
    assert set(tree.members) == set(lineage)
    assert tree.merges == ()
    assert has(tree, "left", "left/a", "left/b") > 0.95
    assert has(tree, "right", "right/a", "right/b", "right/b/c") > 0.95
    assert has(tree, "right/b", "right/b/c") > 0.95


def test_distances_add_along_the_lineage(lineage):
    tree = grow_tree(family(lineage))
    d = {(a, b): tree.distances[i][j] for i, a in enumerate(tree.members) for j, b in enumerate(tree.members)}
    # Drifts of 0.3 per step; a mean of 57,600 squares is known to 0.6 %.
    assert d["base", "left"] == pytest.approx(0.09, rel=0.05)
    assert d["left/a", "right/b/c"] == pytest.approx(5 * 0.09, rel=0.05)


def test_permuted_flipped_rescaled_and_pruned_members_are_aligned_first(lineage):
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


def test_a_star_is_centred_on_its_known_ancestor():
    base = drift(0, 1.0)
    tree = grow_tree(family({"base": base, **{f"tuned/{i}": base + drift(10 + i) for i in range(5)}}))
    assert tree.centre == "base"


def test_a_star_without_its_ancestor_has_no_centre():
    base = drift(0, 1.0)
    assert grow_tree(family({f"tuned/{i}": base + drift(10 + i) for i in range(5)})).centre is None


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


def test_twelve_models_of_four_families_of_one_root():
    root = drift(0, 1.0)
    rows = {}
    for family_number in range(4):
        head = root + drift(100 + family_number)
        for member in range(3):
            rows[f"{family_number}/{member}"] = head + drift(1000 + 10 * family_number + member)
    tree = grow_tree(family(rows))
    for family_number in range(4):
        assert has(tree, *(f"{family_number}/{member}" for member in range(3))) > 0.95


def test_where_tokens_say_nothing_support_is_low():
    base = drift(0, 1.0)
    tree = grow_tree(family({f"tuned/{i}": base + drift(10 + i) for i in range(6)}))
    assert np.median(list(splits(tree).values())) < 0.9


def test_the_newick_is_read_by_others_and_names_are_quoted(lineage):
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
    assert tree.newick is None and "in common" in tree.notes[0]
