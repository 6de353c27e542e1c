"""Linear PEFT methods other than LoRA, which change a matrix row by row.

Source: ``get_delta_weight`` and ``merge`` of each tuner in peft 0.21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

Tensors = Mapping[str, torch.Tensor]
"""A module's tensors, keyed by slot, such as ``hada_w1_a``."""

Shape = tuple[int, ...]


class RowChange(Protocol):
    """An adapter's change to a weight."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the adapter's tensors for this change."""
        ...

    def misfit(self, shape: Shape, shape_of: Callable[[str], Shape]) -> str | None:
        """Return why the change does not fit this shape, or None."""
        ...

    def apply(
        self, values: torch.Tensor, rows: torch.Tensor, shape: Shape, read: Callable[[str], torch.Tensor]
    ) -> torch.Tensor:
        """Return rows ``(k, d)`` of the merged weight, given the base's rows ``values``."""
        ...


@dataclass(frozen=True, slots=True)
class KindSettings:
    """Settings needed to interpret an adapter's tensors.

    Attributes:
        alpha: Value of ``alpha`` or ``lora_alpha``.
        uses_neumann: Whether OFT computes its rotations with a truncated series.
        shares_blocks: Whether all OFT blocks are the same.
    """

    alpha: float = 1.0
    rank: int = 1
    uses_neumann: bool = True
    n_neumann_terms: int = 5
    shares_blocks: bool = False


@dataclass(frozen=True, slots=True)
class ModuleRows:
    """The change that a method in :data:`KINDS` makes to a module's weight."""

    kind: str
    slots: Mapping[str, str]
    settings: KindSettings
    scaling: float = 1.0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the adapter's tensors."""
        return tuple(self.slots.values())

    def misfit(self, shape: Shape, shape_of: Callable[[str], Shape]) -> str | None:
        """Return why the shape does not fit, or None."""
        shapes = {slot: shape_of(name) for slot, name in self.slots.items()}
        change_shape = KINDS[self.kind].shape(shapes, self.settings)
        fits = len(shape) == 2 and all(side in (None, stored) for side, stored in zip(change_shape, shape, strict=True))
        return None if fits else f"changes by {self.kind} of shape {change_shape}"

    def apply(
        self, values: torch.Tensor, rows: torch.Tensor, shape: Shape, read: Callable[[str], torch.Tensor]
    ) -> torch.Tensor:
        """Return rows of the merged weight."""
        tensors = {slot: read(name) for slot, name in self.slots.items()}
        return KINDS[self.kind].rows(values, rows, tensors, self)


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """LoRA on a parameter that stacks experts: ``s B_e A_e`` is added to the matrix of expert e.

    Attributes:
        a: Name of the factors A, ``(rank * experts, d_in)``.
        b: Name of the factors B, ``(d_out, rank * experts)``, with experts innermost.
        is_transposed: Whether the base stores ``(experts, d_in, d_out)``.
        expert: Number of the expert; None for a stack.
        first_row: First row in the stacked matrix: 0 for gate, and the number of neurons for up.
    """

    a: str
    b: str
    n_experts: int
    scaling: float
    is_transposed: bool = False
    expert: int | None = None
    first_row: int = 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the adapter's tensors."""
        return self.a, self.b

    def misfit(self, shape: Shape, shape_of: Callable[[str], Shape]) -> str | None:
        """Return why the shape does not fit, or None."""
        d_in, d_out = shape_of(self.a)[1], shape_of(self.b)[0]
        if self.expert is not None:
            fits = len(shape) == 2 and shape[1] == d_in and self.first_row + shape[0] <= d_out
        else:
            expected = (d_in, d_out) if self.is_transposed else (d_out, d_in)
            fits = shape in ((self.n_experts, *expected), *([expected] if self.n_experts == 1 else []))
        return None if fits else f"changes by {self.n_experts} products of shape {(d_out, d_in)}"

    def apply(
        self, values: torch.Tensor, rows: torch.Tensor, shape: Shape, read: Callable[[str], torch.Tensor]
    ) -> torch.Tensor:
        """Return rows of the merged weight, numbered across a stack."""
        a, b = read(self.a), read(self.b)
        a = a.reshape(self.n_experts, -1, a.shape[-1])
        b = b.reshape(b.shape[0], -1, self.n_experts)
        if self.expert is not None:
            return values + self.scaling * (b[self.first_row + rows, :, self.expert] @ a[self.expert]).to(values.dtype)
        height = shape[-2]
        changed = values.clone()
        expert_of_row = rows // height
        for expert in sorted(set(expert_of_row.tolist())):
            at = torch.nonzero(expert_of_row == expert).reshape(-1)
            inside = rows[at] % height
            left, right = (a[expert].T, b[:, :, expert].T) if self.is_transposed else (b[:, :, expert], a[expert])
            changed[at] += self.scaling * (left[inside] @ right).to(values.dtype)
        return changed


@dataclass(frozen=True, slots=True)
class AdapterMethod:
    """One PEFT method.

    Attributes:
        slots: Name components of the tensors.
        needed: Sets of slots; at least one set must be complete.
        shape: Function that computes the weight's shape from the tensors' shapes, with None for unknown sizes.
    """

    slots: frozenset[str]
    needed: tuple[frozenset[str], ...]
    shape: Callable[[Mapping[str, Shape], KindSettings], tuple[int | None, int | None]]
    rows: Callable[[torch.Tensor, torch.Tensor, Tensors, ModuleRows], torch.Tensor]


def _loha_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    del settings
    return shapes["hada_w1_a"][0], shapes["hada_w1_b"][1]


def _loha(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    first = tensors["hada_w1_a"][rows] @ tensors["hada_w1_b"]
    second = tensors["hada_w2_a"][rows] @ tensors["hada_w2_b"]
    return values + change.scaling * (first * second).to(values.dtype)


def _lokr_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    del settings
    first, second = (_product_shape(shapes, f"lokr_w{n}") for n in (1, 2))
    return first[0] * second[0], first[1] * second[1]


def _product_shape(shapes: Mapping[str, Shape], slot: str) -> Shape:
    return shapes[slot] if slot in shapes else (shapes[f"{slot}_a"][0], shapes[f"{slot}_b"][1])


def _lokr(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    first, second = (
        tensors[slot] if slot in tensors else tensors[f"{slot}_a"] @ tensors[f"{slot}_b"]
        for slot in ("lokr_w1", "lokr_w2")
    )
    height = second.shape[0]
    # Row i of a Kronecker product is the product of row i // h of the first factor and row i % h of the second.
    product = first[rows // height].unsqueeze(2) * second[rows % height].unsqueeze(1)
    return values + change.scaling * product.flatten(1).to(values.dtype)


def _ia3_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    del settings
    n_rows, n_columns = shapes["ia3_l"] if len(shapes["ia3_l"]) == 2 else (0, 0)
    return (None if n_rows == 1 else n_rows), (None if n_columns == 1 else n_columns)


def _ia3(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    del change
    factors = tensors["ia3_l"].to(values.dtype)
    return values * (factors if factors.shape[0] == 1 else factors[rows])


def _vera_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    del settings
    return shapes["vera_lambda_b"][0], None


def _vera(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    del change
    left = tensors["vera_lambda_b"][rows].unsqueeze(1) * tensors["vera_B"][rows]
    right = tensors["vera_lambda_d"].unsqueeze(1) * tensors["vera_A"][:, : values.shape[1]]
    return values + (left @ right).to(values.dtype)


def _oft_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    n_blocks, n_entries = shapes["oft_R"]
    return None, None if settings.shares_blocks else n_blocks * _block_size(n_entries)


def _block_size(n_entries: int) -> int:
    return int(((1 + 8 * n_entries) ** 0.5 + 1) / 2)


def _oft(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    del rows
    entries = tensors["oft_R"]
    side = _block_size(entries.shape[1])
    skew = entries.new_zeros(len(entries), side, side)
    above = torch.triu_indices(side, side, 1)
    skew[:, above[0], above[1]] = entries
    skew = skew - skew.transpose(1, 2)
    identity = torch.eye(side, dtype=skew.dtype).expand_as(skew)
    if change.settings.uses_neumann:
        rotations = _neumann(skew, identity, change.settings.n_neumann_terms)
    else:
        rotations = torch.linalg.solve(identity + skew, identity - skew, left=False)
    blocks = values.reshape(len(values), -1, side).to(rotations.dtype)
    # W' = W R^T, block by block.
    return torch.einsum("kbi,bji->kbj", blocks, rotations.expand(blocks.shape[1], -1, -1)).flatten(1).to(values.dtype)


def _neumann(skew: torch.Tensor, identity: torch.Tensor, n_terms: int) -> torch.Tensor:
    """Approximate ``(1 + Q)(1 - Q)^-1`` with the same truncated series as peft."""
    total, power = identity.clone(), skew
    if n_terms <= 1:
        return total
    total = total + 2.0 * skew
    if n_terms > 2:
        power = skew @ skew
        total = total + 2.0 * power
        for _ in range(3, n_terms - 1):
            power = power @ skew
            total = total + 2.0 * power
        total = total + power @ skew
    return total


def _adalora_shape(shapes: Mapping[str, Shape], settings: KindSettings) -> tuple[int | None, int | None]:
    del settings
    return shapes["lora_B"][0], shapes["lora_A"][1]


def _adalora(values: torch.Tensor, rows: torch.Tensor, tensors: Tensors, change: ModuleRows) -> torch.Tensor:
    right = tensors["lora_A"] * tensors["lora_E"]
    rank = float(len(right))
    alpha = change.settings.alpha if change.settings.alpha > 0 else rank
    return values + alpha / (rank + 1e-5) * (tensors["lora_B"][rows] @ right).to(values.dtype)


def _slots(text: str) -> frozenset[str]:
    return frozenset(text.split())


KINDS: dict[str, AdapterMethod] = {
    "LOHA": AdapterMethod(
        _slots("hada_w1_a hada_w1_b hada_w2_a hada_w2_b hada_t1 hada_t2"),
        (_slots("hada_w1_a hada_w1_b hada_w2_a hada_w2_b"),),
        _loha_shape,
        _loha,
    ),
    "LOKR": AdapterMethod(
        _slots("lokr_w1 lokr_w1_a lokr_w1_b lokr_w2 lokr_w2_a lokr_w2_b lokr_t2"),
        tuple(
            _slots(f"{first} {second}")
            for first in ("lokr_w1", "lokr_w1_a lokr_w1_b")
            for second in ("lokr_w2", "lokr_w2_a lokr_w2_b")
        ),
        _lokr_shape,
        _lokr,
    ),
    "IA3": AdapterMethod(_slots("ia3_l"), (_slots("ia3_l"),), _ia3_shape, _ia3),
    "VERA": AdapterMethod(
        _slots("vera_lambda_b vera_lambda_d"),
        (_slots("vera_lambda_b vera_lambda_d vera_A vera_B"),),
        _vera_shape,
        _vera,
    ),
    "OFT": AdapterMethod(_slots("oft_R"), (_slots("oft_R"),), _oft_shape, _oft),
    "ADALORA": AdapterMethod(
        _slots("lora_A lora_B lora_E ranknum"), (_slots("lora_A lora_B lora_E"),), _adalora_shape, _adalora
    ),
}
"""The supported methods, keyed by ``peft_type``."""


def rank_of(shapes: Mapping[str, Shape]) -> int | None:
    """Return the rank of a module's factors, or None if unknown."""
    return next((shapes[slot][0] for slot in ("hada_w1_b", "lokr_w2_b", "lokr_w1_b") if slot in shapes), None)


SHARED_SLOTS = {"VERA": ("vera_A", "vera_B")}
"""Slots whose tensors are shared by all modules of an adapter."""
