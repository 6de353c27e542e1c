"""Layer stacks in tensor names, and the roles inside of a layer."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from mdir_hf.budgets import collector_paused
from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.config import ConfigSizes
from mdir_hf.model.roles.families import PRODUCT_ROWS
from mdir_hf.model.roles.layer_names import NamesOfLayer, expert_of, is_factor
from mdir_hf.model.roles.parts import Part, WeightPart, WeightProduct
from mdir_hf.model.roles.roles import HeadCounts, Role, head_counts
from mdir_hf.model.roles.rows import LayerRow, ProductRow, RopeLayout
from mdir_hf.model.roles.stacks import Stack

MOST_NUMBERS = 8
"""Layer numbers that a note lists."""
MOST_LISTED = 10_000
"""Layers of a config, whose number an uploader controls, whose missing numbers are looked for."""
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
        own_name: Name of a layer that lies in one of several stacks, such as ``core_block.1``; else None.
    """

    index: int
    parts: Mapping[Role, Part]
    missing: tuple[Role, ...] = ()
    experts: tuple[Mapping[Role, WeightPart], ...] = ()
    shared_experts: tuple[Mapping[Role, WeightPart], ...] = ()
    heads: HeadCounts | None = None
    rope: RopeLayout | None = None
    rotary_dim: int | None = None
    own_name: str | None = None

    @property
    def name(self) -> str:
        """Its name for people: its number, or the name of its stack with the number in it."""
        return str(self.index) if self.own_name is None else self.own_name

    def all_parts(self) -> Iterator[tuple[Role, Part]]:
        """Every part of it, those of experts too."""
        for parts in (self.parts, *self.experts, *self.shared_experts):
            yield from parts.items()


@collector_paused()
def choose_stack(stacks: Iterable[Stack], embedding: str, sizes: ConfigSizes) -> Stack | None:
    """Return the stack of the language model: the one closest to the embedding, then the one with most known roles.

    In families of :data:`~mdir_hf.model.roles.tables.MAIN_STACKS` it is the one of that name.

    Args:
        stacks: All stacks of the checkpoint.
        embedding: Name of the embedding; the stack that shares most of its prefix is the language model's. Stacks of
            vision towers, multi-token prediction and the like are left out, unless nothing else is there. Of encoder
            and decoder the decoder is the language model, in whichever of them the embedding is stored.
        sizes: What the config says.
    """
    found = list(stacks)
    main = tables.MAIN_STACKS.get(sizes.architecture)
    found = [stack for stack in found if main is not None and stack.prefix.endswith(main)] or found
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

    near = [(closeness(stack), stack) for stack in own or found]
    closest = max((shared for shared, _ in near), default=None)
    candidates = [stack for shared, stack in near if shared == closest]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    largest = heapq.nlargest(tables.MOST_STACKS, candidates, key=_n_names)
    return max(largest, key=lambda stack: (_n_roles(stack, sizes), _n_names(stack)))


def _n_names(stack: Stack) -> int:
    return sum(map(len, stack.names.values()))


def _n_roles(stack: Stack, sizes: ConfigSizes) -> int:
    """How many roles of attention and MLP the table finds in the first or the last layer of a stack."""
    most = 0
    for index in (min(stack.names), max(stack.names)):
        found = _Placed()
        names = NamesOfLayer(stack.names[index])
        for rest in names.rests:
            _place(stack, index, rest, names, sizes, found)
        _place_products(stack, index, names, sizes, found)
        roles = found.parts.keys() | {role for parts in found.mlps() for role in parts}
        most = max(most, sum(not role.is_norm for role in roles))
    return most


def _listed(indices: Sequence[int]) -> str:
    """Some layer numbers: ``0, 2 and 3``, or ``0, 10, 20 and 41 more``."""
    some = list(map(str, indices[:MOST_NUMBERS]))
    if len(indices) > MOST_NUMBERS:
        return ", ".join(some) + f" and {len(indices) - MOST_NUMBERS} more"
    return " and ".join(filter(None, (", ".join(some[:-1]), some[-1])))


@collector_paused()
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
    if sizes.n_layers is not None and not stack.places:  # configs count the rounds of a loop, or one stack of several
        extra = [index for index in indices if index >= sizes.n_layers]
        # Layers for more tokens follow the last one. Behind a gap there are layers that somebody numbered anew.
        if extra and extra[0] > sizes.n_layers and len(indices) <= sizes.n_layers:
            notes.append(f"layers are numbered with gaps: {_listed(indices)}, of {sizes.n_layers} by the config")
        elif extra:
            notes.append(
                f"{len(extra)} layer(s) from number {extra[0]} lie past the {sizes.n_layers} of the config "
                "(usually multi-token prediction) and are left out"
            )
            indices = [index for index in indices if index < sizes.n_layers]
        if len(indices) < sizes.n_layers:
            missing = sorted(set(range(sizes.n_layers)) - set(indices)) if sizes.n_layers < MOST_LISTED else []
            without = f", without {_listed(missing)}" if 0 < len(missing) == sizes.n_layers - len(indices) else ""
            notes.append(f"the config says {sizes.n_layers} layers; {len(indices)} are there{without}")
    placed = {index: _Placed.of(index, sizes) for index in indices}
    n_experts = 0
    unplaced: list[str] = []
    for index, found in placed.items():
        names = NamesOfLayer(stack.names[index])
        unknown = [rest for rest in names.rests if not _place(stack, index, rest, names, sizes, found)]
        factors = _place_products(stack, index, names, sizes, found)
        n_experts += found.n_experts()
        if n_experts > tables.MOST_EXPERTS_OF_ALL:
            raise AnatomyError(
                f"the layers up to number {index} have places for {n_experts} experts, by the numbers in names and in "
                f"the config; more than {tables.MOST_EXPERTS_OF_ALL} in all layers are taken for a mistake"
            )
        unplaced += [
            stack.tensor(index, rest)
            for rest in unknown
            if rest not in factors and not re.fullmatch(tables.NOT_WEIGHTS, rest)
        ]
    has_gate = any(Role.GATE in parts for found in placed.values() for parts in found.mlps())
    of_mlp = (Role.UP, Role.DOWN, Role.GATE) if has_gate else (Role.UP, Role.DOWN)
    has_one = sizes.architecture in tables.ONE_SUBLAYER
    inside = tables.AWAY_FROM_THE_STREAM.get(sizes.architecture, frozenset())
    if any(is_factor(rest) for index in indices[:1] for rest in stack.names[index]):
        notes.append("adapters are stored beside the weights (their names end with lora_A, lora_B) and are left out")
    layers = tuple(
        replace(found.layer(index, of_mlp, inside, has_one=has_one), own_name=stack.layer_name(index))
        for index, found in placed.items()
    )
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

    def n_experts(self) -> int:
        """Places for experts, those of numbers that are skipped too."""
        return sum(max(group, default=-1) + 1 for group in (self.experts, self.shared))

    def routed(self) -> list[dict[Role, WeightPart]]:
        """The routed experts in order; a number that is skipped has no parts."""
        return _by_number(self.experts)

    def mlps(self) -> list[Mapping[Role, Part]]:
        """The experts, or the layer itself where it has none."""
        return [*self.routed(), *_by_number(self.shared)] or [self.parts]

    def layer(self, index: int, of_mlp: tuple[Role, ...], inside: frozenset[Role], *, has_one: bool) -> Layer:
        """The layer, as a whole.

        Args:
            index: Its number.
            of_mlp: Roles that every MLP should have.
            inside: Roles that nothing plays in this family.
            has_one: Whether it is an MLP or a mixer, not both.
        """
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
            tuple(role for role in missing if role not in inside),
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


def _place(stack: Stack, index: int, rest: str, names: NamesOfLayer, sizes: ConfigSizes, found: _Placed) -> bool:
    heads = sizes.heads_of(index)
    for row in names.rows_of(rest):
        if not _holds(row, names, sizes):
            continue
        n_experts = _n_experts(row, sizes)
        if n_experts is None:
            continue  # how many there are would cost the header of its shard
        if row.experts == "numbered" and expert_of(rest, row) >= (sizes.n_experts or tables.MOST_EXPERTS):
            return False  # LongCat's experts that do nothing are stored in part
        if not all(layout.is_known(heads) for _, layout in row.parts):
            return False  # known by name, and the config does not tell how it is cut: no further row may guess
        if row.transposed is None and sizes.hidden_size is None:
            return False  # the width of the model would tell how it lies
        for role, layout in row.parts:
            stored = partial(
                WeightPart,
                stack.tensor(index, rest),
                layout,
                bool(row.transposed),
                heads,
                n_experts=n_experts if row.experts == "below" else None,
                stream=(1 if role.reads_stream else 0, sizes.hidden_size or 0) if row.transposed is None else None,
                joined=row.joined,
                first_half=row.first_half,
            )
            if row.experts is None:
                found.parts[role] = stored()
            elif row.experts == "numbered":
                found.experts[expert_of(rest, row)][role] = stored()
            elif row.experts == "shared":
                found.shared[0][role] = stored()
            else:
                group = found.shared if row.experts == "stacked shared" else found.experts
                for number in range(n_experts):
                    group[number][role] = stored(expert=number)
        found.note(row, heads)
        return True
    return False


def _n_experts(row: LayerRow, sizes: ConfigSizes) -> int | None:
    """How many experts a tensor holds; 0 for one or none, None where the config does not tell."""
    if row.experts in ("stacked", "below"):
        return sizes.n_experts
    return sizes.n_shared_experts if row.experts == "stacked shared" else 0


def _place_products(stack: Stack, index: int, names: NamesOfLayer, sizes: ConfigSizes, found: _Placed) -> set[str]:
    """Place the roles that two tensors have together; returns the names of all that take part."""
    used: set[str] = set()
    heads = sizes.heads_of(index)
    for row in PRODUCT_ROWS:
        if (
            not names.has(row.left)
            or row.role in found.parts
            or (row.model_types and sizes.architecture not in row.model_types)
        ):
            continue
        if sizes.architecture in row.except_model_types:
            continue
        left, right, gain = names.only(row.left), names.only(row.right), names.only(row.gain)
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
                first_half=row.left_first_half,
            ),
            WeightPart(stack.tensor(index, right), row.right_layout, heads=heads),
            None if gain is None else WeightPart(stack.tensor(index, gain)),
        )
        found.note(row, heads)
    return used


def _holds(row: LayerRow, names: NamesOfLayer, sizes: ConfigSizes) -> bool:
    if row.model_types and sizes.architecture not in row.model_types:
        return False
    if row.said is not None and row.said not in sizes.numbers:
        return False
    if any(sizes.flags.get(key) not in answers for key, answers in row.when):
        return False
    if row.beside is not None and not names.has(row.beside):
        return False
    return row.unless_beside is None or not names.has(row.unless_beside)
