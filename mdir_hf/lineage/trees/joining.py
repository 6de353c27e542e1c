"""Neighbour joining with support values from resampled tokens; output as Newick and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import MissingExtraError
from mdir_hf.installing import install_command
from mdir_hf.names import shown_name

FloatArray = npt.NDArray[np.float64]

RESAMPLES = 200
"""Number of resampled trees for the support of branches; at a support of 95 % the standard error is 1.5 %."""

LEAST_SUPPORT = 0.7
"""Branches in a smaller share of the resampled trees are left out."""

SHORTEST_BRANCH = 0.1
"""Branches shorter than this share of the smallest distance across them are left out. Models trained on similar text
drift in similar directions, which looks like a short branch, and resampling tokens does not reveal it. Such branches
had shares up to 0.064, true ones at least 0.99."""


@dataclass(frozen=True, slots=True)
class Split:
    """A branch of the tree, which divides the models into two parts.

    Attributes:
        members: The smaller part.
        length: Length in squared weight units.
        support: Share of the trees of resampled tokens that have it.
    """

    members: tuple[str, ...]
    length: float
    support: float


def join(distances: FloatArray, resampled: Iterable[FloatArray], names: Sequence[str]) -> tuple[str, tuple[Split, ...]]:
    """Grow an unrooted tree without branches that have too little support or length.

    Args:
        distances: ``(m, m)``, at least three models.
        resampled: Distances on resampled tokens, ``RESAMPLES`` matrices.
        names: Names of the m models.

    Returns:
        The tree as Newick, and its inner branches, larger sides first.

    Raises:
        MissingExtraError: If biopython, which joins the neighbours, is not installed.
    """
    tree = _neighbour_joining(distances)
    whole = frozenset(range(len(names)))
    lengths = _splits(tree, whole)
    counts: Counter[frozenset[int]] = Counter()
    for sample in resampled:
        counts.update(_splits(_neighbour_joining(sample), whole).keys())
    support = {
        side: share
        for side, length in lengths.items()
        if (share := counts[side] / RESAMPLES) >= LEAST_SUPPORT
        and length >= SHORTEST_BRANCH * float(distances[np.ix_(sorted(side), sorted(whole - side))].min())
    }
    _collapse(tree.root, set(lengths) - set(support), whole)
    splits = tuple(
        Split(tuple(names[at] for at in sorted(_smaller(side, whole))), lengths[side], share)
        for side, share in sorted(support.items(), key=lambda item: (-len(item[0]), sorted(item[0])))
    )
    return _newick(tree.root, names, support, whole) + ";", splits


def drawn(newick: str) -> str:
    """Draw a tree in characters, from left to right."""
    from Bio import Phylo

    tree = Phylo.read(StringIO(newick), "newick")
    for leaf in tree.get_terminals():
        leaf.name = shown_name(leaf.name, length=38)  # width available in the drawing
    drawing = StringIO()
    Phylo.draw_ascii(tree, file=drawing)
    return drawing.getvalue().rstrip()


def _smaller(side: frozenset[int], whole: frozenset[int]) -> frozenset[int]:
    return min(side, whole - side, key=len)


def _collapse(clade: Any, dropped: Set[frozenset[int]], whole: frozenset[int]) -> None:  # noqa: ANN401
    """Attach the children of dropped branches to their grandparents; the dropped lengths are noise."""
    children: list[Any] = []
    for child in clade.clades:
        _collapse(child, dropped, whole)
        children += child.clades if not child.is_terminal() and _side(child, whole) in dropped else [child]
    clade.clades = children


def _neighbour_joining(distances: FloatArray) -> Any:  # noqa: ANN401 - biopython has no types
    try:
        from Bio.Phylo.TreeConstruction import DistanceMatrix, DistanceTreeConstructor
    except ImportError as exc:
        command = install_command(
            "tree", for_others=True
        )  # a Space shows it to visitors, so it must not contain a local path
        raise MissingExtraError(f"no tree is drawn, because biopython is missing: {command}") from exc
    labels = [str(at) for at in range(len(distances))]
    lower = [[float(d) for d in row[: at + 1]] for at, row in enumerate(distances)]
    return DistanceTreeConstructor().nj(DistanceMatrix(labels, lower))


def _splits(tree: Any, whole: frozenset[int]) -> dict[frozenset[int], float]:  # noqa: ANN401
    """Return the inner branches: the side without model 0, and the length, with negative ones (noise) as 0."""
    lengths: dict[frozenset[int], float] = {}
    for clade in tree.get_nonterminals():
        side = _side(clade, whole)
        if 1 < len(side) < len(whole) - 1:
            lengths[side] = lengths.get(side, 0.0) + max(0.0, clade.branch_length or 0.0)
    return lengths


def _side(clade: Any, whole: frozenset[int]) -> frozenset[int]:  # noqa: ANN401
    below = frozenset(int(leaf.name) for leaf in clade.get_terminals())
    return whole - below if 0 in below else below


def _newick(clade: Any, names: Sequence[str], support: Mapping[frozenset[int], float], whole: frozenset[int]) -> str:  # noqa: ANN401
    length = f":{max(0.0, clade.branch_length or 0.0):.6g}"
    if clade.is_terminal():
        return "'" + names[int(clade.name)].replace("'", "''") + "'" + length
    inside = ",".join(_newick(child, names, support, whole) for child in clade.clades)
    share = support.get(_side(clade, whole))
    return f"({inside})" + ("" if share is None else f"{100 * share:.0f}") + length
