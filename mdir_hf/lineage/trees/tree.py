"""Family trees of homologous models, built from distances between aligned rows.

If drifts are independent, squared distances add up along a lineage, and neighbour joining finds the tree. Distances
show no direction. Merges do not fit in a tree, so they are found first and left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from typing import Any

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import InputError, MissingExtraError
from mdir_hf.installing import require_extra
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.trees.aligning import CloserLook, LayerRows, align_rows
from mdir_hf.lineage.trees.placing import (
    InnerModel,
    Merge,
    equal_models,
    find_merges,
    inner_models,
    layer_shares,
)
from mdir_hf.method.distances import TokenGeometry
from mdir_hf.names import shown_name

FloatArray = npt.NDArray[np.float64]

RESAMPLES = 200
"""Number of resampled trees for estimating support; at a support of 95%, the standard error is 1.5%."""

LEAST_SUPPORT = 0.7
"""Branches found in a smaller fraction of the resampled trees are left out."""

SHORTEST_BRANCH = 0.1
"""Branches shorter than this fraction of the smallest distance between models on their two sides are left out. Models
trained on similar text drift in similar directions, which looks like a short branch even if tokens are resampled. The
fraction was at most 0.064 for such branches, and at least 0.99 for true ones."""


@dataclass(frozen=True, slots=True)
class Split:
    """A branch that divides the models into two parts.

    Attributes:
        members: The smaller part.
        length: Length in squared weight units.
        support: Share of resampled trees that contain this branch.
    """

    members: tuple[str, ...]
    length: float
    support: float


def join(distances: FloatArray, resampled: Iterable[FloatArray], names: Sequence[str]) -> tuple[str, tuple[Split, ...]]:
    """Build an unrooted tree of the branches with enough support and length.

    ``distances`` is ``(m, m)``, m >= 3; ``resampled`` contains ``RESAMPLES`` such matrices. Returns the tree in Newick
    format, and its inner branches.

    Raises:
        MissingExtraError: If biopython is not installed.
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
    """Draw a tree as text, from left to right."""
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
    children: list[Any] = []
    for child in clade.clades:
        _collapse(child, dropped, whole)
        children += child.clades if not child.is_terminal() and _side(child, whole) in dropped else [child]
    clade.clades = children


def _neighbour_joining(distances: FloatArray) -> Any:  # noqa: ANN401 - biopython has no types
    # A Space shows the command to visitors, so it must not contain a local path.
    purpose = "no tree is drawn, because biopython is missing"
    require_extra("tree", "Bio.Phylo.TreeConstruction", purpose=purpose, for_others=True)
    from Bio.Phylo.TreeConstruction import DistanceMatrix, DistanceTreeConstructor

    labels = [str(at) for at in range(len(distances))]
    lower = [[float(d) for d in row[: at + 1]] for at, row in enumerate(distances)]
    return DistanceTreeConstructor().nj(DistanceMatrix(labels, lower))


def _splits(tree: Any, whole: frozenset[int]) -> dict[frozenset[int], float]:  # noqa: ANN401
    """Return each inner branch's length, keyed by the side that excludes model 0."""
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


SCHEMA = "mdir-hf/tree/1"


@dataclass(frozen=True, slots=True)
class FamilyTree:
    """The tree of one group of homologous models.

    Attributes:
        newick: The tree, with branch lengths, support in percent and quoted names; None if there are fewer than three
            models or biopython is not installed.
        distances: Mean squared difference per entry between aligned rows, ``(m, m)``.
        centre: The model in ``inner`` that lies between every pair of others, or None.
        copies: Maps each omitted model to the model that has the same rows.
    """

    members: tuple[str, ...]
    newick: str | None
    splits: tuple[Split, ...]
    distances: tuple[tuple[float, ...], ...]
    merges: tuple[Merge, ...]
    centre: str | None
    tokens: int
    notes: tuple[str, ...] = ()
    inner: tuple[InnerModel, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{len(self.members)} models, distances from {self.tokens} tokens"]
        if self.newick is not None:
            lines.append(drawn(self.newick))
            for split in self.splits:
                lines.append(f"  {100 * split.support:3.0f} %  {', '.join(split.members)} | the others")
        elif len(self.members) == 2:
            lines.append(f"  {self.members[0]} and {self.members[1]}: {self.distances[0][1]:.3g} apart")
        lines += [
            f"  once aligned, {name} has the same rows of these tokens as {first}"
            for name, first in self.copies.items()
        ]
        for merge in self.merges:
            lines += _merge_lines(merge)
        for inner_model in self.inner:
            branches = " | ".join(_branch_text(branch, tree_size=len(self.members)) for branch in inner_model.branches)
            lines.append(f"  {inner_model.model} lies between {branches}")
        if self.merges:
            lines.append("  Each of three models on a line is a weighted sum of the other two: none is the first.")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def _branch_text(branch: Sequence[str], *, tree_size: int) -> str:
    is_most = len(branch) > 4 and 2 * len(branch) >= tree_size - 1
    return f"the other {len(branch)}" if is_most else ", ".join(branch)


def _merge_lines(merge: Merge) -> list[str]:
    first, second = merge.parents
    share = f"{100 * merge.share:.0f} %"
    lines = [f"  {merge.model} lies between {first} ({share}) and {second} ({100 * (1.0 - merge.share):.0f} %)"]
    for what in ("attention", "mlp"):
        shares = [getattr(layer, what) for layer in merge.layers]
        if any(share_of_layer is not None for share_of_layer in shares):
            percentages = " ".join(
                "-" if share_of_layer is None else f"{100 * share_of_layer:.0f}" for share_of_layer in shares
            )
            lines.append(f"    % of {first} by layer, {'MLP' if what == 'mlp' else what}: {percentages}")
    return lines


def trees_to_json(trees: Sequence[FamilyTree]) -> str:
    """Return a JSON object with the schema ``mdir-hf/tree/1``."""
    body = {"schema": SCHEMA, "trees": [tree.to_dict() for tree in trees]}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)


def grow_tree(
    fingerprints: Mapping[str, Fingerprint], *, seed: int = 0, closer: CloserLook | None = None
) -> FamilyTree:
    """Build the tree of two or more models that a survey found to be related.

    ``seed`` is used for the bootstrap. For m models of width n, takes O(tokens m^2 n) time, and O(m^3) for each of
    ``RESAMPLES`` trees.
    """
    names = tuple(fingerprints)
    if len(names) < 2:
        raise InputError("a tree needs at least two models")
    closer = closer or CloserLook()
    aligned = align_rows(fingerprints)
    notes = list(aligned.notes)
    if len(aligned.names) < 2:
        return FamilyTree(aligned.names or names, None, (), (), (), None, aligned.n_tokens, tuple(notes))
    geometry = aligned.geometry(seed=seed)
    # Copies would only add branches of length 0.
    first_of = equal_models(geometry.distances(), aligned.names)
    positions = [at for at, name in enumerate(aligned.names) if first_of[name] == name]
    geometry = replace(geometry, products=geometry.products[:, positions][:, :, positions])
    placed_names = tuple(aligned.names[at] for at in positions)
    copies = {name: first for name, first in first_of.items() if name != first}
    layers = {
        name: closer.layers[name].carried(aligned.alignments[name]) for name in placed_names if name in closer.layers
    }
    merges = tuple(_with_layers(merge, layers) for merge in find_merges(geometry.distances(), placed_names))
    not_merged = [at for at, name in enumerate(placed_names) if name not in {merge.model for merge in merges}]
    members = tuple(placed_names[at] for at in not_merged)
    distances = geometry.distances()[np.ix_(not_merged, not_merged)]
    newick: str | None = None
    splits: tuple[Split, ...] = ()
    if len(members) >= 3:
        try:
            newick, splits = join(distances, _resampled(geometry, not_merged, seed), members)
        except MissingExtraError as exc:  # then only the tree is missing
            notes.append(f"{exc.message[:1].upper()}{exc.message[1:]}")
    inner = inner_models(distances, members)
    notes.append(f"No root: distances have no direction. Rows are aligned with {aligned.pivot}.")
    return FamilyTree(
        members=members,
        copies=copies,
        newick=newick,
        splits=splits,
        distances=tuple(tuple(float(d) for d in row) for row in distances),
        merges=merges,
        inner=inner,
        centre=next(
            (inner_model.model for inner_model in inner if len(inner_model.branches) == len(members) - 1), None
        ),
        tokens=aligned.n_tokens,
        notes=(*notes, *closer.notes),
    )


def _with_layers(merge: Merge, layers: Mapping[str, LayerRows]) -> Merge:
    model_layers = [layers[name] for name in (merge.model, *merge.parents) if name in layers]
    return replace(merge, layers=layer_shares(*model_layers)) if len(model_layers) == 3 else merge


def _resampled(geometry: TokenGeometry, positions: Sequence[int], seed: int) -> Iterable[FloatArray]:
    rng = np.random.default_rng(seed)
    n_groups = len(geometry.n_tokens)
    of_chosen = replace(geometry, products=geometry.products[:, positions][:, :, positions])
    for _ in range(RESAMPLES):
        yield of_chosen.distances(rng.multinomial(n_groups, np.full(n_groups, 1.0 / n_groups)))
