"""Run tier 2 for the MLP: search for permuted neurons using gate, then compare their rows of up and columns of down."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch

from mdir_hf.comparison.neuron_layers import DOWN_OF, GATE_OF
from mdir_hf.comparison.projections.findings import (
    Finding,
    FoundMaps,
    Search,
    is_alike,
    log_p_in_order,
    oriented,
    row_cosines,
    share_alike,
    share_of_columns,
)
from mdir_hf.comparison.projections.samples import SAMPLED_ROWS, carried
from mdir_hf.method.row_agreement import centred_rows, flattened, log_p_fixed, search_rows
from mdir_hf.model.roles import Role

LEAST_SHARE_MOVED = 0.05
"""Neurons count as permuted if more than this share of the similar pairs have different numbers."""


class NeuronSearch(Search):
    """Search for permuted neurons."""

    def mlp(self, pair: tuple[int, int], up: Role, roles: Collection[Role], maps: FoundMaps) -> dict[Role, Finding]:
        """Look for permuted neurons or mixer channels (rows of ``up``) and add the pairs to ``maps``."""
        reader, gate, down = self.reader, GATE_OF[up], DOWN_OF[up]
        has_gate = all(pair[side] in reader.places(side, gate) for side in (0, 1))
        findings: dict[Role, Finding] = {}
        searched_roles = [role for role in ((gate, up) if has_gate else (up,)) if role in roles]
        for role in searched_roles:
            if maps.neurons is None:
                finding = self._neurons(role, pair, maps, is_signed=role is up and has_gate)
                if finding is not None:
                    findings[role] = finding
        if maps.neurons is None:
            return findings
        for role in (gate, up):
            if role in roles and role not in findings and (has_gate or role is up):
                finding = self._same_neurons(role, pair, maps, is_signed=role is up and has_gate)
                if finding is not None:
                    findings[role] = finding
        if down in roles:
            finding = self._neuron_outputs(pair, down, maps)
            if finding is not None:
                findings[down] = finding
        if has_gate:
            maps.neurons[2] *= maps.sign
        if up is Role.UP:
            return findings
        return {role: replace(finding, moved="channels") for role, finding in findings.items()}

    def _neurons(self, role: Role, pair: tuple[int, int], maps: FoundMaps, *, is_signed: bool) -> Finding | None:
        """Search for sampled neurons of the smaller layer among all neurons of the other layer."""
        reader = self.reader
        if not all(pair[side] in reader.places(side, role) for side in (0, 1)):
            return None
        n_rows = [reader.n_rows(side, role, place) for side, place in enumerate(pair)]
        few = int(n_rows[1] < n_rows[0])
        numbers = np.sort(np.random.default_rng([reader.seed, 5]).permutation(n_rows[few])[:SAMPLED_ROWS])
        numbers = numbers.astype(np.int64)
        rows = [
            reader.rows_of_one(side, role, place, numbers if side == few else None) for side, place in enumerate(pair)
        ]
        rows[0] = carried(self.residual_map, rows[0])
        # Keys do not tell the overall sign of a residual-basis map, and nor does tier 1 if all rows moved.
        searches = [(sign, search_rows(sign * rows[few], rows[1 - few], is_signed=is_signed)) for sign in (1, -1)]
        sign, search = min(searches, key=lambda signed_search: signed_search[1].log_p)
        log_p = min(0.0, search.log_p + math.log(len(searches)))
        if not self.is_significant(log_p):
            return None
        sides = (numbers, search.partners) if few == 0 else (search.partners, numbers)
        cosines = row_cosines(rows[few], rows[1 - few][torch.from_numpy(search.partners)]) * search.signs * sign
        if np.mean((sides[0] != sides[1])[is_alike(cosines)]) <= LEAST_SHARE_MOVED:
            return None  # similar neurons are in place, as tier 1 has found
        maps.neurons = np.stack((*sides, search.signs if is_signed else np.ones_like(search.signs)))
        maps.sign = 1 if is_signed else sign
        return Finding(log_p, cosines, share_alike(cosines), "neurons")

    def _same_neurons(self, role: Role, pair: tuple[int, int], maps: FoundMaps, *, is_signed: bool) -> Finding | None:
        """Compare another projection of neurons with known partners; if ``is_signed``, rows may differ in sign."""
        reader = self.reader
        assert maps.neurons is not None
        if not all(pair[side] in reader.places(side, role) for side in (0, 1)):
            return None
        rows = [self.rows(side, role, pair[side], maps.neurons[side]) for side in (0, 1)]
        rows[0] = carried(self.residual_map, rows[0])
        factor = flattened(centred_rows(rows[0]) @ centred_rows(rows[1]).T).double().cpu().numpy()
        entries = factor.diagonal()
        signs = np.where(entries < 0.0, -1, 1).astype(np.int64) if is_signed else np.ones(len(entries), dtype=np.int64)
        log_n = (len(entries) if is_signed else 1) * math.log(2.0)
        log_p = float(log_p_fixed((entries * signs).sum(), np.square(factor).sum(), len(entries), log_n_choices=log_n))
        if not self.is_significant(log_p):
            return None
        if is_signed:
            maps.neurons = np.stack((maps.neurons[0], maps.neurons[1], signs))
        cosines = row_cosines(rows[0], rows[1]) * signs
        return Finding(log_p, cosines, share_alike(cosines), "neurons")

    def _neuron_outputs(self, pair: tuple[int, int], down: Role, maps: FoundMaps) -> Finding | None:
        """Compare the columns of down for neurons with known partners and signs."""
        cells = self.tier_one.cells.get(down)
        assert maps.neurons is not None
        if cells is None or any(pair[side] not in cells.sample.places[side] for side in (0, 1)):
            return None
        signs = torch.from_numpy(maps.neurons[2])
        if cells.sample.is_of_stream:
            rows = [
                side[cells.sample.places[at].index(pair[at])][:, torch.from_numpy(maps.neurons[at])]
                for at, side in enumerate((cells.sample.reference, cells.sample.candidate))
            ]
            first, second = rows[0] * signs.to(rows[0]), rows[1]
        else:
            rows = [self.rows(side, down, pair[side], maps.neurons[side]) for side in (0, 1)]
            first, second = carried(self.residual_map, rows[0]) * signs[:, None].to(rows[0]), rows[1]
        log_p = log_p_in_order(first, second)
        if not self.is_significant(log_p):
            return None
        cosines = oriented(row_cosines(first, second))
        share = share_of_columns(first, second) if cells.sample.is_of_stream else share_alike(cosines)
        return Finding(log_p, cosines, share, "neurons")
