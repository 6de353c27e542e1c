"""Layer stacks in tensor names, and the roles inside of a layer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from . import tables
from .config import ConfigSizes
from .families import LAYER_ROWS, PRODUCT_ROWS
from .parts import Part, WeightPart, WeightProduct
from .roles import HeadCounts, Role, head_counts
from .rows import LayerRow, ProductRow, RopeLayout

_FOLDER_MARK = "|"
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
        heads: Its query heads and key/value heads where they are not as everywhere in the model, else None.
        rope: How rotated rows pair up where that is not as everywhere in the model, else None.
        rotary_dim: Rows of a head that are rotated where ``rope`` is not None; None for all, or none.
    """

    index: int
    parts: Mapping[Role, Part]
    missing: tuple[Role, ...] = ()
    experts: tuple[Mapping[Role, WeightPart], ...] = ()
    shared_experts: tuple[Mapping[Role, WeightPart], ...] = ()
    heads: HeadCounts | None = None
    rope: RopeLayout | None = None
    rotary_dim: int | None = None

    def all_parts(self) -> Iterator[tuple[Role, Part]]:
        """Every part of it, those of experts too."""
        for parts in (self.parts, *self.experts, *self.shared_experts):
            yield from parts.items()


@dataclass(frozen=True)
class Stack:
    """Layers under one prefix.

    Attributes:
        prefix: What stands in front of the layer number, without the dot; empty for names that start with it.
        names: For each layer number, the rest of each tensor name; behind ``folder|`` where layers are spread over
            folders that stand in front of their number.
    """

    prefix: str
    names: Mapping[int, tuple[str, ...]]

    def tensor(self, index: int, rest: str) -> str:
        """Return the whole name of a tensor in it."""
        folder, mark, rest_in_folder = rest.partition(_FOLDER_MARK)
        if mark:
            return Stack(f"{self.prefix}.{folder}" if self.prefix else folder, {}).tensor(index, rest_in_folder)
        return f"{self.prefix}.{index}.{rest}" if self.prefix else f"{index}.{rest}"


def is_in_layer(name: str) -> bool:
    """Whether a tensor stands under a number, hence in a layer (of any stack)."""
    return _IN_LAYER.fullmatch(name) is not None


def find_stacks(names: Iterable[str], architecture: str = "unknown") -> tuple[Stack, ...]:
    """Group names by what stands in front of their first number; of some families, the folders of a layer together."""
    spread = tables.FOLDERS_OF_LAYERS.get(architecture, frozenset())
    stacks: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        match = _IN_LAYER.fullmatch(name)
        if match:
            prefix, rest = match["prefix"] or "", match["rest"]
            above, _, folder = prefix.rpartition(".")
            if folder in spread:
                prefix, rest = above, f"{folder}{_FOLDER_MARK}{rest}"
            stacks[prefix][int(match["index"])].append(rest)
    return tuple(
        Stack(prefix, {index: tuple(rests) for index, rests in sorted(layers.items())})
        for prefix, layers in sorted(stacks.items())
    )


def choose_stack(stacks: Iterable[Stack], embedding: str, sizes: ConfigSizes) -> Stack | None:
    """Return the stack of the language model: the one closest to the embedding, then the one with most known roles.

    Args:
        stacks: All stacks of the checkpoint.
        embedding: Name of the embedding; the stack that shares most of its prefix is the language model's. Stacks of
            vision towers, multi-token prediction and the like are left out, unless nothing else is there. Of encoder
            and decoder the decoder is the language model, in whichever of them the embedding is stored.
        sizes: What the config says.
    """
    found = list(stacks)
    own = [stack for stack in found if not any(word in stack.prefix.lower() for word in tables.OTHER_STACKS)]
    has_decoder = any("decoder" in stack.prefix for stack in own)

    def folder(name: str) -> list[str]:
        return (name.replace("encoder", "decoder") if has_decoder else name).split(".")

    def closeness(stack: Stack) -> tuple[int, bool]:
        shared = 0
        for ours, theirs in zip(folder(stack.prefix), folder(embedding), strict=False):
            if ours != theirs:
                break
            shared += 1
        return shared, not (has_decoder and "encoder" in stack.prefix and "decoder" not in stack.prefix)

    closest = max(map(closeness, own or found), default=None)
    candidates = [stack for stack in own or found if closeness(stack) == closest]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return max(candidates, key=lambda stack: (_n_roles(stack, sizes), sum(map(len, stack.names.values()))))


def _n_roles(stack: Stack, sizes: ConfigSizes) -> int:
    """How many roles of attention and MLP the table finds in the first or the last layer of a stack."""
    most = 0
    for index in (min(stack.names), max(stack.names)):
        found = _Placed()
        for rest in stack.names[index]:
            _place(stack, index, rest, sizes, found)
        _place_products(stack, index, sizes, found)
        roles = found.parts.keys() | {role for parts in found.mlps() for role in parts}
        most = max(most, sum(not role.is_norm for role in roles))
    return most


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
                "(usually multi-token prediction) and are left out"
            )
            indices = [index for index in indices if index < sizes.n_layers]
        if len(indices) < sizes.n_layers:
            notes.append(f"the config says {sizes.n_layers} layers; {len(indices)} are there")
    placed = {index: _Placed.of(index, sizes) for index in indices}
    unplaced: list[str] = []
    for index, found in placed.items():
        unknown = [rest for rest in stack.names[index] if not _place(stack, index, rest, sizes, found)]
        factors = _place_products(stack, index, sizes, found)
        unplaced += [
            stack.tensor(index, rest)
            for rest in unknown
            if rest not in factors and not re.fullmatch(tables.NOT_WEIGHTS, rest)
        ]
    has_gate = any(Role.GATE in parts for found in placed.values() for parts in found.mlps())
    of_mlp = (Role.UP, Role.DOWN, Role.GATE) if has_gate else (Role.UP, Role.DOWN)
    has_one = sizes.architecture in tables.ONE_SUBLAYER
    layers = tuple(found.layer(index, of_mlp, has_one=has_one) for index, found in placed.items())
    return layers, tuple(unplaced)


@dataclass
class _Placed:
    """What was placed so far in one layer; experts by number."""

    parts: dict[Role, Part] = field(default_factory=dict)
    experts: dict[int, dict[Role, WeightPart]] = field(default_factory=lambda: defaultdict(dict))
    shared: dict[int, dict[Role, WeightPart]] = field(default_factory=lambda: defaultdict(dict))
    heads: HeadCounts | None = None
    rope: RopeLayout | None = None
    rotary_dim: int | None = None

    @classmethod
    def of(cls, index: int, sizes: ConfigSizes) -> _Placed:
        """Nothing yet but what the config says of the layer."""
        rotation = sizes.layer_rotations.get(index)
        rope, dim = (None, None) if rotation is None else (rotation.layout, rotation.dim)
        return cls(heads=sizes.layer_heads.get(index), rope=rope, rotary_dim=dim)

    def routed(self) -> list[dict[Role, WeightPart]]:
        """The routed experts in order; a number that is skipped has no parts."""
        return _by_number(self.experts)

    def mlps(self) -> list[Mapping[Role, Part]]:
        """The experts, or the layer itself where it has none."""
        return [*self.routed(), *_by_number(self.shared)] or [self.parts]

    def layer(self, index: int, of_mlp: tuple[Role, ...], *, has_one: bool) -> Layer:
        """The layer, in which every MLP should have the roles ``of_mlp``; ``has_one``: an MLP or a mixer, not both."""
        has_attention, has_mixer = any(role in self.parts for role in _ATTENTION), Role.SSM_IN in self.parts
        has_mlp = any(role in parts for parts in self.mlps() for role in of_mlp)
        missing: list[Role] = []
        if has_attention or not (has_mixer or (has_one and has_mlp)):
            missing += [role for role in _ATTENTION if role not in self.parts]
        if has_mixer and Role.SSM_OUT not in self.parts:
            missing.append(Role.SSM_OUT)
        if has_mlp or not (has_one and (has_attention or has_mixer)):
            missing += [role for role in of_mlp if any(role not in parts for parts in self.mlps())]
        experts = tuple(MappingProxyType(parts) for parts in self.routed())
        shared = tuple(MappingProxyType(parts) for parts in _by_number(self.shared))
        return Layer(
            index,
            MappingProxyType(self.parts),
            tuple(missing),
            experts,
            shared,
            heads=self.heads,
            rope=self.rope,
            rotary_dim=self.rotary_dim,
        )

    def note(self, row: LayerRow | ProductRow, heads: HeadCounts | None) -> None:
        """Keep what a row says of the layer as a whole."""
        if row.rope is not None:
            self.rope, self.rotary_dim = row.rope, None
        if row.n_heads is not None:
            self.heads = head_counts(row.n_heads, heads) or self.heads  # None: the tests will do without heads


def _by_number(experts: Mapping[int, dict[Role, WeightPart]]) -> list[dict[Role, WeightPart]]:
    return [experts.get(number, {}) for number in range(max(experts, default=-1) + 1)]


@lru_cache(maxsize=1 << 13)
def _rows_for(rest: str) -> tuple[tuple[LayerRow, re.Match[str]], ...]:
    """The rows whose pattern a name matches. Kept, because layers repeat their names: 90,000 would take a minute."""
    matches = ((row, pattern.fullmatch(rest)) for row, pattern in _patterns())
    return tuple((row, match) for row, match in matches if match is not None)


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[LayerRow, re.Pattern[str]], ...]:
    return tuple((row, re.compile(row.pattern)) for row in LAYER_ROWS)  # more than ``re`` itself remembers


def _place(stack: Stack, index: int, rest: str, sizes: ConfigSizes, found: _Placed) -> bool:
    heads = sizes.heads_of(index)
    for row, match in _rows_for(rest):
        if not _holds(row, stack.names[index], sizes):
            continue
        n_experts = _n_experts(row, sizes)
        if n_experts is None:
            continue  # how many there are would cost the header of its shard
        if row.experts == "numbered" and int(match["expert"]) >= (sizes.n_experts or tables.MOST_EXPERTS):
            return False  # LongCat's experts that do nothing are stored in part
        if not all(layout.is_known(heads) for _, layout in row.parts):
            return False  # known by name, and the config does not tell how it is cut: no further row may guess
        if row.transposed is None and sizes.hidden_size is None:
            return False  # the width of the model would tell how it lies
        for role, layout in row.parts:
            part = WeightPart(stack.tensor(index, rest), layout, bool(row.transposed), heads, joined=row.joined)
            if row.transposed is None:
                part = replace(part, stream=(1 if role.reads_stream else 0, sizes.hidden_size or 0))
            if row.experts is None:
                found.parts[role] = part
            elif row.experts == "numbered":
                found.experts[int(match["expert"])][role] = part
            elif row.experts == "shared":
                found.shared[0][role] = part
            else:
                part = replace(part, n_experts=n_experts if row.experts == "below" else None)
                group = found.shared if row.experts == "stacked shared" else found.experts
                for number in range(n_experts):
                    group[number][role] = replace(part, expert=number)
        found.note(row, heads)
        return True
    return False


def _n_experts(row: LayerRow, sizes: ConfigSizes) -> int | None:
    """How many experts a tensor holds; 0 for one or none, None where the config does not tell."""
    if row.experts in ("stacked", "below"):
        return sizes.n_experts
    return sizes.n_shared_experts if row.experts == "stacked shared" else 0


def _place_products(stack: Stack, index: int, sizes: ConfigSizes, found: _Placed) -> set[str]:
    """Place the roles that two tensors have together; returns the names of all that take part."""
    used: set[str] = set()
    heads = sizes.heads_of(index)
    for row in PRODUCT_ROWS:
        if row.role in found.parts or (row.model_types and sizes.architecture not in row.model_types):
            continue
        if sizes.architecture in row.except_model_types:
            continue
        left, right, gain = (_sibling(stack, index, pattern) for pattern in (row.left, row.right, row.gain))
        if left is None or right is None or (gain is None and row.gain is not None):
            continue
        if not (row.left_layout.is_known(heads) and row.right_layout.is_known(heads)):
            continue
        used |= {rest for rest in (left, right, gain) if rest is not None}
        found.parts[row.role] = WeightProduct(
            WeightPart(
                stack.tensor(index, left),
                row.left_layout,
                row.left_transposed,
                heads=heads,
                per_head=row.left_per_head,
            ),
            WeightPart(stack.tensor(index, right), row.right_layout, heads=heads),
            None if gain is None else WeightPart(stack.tensor(index, gain)),
        )
        found.note(row, heads)
    return used


def _sibling(stack: Stack, index: int, pattern: str | None) -> str | None:
    """The tensor of a layer that a pattern means; None where none does, or several."""
    if pattern is None:
        return None
    matching = [rest for rest in stack.names[index] if re.fullmatch(pattern, rest)]
    return matching[0] if len(matching) == 1 else None


def _holds(row: LayerRow, siblings: tuple[str, ...], sizes: ConfigSizes) -> bool:
    if row.model_types and sizes.architecture not in row.model_types:
        return False
    if any(sizes.flags.get(key) not in answers for key, answers in row.when):
        return False
    if row.beside is not None and not any(re.fullmatch(row.beside, rest) for rest in siblings):
        return False
    return row.unless_beside is None or not any(re.fullmatch(row.unless_beside, rest) for rest in siblings)
