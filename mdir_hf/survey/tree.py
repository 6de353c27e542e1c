"""Family trees of homologous models, from distances of their aligned rows.

Where drifts are independent, squared distances add along a lineage, and neighbour joining finds the tree. The tree has
no root: weights do not say who came first. A model with two parents is no branch of a tree, and is told apart before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError
from mdir_hf.homology.distances import Alignment, TokenGeometry, token_geometry
from mdir_hf.homology.embedding import EmbeddingTest, matched_scale
from mdir_hf.names import shown_name
from mdir_hf.survey.fingerprint import Fingerprint

SCHEMA = "mdir-hf/tree/1"
FloatArray = npt.NDArray[np.float64]

RESAMPLES = 200
"""Trees for the support of branches: a support of 95 % is known to 1.5 %."""

FEWEST_TOKENS = 64
"""A group with fewer tokens common to all its models gets no tree."""

LOG_ALPHA = -23.0
"""Alignments are looked for among models that a survey has found related already."""

LARGEST_PLAIN_SCALE = 1.25
"""Up to this factor a fitted scale is noise, or drift, and a tree takes rows as they are; beyond, somebody rescaled."""

MERGE_RESIDUAL = 0.15
"""A model is called a merge of two others where what lies off the line between them is less than this share of its
squared distance to the nearer one. An ancestor or a middle of a chain has a half or more."""

MERGE_SHARES = (0.1, 0.9)
"""And where it has at least so much of either: a model beside its own copy is no merge."""

ON_PATH_COSINE = 0.1
"""A model lies on the path between two others where the cosine of the drifts to them is below this."""


@dataclass(frozen=True, slots=True)
class Merge:
    """A model that lies between two others.

    Attributes:
        model: The model.
        parents: The two others.
        share: Share of the first parent, of the embedding's sampled rows.
        residual: What lies off the line between them, as a share of the squared distance to the nearer parent.
    """

    model: str
    parents: tuple[str, str]
    share: float
    residual: float


@dataclass(frozen=True, slots=True)
class Split:
    """A branch of the tree: it parts the models in two.

    Attributes:
        members: The smaller part.
        length: Of the branch, in squared weight units.
        support: Share of the trees of resampled tokens that have it.
    """

    members: tuple[str, ...]
    length: float
    support: float


@dataclass(frozen=True, slots=True)
class FamilyTree:
    """The tree of one group of homologous models.

    Attributes:
        members: The models in the tree.
        newick: The tree with branch lengths and supports in per cent, names quoted; None with fewer than three models.
        splits: Its inner branches.
        distances: Mean squared difference per entry between aligned rows, member by member.
        merges: Models left out of the tree because they have two parents in the group.
        centre: The model that lies on the path between all pairs of others, or None. It may be their ancestor; if so
            is not in the weights.
        tokens: Tokens that the distances rest on.
        notes: What a reader should know.
    """

    members: tuple[str, ...]
    newick: str | None
    splits: tuple[Split, ...]
    distances: tuple[tuple[float, ...], ...]
    merges: tuple[Merge, ...]
    centre: str | None
    tokens: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain containers."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{len(self.members)} models, distances from {self.tokens} tokens"]
        if self.newick is not None:
            lines.append(_drawn(self.newick))
            for split in self.splits:
                lines.append(f"  {100 * split.support:3.0f} %  {', '.join(split.members)} | the others")
        elif len(self.members) == 2:
            lines.append(f"  {self.members[0]} and {self.members[1]}: {self.distances[0][1]:.3g} apart")
        for merge in self.merges:
            first, second = merge.parents
            lines.append(
                f"  {merge.model} lies between {first} ({100 * merge.share:.0f} %) and {second} "
                f"({100 * (1.0 - merge.share):.0f} %)"
            )
        if self.centre is not None:
            lines.append(f"  {self.centre} lies on the path between all pairs of others, as their ancestor would")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def trees_to_json(trees: Sequence[FamilyTree]) -> str:
    """One JSON object of the schema ``mdir-hf/tree/1``."""
    body = {"schema": SCHEMA, "trees": [tree.to_dict() for tree in trees]}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)


def grow_tree(fingerprints: Mapping[str, Fingerprint], *, seed: int = 0) -> FamilyTree:
    """Grow the tree of a group of models that a survey has found related.

    Args:
        fingerprints: By name, at least two.
        seed: Seed of the bootstrap over tokens.

    Returns:
        The tree. Distances are between rows on the tokens that all of them keep, aligned with one of them.
        Cost O(tokens m^2 n) for m models of width n, and ``RESAMPLES`` times O(m^3).

    Raises:
        InputError: If biopython, which joins the neighbours, is not installed, or there is one model only.
    """
    names = tuple(fingerprints)
    if len(names) < 2:
        raise InputError("a tree needs at least two models")
    tokens = sorted(set.intersection(*(set(one.tokens) for one in fingerprints.values())))
    if len(tokens) < FEWEST_TOKENS:
        why = f"the {len(names)} models have {len(tokens)} sampled tokens in common; a tree needs {FEWEST_TOKENS}"
        return FamilyTree(names, None, (), (), (), None, len(tokens), (why,))
    rows = {name: _rows(one, tokens) for name, one in fingerprints.items()}
    pivot = _pivot(rows)
    notes: list[str] = []
    alignments = [_alignment(rows[pivot], rows[name], name, notes) if name != pivot else None for name in names]
    placed = [name for name, alignment in zip(names, alignments, strict=True) if name == pivot or alignment is not None]
    aligned = [alignment or Alignment.identity(rows[pivot].shape[1])
               for name, alignment in zip(names, alignments, strict=True) if name in placed]  # fmt: skip
    if len(placed) < 2:
        return FamilyTree(tuple(placed), None, (), (), (), None, len(tokens), tuple(notes))
    geometry = token_geometry([[rows[name] for name in placed]], alignments=aligned, seed=seed)
    merges = _merges(geometry, placed)
    kept = [at for at, name in enumerate(placed) if name not in {merge.model for merge in merges}]
    members = tuple(placed[at] for at in kept)
    distances = geometry.distances()[np.ix_(kept, kept)]
    newick: str | None = None
    splits: tuple[Split, ...] = ()
    if len(members) >= 3:
        newick, splits = _join(distances, _resampled(geometry, kept, seed), members)
    notes.append(f"The tree has no root: which model came first is not in the weights. Rows are aligned with {pivot}.")
    return FamilyTree(
        members=members,
        newick=newick,
        splits=splits,
        distances=tuple(tuple(float(d) for d in row) for row in distances),
        merges=merges,
        centre=_centre(geometry, kept, placed),
        tokens=len(tokens),
        notes=tuple(notes),
    )


def _rows(one: Fingerprint, tokens: Sequence[bytes]) -> torch.Tensor:
    place = {token: at for at, token in enumerate(one.tokens)}
    return one.rows[[place[token] for token in tokens]].float()


def _pivot(rows: Mapping[str, torch.Tensor]) -> str:
    """The widest model: everything can be aligned with it."""
    return max(rows, key=lambda name: rows[name].shape[1])


def _alignment(pivot: torch.Tensor, other: torch.Tensor, name: str, notes: list[str]) -> Alignment | None:
    """Carry a model onto the pivot's channels by the matching that Algorithm 1 finds."""
    if pivot.shape == other.shape and _is_aligned(pivot, other):
        return Alignment.identity(pivot.shape[1])
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    matching = test.screen(pivot, other, is_last=True).matching
    if matching is None or not test.is_settled:
        notes.append(f"{name} is not in the tree: its sampled rows cannot be aligned with the others'.")
        return None
    scale = matched_scale(pivot, other, matching)
    is_plain = 1.0 / LARGEST_PLAIN_SCALE < scale < LARGEST_PLAIN_SCALE
    if not is_plain:
        notes.append(f"{name} was divided by {scale:.3g}, the scale that fits its rows to the others'.")
    return Alignment(
        source=matching.candidate,
        target=matching.reference,
        signs=matching.signs.astype(np.float64) if matching.signed else None,
        scale=1.0 if is_plain else 1.0 / scale,
    )


def _is_aligned(pivot: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether every channel is most like the one of its own number: then nothing was moved."""
    x, y = (rows - rows.mean(dim=0) for rows in (pivot, other))
    x, y = (rows / rows.norm(dim=0).clamp(min=1e-12) for rows in (x, y))
    own = (x * y).sum(dim=0)
    # 0.5 between channels of their own number, over every token, does not happen among permuted ones.
    return float(own.median()) > 0.5


def _merges(geometry: TokenGeometry, names: Sequence[str]) -> tuple[Merge, ...]:
    """Find models that lie on the line between two others, which no tree of independent drifts puts there."""
    products = geometry.products.sum(axis=0)
    squared = np.diagonal(products)[:, None] + np.diagonal(products)[None, :] - 2.0 * products
    found: list[Merge] = []
    for i in range(len(names)):
        best: Merge | None = None
        for a, b in combinations([at for at in range(len(names)) if at != i], 2):
            if squared[a, b] <= 0.0:
                continue
            # The point of the line from B to A that is nearest to model i: <i - B, A - B> / |A - B|^2.
            inner = 0.5 * (squared[i, b] + squared[a, b] - squared[i, a])
            share = inner / squared[a, b]
            nearer = min(squared[i, a], squared[i, b])
            if not MERGE_SHARES[0] < share < MERGE_SHARES[1] or nearer <= 0.0:
                continue
            residual = max(0.0, squared[i, b] - inner * share) / nearer
            if residual < MERGE_RESIDUAL and (best is None or residual < best.residual):
                best = Merge(names[i], (names[a], names[b]), float(share), float(residual))
        if best is not None:
            found.append(best)
    # Of models that each lie between the others (a merge, and nothing else between its parents) the surest are kept.
    merges: list[Merge] = []
    for merge in sorted(found, key=lambda merge: merge.residual):
        if not any(merge.model in other.parents for other in merges):
            merges.append(merge)
    return tuple(merges)


def _centre(geometry: TokenGeometry, kept: Sequence[int], names: Sequence[str]) -> str | None:
    """The model on the path between all pairs of others, if there is one."""
    if len(kept) < 3:
        return None
    products = geometry.products.sum(axis=0)
    squared = np.diagonal(products)[:, None] + np.diagonal(products)[None, :] - 2.0 * products
    worst: dict[int, float] = {}
    for b in kept:
        cosines = [
            (squared[a, b] + squared[c, b] - squared[a, c]) / (2.0 * np.sqrt(squared[a, b] * squared[c, b]))
            for a, c in combinations([at for at in kept if at != b], 2)
            if squared[a, b] > 0.0 and squared[c, b] > 0.0
        ]
        worst[b] = max(cosines, default=1.0)
    best = min(worst, key=worst.__getitem__)
    return names[best] if worst[best] < ON_PATH_COSINE else None


def _resampled(geometry: TokenGeometry, kept: Sequence[int], seed: int) -> Iterable[FloatArray]:
    """Distances on resampled groups of tokens."""
    rng = np.random.default_rng(seed)
    n_groups = len(geometry.n_tokens)
    products = geometry.products[:, kept][:, :, kept]
    for _ in range(RESAMPLES):
        counts = rng.multinomial(n_groups, np.full(n_groups, 1.0 / n_groups))
        summed = np.tensordot(counts, products, axes=1)
        norms = np.diagonal(summed)
        squared = norms[:, None] + norms[None, :] - 2.0 * summed
        yield np.maximum(squared, 0.0) / (float(counts @ geometry.n_tokens) * geometry.n_channels)


def _join(
    distances: FloatArray, resampled: Iterable[FloatArray], names: Sequence[str]
) -> tuple[str, tuple[Split, ...]]:
    """Neighbour joining, and how many trees of resampled tokens have each inner branch."""
    tree = _neighbour_joining(distances)
    whole = frozenset(range(len(names)))
    found = _splits(tree, whole)
    counts: Counter[frozenset[int]] = Counter()
    for sample in resampled:
        counts.update(_splits(_neighbour_joining(sample), whole).keys())
    support = {side: counts[side] / RESAMPLES for side in found}
    splits = tuple(
        Split(tuple(names[at] for at in sorted(side)), length, support[side])
        for side, length in sorted(found.items(), key=lambda item: (-len(item[0]), sorted(item[0])))
    )
    return _newick(tree.root, names, support, whole) + ";", splits


def _neighbour_joining(distances: FloatArray) -> Any:  # noqa: ANN401 - biopython has no types
    try:
        from Bio.Phylo.TreeConstruction import DistanceMatrix, DistanceTreeConstructor
    except ImportError as exc:
        raise InputError("a tree needs biopython: pip install 'mdir-hf[tree]'") from exc
    labels = [str(at) for at in range(len(distances))]
    lower = [[float(d) for d in row[: at + 1]] for at, row in enumerate(distances)]
    return DistanceTreeConstructor().nj(DistanceMatrix(labels, lower))


def _drawn(newick: str) -> str:
    from io import StringIO

    from Bio import Phylo

    tree = Phylo.read(StringIO(newick), "newick")
    for leaf in tree.get_terminals():
        leaf.name = shown_name(leaf.name, length=38)  # what the drawing has room for
    drawing = StringIO()
    Phylo.draw_ascii(tree, file=drawing)
    return drawing.getvalue().rstrip()


def _splits(tree: Any, whole: frozenset[int]) -> dict[frozenset[int], float]:  # noqa: ANN401
    """The inner branches: the side without model 0, and the length, negative ones (noise) as 0."""
    found: dict[frozenset[int], float] = {}
    for clade in tree.get_nonterminals():
        side = _side(clade, whole)
        if 1 < len(side) < len(whole) - 1:
            found[side] = found.get(side, 0.0) + max(0.0, clade.branch_length or 0.0)
    return found


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
