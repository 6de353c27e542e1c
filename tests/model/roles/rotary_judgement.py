"""Determine how rotary positions pair the rows of a head, by value: which pairs keep their norm up to attention.

A rotation changes rows but preserves the norm of each pair of rows. For the last of several tokens whose values are as
projected, the norms under the correct pairing therefore match the input of attention, and under no other pairing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mdir_hf.model.roles import Anatomy, HeadCounts, Layer, Role, read_part
from mdir_hf.model.roles.parts import WeightProduct
from mdir_hf.model.sources import TensorSource
from tests.model.roles.forward_record import ForwardRecord

SAME = 1e-4
"""Relative tolerance: rotary tables are float32, and norms near 1 carry that rounding."""

Turn = tuple[str, int]
"""``none``, ``half`` or ``interleaved``, and the number of a head's leading rows that are rotated."""


def rotary_turns(
    layer: Layer, anatomy: Anatomy, source: TensorSource, record: ForwardRecord, role: Role
) -> set[Turn] | None:
    """Return the rotations that match a layer's q or k in the forward pass, or None if they cannot be determined.

    Args:
        layer: The layer.
        anatomy: The model's anatomy.
        source: Its weights.
        record: Record of a pass over several tokens.
        role: Q or K.
    """
    parts = [layer.parts.get(one) for one in (Role.V, role)]
    heads = layer.heads or (anatomy.n_heads and HeadCounts(anatomy.n_heads, anatomy.n_kv_heads))
    if heads is None or any(part is None or isinstance(part, WeightProduct) for part in parts):
        return None
    value, weight = (read_part(source, part).double() for part in parts)
    n = heads.n_heads if role is Role.Q else heads.n_kv_heads
    gain = layer.parts.get(Role(f"{role.value}_norm"))
    scale = None if gain is None else read_part(source, gain).double()
    entered = record.entered.get(value.shape[1])
    if entered is None or not len(entered):
        return None
    values = entered @ value.T
    for call in record.attention:
        for x in entered[_repeated(values, call.v)]:
            given = getattr(call, role.value)
            made = (weight @ x).reshape(n, -1)
            if made.shape[1] != given.shape[1] or len(given) % n:
                return None
            given = given[:: len(given) // n]
            return {turn for made, given in _before_the_norm(made, given, scale) for turn in _turns(made, given)}
    return None


def _repeated(made: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Select the values, ``(n, heads * width)``, that attention received, possibly repeated for its queries."""
    n_heads, rest = divmod(made.shape[1], given.shape[1])
    if rest or not n_heads or len(given) % n_heads:
        return torch.zeros(len(made), dtype=torch.bool)
    given = _unit(given[:: len(given) // n_heads])
    return torch.isclose(_unit(made.reshape(len(made), n_heads, -1)), given, atol=SAME).flatten(1).all(dim=1)


def _before_the_norm(
    made: torch.Tensor, given: torch.Tensor, scale: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Queries as projected, with or without a norm before or after the rotation."""
    yield _unit(made), _unit(given)
    if scale is None or scale.numel() not in (made.shape[1], made.numel()):
        return
    for gain in (scale.reshape(-1, made.shape[1]), 1 + scale.reshape(-1, made.shape[1])):
        yield _unit(made * gain), _unit(given)
        yield _unit(made), _unit(given / gain)
        mean = made.mean(dim=1, keepdim=True)
        yield _unit((made - mean) * gain), _unit(given)


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def _turns(made: torch.Tensor, given: torch.Tensor) -> Iterator[Turn]:
    width = made.shape[1]
    if torch.allclose(made, given, atol=SAME):
        yield "none", 0
        return
    for turned in range(2, width + 1, 2):
        if not torch.allclose(made[:, turned:], given[:, turned:], atol=SAME):
            continue
        head, after = made[:, :turned], given[:, :turned]
        as_half, as_turns = (
            (lambda rows: rows.reshape(len(rows), 2, -1).norm(dim=1)),
            (lambda rows: rows.reshape(len(rows), -1, 2).norm(dim=2)),
        )
        if torch.allclose(as_half(head), as_half(after), atol=SAME):
            yield "half", turned
        # Some code stores the rotated rows as halves afterwards.
        if any(torch.allclose(as_turns(head), pairs(after), atol=SAME) for pairs in (as_half, as_turns)):
            yield "interleaved", turned
