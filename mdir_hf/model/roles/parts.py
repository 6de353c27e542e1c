"""How the weight of a role is stored (fused, transposed, interleaved or factored), and how to read it.

Outside this folder, every weight is ``(d_out, d_in)``, with ``y = W x``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles.roles import HeadCounts, IntArray, Layout, Role

ShapeOf = Callable[[str], tuple[int, ...]]
"""A function that returns a tensor's stored shape; each call may read a shard's header."""

LARGEST_WEIGHT = 1e16
"""Largest allowed value in a layer's weights, so that sums of squares over 100,000 rows are finite in float32. Values
in real models are below 400."""

FLOAT64_ENTRIES = 1 << 24
"""Products with at most this many entries are computed in float64, larger ones in float32.

Rounding errors of a float32 product would increase its rank, which is lower than its shape suggests."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The stored weight of one role.

    Attributes:
        layout: Which of the tensor's rows belong to the role; None for all.
        transposed: Whether the checkpoint stores ``(d_in, d_out)``.
        expert: Index of the expert along the first axis of stacked experts, or None.
        n_experts: Number of experts stacked vertically in one matrix, or None.
        joined: Whether to merge the last two of three axes (heads and head width).
        stream: Axis of the stream in ``(d_out, d_in)``, and its width, if the orientation must be inferred; else None.
        per_head: Whether the tensor is a stack ``(heads, ..., ...)`` of matrices.
        first_half: Whether the weight is only the first half of the columns, as when two inputs are concatenated.
    """

    tensor: str
    layout: Layout | None = None
    transposed: bool = False
    heads: HeadCounts | None = None
    expert: int | None = None
    per_head: bool = False
    n_experts: int | None = None
    stream: tuple[int, int] | None = None
    joined: bool = False
    first_half: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that store the weight."""
        return (self.tensor,)

    @property
    def is_whole(self) -> bool:
        """Whether the part includes every row of the tensor."""
        return self.layout is None and self.expert is None and not self.per_head

    def rows_of(self, n_rows: int) -> IntArray:
        """Return the part's row numbers in a tensor with ``n_rows`` rows."""
        return np.arange(n_rows, dtype=np.int64) if self.layout is None else self.layout.rows(n_rows, self.heads)

    def rows(self, stored_shape: tuple[int, ...]) -> IntArray:
        """Return the part's row numbers in the ``(d_out, d_in)`` matrix.

        Raises:
            AnatomyError: If the tensor cannot be divided according to its layout.
        """
        matrix = self._matrix_shape(stored_shape)
        if not matrix:
            raise AnatomyError(f"tensor {self.tensor!r} has shape (), a single number; expected a vector or a matrix")
        n_rows = matrix[-1] if self.is_transposed(stored_shape) else matrix[0]
        try:
            return self.rows_of(n_rows)
        except AnatomyError as exc:
            raise AnatomyError(f"tensor {self.tensor!r} of shape {stored_shape}: {exc.message}") from exc

    def shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part's shape, ``(d_out, d_in)`` or ``(d,)``."""
        n_rows = len(self.rows(stored_shape))
        matrix = self._matrix_shape(stored_shape)
        shape = (n_rows, *(matrix[:-1] if self.is_transposed(stored_shape) else matrix[1:]))
        if not self.first_half:
            return shape
        if shape[-1] % 2:
            raise AnatomyError(f"tensor {self.tensor!r} has shape {stored_shape}; expected two halves side by side")
        return (*shape[:-1], shape[-1] // 2)

    def is_transposed(self, stored_shape: tuple[int, ...]) -> bool:
        """Return whether the stored matrix is ``(d_in, d_out)``.

        Raises:
            AnatomyError: If the orientation cannot be inferred.
        """
        if self.stream is None:
            return self.transposed
        axis, width = self.stream
        matrix = self._matrix_shape(stored_shape)
        if (matrix[axis] == width) == (matrix[1 - axis] == width):
            raise AnatomyError(
                f"tensor {self.tensor!r} has shape {stored_shape}; files store it in either orientation, and "
                f"exactly one axis should have the width of the model, {width}"
            )
        return matrix[1 - axis] == width

    def _matrix_shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        n_axes = len(stored_shape)
        if self.per_head and n_axes == 3:
            n_heads, d_out, d_in = stored_shape
            return (d_out, n_heads * d_in) if self.transposed else (n_heads * d_out, d_in)
        if self.joined and n_axes == 3:
            return (stored_shape[0], stored_shape[1] * stored_shape[2])
        if self.per_head:
            expected = "one matrix for each head"
        elif self.joined:
            expected = "a separate axis for the heads"
        elif self.expert is None:
            return stored_shape
        elif self.n_experts is not None:
            if n_axes == 2 and stored_shape[0] % self.n_experts == 0:
                return (stored_shape[0] // self.n_experts, stored_shape[1])
            expected = f"the matrices of {self.n_experts} experts one below the other"
        else:
            if n_axes == 3 and self.expert < stored_shape[0]:
                return stored_shape[1:]
            expected = f"a stack of matrices, with more than {self.expert} experts along its first axis"
        raise AnatomyError(f"tensor {self.tensor!r} has shape {stored_shape}; expected {expected}")


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """The weight of one role, stored as two factors with a norm between them: ``left diag(gain) right``.

    Only the product can be compared, because the latent between the factors may be rotated.

    Attributes:
        left: ``(d_out, r)``.
        right: ``(r, d_in)``.
        gain: Scale of the norm, ``(r,)``, or None.
    """

    left: WeightPart
    right: WeightPart
    gain: WeightPart | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that store the weight."""
        return (self.left.tensor, *(() if self.gain is None else (self.gain.tensor,)), self.right.tensor)

    @property
    def tensor(self) -> str:
        """Name of the tensor that contains the product's rows."""
        return self.left.tensor

    @property
    def heads(self) -> HeadCounts | None:
        """Head counts that the factors' layouts need."""
        return self.left.heads


StoredWeight = WeightPart | WeightProduct
"""A role's stored weight: one tensor, or a product."""


def part_shape(part: StoredWeight, shape_of: ShapeOf) -> tuple[int, ...]:
    """Return a part's shape, ``(d_out, d_in)`` or ``(d,)``.

    Raises:
        AnatomyError: If a tensor cannot be divided according to its layout, or factors do not match in shape.
    """
    if isinstance(part, WeightPart):
        return part.shape(tuple(shape_of(part.tensor)))
    left, right = (factor.shape(tuple(shape_of(factor.tensor))) for factor in (part.left, part.right))
    gain = (left[-1],) if part.gain is None else part.gain.shape(tuple(shape_of(part.gain.tensor)))
    if len(left) != 2 or len(right) != 2 or left[1] != right[0] or gain != (left[1],):
        raise AnatomyError(
            f"{' x '.join(part.tensors)}: factors of shapes {left} and {right}, with a norm of {gain} between them, "
            "do not form a product"
        )
    return left[0], right[1]


class TensorReader(Protocol):
    """The tensor-source methods needed to read parts."""

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        ...

    def read_rows(self, name: str, rows: IntArray) -> torch.Tensor:
        """Return some rows of a matrix."""
        ...

    def spec(self, name: str) -> TensorShape:
        """Return an object that has the stored shape."""
        ...


class TensorShape(Protocol):
    """Anything with a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102


def read_part(source: TensorReader, part: StoredWeight, rows: IntArray | None = None) -> torch.Tensor:
    """Read the weight of one role, or only the given ``rows``, ``(k,)``, in any order.

    A transposed tensor is read whole. A product takes O(d_out r d_in) time.

    Returns:
        Contiguous tensor of shape ``(d_out, d_in)`` or ``(k, d_in)``, or ``(d,)`` for a norm. It has the source's
        dtype; for a product, see :data:`FLOAT64_ENTRIES`.

    Raises:
        AnatomyError: As for :func:`part_shape`, or if a value exceeds :data:`LARGEST_WEIGHT`.
    """
    if isinstance(part, WeightProduct):
        return _of_sane_size(_read_product(source, part, rows), part)
    return _of_sane_size(_read_stored(source, part, rows), part)


def _read_stored(source: TensorReader, part: WeightPart, rows: IntArray | None) -> torch.Tensor:
    shape = tuple(source.spec(part.tensor).shape)
    is_fused = not part.is_whole and part.expert is None and not part.per_head
    if is_fused and len(shape) != 2:
        raise AnatomyError(f"tensor {part.tensor!r} has shape {shape}; a fused weight must be a matrix")
    if part.expert is not None:
        return _read_expert(source, part, shape, rows)
    if part.per_head or part.joined or part.transposed:
        weight = _take(source.read(part.tensor), part)
        return weight if rows is None else weight[torch.from_numpy(rows)]
    if is_fused:
        stored_rows = part.rows(shape)
        rows = stored_rows if rows is None else stored_rows[rows]
    weight = source.read(part.tensor) if rows is None else source.read_rows(part.tensor, rows)
    return weight[..., : part.shape(shape)[-1]].contiguous() if part.first_half else weight


def _read_expert(source: TensorReader, part: WeightPart, shape: tuple[int, ...], rows: IntArray | None) -> torch.Tensor:
    assert part.expert is not None
    n_stored, stored_rows = part._matrix_shape(shape)[0], part.rows(shape)
    first = part.expert * n_stored
    if not part.is_transposed(shape):
        return source.read_rows(part.tensor, first + (stored_rows if rows is None else stored_rows[rows]))
    matrix = source.read_rows(part.tensor, np.arange(first, first + n_stored, dtype=np.int64)).T
    return matrix[torch.from_numpy(stored_rows if rows is None else stored_rows[rows])].contiguous()


def read_experts(
    source: TensorReader, experts: Iterable[Mapping[Role, StoredWeight]]
) -> Iterator[dict[Role, torch.Tensor]]:
    """Read the weights of a layer's experts, one expert at a time; see :func:`read_part`.

    A tensor of stacked experts is read only once.
    """
    stacks: dict[str, torch.Tensor] = {}
    for parts in experts:
        weights: dict[Role, torch.Tensor] = {}
        for role, part in parts.items():
            if isinstance(part, WeightProduct) or part.expert is None:
                weights[role] = read_part(source, part)
                continue
            if part.tensor not in stacks:
                stacks[part.tensor] = source.read(part.tensor)
            weights[role] = _of_sane_size(_take(stacks[part.tensor], part), part)
        yield weights


def _read_product(source: TensorReader, product: WeightProduct, rows: IntArray | None) -> torch.Tensor:
    d_out, d_in = part_shape(product, lambda name: tuple(source.spec(name).shape))
    dtype = torch.float64 if d_out * d_in <= FLOAT64_ENTRIES else torch.float32
    right = read_part(source, product.right).to(dtype)
    if product.gain is not None:
        right = right * read_part(source, product.gain).to(dtype)[:, None]
    return read_part(source, product.left, rows).to(dtype) @ right


def _of_sane_size(weight: torch.Tensor, part: StoredWeight) -> torch.Tensor:
    if weight.numel():
        largest = max(abs(float(end)) for end in torch.aminmax(weight))
        if not largest <= LARGEST_WEIGHT:
            raise AnatomyError(
                f"tensor {part.tensor!r} holds a value of size {largest:.3g}; expected at most {LARGEST_WEIGHT:.0e}, "
                "which is far above the weights of any model"
            )
    return weight


def _take(stored: torch.Tensor, part: WeightPart) -> torch.Tensor:
    shape = tuple(stored.shape)
    rows = None if part.is_whole else part.rows(shape)
    if part.per_head:
        matrix = (stored.transpose(1, 2) if part.transposed else stored).flatten(0, 1)
    else:
        if part.expert is not None:
            stack = stored if part.n_experts is None else stored.reshape(part.n_experts, -1, shape[-1])
            matrix = stack[part.expert]
        else:
            matrix = stored.reshape(part._matrix_shape(shape))
        if part.is_transposed(shape):
            matrix = matrix.T
    # The rows of one expert are copied, so that the stack can be freed.
    return (matrix if rows is None else matrix[torch.from_numpy(rows)]).contiguous()
