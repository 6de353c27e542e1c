"""Find layer stacks in tensor names, and assign roles within layers."""

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
from mdir_hf.model.roles.layer_names import Stack, expert_of, is_factor, names_by_pattern, rows_of
from mdir_hf.model.roles.parts import StoredWeight, WeightPart, WeightProduct
from mdir_hf.model.roles.roles import HeadCounts, Role, head_counts
from mdir_hf.model.roles.rows import LayerRow, ProductRow, RopeLayout

MOST_NUMBERS = 8
"""Maximum number of layer numbers listed in a note."""
MOST_LISTED = 10_000
"""Missing layers are listed only if the config states fewer layers than this, because configs are untrusted."""
_ATTENTION = (Role.Q, Role.K, Role.V, Role.O)


@dataclass(frozen=True)
class Layer:
    """The weights of one layer.

    Attributes:
        index: Layer number in the checkpoint, starting at 0.
        missing: Roles that the layer or any of its experts lacks.
        experts: Routed experts in order, each with its gate, up and down.
        shared_experts: Experts that process every token.
        rope: How rotated rows pair up, if different from the rest of the model.
        rotary_dim: Number of rotated rows per head if ``rope`` is set; None for all.
        own_name: Original name, such as ``core_block.1``, if several stacks were joined, or None.
    """

    index: int
    parts: Mapping[Role, StoredWeight]
    missing: tuple[Role, ...] = ()
    experts: tuple[Mapping[Role, WeightPart], ...] = ()
    shared_experts: tuple[Mapping[Role, WeightPart], ...] = ()
    heads: HeadCounts | None = None
    rope: RopeLayout | None = None
    rotary_dim: int | None = None
    own_name: str | None = None

    @property
    def name(self) -> str:
        """The layer number, or ``own_name`` if several stacks were joined."""
        return str(self.index) if self.own_name is None else self.own_name

    def all_parts(self) -> Iterator[tuple[Role, StoredWeight]]:
        """Yield every part, including parts of experts."""
        for parts in (self.parts, *self.experts, *self.shared_experts):
            yield from parts.items()


@collector_paused()
def choose_stack(stacks: Iterable[Stack], embedding: str, sizes: ConfigSizes) -> tuple[Stack | None, str]:
    """Choose the main stack, which a verdict answers for: its prefix has most in common with the embedding's name.

    Ties go to the stack with the most known roles. Vision towers and the like are skipped if there is any other stack.
    :data:`~mdir_hf.model.roles.tables.MAIN_STACKS` overrides this rule for some families.

    Returns:
        The stack, or None if there is none, and the reason for the choice.
    """
    candidates = list(stacks)
    if len(candidates) < 2:
        return (candidates[0], "the only stack of layers") if candidates else (None, "")
    main = tables.MAIN_STACKS.get(sizes.architecture)
    candidates = [stack for stack in candidates if main is not None and stack.prefix.endswith(main)] or candidates
    if len(candidates) == 1:
        return candidates[0], "it has nearly all weights of this family"
    own_stacks = [
        stack for stack in candidates if not any(word in stack.prefix.lower() for word in tables.OTHER_STACKS)
    ]
    if len(own_stacks) == 1:
        return own_stacks[0], "by their names, the others are towers, talkers or draft models"
    has_decoder = any("decoder" in stack.prefix for stack in own_stacks)

    def folder(name: str) -> list[str]:
        return (name.replace("encoder", "decoder") if has_decoder else name).split(".")

    def closeness(stack: Stack) -> tuple[int, bool]:
        shared = 0
        for in_stack, in_embedding in zip(folder(stack.prefix), folder(embedding), strict=False):
            if in_stack != in_embedding:
                break
            shared += 1
        return shared, not (has_decoder and "encoder" in stack.prefix and "decoder" not in stack.prefix)

    near = [(closeness(stack), stack) for stack in own_stacks or candidates]
    highest = max((shared for shared, _ in near), default=None)
    closest = [stack for shared, stack in near if shared == highest]
    if len(closest) == 1:
        return closest[0], "its name has most in common with the embedding's"
    largest = heapq.nlargest(tables.MOST_STACKS, closest, key=_n_names)
    chosen = max(largest, key=lambda stack: (_n_roles(stack, sizes), _n_names(stack)))
    return chosen, "it has the most matrices with a known role"


def _n_names(stack: Stack) -> int:
    return sum(map(len, stack.names.values()))


def _n_roles(stack: Stack, sizes: ConfigSizes) -> int:
    most = 0
    for index in (min(stack.names), max(stack.names)):
        placed_parts = _Placed()
        names = names_by_pattern(stack.names[index])
        for suffix in stack.names[index]:
            _place(stack, index, suffix, names, sizes, placed_parts)
        _place_products(stack, index, names, sizes, placed_parts)
        roles = placed_parts.parts.keys() | {role for parts in placed_parts.mlps() for role in parts}
        most = max(most, sum(not role.is_norm for role in roles))
    return most


def _listed(indices: Sequence[int]) -> str:
    """Format layer numbers: ``0, 2 and 3``, or ``0, 10, 20 and 41 more``."""
    numbers = list(map(str, indices[:MOST_NUMBERS]))
    if len(indices) > MOST_NUMBERS:
        return ", ".join(numbers) + f" and {len(indices) - MOST_NUMBERS} more"
    return " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))


@collector_paused()
def place_layers(stack: Stack, sizes: ConfigSizes, notes: list[str]) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Assign roles to a stack's tensors; return the layers and the names without a role. Appends to ``notes``."""
    indices = list(stack.names)
    if sizes.n_layers is not None and not stack.places:  # configs count the iterations of a loop, or a single stack
        extra = [index for index in indices if index >= sizes.n_layers]
        # Layers that predict further tokens directly follow the last one; layers after a gap are ordinary ones.
        if extra and extra[0] > sizes.n_layers and len(indices) <= sizes.n_layers:
            notes.append(f"layers are numbered with gaps: {_listed(indices)}, of {sizes.n_layers} by the config")
        elif extra:
            notes.append(
                f"{len(extra)} layer(s) from number {extra[0]} are beyond the {sizes.n_layers} of the config "
                "(usually multi-token prediction) and are left out"
            )
            indices = [index for index in indices if index < sizes.n_layers]
        if len(indices) < sizes.n_layers:
            missing = sorted(set(range(sizes.n_layers)) - set(indices)) if sizes.n_layers < MOST_LISTED else []
            without = f", without {_listed(missing)}" if 0 < len(missing) == sizes.n_layers - len(indices) else ""
            notes.append(f"the config says {sizes.n_layers} layers, but {len(indices)} are present{without}")
    parts_by_layer = {index: _Placed.of(index, sizes) for index in indices}
    n_experts = 0
    unplaced: list[str] = []
    for index, placed_parts in parts_by_layer.items():
        names = names_by_pattern(stack.names[index])
        unknown = [
            suffix for suffix in stack.names[index] if not _place(stack, index, suffix, names, sizes, placed_parts)
        ]
        factors = _place_products(stack, index, names, sizes, placed_parts)
        n_experts += placed_parts.n_experts()
        if n_experts > tables.MOST_EXPERTS_OF_ALL:
            raise AnatomyError(
                f"the layers up to number {index} have {n_experts} experts, according to names and config; more than "
                f"{tables.MOST_EXPERTS_OF_ALL} in all layers are treated as an error"
            )
        unplaced += [
            stack.tensor(index, suffix)
            for suffix in unknown
            if suffix not in factors and not re.fullmatch(tables.NOT_WEIGHTS, suffix)
        ]
    has_gate = any(Role.GATE in parts for placed_parts in parts_by_layer.values() for parts in placed_parts.mlps())
    of_mlp = (Role.UP, Role.DOWN, Role.GATE) if has_gate else (Role.UP, Role.DOWN)
    has_one = sizes.architecture in tables.ONE_SUBLAYER
    inside = tables.AWAY_FROM_THE_STREAM.get(sizes.architecture, frozenset())
    if any(is_factor(suffix) for index in indices[:1] for suffix in stack.names[index]):
        notes.append("adapters are stored beside the weights (their names end with lora_A, lora_B) and are left out")
    layers = tuple(
        replace(placed_parts.layer(index, of_mlp, inside, has_one=has_one), own_name=stack.layer_name(index))
        for index, placed_parts in parts_by_layer.items()
    )
    return layers, tuple(unplaced)


@dataclass
class _Placed:
    parts: dict[Role, StoredWeight] = field(default_factory=dict)
    experts: dict[int, dict[Role, WeightPart]] = field(default_factory=lambda: defaultdict(dict))
    shared: dict[int, dict[Role, WeightPart]] = field(default_factory=lambda: defaultdict(dict))
    heads: HeadCounts | None = None
    rope: RopeLayout | None = None
    rotary_dim: int | None = None

    @classmethod
    def of(cls, index: int, sizes: ConfigSizes) -> _Placed:
        rotation = sizes.layer_rotations.get(index)
        rope, dim = (None, None) if rotation is None else (rotation.layout, rotation.dim)
        return cls(heads=sizes.layer_heads.get(index), rope=rope, rotary_dim=dim)

    def n_experts(self) -> int:
        return sum(max(group, default=-1) + 1 for group in (self.experts, self.shared))

    def routed(self) -> list[dict[Role, WeightPart]]:
        """Return the routed experts in the order of their numbers; missing experts are empty."""
        return _by_number(self.experts)

    def mlps(self) -> list[Mapping[Role, StoredWeight]]:
        return [*self.routed(), *_by_number(self.shared)] or [self.parts]

    def layer(self, index: int, of_mlp: tuple[Role, ...], inside: frozenset[Role], *, has_one: bool) -> Layer:
        has_attention, has_mixer = any(role in self.parts for role in _ATTENTION), Role.SSM_IN in self.parts
        has_mlp = any(role in parts for parts in self.mlps() for role in of_mlp)
        missing_roles: list[Role] = []
        if has_attention or not (has_mixer or (has_one and has_mlp)):
            missing_roles += [role for role in _ATTENTION if role not in self.parts]
        if has_mixer and Role.SSM_OUT not in self.parts:
            missing_roles.append(Role.SSM_OUT)
        if has_mlp or not (has_one and (has_attention or has_mixer)):
            missing_roles += [role for role in of_mlp if any(role not in parts for parts in self.mlps())]
        experts = tuple(MappingProxyType(parts) for parts in self.routed())
        shared = tuple(MappingProxyType(parts) for parts in _by_number(self.shared))
        return Layer(
            index,
            MappingProxyType(self.parts),
            tuple(role for role in missing_roles if role not in inside),
            experts,
            shared,
            heads=self.heads,
            rope=self.rope,
            rotary_dim=self.rotary_dim,
        )

    def note(self, row: LayerRow | ProductRow, heads: HeadCounts | None) -> None:
        if row.rope is not None:
            self.rope, self.rotary_dim = row.rope, None
        if row.n_heads is not None:
            self.heads = head_counts(row.n_heads, heads) or self.heads  # if None, tests ignore the heads


def _by_number(experts: Mapping[int, dict[Role, WeightPart]]) -> list[dict[Role, WeightPart]]:
    return [experts.get(number, {}) for number in range(max(experts, default=-1) + 1)]


_Names = Mapping[str, Sequence[str]]
"""Tensor names in a layer, keyed by the pattern that they match."""


def _place(stack: Stack, index: int, suffix: str, names: _Names, sizes: ConfigSizes, placed_parts: _Placed) -> bool:
    heads = sizes.heads_of(index)
    for row in rows_of(suffix):
        if not _holds(row, names, sizes):
            continue
        n_experts = _n_experts(row, sizes)
        if n_experts is None:
            continue  # unknown; finding the number would require reading the shard's header
        if row.experts == "numbered" and expert_of(suffix, row) >= (sizes.n_experts or tables.MOST_EXPERTS):
            return False  # LongCat stores some of its experts that do nothing
        if row.experts in ("numbered", "shared") and sizes.is_dense:
            return False  # the class of this config loads no experts
        if not all(layout is None or layout.is_known(heads) for _, layout in row.parts):
            return False  # the name is known but the config does not determine the layout, so later rows must not guess
        if row.transposed is None and sizes.hidden_size is None:
            return False  # the orientation depends on the width of the model
        for role, layout in row.parts:
            stored = partial(
                WeightPart,
                stack.tensor(index, suffix),
                layout,
                bool(row.transposed),
                heads,
                n_experts=n_experts if row.experts == "below" else None,
                stream=(1 if role.reads_stream else 0, sizes.hidden_size or 0) if row.transposed is None else None,
                joined=row.joined,
                first_half=row.first_half,
            )
            if row.experts is None:
                placed_parts.parts[role] = stored()
            elif row.experts == "numbered":
                placed_parts.experts[expert_of(suffix, row)][role] = stored()
            elif row.experts == "shared":
                placed_parts.shared[0][role] = stored()
            else:
                group = placed_parts.shared if row.experts == "stacked shared" else placed_parts.experts
                for number in range(n_experts):
                    group[number][role] = stored(expert=number)
        placed_parts.note(row, heads)
        return True
    return False


def _n_experts(row: LayerRow, sizes: ConfigSizes) -> int | None:
    """Return the number of experts stacked in a tensor: 0 if none are, None if unknown."""
    if row.experts in ("stacked", "below"):
        return sizes.n_experts
    return sizes.n_shared_experts if row.experts == "stacked shared" else 0


def _place_products(stack: Stack, index: int, names: _Names, sizes: ConfigSizes, placed_parts: _Placed) -> set[str]:
    used_names: set[str] = set()
    heads = sizes.heads_of(index)
    for row in PRODUCT_ROWS:
        if (
            row.left not in names
            or row.role in placed_parts.parts
            or (row.model_types and sizes.architecture not in row.model_types)
        ):
            continue
        if sizes.architecture in row.except_model_types:
            continue
        left, right, gain = (_only(names, pattern) for pattern in (row.left, row.right, row.gain))
        if left is None or right is None or (gain is None and row.gain is not None):
            continue
        if not all(layout is None or layout.is_known(heads) for layout in (row.left_layout, row.right_layout)):
            continue
        used_names |= {suffix for suffix in (left, right, gain) if suffix is not None}
        placed_parts.parts[row.role] = WeightProduct(
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
        placed_parts.note(row, heads)
    return used_names


def _only(names: _Names, pattern: str | None) -> str | None:
    matches = () if pattern is None else names.get(pattern, ())
    return matches[0] if len(matches) == 1 else None


def _holds(row: LayerRow, names: _Names, sizes: ConfigSizes) -> bool:
    if row.model_types and sizes.architecture not in row.model_types:
        return False
    if row.needs_number is not None and row.needs_number not in sizes.numbers:
        return False
    if any(sizes.flags.get(key) not in answers for key, answers in row.when):
        return False
    if row.beside is not None and row.beside not in names:
        return False
    return row.unless_beside is None or row.unless_beside not in names
