"""Nominate pairs of models in a survey: find models with similar prints without comparing every pair.

Two prints are used. The cosines between a layer's sampled neurons are the same in every basis; they find relatives
whose neurons kept their numbers. The inner products of a head's keys are also the same at every depth and for every
order of heads and neurons. Similar prints prove nothing: each nominated pair is compared afterwards.

Many prints are divided by random hyperplanes until few are left on each side, and only these are compared with each
other. This is repeated for other hyperplanes. Time and memory grow with ``n log n`` and ``n``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import DisjointSet

from mdir_hf.comparison.keys import SampledHeads
from mdir_hf.comparison.neuron_sample import NeuronSample, resemblances
from mdir_hf.method.head_prints import least_correlation, prominence, prominence_limit

IntArray = npt.NDArray[np.int64]
Edges = dict[tuple[int, int], float]
"""How much two models resemble each other, relative to the limit, keyed by their numbers in ascending order."""

LEAF = 2048
"""Number of prints that are compared with each other: all layers of 512 models, or all heads of 32 to 128."""

TREES_PER_SPLIT = 2
"""Number of ways in which more prints are divided, for each time that they are halved. At 10,000 models, two layers
with a correlation of 0.5 are in the same part in 13% of ten ways. A relative has four layers, which gives 99.6%."""

MOST_PRODUCTS = 1024
"""Number of products of a print that are compared if there are more than :data:`LEAF` prints."""

NEAREST = 4
"""Number of prints of other groups that are considered for each print."""

LEAST_OF_HEADS = 0.3
"""Least correlation of two heads that stand out. Those of unrelated models reach 0.29, and do not stand out."""

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Prints:
    """Prints that can be compared with each other.

    Attributes:
        values: ``(k, D)`` float16 unit rows, whose products are correlations.
        owners: ``(k,)`` number of the model of each print.
        n_products: Number of independent products in a print.
        are_ranked: Whether a correlation has to stand out from the others of both prints, because unrelated prints have
            some structure in common. Neurons that are compared by number have none.
    """

    values: torch.Tensor
    owners: IntArray
    n_products: int
    are_ranked: bool

    def of(self, models: IntArray) -> Prints:
        """Return the prints of some models."""
        is_wanted = np.isin(self.owners, models)
        values = self.values[torch.from_numpy(is_wanted)]
        return Prints(values, self.owners[is_wanted], self.n_products, self.are_ranked)

    def with_products(self, products: torch.Tensor) -> Prints:
        """Return prints with some of the products only, scaled to unit length."""
        values = torch.nn.functional.normalize(self.values[:, products].float(), dim=1).half()
        return Prints(values, self.owners, min(self.n_products, len(products)), self.are_ranked)


class PrintsOfMany:
    """Collects the prints of a survey's models by shape, because only prints of one shape can be compared."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], list[tuple[int, torch.Tensor, int]]] = {}

    def add(self, model: int, neurons: NeuronSample | None, heads: SampledHeads | None, kind: str) -> None:
        """Add the prints of the ``neurons`` or of the ``heads`` of a model."""
        if neurons is not None and kind == "neurons":
            key = ("neurons", neurons.n_neurons, neurons.n_fitted, *neurons.rows.shape[1:3])
            prints = resemblances(neurons).half()
            self._rows.setdefault(key, []).append((model, prints, prints.shape[1]))
        if heads is not None and kind == "heads":
            self._rows.setdefault(("heads", *heads.shape), []).append((model, heads.prints, heads.n_products))

    def of_kind(self, kind: str) -> list[Prints]:
        """Return the prints of ``neurons`` or of ``heads`` of at least two models."""
        return [
            Prints(
                torch.cat([prints for _, prints, _ in rows]),
                np.concatenate([np.full(len(prints), model, dtype=np.int64) for model, prints, _ in rows]),
                rows[0][2],
                kind == "heads",
            )
            for key, rows in self._rows.items()
            if key[0] == kind and len(rows) > 1
        ]


def similar_models(prints: Prints, groups: IntArray, *, is_open: npt.NDArray[np.bool_], seed: int = 0) -> Edges:
    """Find models of different groups whose prints are more similar than prints of strangers.

    Args:
        prints: The prints.
        groups: ``(n,)`` group of each model.
        is_open: ``(n,)``, whether similar models are wanted for each model.
        seed: Seed of the hyperplanes.

    Returns:
        Pairs of models; for each print, at most the :data:`NEAREST` most similar ones of other groups.
    """
    n = len(prints.owners)
    n_splits = max(0, math.ceil(math.log2(max(1, n) / LEAF)))
    generator = torch.Generator().manual_seed(seed)
    if n_splits and prints.values.shape[1] > MOST_PRODUCTS:
        prints = prints.with_products(torch.randperm(prints.values.shape[1], generator=generator)[:MOST_PRODUCTS])
    limit = prominence_limit(n * n // 2)
    least = least_correlation(prints.n_products, limit)
    edges: Edges = {}
    for _ in range(max(1, TREES_PER_SPLIT * n_splits)):
        for part in _leaves(prints.values, generator):
            values, owners = prints.values[part].float(), prints.owners[part.numpy()]
            wanted = np.flatnonzero(is_open[owners])
            correlation = values[torch.from_numpy(wanted)] @ values.T
            if prints.are_ranked:
                stand_out = prominence(correlation.double().numpy(), prints.n_products) / limit
                score = torch.from_numpy(stand_out).float()
                score[correlation < max(least, LEAST_OF_HEADS)] = 0.0
            else:
                score = correlation / least
            of_group = torch.from_numpy(groups[owners])
            score[of_group[torch.from_numpy(wanted)][:, None] == of_group] = 0.0
            best, at = score.topk(min(NEAREST, len(owners)), dim=1)
            for i, k in (best >= 1.0).nonzero().tolist():
                pair = sorted((int(owners[wanted[i]]), int(owners[int(at[i, k])])))
                edges[pair[0], pair[1]] = max(float(best[i, k]), edges.get((pair[0], pair[1]), 0.0))
    return edges


def _leaves(values: torch.Tensor, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Divide rows by random hyperplanes into parts of at most :data:`LEAF`; yield their row numbers."""
    parts = [torch.arange(len(values))]
    while parts:
        part = parts.pop()
        if len(part) <= LEAF:
            yield part
            continue
        direction = torch.randn(values.shape[1], generator=generator)
        starts = range(0, len(part), ROWS_AT_ONCE)
        place = torch.cat([values[part[start : start + ROWS_AT_ONCE]].float() @ direction for start in starts])
        parts += part[place.argsort()].chunk(2)


def next_pairs(edges: Edges, groups: DisjointSet, tested: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Choose the pairs to compare next: for each group, the most similar pair with another group not yet tested."""
    chosen: list[tuple[int, int]] = []
    served: set[int] = set()
    for pair in sorted(edges, key=lambda pair: (-edges[pair], pair)):
        roots = [groups[model] for model in pair]
        if pair not in tested and roots[0] != roots[1] and not served.issuperset(roots):
            chosen.append(pair)
            served.update(roots)
    return chosen
