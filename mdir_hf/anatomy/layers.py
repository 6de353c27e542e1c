"""Layer stacks in tensor names, and the roles inside of a layer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from . import tables
from .config import ConfigSizes
from .roles import Role, WeightPart

_IN_LAYER = re.compile(r"(?:(?P<prefix>.*?)\.)?(?P<index>\d{1,6})\.(?P<rest>.+)")
_ATTENTION = (Role.Q, Role.K, Role.V, Role.O)


@dataclass(frozen=True)
class Layer:
    """One layer of the language model.

    Attributes:
        index: Its number in the checkpoint, 0-based.
        parts: Where the weight of each role is stored.
        missing: Roles that a layer of this model should have and that were not found in this one, or not in every one
            of its experts.
        experts: Routed experts by number, each with its own gate, up and down.
        shared_experts: Experts that every token passes; families that have several store them as one.
    """

    index: int
    parts: Mapping[Role, WeightPart]
    missing: tuple[Role, ...] = ()
    experts: tuple[Mapping[Role, WeightPart], ...] = ()
    shared_experts: tuple[Mapping[Role, WeightPart], ...] = ()

    def all_parts(self) -> Iterator[tuple[Role, WeightPart]]:
        """Every part of it, those of experts too."""
        for parts in (self.parts, *self.experts, *self.shared_experts):
            yield from parts.items()


@dataclass(frozen=True)
class Stack:
    """Layers under one prefix.

    Attributes:
        prefix: What stands in front of the layer number, without the dot; empty for names that start with it.
        names: For each layer number, the rest of each tensor name.
    """

    prefix: str
    names: Mapping[int, tuple[str, ...]]

    def tensor(self, index: int, rest: str) -> str:
        """Return the whole name of a tensor in it."""
        return f"{self.prefix}.{index}.{rest}" if self.prefix else f"{index}.{rest}"


def is_in_layer(name: str) -> bool:
    """Whether a tensor stands under a number, hence in a layer (of any stack)."""
    return _IN_LAYER.fullmatch(name) is not None


def find_stacks(names: Iterable[str]) -> tuple[Stack, ...]:
    """Group names by what stands in front of their first number."""
    stacks: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        match = _IN_LAYER.fullmatch(name)
        if match:
            stacks[match["prefix"] or ""][int(match["index"])].append(match["rest"])
    return tuple(
        Stack(prefix, {index: tuple(rests) for index, rests in sorted(layers.items())})
        for prefix, layers in sorted(stacks.items())
    )


def choose_stack(stacks: Iterable[Stack], embedding: str) -> Stack | None:
    """Return the stack of the language model: the one closest to the embedding, then the one with most tensors.

    Args:
        stacks: All stacks of the checkpoint.
        embedding: Name of the embedding; the stack that shares most of its prefix is the language model's. Stacks of
            vision towers, multi-token prediction and the like are left out, unless nothing else is there.
    """
    found = list(stacks)
    own = [stack for stack in found if not any(word in stack.prefix.lower() for word in tables.OTHER_STACKS)]
    folder = embedding.split(".")

    def closeness(stack: Stack) -> tuple[int, int, int]:
        shared = 0
        for ours, theirs in zip(stack.prefix.split("."), folder, strict=False):
            if ours != theirs:
                break
            shared += 1
        return shared, len(stack.names), sum(len(rests) for rests in stack.names.values())

    return max(own or found, key=closeness, default=None)


def place_layers(stack: Stack, sizes: ConfigSizes, notes: list[str]) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Give each tensor of a stack its role.

    Args:
        stack: The layers.
        sizes: What the config says.
        notes: Sentences for the reader are appended here.

    Returns:
        The layers in order, and the names that no row of the table knows.
    """
    indices = list(stack.names)
    if sizes.n_layers is not None:
        extra = [index for index in indices if index >= sizes.n_layers]
        if extra:
            notes.append(
                f"{len(extra)} layer(s) from number {extra[0]} lie past the {sizes.n_layers} of the config "
                "(multi-token prediction, usually) and are left out"
            )
            indices = [index for index in indices if index < sizes.n_layers]
        if len(indices) < sizes.n_layers:
            notes.append(f"the config says {sizes.n_layers} layers; {len(indices)} are there")
    placed = {index: _Placed() for index in indices}
    unplaced: list[str] = []
    for index, found in placed.items():
        for rest in stack.names[index]:
            if not _place(stack, index, rest, sizes, found) and not re.fullmatch(tables.NOT_WEIGHTS, rest):
                unplaced.append(stack.tensor(index, rest))
    has_gate = any(Role.GATE in parts for found in placed.values() for parts in found.mlps())
    of_mlp = (Role.UP, Role.DOWN, Role.GATE) if has_gate else (Role.UP, Role.DOWN)
    return tuple(found.layer(index, of_mlp) for index, found in placed.items()), tuple(unplaced)


@dataclass
class _Placed:
    """What was placed so far in one layer; experts by number."""

    parts: dict[Role, WeightPart] = field(default_factory=dict)
    experts: dict[int, dict[Role, WeightPart]] = field(default_factory=lambda: defaultdict(dict))
    shared: dict[Role, WeightPart] = field(default_factory=dict)

    def routed(self) -> list[dict[Role, WeightPart]]:
        """The routed experts in order; a number that is skipped has no parts."""
        return [self.experts.get(number, {}) for number in range(max(self.experts, default=-1) + 1)]

    def mlps(self) -> list[dict[Role, WeightPart]]:
        """The experts, or the layer itself where it has none."""
        return [*self.routed(), *([self.shared] if self.shared else [])] or [self.parts]

    def layer(self, index: int, of_mlp: tuple[Role, ...]) -> Layer:
        """The layer, in which every MLP should have the roles ``of_mlp``."""
        missing = [role for role in _ATTENTION if role not in self.parts]
        missing += [role for role in of_mlp if any(role not in parts for parts in self.mlps())]
        experts = tuple(MappingProxyType(parts) for parts in self.routed())
        shared = (MappingProxyType(self.shared),) if self.shared else ()
        return Layer(index, MappingProxyType(self.parts), tuple(missing), experts, shared)


def _place(stack: Stack, index: int, rest: str, sizes: ConfigSizes, found: _Placed) -> bool:
    for row in tables.LAYER_ROWS:
        match = re.fullmatch(row.pattern, rest)
        if match is None or not _holds(row, stack.names[index], sizes.architecture):
            continue
        if row.experts == "stacked" and sizes.n_experts is None:
            continue  # how many there are would cost the header of its shard
        for role, layout in row.parts:
            part = WeightPart(stack.tensor(index, rest), layout, row.transposed, sizes.heads)
            if row.experts == "numbered":
                found.experts[int(match["expert"])][role] = part
            elif row.experts == "stacked":
                for number in range(sizes.n_experts or 0):
                    found.experts[number][role] = replace(part, expert=number)
            else:
                (found.shared if row.experts == "shared" else found.parts)[role] = part
        return True
    return False


def _holds(row: tables.LayerRow, siblings: tuple[str, ...], architecture: str) -> bool:
    if row.model_types and architecture not in row.model_types:
        return False
    if row.beside is not None and not any(re.fullmatch(row.beside, rest) for rest in siblings):
        return False
    return row.unless_beside is None or not any(re.fullmatch(row.unless_beside, rest) for rest in siblings)
