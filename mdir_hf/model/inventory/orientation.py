"""Find out from shapes whether matrices are stored transposed, contrary to what their family's names say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mdir_hf.errors import MdirError
from mdir_hf.model.roles import Anatomy, Layer, Role, WeightPart
from mdir_hf.model.roles.parts import ShapeOf, StoredWeight

_TELLING = (Role.UP, Role.GATE, Role.DOWN, Role.Q, Role.K, Role.V, Role.O)
"""Roles in the order in which they are examined; the MLP's matrices are rarely square."""


def with_fitting_orientation(anatomy: Anatomy, shape_of: ShapeOf) -> Anatomy:
    """Turn the matrices whose shapes fit only the other orientation.

    Square matrices follow the others: they are turned if all others are. Usually reads one shape.
    """
    layer = next((layer for layer in anatomy.layers if any(map(layer.parts.get, _TELLING))), None)
    if layer is None:
        return anatomy
    turned: set[Role] = set()
    square: set[Role] = set()
    for role in _TELLING:
        fits = _fits(role, layer.parts.get(role), anatomy, shape_of)
        if fits is None:
            continue
        if fits == (True, True):
            square.add(role)
        elif fits == (False, True):
            turned.add(role)
        elif not turned:
            return anatomy  # as stated
        else:
            square.clear()  # others are as stated, so the square ones may be
            break
    if len(turned) < 2:
        return anatomy  # one matrix with another shape is more likely a fault
    layers = tuple(_turned(layer, turned | square) for layer in anatomy.layers)
    family = "its names" if anatomy.architecture == "unknown" else f"the family {anatomy.architecture}"
    note = f"the matrices of its layers are stored in the other orientation than {family} suggests; shapes tell"
    return replace(anatomy, layers=layers, notes=(*anatomy.notes, note))


def _fits(role: Role, part: StoredWeight | None, anatomy: Anatomy, shape_of: ShapeOf) -> tuple[bool, bool] | None:
    """Return whether a stored matrix fits as stated, and transposed; None if it says nothing."""
    if not isinstance(part, WeightPart) or part.stream is not None or part.per_head or part.joined:
        return None
    try:
        shape = tuple(shape_of(part.tensor))
    except MdirError:
        return None
    if len(shape) != 2 or part.expert is not None or part.first_half:
        return None
    d_out, d_in = shape[::-1] if part.transposed else shape
    if role.reads_stream:
        return d_in == anatomy.hidden_size, d_out == anatomy.hidden_size
    return d_out == anatomy.written_width, d_in == anatomy.written_width


def _turned(layer: Layer, roles: set[Role]) -> Layer:
    parts: Mapping[Role, StoredWeight] = {
        role: replace(part, transposed=not part.transposed) if role in roles and isinstance(part, WeightPart) else part
        for role, part in layer.parts.items()
    }
    return replace(layer, parts=MappingProxyType(parts))
