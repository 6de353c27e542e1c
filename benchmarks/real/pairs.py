"""Choose the pairs to judge, with their true relation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.real.workshop import (
    LARGE,
    MIDDLE,
    SENTENCES,
    SMALL,
    SWAPPED,
    THIRD_PARTY,
    Model,
    members,
    models,
)

SAMPLE = ("permuted", "rotated", "noise-1", "half-width", "new-embeddings", "outliers", "continued-1e-3")
"""Members that are compared with a foreign base: one of each kind."""


@dataclass(frozen=True)
class Pair:
    """Two models and their true relation.

    Attributes:
        a: The reference, a base.
        b: The candidate.
        is_related: Whether both contain weights with the same initial values.
        kind: For tables: ``edit``, ``attack``, ``training``, ``format``, ``copy``, ``third party`` or ``stranger``.
    """

    a: Model
    b: Model
    is_related: bool
    kind: str


def pair(a: Model, b: Model) -> Pair:
    """Return the true relation of a base and a model."""
    made = members().get(b.member)
    if {a.base, b.base} == set(SENTENCES):
        return Pair(a, b, True, "copy")
    if {a.base, b.base} <= set(THIRD_PARTY):
        return Pair(a, b, True, "third party")
    if a.base == b.base and made is not None:
        return Pair(a, b, made.is_related, made.kind)
    if a.base == MIDDLE and b.member == SWAPPED:  # its embeddings come from the middle model
        return Pair(a, b, True, "attack")
    return Pair(a, b, False, "stranger")


def pairs() -> Iterator[Pair]:
    """Return pairs with relatives of each base, then pairs of strangers, the slowest last."""
    for model in models():
        if model.member != "base":
            yield pair(Model(model.base), model)
    yield pair(Model(SENTENCES[0]), Model(SENTENCES[1]))
    yield from (pair(Model(a), Model(b)) for a, b in itertools.combinations(THIRD_PARTY, 2))
    yield pair(Model(MIDDLE), Model(SMALL, SWAPPED))
    yield from (pair(Model(MIDDLE), Model(SMALL, member)) for member in SAMPLE)
    bases = (SENTENCES[0], SMALL, MIDDLE, LARGE)
    yield from (pair(Model(a), Model(b)) for a, b in itertools.combinations(bases, 2))
    yield from (pair(Model(a), Model(b)) for a in THIRD_PARTY[1:] for b in (SMALL, MIDDLE))
