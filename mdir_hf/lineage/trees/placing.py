"""Finds models that lie between others (merges, ancestors, middles of chains) from distances and equal rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.csgraph import connected_components

from mdir_hf.lineage.trees.closer import LayerRows

FloatArray = npt.NDArray[np.float64]

MERGE_RESIDUAL = 0.15
"""A model is called a merge of two others where its squared distance from the line between them is less than this share
of its squared distance to the nearer one. For an ancestor or the middle of a chain that share is a half or more."""

MERGE_SHARES = (0.1, 0.9)
"""A merge has at least the first of these shares of each parent, and at most the second. A model very near to one of
two others is not a merge."""

ON_PATH_COSINE = 0.2
"""A model lies on the path between two others where the cosine of the drifts to them is below this. Fine-tunes of one
model on text of one kind have up to 0.12; two models that share k steps out of a and b have k / sqrt(a b)."""

SAME_BRANCH_COSINE = 0.3
"""Above this cosine two models are on the same branch. Between this and ``ON_PATH_COSINE`` nothing is said."""

FEWEST_EQUAL_ROWS = 8
"""Fewer rows that are equal bit for bit say nothing."""


@dataclass(frozen=True, slots=True)
class LayerShare:
    """What a merge has of its first parent in one layer.

    Attributes:
        layer: 0-based.
        attention: Share in the projection of V; 0 where everything is the second parent's. None where nothing was read,
            or the parents do not differ there.
        mlp: Share in the up projection.
    """

    layer: int
    attention: float | None
    mlp: float | None


@dataclass(frozen=True, slots=True)
class Merge:
    """A model that lies between two others.

    Attributes:
        model: The model.
        parents: The two others.
        share: Share of the first parent, of the embedding's sampled rows.
        residual: Squared distance from the line between them, over the squared distance to the nearer parent.
        layers: Shares of the first parent layer by layer; empty where layers were not read.
    """

    model: str
    parents: tuple[str, str]
    share: float
    residual: float
    layers: tuple[LayerShare, ...] = ()


@dataclass(frozen=True, slots=True)
class InnerModel:
    """A model at which the tree branches, or through which a chain runs.

    Its own ancestor is on one of its branches at most, and weights do not say on which. The models on its other
    branches descend from it.

    Attributes:
        model: The model.
        branches: The other models, by branch.
        cosine: The largest cosine between drifts to models of different branches; 0 where it lies exactly on the path.
        untouched: Of the pairs of models on different branches: how many also show it by rows that are equal bit for
            bit, and how many there are.
    """

    model: str
    branches: tuple[tuple[str, ...], ...]
    cosine: float
    untouched: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Between:
    """A model that lies between two others by rows that are the same bit for bit.

    Attributes:
        model: The one in the middle.
        ends: The other two.
        equal_rows: Rows that it has from one of them alone, and from the other alone.
    """

    model: str
    ends: tuple[str, str]
    equal_rows: tuple[int, int]


def equal_models(squared: FloatArray, names: Sequence[str]) -> dict[str, str]:
    """Return for each model the first model with the same rows: an earlier one, or itself.

    Args:
        squared: ``(m, m)`` squared distances, 0 between models whose rows are the same once they are aligned.
        names: Of the m models.
    """
    return {name: names[int(np.flatnonzero(squared[at] <= 0.0)[0])] for at, name in enumerate(names)}


def find_merges(squared: FloatArray, names: Sequence[str]) -> tuple[Merge, ...]:
    """Find models that lie on the line between two others. Independent drifts put no model there.

    Args:
        squared: ``(m, m)`` squared distances.
        names: Of the m models.
    """
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
    # A merge and its parents may each seem to lie between the other two; the one with the least residual is kept.
    merges: list[Merge] = []
    for merge in sorted(found, key=lambda merge: merge.residual):
        if not any(merge.model in other.parents for other in merges):
            merges.append(merge)
    return tuple(merges)


def layer_shares(model: LayerRows, first: LayerRows, second: LayerRows) -> tuple[LayerShare, ...]:
    """Measure what a merge has of its first parent, layer by layer.

    Args:
        model: The merge.
        first: Its first parent, in the same channels.
        second: The other one.

    Returns:
        The shares; empty where the three have not as many layers.
    """
    n_layers = len(model.attention)
    if len({n_layers, len(first.attention), len(second.attention)}) > 1:
        return ()
    return tuple(
        LayerShare(
            at,
            _share(model.attention[at], first.attention[at], second.attention[at]),
            _share(model.mlp[at], first.mlp[at], second.mlp[at]),
        )
        for at in range(n_layers)
    )


def inner_models(squared: FloatArray, names: Sequence[str]) -> tuple[InnerModel, ...]:
    """Find models that lie on the path between others.

    Args:
        squared: ``(m, m)`` squared distances.
        names: Of the m models.

    Returns:
        Those for which the others clearly fall into two or more branches. Cost O(m^3).
    """
    found = []
    for b in range(len(names)):
        others = [at for at in range(len(names)) if at != b and squared[at, b] > 0.0]
        to_b = squared[others, b]
        inner = 0.5 * (to_b[:, None] + to_b[None, :] - squared[np.ix_(others, others)])
        cosines = np.triu(inner / np.sqrt(to_b[:, None] * to_b[None, :]), 1)
        n_branches, branch_of = connected_components(cosines > SAME_BRANCH_COSINE, directed=False)
        if n_branches < 2:
            continue
        largest = float(cosines[branch_of[:, None] != branch_of[None, :]].max())
        if largest < ON_PATH_COSINE:
            members = [[names[others[at]] for at in np.flatnonzero(branch_of == k)] for k in range(n_branches)]
            branches = tuple(sorted(map(tuple, members), key=lambda branch: (len(branch), branch)))
            found.append(InnerModel(names[b], branches, largest))
    return tuple(found)


def between_by_equal_rows(
    rows: Mapping[str, torch.Tensor], middles: Sequence[str] | None = None
) -> tuple[Between, ...]:
    """Find models that lie between two others, by rows that training left unchanged.

    Such a model shares some rows with one relative and other rows with the other; the two share no rows without it.

    Args:
        rows: By name, ``(r, n)``, the same tokens, as stored.
        middles: Models that may lie between others; None: all.

    Returns:
        Triples. Rows that are equal in all three do not count. Cost O(m^2 r n), and O(m^2 r) for each middle.
    """
    names = list(rows)
    middles = [name for name in names if middles is None or name in middles]
    if not middles:
        return ()
    equal = {
        frozenset(pair): (rows[pair[0]] == rows[pair[1]]).all(dim=1).numpy()
        for pair in combinations(names, 2)
        if rows[pair[0]].shape == rows[pair[1]].shape
    }
    found = []
    for middle in middles:
        for a, c in combinations([name for name in names if name != middle], 2):
            sides = [equal.get(frozenset(pair)) for pair in ((middle, a), (middle, c), (a, c))]
            if any(side is None for side in sides):
                continue
            with_a, with_c, ends = (np.asarray(side) for side in sides)
            n_a, n_c = int((with_a & ~with_c).sum()), int((with_c & ~with_a).sum())
            if min(n_a, n_c) >= FEWEST_EQUAL_ROWS and not (ends & ~with_a).any():
                found.append(Between(middle, (a, c), (n_a, n_c)))
    return tuple(found)


def _share(merged: torch.Tensor | None, a: torch.Tensor | None, b: torch.Tensor | None) -> float | None:
    if merged is None or a is None or b is None or not merged.shape == a.shape == b.shape:
        return None
    apart = (a - b).double()
    n_squared = float(apart.square().sum())
    # Where the parents do not differ, no share can be measured.
    return None if n_squared == 0.0 else float(((merged - b).double() * apart).sum()) / n_squared
