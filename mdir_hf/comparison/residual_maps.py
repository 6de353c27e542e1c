"""List the residual-basis maps to try on the layers: first from the embeddings, then from keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.heads import pair_heads, turn_back
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.planes import LAYOUTS, PlanePairing, plane_rows
from mdir_hf.method.stream_map import rotation_predicts_better
from mdir_hf.model.comparable import PlacedTensors, numbers_are_free
from mdir_hf.model.roles import Role

FITTED_ROLE = Role.K
"""Maps can be fitted to key rows instead of token rows: keys have few rows, rotary positions fix their order, and V
remains available for the test."""

FITTED_ON = "keys of the layers"

FITTED_LAYERS, FITTED_ROWS = 4, 1024
"""Maximum numbers of layers and of rows to which a map is fitted. A copy needs about 2 ln n rows, and a fine-tune a few
hundred."""

LEAST_RESEMBLANCE = 0.35
"""Layers are skipped if their paired heads resemble each other less than this; unrelated models reach 0.31
(docs/LOG.md, 2026-11-22). This does not bias p, because heads are compared by products that rotations of the residual
stream leave unchanged."""


Readers = Callable[[Role], tuple[RoleReader, RoleReader]]
"""Function that returns the cached readers of a role for the reference and the candidate."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to map the reference's residual basis to the candidate's.

    Attributes:
        make: Returns the residual-basis map, or None; called once.
        roles: Roles whose matrices represent layers, in the order tried; each counts as a test.
    """

    make: Callable[[Readers], ResidualBasisMap | None]
    roles: tuple[Role, ...]


def attempts(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    from_embeddings: tuple[ResidualBasisMap, ...],
    roles: tuple[Role, ...],
    settings: Settings,
    *,
    are_matched: bool,
) -> tuple[Attempt, ...]:
    """List the residual-basis maps to try on the layers of two models, in order.

    A map fitted on keys is included unless the embeddings' channels were matched (``are_matched``).
    """
    result = [Attempt(partial(_unchanged, residual_map), roles) for residual_map in from_embeddings]
    # A map cannot be tested on the data to which it was fitted. Keys of latent attention are products as wide as all
    # heads together, and their row order is arbitrary.
    other_roles = tuple(role for role in roles if role is not FITTED_ROLE)
    has_keys = FITTED_ROLE in roles and Role.KV_LATENT not in roles
    if not are_matched and other_roles and has_keys:
        result.append(Attempt(partial(_fitted, settings), other_roles))
    return tuple(result)


def _unchanged(residual_map: ResidualBasisMap, readers: Readers) -> ResidualBasisMap | None:
    return residual_map


def _fitted(settings: Settings, readers: Readers) -> ResidualBasisMap | None:
    return fitted_on_layers(readers(FITTED_ROLE), seed=settings.seed, device=settings.device)


def fitted_on_layers(
    keys: tuple[RoleReader, RoleReader], *, seed: int = 0, device: str = "cpu"
) -> ResidualBasisMap | None:
    """Fit a residual-basis map to key rows that have the same layer, head and index in both models.

    Key rows replace token rows in Algorithm 1. Heads are paired using inner products of their rows, which do not depend
    on the residual basis. Keys of up to four layers of each model are read.

    Returns:
        The channel matching if it is significant at 0.1% and predicts held-out rows at least as well as the fitted
        rotation; otherwise the rotation. None if the heads do not resemble each other or the channels did not move.
    """
    pairs = list(_paired_rows(keys, seed))
    if not pairs:
        return None
    x, y = (torch.cat(rows) for rows in zip(*pairs, strict=True))
    if x.is_complex():
        y = turn_back(x, y)
        x, y = (torch.cat((planes.real, planes.imag)) for planes in (x, y))
    own_order = numbers_are_free(*(reader.model for reader in keys))
    test = EmbeddingTest(log_alpha=math.log(REMARKABLE), seed=seed, device=device, own_order=own_order)
    look = test.screen(x, y)
    widths = (x.shape[1], y.shape[1])
    if test.polar is None or test.rows is None:
        return None
    if not test.is_significant or look.matching is None or rotation_predicts_better(test.rows, look.matching):
        return ResidualBasisMap.rotation(test.polar, fitted_on=FITTED_ON)
    if widths[0] == widths[1] and look.matching.is_identity:
        return None  # already tried
    return ResidualBasisMap.from_matching(look.matching, *widths, fitted_on=FITTED_ON)


def _paired_rows(keys: tuple[RoleReader, RoleReader], seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield paired key rows of some layers, head by head and scaled to unit length; complex for rotary planes."""
    by_depth = zip(*(layers_with(reader.model, FITTED_ROLE) for reader in keys), strict=False)
    positions = [
        pair for pair in by_depth if all(at in reader.positions for at, reader in zip(pair, keys, strict=True))
    ]
    chosen_pairs = positions[:: max(1, -(-len(positions) // FITTED_LAYERS))]
    layouts = {_plane_layout(r.model, at) for pair in chosen_pairs for r, at in zip(keys, pair, strict=True)}
    layout = layouts.pop() if len(layouts) == 1 else None
    n_rows = FITTED_ROWS // max(1, len(chosen_pairs) * (1 if layout is None else 2))
    generator = torch.Generator().manual_seed(seed)
    for reference_at, candidate_at in chosen_pairs:
        x, y = _keys_by_head(keys[0], reference_at, layout), _keys_by_head(keys[1], candidate_at, layout)
        if x.shape[1] != y.shape[1]:
            continue
        heads, other_heads, resemblance = pair_heads(x, y)
        if resemblance < LEAST_RESEMBLANCE:
            continue
        x, y = x[torch.from_numpy(heads)].flatten(0, 1), y[torch.from_numpy(other_heads)].flatten(0, 1)
        rows = torch.randperm(len(x), generator=generator)[:n_rows]
        yield x[rows], y[rows]


def _plane_layout(model: PlacedTensors, position: int) -> PlanePairing | None:
    """Return how a layer's rows are paired into rotary planes, or None if some rows are not paired."""
    anatomy, layer = model.anatomy, model.anatomy.layers[position]
    if layer.heads is None and anatomy.n_heads is None:
        return None
    rope = layer.rope or anatomy.rope
    is_partial = (anatomy.rotary_dim if layer.rope is None else layer.rotary_dim) is not None
    return None if is_partial or rope not in LAYOUTS else rope


def _keys_by_head(reader: RoleReader, position: int, layout: PlanePairing | None) -> torch.Tensor:
    """Return a layer's keys: unit rows ``(heads, d, n)`` float32, or planes ``(heads, d / 2, n)`` complex64."""
    anatomy, layer = reader.model.anatomy, reader.model.anatomy.layers[position]
    keys = reader.folded(position).float()
    n_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or anatomy.n_heads or 1
    n_heads = n_heads if len(keys) % n_heads == 0 else 1
    if layout is not None and len(keys) // n_heads % 2 == 0:
        planes, _ = plane_rows(len(keys), n_heads, layout)
        first, second = keys[planes].unbind(dim=2)
        by_head = torch.complex(first, second)
    else:
        by_head = keys.reshape(n_heads, -1, keys.shape[1])
    unit_rows_by_head: torch.Tensor = by_head / by_head.norm(dim=2, keepdim=True).clamp(min=1e-30)
    return unit_rows_by_head
