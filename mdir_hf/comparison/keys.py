"""Compare attention heads of every layer of two models by their keys, and fit a residual-basis map on those that agree.

Layers are never paired by depth: heads are compared by inner products of their key rows, which no rotation of the
residual stream, tokenizer, depth or order of heads changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from mdir_hf.background import in_order
from mdir_hf.comparison.layer_weights import READS_AT_ONCE, about_weight, norm_before, read_role
from mdir_hf.comparison.neuron_sample import spread
from mdir_hf.comparison.neurons import NOISES, PLANTED
from mdir_hf.errors import naming
from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.embedding import look_at_rows
from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.head_prints import (
    HeadRows,
    correlations,
    head_prints,
    heads_of,
    least_correlation,
    n_free_products,
    paired_heads,
    prominence,
    prominence_limit,
    stacked,
    standard_prints,
)
from mdir_hf.method.heads import turn_back
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.planes import LAYOUTS, PlanePairing
from mdir_hf.method.stream_map import rotation_predicts_better
from mdir_hf.model.comparable import PlacedTensors, numbers_are_free
from mdir_hf.model.roles import Layer, Role, WeightPart, WeightProduct, part_shape, read_part
from mdir_hf.processor import is_one_of_several_ranks
from mdir_hf.thresholds import COPIED_HEAD_DEVIATIONS, COPIED_HEAD_MEAN, LEAST_DEVIATIONS, LEAST_HEAD_MEAN

FITTED_ON = "keys of the layers"

FITTED_ROWS = 1024
"""Maximum number of rows to which a map is fitted. A copy needs about 2 ln n rows, and a fine-tune a few hundred."""

NOMINATED_PAIRS = 4
"""Maximum number of nominated pairs of layers whose heads are all read."""

FEWEST_LAYERS, MOST_LAYERS = 2, 4
FEWEST_HEADS, MOST_HEADS = 16, 32
"""All heads of four layers of the shallower model are read: of more layers if these have fewer than 16 heads, and of
two or three if they have more than 32. At 8B, 32 heads are 34 MB. One head of every layer of the deeper model is read,
or more if these are fewer than 16 heads."""


@dataclass(frozen=True, eq=False)
class HeadResemblances:
    """How much heads of the layers of two models resemble each other, by inner products of their key rows.

    Attributes:
        layers: Positions in ``anatomy.layers`` of the layers that were read, L of the reference and L' of the
            candidate.
        resemblance: ``(L, L')``, best correlation of a head of one layer with a head of the other.
        nominated: Pairs of positions whose heads stand out, (reference, candidate), the most prominent first; each
            layer occurs at most once.
        pairs: Nominated pairs that remain after all heads of up to four were read, with the mean correlation of paired
            heads.
        n_products: Number of independent products of a head.
        excluded_noise: Strongest noise, in units of the rows' root mean square, at which copied heads would stand out;
            None if some do.
    """

    layers: tuple[tuple[int, ...], tuple[int, ...]]
    resemblance: FloatArray
    nominated: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int, float], ...]
    n_products: int
    excluded_noise: float | None = None

    @property
    def has_copies(self) -> bool:
        """Whether the attention of any pair of layers is a copy."""
        least = max(COPIED_HEAD_MEAN, least_correlation(self.n_products, COPIED_HEAD_DEVIATIONS))
        return any(mean >= least for *_, mean in self.pairs)


@dataclass(frozen=True, slots=True)
class _LayerKeys:
    """How the keys of one layer are stored and divided into heads."""

    part: WeightPart | None
    first_rows: IntArray
    n_heads: int
    layout: PlanePairing | None
    rotary_dim: int | None

    @property
    def head_dim(self) -> int:
        return len(self.first_rows) // self.n_heads

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rotary planes and of other rows of a head."""
        rotated = 0 if self.layout is None else self.head_dim if self.rotary_dim is None else self.rotary_dim
        return rotated // 2, self.head_dim - rotated

    def rows_of(self, heads: Sequence[int]) -> IntArray:
        by_head: IntArray = self.first_rows.reshape(self.n_heads, -1)[list(heads)]
        return by_head.reshape(-1)


class HeadKeys:
    """Keys of those layers of a model that can be compared, read head by head and at most once.

    Attributes:
        positions: Layers, as positions in ``model.anatomy.layers``.
        shape: Numbers of rotary planes and of other rows of every head.
    """

    def __init__(self, model: PlacedTensors, layers: dict[int, _LayerKeys]) -> None:
        self.model = model
        self.positions = tuple(layers)
        self.shape = next(iter(layers.values())).shape
        self._layers = layers
        self._gains: dict[int, torch.Tensor | None] = {}
        self._heads: dict[int, dict[int, HeadRows]] = {position: {} for position in layers}
        self._prints: dict[int, dict[int, torch.Tensor]] = {position: {} for position in layers}

    def n_heads(self, position: int) -> int:
        """Return the number of key heads of a layer."""
        return self._layers[position].n_heads

    @property
    def most_heads(self) -> int:
        """Largest number of key heads of a layer."""
        return max(keys.n_heads for keys in self._layers.values())

    @property
    def bytes_of_head(self) -> int:
        """Number of bytes that are read of one head of the first layer."""
        keys, layer = self._layers[self.positions[0]], self.model.anatomy.layers[self.positions[0]]
        spec = self.model.tensors.spec((keys.part or layer.parts[Role.K]).tensors[0])
        return self.values_of_head * spec.n_bytes // max(1, math.prod(spec.shape))

    @property
    def values_of_head(self) -> int:
        """Number of values of one head of the first layer."""
        return self._layers[self.positions[0]].head_dim * self.model.anatomy.hidden_size

    def read(self, positions: Iterable[int], heads: Sequence[int] | None = None) -> None:
        """Read some heads of each of some layers, or all heads."""
        wanted = [(at, range(self.n_heads(at)) if heads is None else heads) for at in positions]
        missing = [(at, [number for number in numbers if number not in self._heads[at]]) for at, numbers in wanted]
        tasks = [(at, numbers) for at, numbers in missing if numbers]
        n_in_flight = 1 if is_one_of_several_ranks() else READS_AT_ONCE
        all_rows = in_order(tasks, lambda task, _: self._read(*task), n_in_flight=n_in_flight, name="mdir-keys")
        for (at, numbers), rows in zip(tasks, all_rows, strict=True):
            for place, (number, of_head) in enumerate(zip(numbers, head_prints(rows), strict=True)):
                self._heads[at][number] = rows.chosen(np.array([place]))
                self._prints[at][number] = of_head

    def heads(self, position: int) -> HeadRows:
        """Return the heads of a layer that were read, in order of their numbers."""
        return stacked([rows for _, rows in sorted(self._heads[position].items())])

    def prints(self, positions: Iterable[int]) -> torch.Tensor:
        """Return the prints of all heads that were read of some layers, ``(h, D)``."""
        return torch.stack([of_head for at in positions for _, of_head in sorted(self._prints[at].items())])

    def first_prints(self, positions: Sequence[int]) -> IntArray:
        """Return the index of each layer's first print in :meth:`prints`, ``(len(positions),)``."""
        starts: IntArray = np.cumsum([0, *(len(self._prints[position]) for position in positions[:-1])], dtype=np.int64)
        return starts

    @property
    def read_positions(self) -> tuple[int, ...]:
        """Layers with at least one head that was read."""
        return tuple(position for position in self.positions if self._heads[position])

    def _read(self, position: int, heads: Sequence[int]) -> HeadRows:
        keys, layer = self._layers[position], self.model.anatomy.layers[position]
        rows = keys.rows_of(heads)
        if keys.part is None:
            weight = read_role(self.model, layer, Role.K, rows)
        else:
            with about_weight(keys.part), naming(self.model.label):
                weight = read_part(self.model.tensors, keys.part, rows)
        if position not in self._gains:
            norm = norm_before(layer, Role.K)
            self._gains[position] = read_role(self.model, layer, norm) if norm in layer.parts else None
        folded = fold_gain(weight.float(), self._gains[position], plus_one=self.model.anatomy.norms_add_one)
        return heads_of(folded, len(heads), keys.layout, rotary_dim=keys.rotary_dim)


def n_layers_read(n_heads: int) -> int:
    """Return the number of layers of the shallower model, with ``n_heads`` each, whose heads are all read."""
    return max(FEWEST_LAYERS, min(MOST_HEADS // n_heads, max(MOST_LAYERS, FEWEST_HEADS // n_heads)))


def n_heads_read(n_heads: int, n_layers: int) -> int:
    """Return the number of heads that are read of each of ``n_layers`` layers of the deeper model."""
    return min(n_heads, -(-FEWEST_HEADS // n_layers))


def head_keys(models: tuple[PlacedTensors, PlacedTensors]) -> tuple[HeadKeys, HeadKeys] | None:
    """Return readers of the layers whose heads have one shape, the most frequent in both models; None if there is none.

    Rows are compared as rotary planes if it is known in both models how rows form planes, otherwise as they are.

    Raises:
        AnatomyError: If a tensor cannot be divided into the rows of its role.
    """
    for as_planes in (True, False):
        of_models = [_keys_of_layers(model, as_planes=as_planes) for model in models]
        counts = [Counter(keys.shape for keys in layers.values()) for layers in of_models]
        common = [shape for shape in counts[0] if shape in counts[1] and n_free_products(*shape) > 0]
        if common:
            shape = max(common, key=lambda each: min(count[each] for count in counts))
            first, second = (
                HeadKeys(model, {at: keys for at, keys in layers.items() if keys.shape == shape})
                for model, layers in zip(models, of_models, strict=True)
            )
            return first, second
    return None


def most_key_values(models: tuple[PlacedTensors, PlacedTensors]) -> int:
    """Return the largest number of key values that :func:`compare_heads` reads of both models together, from headers.

    Raises:
        AnatomyError: If a tensor cannot be divided into the rows of its role.
    """
    n_values = 0
    for reader in head_keys(models) or ():
        n_heads, n_layers = reader.most_heads, len(reader.positions)
        n_read = (n_layers_read(n_heads) + NOMINATED_PAIRS) * n_heads + n_heads_read(n_heads, n_layers) * n_layers
        n_values += min(n_read, n_layers * n_heads) * reader.values_of_head
    return n_values


SURVEYED_BYTES, FEWEST_SURVEYED, MOST_SURVEYED = 16 << 20, 8, 64
"""A survey reads at most this many bytes of heads of each model, of at most 64 heads, but at least 8 heads (or all) of
each of two layers."""

MOST_PRODUCTS = 512
"""Number of products that a survey keeps of each head, 1 kB. Those of unrelated heads correlate by 0.04."""


@dataclass(frozen=True, eq=False)
class SampledHeads:
    """Prints of some heads in some of a model's layers, for a search among many models.

    Attributes:
        shape: Numbers of rotary planes and of other rows of every head.
        prints: ``(h, D)`` float16 unit rows; products with rows of another model are correlations.
    """

    shape: tuple[int, int]
    prints: torch.Tensor

    @property
    def n_products(self) -> int:
        """Number of independent products of a head among those that are kept."""
        return min(n_free_products(*self.shape), self.prints.shape[1])


def sample_heads(model: PlacedTensors, *, seed: int) -> SampledHeads | None:
    """Read heads of up to all layers of a model, and return their prints; None for a model without suitable keys.

    Raises:
        AnatomyError: If the shape of a weight does not fit its role.
    """
    chosen = _surveyed(model)
    if chosen is None:
        return None
    keys, positions, n_each = chosen
    generator = torch.Generator().manual_seed(seed)
    for position in positions:
        n_heads = keys.n_heads(position)
        keys.read([position], torch.randperm(n_heads, generator=generator)[:n_each].sort().values.tolist())
    prints = keys.prints(positions)
    # All models of a survey keep the same products.
    kept = np.sort(np.random.default_rng(seed).permutation(prints.shape[1])[:MOST_PRODUCTS])
    return SampledHeads(keys.shape, standard_prints(prints[:, torch.from_numpy(kept)]).half())


def planned_bytes_of_heads(model: PlacedTensors) -> int:
    """Return how many bytes :func:`sample_heads` reads."""
    chosen = _surveyed(model)
    if chosen is None:
        return 0
    keys, positions, n_each = chosen
    return keys.bytes_of_head * sum(min(n_each, keys.n_heads(position)) for position in positions)


def _surveyed(model: PlacedTensors) -> tuple[HeadKeys, tuple[int, ...], int] | None:
    """Return the layers whose heads a survey reads, and the number of heads of each."""
    for as_planes in (True, False):
        layers = _keys_of_layers(model, as_planes=as_planes)
        shapes = Counter(keys.shape for keys in layers.values() if n_free_products(*keys.shape) > 0)
        if shapes:
            shape = shapes.most_common(1)[0][0]
            keys = HeadKeys(model, {at: each for at, each in layers.items() if each.shape == shape})
            n_heads = min(MOST_SURVEYED, max(FEWEST_SURVEYED, SURVEYED_BYTES // max(1, keys.bytes_of_head)))
            n_each = min(keys.most_heads, FEWEST_SURVEYED)
            return keys, spread(keys.positions, max(2, n_heads // n_each)), n_each
    return None


def compare_heads(
    models: tuple[PlacedTensors, PlacedTensors],
    *,
    seed: int,
    keys: tuple[HeadKeys, HeadKeys] | None = None,
) -> HeadResemblances | None:
    """Compare heads of every layer of one model with heads of some layers of the other.

    All heads of a few layers of the shallower model are read (or, at equal depth, of the one with fewer heads), and one
    head of every layer of the deeper one. All heads of at most four nominated pairs of layers are read after that.

    Args:
        models: Reference and candidate.
        seed: Seed of the layers and heads that are read.
        keys: Readers of both models from :func:`head_keys`, which keep the heads for :func:`map_of_heads`.

    Returns:
        None if a model has no keys, or heads of the two have different numbers of rows.

    Raises:
        AnatomyError: If the shape of a weight does not fit its role.
    """
    keys = head_keys(models) if keys is None else keys
    if keys is None:
        return None
    sizes = [(len(reader.positions), reader.most_heads) for reader in keys]
    few = 0 if sizes[0] <= sizes[1] else 1
    shallower, deeper = keys[few], keys[1 - few]
    generator = torch.Generator().manual_seed(seed)
    chosen = _spread_at_random(shallower.positions, n_layers_read(shallower.most_heads), generator)
    shallower.read(chosen)
    n_common = min(deeper.n_heads(position) for position in deeper.positions)
    n_each = n_heads_read(n_common, len(deeper.positions))
    deeper.read(deeper.positions, torch.randperm(n_common, generator=generator)[:n_each].sort().values.tolist())
    correlation = correlations(shallower.prints(chosen), deeper.prints(deeper.positions))
    n_products = n_free_products(*deeper.shape)
    prominent = prominence(correlation, n_products)
    limit = prominence_limit(correlation.size)
    rows, columns = shallower.first_prints(chosen), deeper.first_prints(deeper.positions)
    resemblance, standing_out = (
        np.maximum.reduceat(np.maximum.reduceat(each, rows, axis=0), columns, axis=1)
        for each in (correlation, prominent)
    )
    layers = (chosen, deeper.positions)
    if few == 1:
        layers, resemblance, standing_out = (layers[1], layers[0]), resemblance.T, standing_out.T
    nominated = _nominated(standing_out, layers, limit)
    least = max(LEAST_HEAD_MEAN, least_correlation(n_products, LEAST_DEVIATIONS))
    pairs = tuple(pair for pair in _means(keys, nominated[:NOMINATED_PAIRS]) if pair[2] >= least)
    noise = None if nominated else _excluded_noise(shallower, chosen, deeper, n_each=n_each, generator=generator)
    return HeadResemblances(layers, resemblance, nominated, pairs, n_products, noise)


def _excluded_noise(
    shallower: HeadKeys, chosen: tuple[int, ...], deeper: HeadKeys, *, n_each: int, generator: torch.Generator
) -> float:
    """Return the strongest noise, in units of the rows' RMS, at which planted copies of the chosen layers stand out.

    The copies take the places of as many layers of the deeper model, with as many heads each, if they have so many.
    """
    n_products = n_free_products(*deeper.shape)
    others = deeper.positions[len(chosen) :]
    n_each = min(n_each, *(shallower.n_heads(position) for position in chosen))
    own, rest = shallower.prints(chosen), [deeper.prints(others)] if others else []

    def is_found(noise: float) -> bool:
        heads = [shallower.heads(position).chosen(np.arange(n_each)).noisy(noise, generator) for position in chosen]
        prints = torch.cat([*map(head_prints, heads), *rest])
        prominent = prominence(correlations(own, prints), n_products)
        of_copies = prominent[:, : n_each * len(chosen)].max(axis=0).reshape(len(chosen), n_each).max(axis=1)
        return bool(of_copies.max() > prominence_limit(prominent.size))

    n_found = bisect_left(NOISES, True, key=lambda noise: not all(is_found(noise) for _ in range(PLANTED)))
    return NOISES[n_found - 1] * NOISES[0] / NOISES[1] if n_found else 0.0


def map_of_heads(
    models: tuple[PlacedTensors, PlacedTensors],
    pairs: Sequence[tuple[int, int]],
    *,
    seed: int,
    device: str = "cpu",
    keys: tuple[HeadKeys, HeadKeys] | None = None,
) -> ResidualBasisMap | None:
    """Fit a residual-basis map to the key rows of pairs of layers.

    Key rows replace token rows in Algorithm 1. Heads are paired using inner products of their rows, which do not depend
    on the residual basis.

    Args:
        models: Reference and candidate.
        pairs: Positions in ``anatomy.layers`` of the reference and the candidate; positions that
            ``keys`` lacks are skipped.
        seed: Seed of the rows to which the map is fitted.
        device: Device of the computation.
        keys: Readers of both models from :func:`head_keys`, if heads were read before.

    Returns:
        The channel matching if it is significant at 0.1% and predicts held-out rows at least as well as the fitted
        rotation; otherwise the rotation. None if there are no pairs or the channels did not move.

    Raises:
        AnatomyError: If the shape of a weight does not fit its role.
    """
    keys = head_keys(models) if keys is None else keys
    if keys is None:
        return None
    pairs = [pair for pair in pairs if all(at in reader.positions for at, reader in zip(pair, keys, strict=True))]
    if not pairs:
        return None
    x, y = _paired_rows(keys, pairs, seed)
    own_order = numbers_are_free(*models)
    look = look_at_rows(x, y, log_alpha=math.log(REMARKABLE), own_order=own_order, device=device)
    widths = (x.shape[1], y.shape[1])
    if look is None:
        return None
    if not look.is_significant or rotation_predicts_better(look.rows, look.matching):
        return ResidualBasisMap.rotation(look.polar, fitted_on=FITTED_ON)
    if widths[0] == widths[1] and look.matching.is_identity:
        return None
    return ResidualBasisMap.from_matching(look.matching, *widths, fitted_on=FITTED_ON)


def _keys_of_layers(model: PlacedTensors, *, as_planes: bool) -> dict[int, _LayerKeys]:
    keys = {at: _keys_of(model, layer, as_planes=as_planes) for at, layer in enumerate(model.anatomy.layers)}
    return {at: each for at, each in keys.items() if each is not None}


def _keys_of(model: PlacedTensors, layer: Layer, *, as_planes: bool) -> _LayerKeys | None:
    """Return how a layer's keys form heads, from headers; None without keys."""
    part, anatomy = layer.parts.get(Role.K), model.anatomy
    if part is None:
        return None
    rope, rotary_dim = (anatomy.rope, anatomy.rotary_dim) if layer.rope is None else (layer.rope, layer.rotary_dim)

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(model.tensors.spec(name).shape)

    with about_weight(part), naming(model.label):
        if isinstance(part, WeightProduct):
            # In latent attention, the rows beside the latent are rotated keys of one head, which all queries share.
            whole = replace(part.right, layout=None)
            stored = shape_of(part.right.tensor)
            rotated = np.setdiff1d(whole.rows(stored), part.right.rows(stored))
            if len(rotated) >= 2 and len(rotated) % 2 == 0:
                shared = anatomy.rope if anatomy.rope in LAYOUTS else "interleaved"
                return _LayerKeys(whole, rotated, 1, shared if as_planes else None, None)
        n_rows = part_shape(part, shape_of)[0]
    n_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or anatomy.n_heads or 1
    is_known = (layer.heads is not None or anatomy.n_heads is not None) and n_rows % n_heads == 0
    n_heads = n_heads if is_known else 1
    n_rotated = n_rows // n_heads if rotary_dim is None else rotary_dim
    has_planes = as_planes and is_known and rope in LAYOUTS and n_rotated % 2 == 0 and n_rotated <= n_rows // n_heads
    layout = rope if has_planes and rope in LAYOUTS else None
    return _LayerKeys(None, np.arange(n_rows, dtype=np.int64), n_heads, layout, rotary_dim if layout else None)


def _spread_at_random(positions: tuple[int, ...], n: int, generator: torch.Generator) -> tuple[int, ...]:
    """Choose a layer at random from each of up to ``n`` equal parts of the depth, so that nobody can foresee them."""
    bounds = np.linspace(0, len(positions), min(n, len(positions)) + 1).round().astype(int)
    return tuple(
        positions[int(torch.randint(int(first), int(end), (), generator=generator))] for first, end in pairwise(bounds)
    )


def _nominated(
    standing_out: FloatArray, layers: tuple[tuple[int, ...], tuple[int, ...]], limit: float
) -> tuple[tuple[int, int], ...]:
    """Return the most prominent pairs above the limit, each layer at most once."""
    nominated: list[tuple[int, int]] = []
    left = standing_out.copy()
    while left.size and left.max() > limit:
        i, j = (int(index) for index in np.unravel_index(np.argmax(left), left.shape))
        nominated.append((layers[0][i], layers[1][j]))
        left[i], left[:, j] = -np.inf, -np.inf
    return tuple(nominated)


def _means(keys: tuple[HeadKeys, HeadKeys], nominated: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, float], ...]:
    """Read all heads of nominated pairs of layers, and return the mean correlation of paired heads with each pair."""
    for side, reader in enumerate(keys):
        reader.read([pair[side] for pair in nominated])
    return tuple((*pair, paired_heads(_correlations_of(keys, pair))[2]) for pair in nominated)


def _correlations_of(keys: tuple[HeadKeys, HeadKeys], pair: tuple[int, int]) -> FloatArray:
    """Return the correlations of the heads of two layers, less the mean over all heads read of each model."""
    prints, chosen = [], []
    for reader, position in zip(keys, pair, strict=True):
        of_layer = reader.prints([position])
        rest = [other for other in reader.read_positions if other != position]
        prints.append(torch.cat([of_layer, reader.prints(rest)]) if rest else of_layer)
        chosen.append(len(of_layer))
    of_pair: FloatArray = correlations(*prints)[: chosen[0], : chosen[1]]
    return of_pair


def _paired_rows(
    keys: tuple[HeadKeys, HeadKeys], pairs: Sequence[tuple[int, int]], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return corresponding rows of some pairs of layers, ``(k, n)`` and ``(k, n')``, with planes turned back."""
    for side, reader in enumerate(keys):
        reader.read([pair[side] for pair in pairs])
    generator = torch.Generator().manual_seed(seed)
    n_planes, n_still = keys[0].shape
    # A plane is two rows.
    n_kept = [FITTED_ROWS // len(pairs) * n // (2 * n_planes + n_still) for n in (n_planes, n_still)]
    planes: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    still: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for pair in pairs:
        matched = paired_heads(_correlations_of(keys, pair))[:2]
        heads = [reader.heads(at).chosen(of) for reader, at, of in zip(keys, pair, matched, strict=True)]
        for kind, n in ((planes, n_kept[0]), (still, n_kept[1])):
            of_kind = [(each.planes if kind is planes else each.still).flatten(0, 1) for each in heads]
            rows = torch.randperm(len(of_kind[0]), generator=generator)[:n]
            for side in (0, 1):
                kind[side].append(of_kind[side][rows])
    x, y = (torch.cat(of_side) for of_side in planes)
    still_x, still_y = (torch.cat(of_side) for of_side in still)
    y = turn_back(x, y) if n_planes else y
    if n_planes and n_still:
        # The turns are known up to a common sign, which the other rows determine.
        agreement = ((x.real @ still_x.T) * (y.real @ still_y.T)).sum()
        y = -y if agreement < 0 else y
    first, second = (torch.cat((turned.real, turned.imag, rest)) for turned, rest in ((x, still_x), (y, still_y)))
    return first, second
