"""Finds stacks of layers in tensor names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mdir_hf.budgets import collector_paused
from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.layer_names import split_at_layer

_FOLDER_MARK = "|"


@dataclass(frozen=True)
class Stack:
    """Layers under one prefix.

    Attributes:
        prefix: Prefix before the layer number, without the dot; empty for names that start with the number.
        names: Rest of each tensor name, by layer number; starts with ``folder|`` if layers are spread over folders that
            come before their number.
        is_numbered: Whether the names contain the number; a single layer may have a name instead.
        places: For a sequence of several stacks, the prefix and original number of each layer.
    """

    prefix: str
    names: Mapping[int, tuple[str, ...]]
    is_numbered: bool = True
    places: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of its layers; several for a sequence of several stacks."""
        return tuple(dict.fromkeys(prefix for prefix, _ in self.places.values())) or (self.prefix,)

    def layer_name(self, index: int) -> str | None:
        """Return the name of a layer in a sequence of several stacks, such as ``core_block.1``, or None."""
        if index not in self.places:
            return None
        prefix, number = self.places[index]
        return f"{prefix.rpartition('.')[2]}.{number}"

    def tensor(self, index: int, rest: str) -> str:
        """Return the full name of a tensor."""
        if index in self.places:
            prefix, number = self.places[index]
            return Stack(prefix, {}).tensor(number, rest)
        if not self.is_numbered:
            return f"{self.prefix}.{rest}"
        folder, mark, rest_in_folder = rest.partition(_FOLDER_MARK)
        if mark:
            return Stack(f"{self.prefix}.{folder}" if self.prefix else folder, {}).tensor(index, rest_in_folder)
        return f"{self.prefix}.{index}.{rest}" if self.prefix else f"{index}.{rest}"


@collector_paused()
def find_stacks(names: Iterable[str], architecture: str = "unknown") -> tuple[Stack, ...]:
    """Group names by the prefix before their first number; some families spread a layer over several folders.

    A layer with a name instead of a number is a stack of one.

    Raises:
        AnatomyError: If a stack has more layers than any model.
    """
    spread = tables.FOLDERS_OF_LAYERS.get(architecture, frozenset())
    stacks: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    alone: list[str] = []
    for name in names:
        if name.startswith(tables.LAYER_ALONE):
            alone.append(name.removeprefix(tables.LAYER_ALONE))
            continue
        split = split_at_layer(name)
        if split is not None:
            prefix, index, rest = split
            above, _, folder = prefix.rpartition(".")
            if folder in spread:
                prefix, rest = above, f"{folder}{_FOLDER_MARK}{rest}"
            layers = stacks[prefix]
            layers[index].append(rest)
            if len(layers) > tables.MOST_LAYERS:
                raise AnatomyError(
                    f"the names contain more than {tables.MOST_LAYERS} layers under {prefix!r}, which is treated as an "
                    "error"
                )
    numbered = tuple(
        Stack(prefix, {index: tuple(rests) for index, rests in sorted(layers.items())})
        for prefix, layers in sorted(stacks.items())
    )
    return (*numbered, Stack(tables.LAYER_ALONE[:-1], {0: tuple(alone)}, is_numbered=False)) if alone else numbered


def join_sequences(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Join the stacks of looped models to one sequence of layers, numbered from the first.

    Returns:
        The stacks, with those in :data:`~mdir_hf.model.roles.tables.SEQUENCES` replaced by one sequence.
    """
    by_prefix = {stack.prefix: stack for stack in stacks}
    for sequence in tables.SEQUENCES:
        folders = {prefix.rpartition(".")[0] for prefix in by_prefix if prefix.rpartition(".")[2] == sequence[0]}
        for folder in folders:
            prefixes = [f"{folder}.{name}" if folder else name for name in sequence]
            members = [by_prefix[prefix] for prefix in prefixes if prefix in by_prefix]
            if len(members) < 2:
                continue
            places = [(stack.prefix, number) for stack in members for number in stack.names]
            names = [rests for stack in members for rests in stack.names.values()]
            for stack in members:
                del by_prefix[stack.prefix]
            joined = Stack(prefixes[0], dict(enumerate(names)), places=dict(enumerate(places)))
            by_prefix[joined.prefix] = joined
    return tuple(by_prefix.values())
