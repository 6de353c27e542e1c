"""The residual-basis maps to try on the layers: those found on the embeddings, then one fitted on keys."""

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
from mdir_hf.method.held_out import rotation_predicts_better
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.planes import LAYOUTS, RopeLayout, plane_rows
from mdir_hf.method.row_products import pair_heads, turn_back
from mdir_hf.model.comparable import PlacedTensors, numbers_are_free
from mdir_hf.model.roles import Role

FITTED_ROLE = Role.K
"""Rows of keys take the place of tokens. They are few, rotary positions hold them in their order, and V stays free to
be tested."""

FITTED_ON = "keys of the layers"

FITTED_LAYERS, FITTED_ROWS = 4, 1024
"""A copy needs about 2 ln n rows, a fine-tune some hundred. Up to a thousand rows go through thin factors, which is
cheap."""

LEAST_RESEMBLANCE = 0.35
"""Layers whose paired heads resemble each other less are left out: strangers reach 0.31 (docs/LOG.md, 2026-11-22). It
saves work and takes nothing from p: no rotation of a residual stream changes the products that it is read off."""


Readers = Callable[[Role], tuple[RoleReader, RoleReader]]
"""Gives the readers of what plays a role, of the reference and of the candidate; the same ones whenever it is asked."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to carry the layers of one model into the residual basis of the other.

    Attributes:
        make: Returns the residual-basis map, or None if none was found; called once, when its turn comes.
        roles: Representatives whose maps are made behind it, in the order to try them; all are counted beforehand.
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
    """List what is tried on the layers of two models.

    Args:
        reference: One model.
        candidate: The other.
        from_embeddings: What the embeddings suggest.
        roles: Representatives that both models have.
        settings: Seed and device.
        are_matched: Whether channels were matched on the embeddings. Where not, rows of the layers are tried, too.

    Returns:
        The attempts, in their order.
    """
    found = [Attempt(partial(_given, residual_map), roles) for residual_map in from_embeddings]
    # What a transformation was fitted on cannot be tested behind it. Keys of latent attention are products as wide as
    # all heads together, whose rows nothing holds in their order.
    others = tuple(role for role in roles if role is not FITTED_ROLE)
    has_keys = FITTED_ROLE in roles and Role.KV_LATENT not in roles
    if not are_matched and others and has_keys:
        found.append(Attempt(partial(_fitted, settings), others))
    return tuple(found)


def _given(residual_map: ResidualBasisMap, readers: Readers) -> ResidualBasisMap | None:
    return residual_map


def _fitted(settings: Settings, readers: Readers) -> ResidualBasisMap | None:
    return fitted_on_layers(readers(FITTED_ROLE), seed=settings.seed, device=settings.device)


def fitted_on_layers(
    keys: tuple[RoleReader, RoleReader], *, seed: int = 0, device: str = "cpu"
) -> ResidualBasisMap | None:
    """Relate the residual streams of two models by rows of their keys, paired by layer, head and number.

    Where the embeddings are new, channels that were permuted, cut or turned cannot be matched on them. Rows of the
    layers can take the place of tokens (Algorithm 1 asks nothing of what its rows mean). Heads are paired by the
    products of their rows, which are the same in every residual basis. Another matrix of the layers is tested behind
    the map.

    Args:
        keys: Readers of the keys of the reference's layers and of the candidate's; only layers that they compare are
            read, and what they hold is not read again.
        seed: Seed of the rows.
        device: Where matrix products run.

    Returns:
        The matching of channels where it is significant at 0.1 % and predicts other rows at least as well as the
        rotation of these rows does, else that rotation; None where the heads of the two models do not resemble each
        other, or where channels are where they were. Planes that rotary positions leave free to turn are turned back
        first. Reads the keys of up to four layers of each model.
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
    if not test.is_settled or look.matching is None or rotation_predicts_better(test.rows, look.matching):
        return ResidualBasisMap.rotation(test.polar, fitted_on=FITTED_ON)
    if widths[0] == widths[1] and look.matching.is_identity:
        return None  # which has been tried
    return ResidualBasisMap.from_matching(look.matching, *widths, fitted_on=FITTED_ON)


def _paired_rows(keys: tuple[RoleReader, RoleReader], seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield rows of the keys of some layers, of unit length, head by head; planes as one complex row each."""
    by_depth = zip(*(layers_with(reader.model, FITTED_ROLE) for reader in keys), strict=False)
    positions = [
        pair for pair in by_depth if all(at in reader.positions for at, reader in zip(pair, keys, strict=True))
    ]
    chosen = positions[:: max(1, -(-len(positions) // FITTED_LAYERS))]
    layouts = {_plane_layout(r.model, at) for pair in chosen for r, at in zip(keys, pair, strict=True)}
    layout = layouts.pop() if len(layouts) == 1 else None
    n_rows = FITTED_ROWS // max(1, len(chosen) * (1 if layout is None else 2))
    generator = torch.Generator().manual_seed(seed)
    for mine, other in chosen:
        x, y = _keys_by_head(keys[0], mine, layout), _keys_by_head(keys[1], other, layout)
        if x.shape[1] != y.shape[1]:
            continue
        heads, other_heads, resemblance = pair_heads(x, y)
        if resemblance < LEAST_RESEMBLANCE:
            continue
        x, y = x[torch.from_numpy(heads)].flatten(0, 1), y[torch.from_numpy(other_heads)].flatten(0, 1)
        rows = torch.randperm(len(x), generator=generator)[:n_rows]
        yield x[rows], y[rows]


def _plane_layout(model: PlacedTensors, position: int) -> RopeLayout | None:
    """How the rows of a head pair up into planes that are free to turn; None where not all do, or heads are unknown."""
    anatomy, layer = model.anatomy, model.anatomy.layers[position]
    if layer.heads is None and anatomy.n_heads is None:
        return None
    rope = layer.rope or anatomy.rope
    is_partial = (anatomy.rotary_dim if layer.rope is None else layer.rotary_dim) is not None
    return None if is_partial or rope not in LAYOUTS else rope


def _keys_by_head(reader: RoleReader, position: int, layout: RopeLayout | None) -> torch.Tensor:
    """Keys of a layer, gains folded in, by head: rows ``(heads, d, n)`` float32, or planes ``(heads, d / 2, n)``.

    One head stands for all where they are not known, or not whole.
    """
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
    of_one_length: torch.Tensor = by_head / by_head.norm(dim=2, keepdim=True).clamp(min=1e-30)
    return of_one_length
