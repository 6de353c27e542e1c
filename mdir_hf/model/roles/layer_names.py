r"""Find layer numbers, stacks and matching patterns in tensor names.

A file may contain a million malicious names, so names are looked up in a dictionary of all names that the patterns
match. Patterns use a subset of regular expressions: characters, ``\.``, sets, groups, ``|``, ``?``, and ``\d{1,4}`` for
an expert number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from mdir_hf.budgets import collector_paused
from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.model.roles.rows import LayerRow

EXPERTS = ("0", "1", "2", "3")
"""Expert numbers in the dictionary. Patterns mention numbers up to 2; 3 stands for all other numbers."""

_EXPERT_NUMBER = r"\d{1,4}"
_GROUP = re.compile(r"\((?:\?:|\?P<[a-z]{1,9}>)?")


def is_endless(pattern: str) -> bool:
    """Return whether a pattern matches infinitely many names."""
    return any(sign in pattern.replace(r"\+", "").replace(r"\*", "") for sign in "+*")


def spelled(pattern: str) -> frozenset[str]:
    """Return all strings that a finite pattern matches, with expert numbers from :data:`EXPERTS`."""
    names, end = _alternatives(pattern, 0)
    assert end == len(pattern), f"{pattern!r} is parsed up to {end}"
    return frozenset(names)


def _alternatives(pattern: str, at: int) -> tuple[list[str], int]:
    names: list[str] = []
    sequence = [""]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            names, sequence, at = names + sequence, [""], at + 1
            continue
        matches, at = _atom(pattern, at)
        if pattern[at : at + 1] == "?":
            matches, at = [*matches, ""], at + 1
        sequence = [name + more for name in sequence for more in matches]
    return names + sequence, at


def _atom(pattern: str, at: int) -> tuple[list[str], int]:
    if pattern.startswith(_EXPERT_NUMBER, at):
        return list(EXPERTS), at + len(_EXPERT_NUMBER)
    if pattern[at] == "\\":
        return [pattern[at + 1]], at + 2
    if pattern[at] == "[":
        end = pattern.index("]", at)
        return list(pattern[at + 1 : end]), end + 1
    group = _GROUP.match(pattern, at)
    if group is None:
        return [pattern[at]], at + 1
    names, end = _alternatives(pattern, group.end())
    return names, end + 1


_NUMBER = re.compile(r"(?:^|(?<=[\s\S])\.)(0|[1-9][0-9]{0,5})\.(?=[\s\S])")
"""A layer number of at most six digits. The pattern is unambiguous, so it never backtracks."""

_WRAPPED = ".base_layer."
"""Component that adapters insert into the name of a weight."""


def split_at_layer(name: str) -> tuple[str, int, str] | None:
    """Split ``model.layers.3.mlp.up_proj.weight`` into ``("model.layers", 3, "mlp.up_proj.weight")``.

    Returns None if there is no number between dots; leading zeros are not allowed.
    """
    match = _NUMBER.search(name)
    return None if match is None else (name[: match.start()], int(match[1]), name[match.end() :])


def is_in_layer(name: str) -> bool:
    """Return whether a tensor's name contains a layer number."""
    return _NUMBER.search(name) is not None


def rows_of(suffix: str) -> tuple[LayerRow, ...]:
    """Return the table rows that match a tensor name within a layer, in table order."""
    patterns = _patterns_of(suffix)
    return _rows_with(patterns) if patterns else ()


def names_by_pattern(suffixes: Iterable[str]) -> dict[str, list[str]]:
    """Group the names in a layer by the table patterns that match them."""
    by_pattern: dict[str, list[str]] = defaultdict(list)
    for suffix in suffixes:
        for pattern in _patterns_of(suffix):
            by_pattern[pattern].append(suffix)
    return dict(by_pattern)


def is_factor(suffix: str) -> bool:
    """Return whether a tensor is an adapter's factor, stored next to the weight."""
    return ".lora_A." in suffix or ".lora_B." in suffix


@lru_cache(maxsize=1 << 14)
def expert_of(suffix: str, row: LayerRow) -> int:
    """Return the expert number in a name."""
    match = _compiled(row.pattern).fullmatch(suffix.replace(_WRAPPED, "."))
    assert match is not None
    return int(match["expert"])


@lru_cache(maxsize=1 << 14)  # names repeat in every layer
def _patterns_of(suffix: str) -> frozenset[str]:
    names, endless = _patterns_by_name()
    suffix = suffix.replace(_WRAPPED, ".")
    patterns = names.get(suffix) or names.get(".".join(map(_alike, suffix.split("."))), frozenset())
    more = [pattern for pattern in endless if pattern.fullmatch(suffix)]
    return patterns.union(pattern.pattern for pattern in more) if more else patterns


def _alike(word: str) -> str:
    """Replace an expert number that no pattern mentions with the last of :data:`EXPERTS`."""
    return EXPERTS[-1] if 0 < len(word) <= 4 and word not in EXPERTS and word.isascii() and word.isdigit() else word


@cache
def _patterns_by_name() -> tuple[dict[str, frozenset[str]], tuple[re.Pattern[str], ...]]:
    of_rows = [pattern for row in LAYER_ROWS for pattern in (row.pattern, row.beside, row.unless_beside)]
    of_rows += [pattern for row in PRODUCT_ROWS for pattern in (row.left, row.right, row.gain)]
    patterns = sorted({pattern for pattern in of_rows if pattern is not None})
    by_name: dict[str, set[str]] = defaultdict(set)
    for pattern in patterns:
        for name in () if is_endless(pattern) else spelled(pattern):
            by_name[name].add(pattern)
    endless = tuple(_compiled(pattern) for pattern in patterns if is_endless(pattern))
    return {name: frozenset(matches) for name, matches in by_name.items()}, endless


@cache
def _rows_with(patterns: frozenset[str]) -> tuple[LayerRow, ...]:
    return tuple(row for row in LAYER_ROWS if row.pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # the tables have more patterns than the cache of ``re``


_FOLDER_MARK = "|"


@dataclass(frozen=True)
class Stack:
    """Layers whose names have the same prefix.

    Attributes:
        prefix: Prefix before the layer number, without the dot.
        names: Tensor names in each layer, without prefix and layer number. If layers are split across folders, the
            names start with ``folder|``.
        is_numbered: Whether the names contain layer numbers.
        places: Original prefix and number of each layer, if several stacks were joined.
    """

    prefix: str
    names: Mapping[int, tuple[str, ...]]
    is_numbered: bool = True
    places: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """All prefixes of the layers."""
        return tuple(dict.fromkeys(prefix for prefix, _ in self.places.values())) or (self.prefix,)

    def layer_name(self, index: int) -> str | None:
        """Return a layer's original name, such as ``core_block.1``, if several stacks were joined, or None."""
        if index not in self.places:
            return None
        prefix, number = self.places[index]
        return f"{prefix.rpartition('.')[2]}.{number}"

    def tensor(self, index: int, suffix: str) -> str:
        """Return the full name of a tensor."""
        if index in self.places:
            prefix, number = self.places[index]
            return Stack(prefix, {}).tensor(number, suffix)
        if not self.is_numbered:
            return f"{self.prefix}.{suffix}"
        folder, mark, suffix_in_folder = suffix.partition(_FOLDER_MARK)
        if mark:
            return Stack(f"{self.prefix}.{folder}" if self.prefix else folder, {}).tensor(index, suffix_in_folder)
        return f"{self.prefix}.{index}.{suffix}" if self.prefix else f"{index}.{suffix}"


@collector_paused()
def find_stacks(names: Iterable[str], architecture: str = "unknown") -> tuple[Stack, ...]:
    """Group tensor names into stacks by the prefix before their layer number."""
    spread = tables.FOLDERS_OF_LAYERS.get(architecture, frozenset())
    stacks: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    alone: list[str] = []
    for name in names:
        if name.startswith(tables.LAYER_ALONE):
            alone.append(name.removeprefix(tables.LAYER_ALONE))
            continue
        split = split_at_layer(name)
        if split is not None:
            prefix, index, suffix = split
            above, _, folder = prefix.rpartition(".")
            if folder in spread:
                prefix, suffix = above, f"{folder}{_FOLDER_MARK}{suffix}"
            layers = stacks[prefix]
            layers[index].append(suffix)
            if len(layers) > tables.MOST_LAYERS:
                raise AnatomyError(
                    f"the names contain more than {tables.MOST_LAYERS} layers under {prefix!r}, which is treated as an "
                    "error"
                )
    numbered = tuple(
        Stack(prefix, {index: tuple(suffixes) for index, suffixes in sorted(layers.items())})
        for prefix, layers in sorted(stacks.items())
    )
    return (*numbered, Stack(tables.LAYER_ALONE[:-1], {0: tuple(alone)}, is_numbered=False)) if alone else numbered


def join_sequences(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Join the stacks of looped models into one; see :data:`~mdir_hf.model.roles.tables.SEQUENCES`."""
    by_prefix = {stack.prefix: stack for stack in stacks}
    for sequence in tables.SEQUENCES:
        folders = {prefix.rpartition(".")[0] for prefix in by_prefix if prefix.rpartition(".")[2] == sequence[0]}
        for folder in folders:
            prefixes = [f"{folder}.{name}" if folder else name for name in sequence]
            members = [by_prefix[prefix] for prefix in prefixes if prefix in by_prefix]
            if len(members) < 2:
                continue
            places = [(stack.prefix, number) for stack in members for number in stack.names]
            names = [suffixes for stack in members for suffixes in stack.names.values()]
            for stack in members:
                del by_prefix[stack.prefix]
            joined = Stack(prefixes[0], dict(enumerate(names)), places=dict(enumerate(places)))
            by_prefix[joined.prefix] = joined
    return tuple(by_prefix.values())
