"""Find models that lie between others in a family tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.csgraph import connected_components

from mdir_hf.lineage.trees.aligning import LayerRows

FloatArray = npt.NDArray[np.float64]

MERGE_RESIDUAL = 0.15
"""A model is considered a merge of two others if its squared distance from the line between them is less than this
fraction of its squared distance to the nearer one. For an ancestor or a model in the middle of a chain, the fraction is
at least half."""

MERGE_SHARES = (0.1, 0.9)
"""Smallest and largest share of a parent in a merge; a model very close to one of the two is not considered a merge."""

ON_PATH_SHARE = 0.2
"""A model is on the path between two others if its ways to them have less than this share of the shorter one in common.
The share is up to 0.16 for fine-tunes of one model on similar text. At a leaf it is near 1: both ways begin with the
leaf's own branch. A cosine would be small there, too, if that branch is short and another one is long."""

SAME_BRANCH_SHARE = 0.3
"""Above this share, two models are on the same branch. Between ``ON_PATH_SHARE`` and this value, the position is
unknown."""


@dataclass(frozen=True, slots=True)
class LayerShare:
    """The share of a merge's first parent in one layer.

    Attributes:
        attention: Share in V; None if V was not read, or the parents do not differ.
    """

    layer: int
    attention: float | None
    mlp: float | None


@dataclass(frozen=True, slots=True)
class Merge:
    """A model on the line between two others.

    Attributes:
        share: The first parent's share in the sampled embedding rows.
        residual: Squared distance from the line between the parents, divided by the squared distance to the nearer
            parent.
        layers: The first parent's share in each layer; empty if layers were not read.
    """

    model: str
    parents: tuple[str, str]
    share: float
    residual: float
    layers: tuple[LayerShare, ...] = ()


@dataclass(frozen=True, slots=True)
class InnerModel:
    """A model at a branching point of the tree, or in the middle of a chain.

    Distances have no direction: they do not show on which branch its own ancestor is.

    Attributes:
        branches: The other models, grouped by branch.
        shared: Largest share of the shorter way that two ways to different branches have in common.
    """

    model: str
    branches: tuple[tuple[str, ...], ...]
    shared: float


def equal_models(squared: FloatArray, names: Sequence[str]) -> dict[str, str]:
    """Map each model to the first model with the same rows, using squared distances ``(m, m)``."""
    return {name: names[int(np.flatnonzero(squared[at] <= 0.0)[0])] for at, name in enumerate(names)}


def find_merges(squared: FloatArray, names: Sequence[str]) -> tuple[Merge, ...]:
    """Find models on the line between two others, using squared distances ``(m, m)``."""
    candidates: list[Merge] = []
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
            candidates.append(best)
    # A merge and its parents may each seem to lie between the other two; the one with the smallest residual is kept.
    merges: list[Merge] = []
    for merge in sorted(candidates, key=lambda merge: merge.residual):
        if not any(merge.model in other_merge.parents for other_merge in merges):
            merges.append(merge)
    return tuple(merges)


def layer_shares(model: LayerRows, first: LayerRows, second: LayerRows) -> tuple[LayerShare, ...]:
    """Measure the share of a merge's first parent in each layer, from rows with aligned channels.

    The result is empty if the models have different numbers of layers.
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
    """Find models that split the others into clear branches, using squared distances ``(m, m)``.

    Takes O(m^3) time.
    """
    result: list[InnerModel] = []
    for b in range(len(names)):
        others = [at for at in range(len(names)) if at != b and squared[at, b] > 0.0]
        to_b = squared[others, b]
        inner = 0.5 * (to_b[:, None] + to_b[None, :] - squared[np.ix_(others, others)])
        shares = np.triu(inner / np.minimum(to_b[:, None], to_b[None, :]), 1)
        n_branches, branch_of = connected_components(shares > SAME_BRANCH_SHARE, directed=False)
        if n_branches < 2:
            continue
        largest = float(shares[branch_of[:, None] != branch_of[None, :]].max())
        if largest < ON_PATH_SHARE:
            members = [[names[others[at]] for at in np.flatnonzero(branch_of == k)] for k in range(n_branches)]
            branches = tuple(sorted(map(tuple, members), key=lambda branch: (len(branch), branch)))
            result.append(InnerModel(names[b], branches, largest))
    return tuple(result)


def _share(merged: torch.Tensor | None, a: torch.Tensor | None, b: torch.Tensor | None) -> float | None:
    if merged is None or a is None or b is None or not merged.shape == a.shape == b.shape:
        return None
    apart = (a - b).double()
    n_squared = float(apart.square().sum())
    # No share can be measured if the parents do not differ.
    return None if n_squared == 0.0 else float(((merged - b).double() * apart).sum()) / n_squared
