"""What a weight does in a language model, and where its rows lie in a stored tensor.

Past this folder every weight is ``(d_out, d_in)``, ``y = W x``. Fused tensors, transposed ones (Conv1D stores
``(d_in, d_out)``) and per-head interleaving end here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import AnatomyError

IntArray = npt.NDArray[np.int64]


class Role(str, Enum):
    """What a weight does. Shapes are ``(d_out, d_in)``; the embedding and unembedding are ``(d_vocab, d_model)``."""

    EMBEDDING = "embedding"
    UNEMBEDDING = "unembedding"
    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741  the paper's letter
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ATTENTION_NORM = "attention_norm"
    """Scale of the norm in front of attention, ``(d_model,)``."""
    MLP_NORM = "mlp_norm"
    """Scale of the norm in front of the MLP, ``(d_model,)``."""
    FINAL_NORM = "final_norm"
    """Scale of the norm in front of the unembedding, ``(d_model,)``."""
    Q_NORM = "q_norm"
    """Scale of the norm on queries, per head or over all heads."""
    K_NORM = "k_norm"
    """Scale of the norm on keys, per head or over all heads."""
    ROUTER = "router"
    """What decides which experts a token goes to, ``(n_experts, d_model)``."""

    @property
    def reads_stream(self) -> bool:
        """Whether its input side is the residual stream: ``d_in == d_model``."""
        return self in (Role.Q, Role.K, Role.V, Role.GATE, Role.UP, Role.ROUTER)

    @property
    def writes_stream(self) -> bool:
        """Whether its output side is the residual stream: ``d_out == d_model``."""
        return self in (Role.O, Role.DOWN)

    @property
    def is_norm(self) -> bool:
        """Whether it is the scale of a norm, a vector."""
        return self.value.endswith("norm")


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """How many attention heads there are.

    Attributes:
        n_heads: Query heads.
        n_kv_heads: Key/value heads; equal to ``n_heads`` without grouping.
    """

    n_heads: int
    n_kv_heads: int


Count = int | Literal["heads", "kv_heads", "heads_per_kv_head", "rows"]
"""A number that stands in a layout, or where to take it from; ``rows``: as many groups as the rows allow."""


class Layout(Protocol):
    """Which rows of a ``(d_out, d_in)`` matrix belong to one role."""

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers of the role, in the order of its own rows.

        Args:
            n_rows: Rows of the stored matrix (after transposing, where it is stored transposed).
            heads: Head counts of the model, where they are known.

        Raises:
            AnatomyError: If the rows cannot be divided as the layout says, or the heads are needed and unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """The tensor is the weight."""

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return all of them."""
        del heads
        return np.arange(n_rows, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class FusedRows:
    """Several weights in one tensor: equal groups of rows, and in each group one share per weight.

    Examples:
        ``FusedRows(1, ("heads", "kv_heads", "kv_heads"), 0)`` is q of a contiguous q|k|v;
        ``FusedRows("heads", (1, 1, 1), 2)`` is v of GPT-NeoX, ``view(n_heads, 3, d_head, d_model)``;
        ``FusedRows(1, (1, 1), 0)`` is gate of gate|up; ``FusedRows("rows", (1, 1), 0)`` the even rows.

    Attributes:
        groups: How many groups there are.
        shares: Size of each weight's share of a group, relative to one another.
        take: Which share is ours.
    """

    groups: Count
    shares: tuple[Count, ...]
    take: int

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers of the share, group by group. Cost: O(rows of the share)."""
        shares = [_number(share, heads) for share in self.shares]
        groups = n_rows // sum(shares) if self.groups == "rows" else _number(self.groups, heads)
        n_units = groups * sum(shares)
        if n_units == 0 or n_rows % n_units:
            raise AnatomyError(
                f"{n_rows} rows cannot be split into {groups} group(s) of shares {tuple(shares)}; "
                "the number of heads in the config does not belong to this tensor"
            )
        unit = n_rows // n_units
        first = sum(shares[: self.take]) * unit
        within = np.arange(first, first + shares[self.take] * unit, dtype=np.int64)
        group_starts = np.arange(groups, dtype=np.int64) * (sum(shares) * unit)
        return (group_starts[:, None] + within[None, :]).reshape(-1)


WHOLE = WholeTensor()


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Where the weight of one role is stored.

    Attributes:
        tensor: Name in the checkpoint.
        layout: Which rows of the ``(d_out, d_in)`` matrix it is.
        transposed: Whether the checkpoint stores ``(d_in, d_out)``.
        heads: Head counts that the layout needs, where they are known.
        expert: Which matrix along the first axis, where the tensor stacks those of all experts; None for a matrix.
    """

    tensor: str
    layout: Layout = WHOLE
    transposed: bool = False
    heads: HeadCounts | None = None
    expert: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every row of the tensor belongs to it."""
        return self.layout == WHOLE and self.expert is None

    def rows(self, stored_shape: tuple[int, ...]) -> IntArray:
        """Return its rows in the ``(d_out, d_in)`` matrix, given the shape of the stored tensor.

        Raises:
            AnatomyError: If the tensor cannot be divided as its layout says; names it.
        """
        matrix = self._matrix_shape(stored_shape)
        n_rows = matrix[-1] if self.transposed else matrix[0]
        try:
            return self.layout.rows(n_rows, self.heads)
        except AnatomyError as exc:
            raise AnatomyError(f"tensor {self.tensor!r} of shape {stored_shape}: {exc.message}") from exc

    def shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return its own shape, ``(d_out, d_in)`` or ``(d,)``, given the shape of the stored tensor."""
        n_rows = len(self.rows(stored_shape))
        matrix = self._matrix_shape(stored_shape)
        return (n_rows, *(matrix[:-1] if self.transposed else matrix[1:]))

    def _matrix_shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.expert is None:
            return stored_shape
        if len(stored_shape) != 3 or self.expert >= stored_shape[0]:
            raise AnatomyError(
                f"tensor {self.tensor!r} has shape {stored_shape}; expected a stack of matrices, with more than "
                f"{self.expert} experts along its first axis"
            )
        return stored_shape[1:]


class TensorReader(Protocol):
    """As much of a tensor source as reading a part takes."""

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        ...

    def read_rows(self, name: str, rows: IntArray) -> torch.Tensor:
        """Return some rows of a matrix."""
        ...

    def spec(self, name: str) -> TensorShape:
        """Return something that knows the stored shape."""
        ...


class TensorShape(Protocol):
    """Anything with a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102  said by the name


def read_part(source: TensorReader, part: WeightPart) -> torch.Tensor:
    """Read the weight of one role.

    Args:
        source: Where the tensors are; a whole tensor or some of its rows are read, nothing else.
        part: Which one.

    Returns:
        Tensor of shape ``(d_out, d_in)`` (norms: ``(d,)``), contiguous, dtype as the source returns it. A part of a
        transposed tensor reads the whole tensor, since its rows are columns of the file, and so does one expert of a
        stack: see :func:`read_experts`.

    Raises:
        AnatomyError: If the tensor cannot be divided as its layout says.
    """
    if part.expert is not None:
        return _take(source.read(part.tensor), part)
    if part.is_whole:
        stored = source.read(part.tensor)
        return stored.T.contiguous() if part.transposed else stored
    shape = tuple(source.spec(part.tensor).shape)
    if len(shape) != 2:
        raise AnatomyError(f"tensor {part.tensor!r} has shape {shape}; a fused weight must be a matrix")
    rows = part.rows(shape)
    if part.transposed:
        return source.read(part.tensor).T[torch.from_numpy(rows)].contiguous()
    return source.read_rows(part.tensor, rows)


def read_experts(
    source: TensorReader, experts: Iterable[Mapping[Role, WeightPart]]
) -> Iterator[dict[Role, torch.Tensor]]:
    """Read the weights of some experts, one expert after the other.

    Args:
        source: Where the tensors are.
        experts: The parts of each, from one layer.

    Yields:
        The weights of each expert, as :func:`read_part` returns them. A tensor that stacks all experts is read once
        and kept until the last expert is yielded; of the others, one expert is in memory.

    Raises:
        AnatomyError: If a tensor cannot be divided as its layout says.
    """
    stacks: dict[str, torch.Tensor] = {}
    for parts in experts:
        weights: dict[Role, torch.Tensor] = {}
        for role, part in parts.items():
            if part.expert is None:
                weights[role] = read_part(source, part)
                continue
            if part.tensor not in stacks:
                stacks[part.tensor] = source.read(part.tensor)
            weights[role] = _take(stacks[part.tensor], part)
        yield weights


def _take(stack: torch.Tensor, part: WeightPart) -> torch.Tensor:
    """Take one expert's weight out of a stack."""
    rows = torch.from_numpy(part.rows(tuple(stack.shape)))
    assert part.expert is not None
    matrix = stack[part.expert]
    return (matrix.T if part.transposed else matrix)[rows].contiguous()


def _number(count: Count, heads: HeadCounts | None) -> int:
    if isinstance(count, int):
        return count
    if heads is None:
        raise AnatomyError("the number of attention heads is needed to split it, and the config does not tell")
    if count == "heads":
        return heads.n_heads
    if count == "kv_heads":
        return heads.n_kv_heads
    if count == "heads_per_kv_head" and heads.n_heads % heads.n_kv_heads == 0:
        return heads.n_heads // heads.n_kv_heads
    raise AnatomyError(f"{heads.n_heads} heads cannot be shared by {heads.n_kv_heads} key/value heads")
