"""Removes unreadable tensors from an anatomy, so that all others can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from mdir_hf.model.roles.layers import Layer
from mdir_hf.model.roles.parts import Part, WeightPart
from mdir_hf.model.roles.resolve import Anatomy
from mdir_hf.model.roles.roles import Role


def without_tensors(anatomy: Anatomy, names: Collection[str]) -> Anatomy:
    """Return the anatomy with these tensors unplaced, and their roles missing."""
    dropped = set(names)
    if not dropped:
        return anatomy
    notes = anatomy.notes
    edges: dict[str, WeightPart | None] = {}
    for edge, called in (("embedding", "embedding"), ("unembedding", "unembedding (lm_head)"), ("final_norm", "")):
        part: WeightPart | None = getattr(anatomy, edge)
        if part is not None and part.tensor in dropped:
            edges[edge] = None
            notes += (f"the {called} {part.tensor!r} cannot be read and is not compared",) if called else ()
    layers = tuple(_without(layer, dropped) for layer in anatomy.layers)
    lost = {name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors} & dropped
    return replace(
        anatomy,
        layers=layers,
        unplaced=tuple(sorted({*anatomy.unplaced, *lost})),
        notes=notes,
        tied=anatomy.tied and edges.get("embedding", anatomy.embedding) is not None,
        **edges,  # type: ignore[arg-type]
    )


def keeps_most_layers(anatomy: Anatomy) -> bool:
    """Return whether most layers have a weight with a role."""
    return 2 * len(anatomy.unread_layers) <= len(anatomy.layers)


def _without(layer: Layer, dropped: set[str]) -> Layer:
    lost: set[Role] = set()

    def readable(parts: Mapping[Role, Part]) -> Mapping[Role, Part]:
        remaining = {role: part for role, part in parts.items() if dropped.isdisjoint(part.tensors)}
        lost.update(parts.keys() - remaining.keys())
        return MappingProxyType(remaining)

    parts = readable(layer.parts)
    experts = tuple(readable(expert) for expert in layer.experts)
    shared = tuple(readable(expert) for expert in layer.shared_experts)
    if not lost:
        return layer
    missing = (*layer.missing, *(role for role in Role if role in lost and not role.is_norm))
    return replace(layer, parts=parts, experts=experts, shared_experts=shared, missing=tuple(dict.fromkeys(missing)))  # type: ignore[arg-type]
