"""Run tier 2 for attention: search for permuted heads and for rows rotated inside heads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import IntArray
from mdir_hf.comparison.projections.findings import (
    Finding,
    FoundMaps,
    Moved,
    Search,
    log_p_in_order,
    oriented,
    row_cosines,
    share_alike,
    share_of_columns,
)
from mdir_hf.comparison.projections.samples import carried
from mdir_hf.comparison.projections.tier_one import LEAST_OWN_SHARE, LEAST_SHARE_OF_COSINE
from mdir_hf.method.blocks import FloatArray, best_head_map, block_pattern, log_p_head_map
from mdir_hf.method.heads import unit_heads
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neurons import inner_polar
from mdir_hf.method.planes import LAYOUTS, normalise_planes, plane_pattern, plane_rows
from mdir_hf.method.row_agreement import HeadAgreement, match_heads
from mdir_hf.model.roles import Role

MOST_ROWS = 256
"""Maximum number of rows that a search for permuted heads reads per projection, at the same positions in every head."""

MOST_HEAD_ROWS = 1024
"""Projections with more rows are not searched for rotations of whole heads, because the search reads all rows."""

SOLVED_ON_HALF = 2
"""A map inside heads is fitted on every second channel of the stream. Cosines are computed on the other channels,
because cosines on the fitted channels would be too large."""


@dataclass(frozen=True, eq=False)
class HeadCells:
    """Agreement of the heads of one projection, in any order, for every pair of layers.

    Attributes:
        places: Positions of both models' layers.
        log_p: ``(L, L')`` natural logs of bounds on p, not corrected for the number of pairs.
        cosine: ``(L, L')`` absolute mean cosine under the best map; 0 unless p is significant at 0.1%.
    """

    places: tuple[tuple[int, ...], tuple[int, ...]]
    log_p: FloatArray
    cosine: FloatArray


class HeadSearch(Search):
    """Search for permuted or rotated heads."""

    def heads_of_layers(self, role: Role, columns: Collection[int]) -> HeadCells | None:
        """Compare the heads of candidate layers with the heads of all reference layers, if they are comparable."""
        reader = self.reader
        rows, others = reader.places(0, role), tuple(at for at in reader.places(1, role) if at in columns)
        if not rows or not others or len(self._shapes(role, rows, others)) != 1:
            return None
        agreement, samples = self._match_heads(role, rows, others)
        n_heads = self.reader.n_heads(0, role, rows[0]), self.reader.n_heads(1, role, others[0])
        cosine = np.zeros(agreement.log_p.shape)
        for i, j in np.argwhere(agreement.log_p + self.log_n_tests < math.log(REMARKABLE)):
            heads = agreement.reference[i, j], agreement.candidate[i, j]
            cosine[i, j] = row_cosines(*_rows_of_heads((samples[0][i], samples[1][j]), n_heads, heads)).mean()
        return HeadCells((rows, others), agreement.log_p, np.abs(cosine))

    def counterparts(self, role: Role, cells: HeadCells) -> dict[int, int]:
        """Return each candidate layer's best reference layer among those that no other layer matches much better."""
        most = cells.cosine.max(axis=1)
        in_place = self.tier_one.cells.get(role)
        if in_place is not None:
            cosine = np.where(in_place.is_named, np.abs(in_place.agreement.cosine), 0.0).max(axis=1)
            of_place = dict(zip(in_place.sample.places[0], cosine, strict=True))
            most = np.maximum(most, [of_place.get(place, 0.0) for place in cells.places[0]])
        is_rival = (cells.cosine > 0.0) & (cells.cosine >= LEAST_SHARE_OF_COSINE * most[:, None])
        cosine = np.where(is_rival, cells.cosine, 0.0)
        best = cosine.argmax(axis=0)
        return {
            place: cells.places[0][best[at]] for at, place in enumerate(cells.places[1]) if cosine[best[at], at] > 0.0
        }

    def _shapes(self, role: Role, rows: Collection[int], others: Collection[int]) -> set[tuple[int, int]]:
        """Return the distinct values of (rows per head, whether there are several heads) in both models' layers."""
        shapes = set()
        for side, places in ((0, rows), (1, others)):
            for place in places:
                n_heads = self.reader.n_heads(side, role, place)
                shapes.add((self.reader.n_rows(side, role, place) // n_heads, int(n_heads > 1)))
        return shapes

    def _match_heads(
        self, role: Role, rows: tuple[int, ...], others: tuple[int, ...]
    ) -> tuple[HeadAgreement, tuple[torch.Tensor, torch.Tensor]]:
        reader = self.reader
        n_heads = reader.n_heads(0, role, rows[0]), reader.n_heads(1, role, others[0])
        d = reader.n_rows(0, role, rows[0]) // n_heads[0]
        positions = np.unique(np.linspace(0, d - 1, max(2, min(d, MOST_ROWS // max(n_heads)))).round()).astype(np.int64)
        samples = []
        for side, places in ((0, rows), (1, others)):
            numbers = (d * np.arange(n_heads[side])[:, None] + positions).reshape(-1)
            read_rows = reader.rows if len(places) > 1 else reader.rows_of_one
            samples.append(torch.stack([read_rows(side, role, place, numbers) for place in places]))
        samples[0] = carried(self.residual_map, samples[0])
        return match_heads(samples[0], samples[1], n_heads=n_heads), (samples[0], samples[1])

    def attention(self, pair: tuple[int, int], roles: Collection[Role], maps: FoundMaps) -> dict[Role, Finding]:
        """Look for permuted or rotated heads and add their maps to ``maps``."""
        findings: dict[Role, Finding] = {}
        # Sampled queries may miss moved heads, which the columns of o reveal.
        searched_roles = {*roles, Role.Q} if Role.O in roles and Role.Q in self.tier_one.cells else {*roles}
        for role in (Role.K, Role.V, Role.Q):
            if role not in searched_roles or not self._have_heads(role, pair):
                continue
            finding = self._heads(role, pair, maps)
            if finding is None or finding.share < 1.0 - LEAST_OWN_SHARE:
                turned_finding = self._turned(role, pair, maps)
                if turned_finding is not None and (finding is None or turned_finding.cosine > finding.cosine + 0.05):
                    finding = turned_finding
            if finding is not None:
                findings[role] = finding
        if Role.O in roles and self._have_heads(Role.O, pair):
            of_o = self._outputs(pair, roles, maps)
            if of_o is not None:
                findings[Role.O] = of_o
        return findings

    def _have_heads(self, role: Role, pair: tuple[int, int]) -> bool:
        at = [pair[side] in self.reader.places(side, role) for side in (0, 1)]
        return all(at) and len(self._shapes(role, pair[:1], pair[1:])) == 1

    def _heads(self, role: Role, pair: tuple[int, int], maps: FoundMaps) -> Finding | None:
        """Find reordered heads whose rows kept their order."""
        agreement, (x, y) = self._match_heads(role, pair[:1], pair[1:])
        log_p = float(agreement.log_p[0, 0])
        if not self.is_significant(log_p):
            return None
        head_matching = agreement.reference[0, 0], agreement.candidate[0, 0]
        n_heads = [self.reader.n_heads(side, role, place) for side, place in enumerate(pair)]
        first, second = _rows_of_heads((x[0], y[0]), n_heads, head_matching)
        cosines = oriented(row_cosines(first, second))
        share = share_alike(cosines)
        maps.heads[role] = np.stack(head_matching)
        is_moved = bool((head_matching[0] != head_matching[1]).any())
        return Finding(log_p, cosines, share, "heads" if is_moved else None)

    def _turned(self, role: Role, pair: tuple[int, int], maps: FoundMaps) -> Finding | None:
        """Find rows rotated inside heads, in planes of rotary positions or in whole heads."""
        anatomies = [model.anatomy for model in self.reader.models]
        layers = [anatomy.layers[place] for anatomy, place in zip(anatomies, pair, strict=True)]
        ropes = [layer.rope or anatomy.rope for layer, anatomy in zip(layers, anatomies, strict=True)]
        if role is Role.V or "none" in ropes:
            return self._blocks(role, pair, maps)
        if ropes[0] != ropes[1]:
            return None
        return self._planes(role, pair, maps)

    def _planes(self, role: Role, pair: tuple[int, int], maps: FoundMaps) -> Finding | None:
        reader = self.reader
        anatomy, layer = reader.models[0].anatomy, reader.models[0].anatomy.layers[pair[0]]
        rope = layer.rope or anatomy.rope
        layout = rope if rope in LAYOUTS else LAYOUTS[0]
        rotary_dim = anatomy.rotary_dim if layer.rope is None else layer.rotary_dim
        signs_only = all(
            (Role.Q_NORM in model.anatomy.layers[at].parts) for model, at in zip(reader.models, pair, strict=True)
        )
        sides, planes = [], []
        for side, place in enumerate(pair):
            n_heads = reader.n_heads(side, role, place)
            n_rows = reader.n_rows(side, role, place)
            try:
                of_side, _ = plane_rows(n_rows, n_heads, layout, rotary_dim=rotary_dim)
            except ValueError:
                return None
            most = max(reader.n_heads(at, role, pair[at]) for at in (0, 1))
            plane_numbers = np.unique(np.linspace(0, of_side.shape[1] - 1, max(1, MOST_ROWS // (2 * most))).round())
            numbers = of_side[:, torch.from_numpy(plane_numbers.astype(np.int64))].reshape(-1).numpy()
            order = np.argsort(numbers)
            rows = reader.rows_of_one(side, role, place, numbers[order])[torch.from_numpy(np.argsort(order))]
            sides.append(carried(self.residual_map, rows) if side == 0 else rows)
            planes.append(torch.arange(len(numbers)).reshape(n_heads, -1, 2))
        x, y = (normalise_planes(rows, at) for rows, at in zip(sides, planes, strict=True))
        still = [torch.zeros((len(at), 0), dtype=torch.int64) for at in planes]
        pattern = plane_pattern(inner_polar(x, y), (planes[0], still[0]), (planes[1], still[1]), signs_only=signs_only)
        reference, candidate, log_n = best_head_map(pattern)
        _, log_p = log_p_head_map(pattern, reference, candidate, log_n)
        if not self.is_significant(log_p):
            return None
        first = x[planes[0][torch.from_numpy(reference)]]
        second = y[planes[1][torch.from_numpy(candidate)]]
        cosines = row_cosines(*_turned_planes(first, second))
        maps.heads[role] = np.stack((reference, candidate))
        moved: Moved | None = "heads" if bool((reference != candidate).any()) else None
        return Finding(log_p, cosines, share_alike(cosines), moved, is_turned=True)

    def _blocks(self, role: Role, pair: tuple[int, int], maps: FoundMaps) -> Finding | None:
        reader = self.reader
        n_rows = [reader.n_rows(side, role, place) for side, place in enumerate(pair)]
        if max(n_rows) > MOST_HEAD_ROWS:
            return None
        n_heads = [reader.n_heads(side, role, place) for side, place in enumerate(pair)]
        x, y = (reader.rows_of_one(side, role, place) for side, place in enumerate(pair))
        x = carried(self.residual_map, x)
        d = n_rows[1] // n_heads[1]
        r = max(1, min(d, MOST_ROWS // n_heads[1]))
        by_head = y.reshape(n_heads[1], d, -1)
        sampled = by_head[:, np.linspace(0, d - 1, r).round().astype(np.int64)].flatten(0, 1)
        polar = inner_polar(unit_heads(x, n_heads[0]), unit_heads(sampled, n_heads[1]))
        pattern = block_pattern(polar, n_heads[0], n_heads[1])
        reference, candidate, log_n = best_head_map(pattern)
        _, log_p = log_p_head_map(pattern, reference, candidate, log_n)
        if not self.is_significant(log_p):
            return None
        first = x.reshape(n_heads[0], n_rows[0] // n_heads[0], -1)[torch.from_numpy(reference)]
        second = by_head[torch.from_numpy(candidate)]
        turns = second[..., ::SOLVED_ON_HALF] @ torch.linalg.pinv(first[..., ::SOLVED_ON_HALF])
        held_out = slice(1, None, SOLVED_ON_HALF)
        cosines = row_cosines((turns @ first[..., held_out]).flatten(0, 1), second[..., held_out].flatten(0, 1))
        maps.heads[role] = np.stack((reference, candidate))
        maps.turns[role] = second @ torch.linalg.pinv(first)
        moved: Moved | None = "heads" if bool((reference != candidate).any()) else None
        return Finding(log_p, cosines, share_alike(cosines), moved, is_turned=True)

    def _outputs(self, pair: tuple[int, int], roles: Collection[Role], maps: FoundMaps) -> Finding | None:
        """Compare o, using the known order of query heads and rotations of values."""
        reader, cells = self.reader, self.tier_one.cells.get(Role.O)
        if cells is None:
            return None
        n_heads = [reader.n_heads(side, Role.O, place) for side, place in enumerate(pair)]
        n_kv = [reader.n_heads(side, Role.V, place) for side, place in enumerate(pair)]
        turns = maps.turns.get(Role.V)
        of_values = maps.heads.get(Role.V)
        heads = maps.heads.get(Role.Q)
        if heads is None and n_heads == n_kv:
            heads = of_values
        if heads is None:
            # Query heads agree in place or were not found, so they are taken not to have moved.
            heads = np.tile(np.arange(min(n_heads)), (2, 1))
        if of_values is None and turns is None and bool((heads[0] == heads[1]).all()):
            return None
        sides = []
        for side, rows in enumerate((cells.sample.reference, cells.sample.candidate)):
            at = cells.sample.places[side].index(pair[side])
            outputs = rows[at] if cells.sample.is_of_stream else self._whole_outputs(side, pair)
            sides.append(outputs.reshape(len(outputs), n_heads[side], -1))
        x, y = sides[0][:, torch.from_numpy(heads[0])], sides[1][:, torch.from_numpy(heads[1])]
        if x.shape[2] != y.shape[2] and turns is None:
            return None
        if turns is not None and of_values is not None:
            by_group = {int(head): at for at, head in enumerate(of_values[1])}
            group_of = [by_group.get(int(head) // (n_heads[1] // n_kv[1])) for head in heads[1]]
            if any(group is None for group in group_of):
                return None
            back = torch.linalg.pinv(turns)[torch.tensor(group_of)]
            x = torch.einsum("khd,hde->khe", x, back)
        first, second = x.flatten(1), y.flatten(1)
        log_p = log_p_in_order(first, second)
        if not self.is_significant(log_p):
            return None
        cosines = oriented(row_cosines(first, second))
        maps.heads[Role.O] = heads
        moved: Moved | None = "heads" if bool((heads[0] != heads[1]).any()) else None
        return Finding(log_p, cosines, share_of_columns(first, second), moved, is_turned=turns is not None)

    def _whole_outputs(self, side: int, pair: tuple[int, int]) -> torch.Tensor:
        rows = self.reader.rows_of_one(side, Role.O, pair[side])
        return (carried(self.residual_map, rows) if side == 0 else rows).T


def _rows_of_heads(
    samples: Sequence[torch.Tensor], n_heads: Sequence[int], heads: Sequence[IntArray]
) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = (
        rows.reshape(n, len(rows) // n, -1)[torch.from_numpy(at)].flatten(0, 1)
        for rows, n, at in zip(samples, n_heads, heads, strict=True)
    )
    return first, second


def _turned_planes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate planes ``(g, F, 2, n)`` by an angle fitted on half of the channels; return rows on the other half."""
    a, b = (rows[..., ::SOLVED_ON_HALF] for rows in (x, y))
    cosine = (a * b).sum(dim=(2, 3))[..., None]
    sine = (a[:, :, 0] * b[:, :, 1] - a[:, :, 1] * b[:, :, 0]).sum(dim=2)[..., None]
    held_out = slice(1, None, SOLVED_ON_HALF)
    x1, x2 = x[:, :, 0, held_out], x[:, :, 1, held_out]
    turned = torch.stack((cosine * x1 - sine * x2, sine * x1 + cosine * x2), dim=2)
    return turned.flatten(0, 2), y[..., held_out].flatten(0, 2)
