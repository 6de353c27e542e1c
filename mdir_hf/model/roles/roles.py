"""The roles of weights in a language model, and the rows of a stored matrix that each has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import AnatomyError

IntArray = npt.NDArray[np.int64]


class Role(str, Enum):
    """What a weight of a layer does. Shapes are ``(d_out, d_in)``."""

    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741  the paper's letter
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ATTENTION_NORM = "attention_norm"
    """Scale of the norm in front of attention, or of the mixer in its place, ``(d_model,)``."""
    MLP_NORM = "mlp_norm"
    """Scale of the norm in front of the MLP, ``(d_model,)``."""
    ATTENTION_OUT_NORM = "attention_out_norm"
    """Scale of a norm behind attention, in front of the sum with the stream, ``(d_model,)``."""
    MLP_OUT_NORM = "mlp_out_norm"
    """Scale of a norm behind the MLP, in front of the sum with the stream, ``(d_model,)``."""
    MIXER_NORM = "mixer_norm"
    """Scale of the norm in front of a state-space mixer that has attention with a norm of its own beside it."""
    SHARED_NORM = "shared_norm"
    """Scale of the norm in front of shared experts that do not read what routed ones do, ``(d_model,)``."""
    Q_NORM = "q_norm"
    """Scale of the norm on queries, per head or over all heads."""
    K_NORM = "k_norm"
    """Scale of the norm on keys, per head or over all heads."""
    KV_LATENT = "kv_latent"
    """What latent attention compresses keys and values to, ``(rank, d_model)``; any rotation of it can be undone."""
    SSM_IN = "ssm_in"
    """Input of a state-space mixer or gated convolution, what runs through the recurrence, ``(d_inner, d_model)``."""
    SSM_OUT = "ssm_out"
    """Output projection of a state-space mixer or gated convolution, ``(d_model, d_inner)``."""
    MIXER_GATE = "mixer_gate"
    """What multiplies the output of a mixer before its output projection, ``(d_inner, d_model)``."""
    ROUTER = "router"
    """What decides which experts a token goes to, ``(n_experts, d_model)``."""

    @property
    def reads_stream(self) -> bool:
        """Whether its input side is the residual stream: ``d_in == d_model``."""
        return self in _READERS

    @property
    def writes_stream(self) -> bool:
        """Whether its output side is the residual stream: ``d_out == d_model``."""
        return self in (Role.O, Role.DOWN, Role.SSM_OUT)

    @property
    def is_norm(self) -> bool:
        """Whether it is the scale of a norm, a vector."""
        return self.value.endswith("norm")


_READERS = frozenset(
    {
        *(Role.Q, Role.K, Role.V, Role.GATE, Role.UP, Role.ROUTER),
        *(Role.KV_LATENT, Role.SSM_IN, Role.MIXER_GATE),
    }
)


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """How many attention heads there are.

    Attributes:
        n_heads: Query heads.
        n_kv_heads: Key/value heads; equal to ``n_heads`` without grouping.
        numbers: Every integer of the config by its key, for layouts that ask for one.
    """

    n_heads: int
    n_kv_heads: int
    numbers: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)


Count = int | str
"""A number that stands in a layout, or where to take it from: ``heads``, ``kv_heads``, ``heads_per_kv_head``, a key
of the config, or a product of such (``mamba_n_heads*mamba_d_head``); as groups also ``rows``: as many as there are."""


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

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Whether the config tells every number that the layout needs."""
        ...


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """The tensor is the weight."""

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return all of them."""
        del heads
        return np.arange(n_rows, dtype=np.int64)

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Return True."""
        del heads
        return True


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
        shares = [number_of(share, heads) for share in self.shares]
        common = math.gcd(*shares)
        shares = [share // common for share in shares]
        groups = n_rows // sum(shares) if self.groups == "rows" else number_of(self.groups, heads)
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

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Whether the config tells its groups and shares."""
        return _are_known(self.shares if self.groups == "rows" else (self.groups, *self.shares), heads)


@dataclass(frozen=True, slots=True)
class InterleavedRows:
    """The whole tensor, the rows of each head in another order: the two halves of the head in turns.

    Rotary positions turn row ``i`` of a head together with row ``i + d/2`` in transformers, and with row ``i + 1`` in
    Meta's own files and in GGUF. This gives them in the order of transformers.

    Attributes:
        heads: How many heads there are.
    """

    heads: Count

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return for each row, in the order of transformers, where it is stored."""
        n_heads = number_of(self.heads, heads)
        if n_rows % (2 * n_heads):
            raise AnatomyError(f"{n_rows} rows cannot be paired in {n_heads} heads")
        place = np.arange(n_rows, dtype=np.int64)
        in_pairs: IntArray = place.reshape(n_heads, n_rows // n_heads // 2, 2).transpose(0, 2, 1).reshape(-1)
        return in_pairs

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Whether the config tells how many heads there are."""
        return _are_known((self.heads,), heads)


@dataclass(frozen=True, slots=True)
class RowsOfEach:
    """Some rows of each of equal groups, whatever else is in a group.

    Attributes:
        groups: How many groups there are.
        count: How many rows are taken of each.
        from_end: Whether those are the last of a group, or the first.
    """

    groups: Count
    count: Count
    from_end: bool = False

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers, group by group. Cost: O(rows taken)."""
        groups, count = number_of(self.groups, heads), number_of(self.count, heads)
        size = n_rows // groups
        if n_rows % groups or count > size:
            raise AnatomyError(f"{n_rows} rows cannot be {groups} group(s) of {count} rows or more")
        first = size - count if self.from_end else 0
        starts = first + size * np.arange(groups, dtype=np.int64)
        taken: IntArray = (starts[:, None] + np.arange(count, dtype=np.int64)).reshape(-1)
        return taken

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Whether the config tells how many."""
        return _are_known((self.groups, self.count), heads)


WHOLE = WholeTensor()


def _are_known(counts: tuple[Count, ...], heads: HeadCounts | None) -> bool:
    try:
        for count in counts:
            number_of(count, heads)
    except AnatomyError:
        return False
    return True


def is_number(word: str) -> bool:
    """Whether a word of a config is a number that ``int`` takes: digits of ASCII, not thousands of them."""
    return word.isascii() and word.isdecimal() and len(word) < 10


def number_of(count: Count, heads: HeadCounts | None) -> int:
    """Look up a count that a layout names.

    Raises:
        AnatomyError: If the config does not tell, or the heads cannot be shared evenly.
    """
    if isinstance(count, int):
        return count
    if is_number(count):
        return int(count)
    if "*" in count:
        return math.prod(number_of(factor, heads) for factor in count.split("*"))
    if heads is None:
        raise AnatomyError("the number of attention heads is needed to split it, and the config does not tell")
    if count == "heads":
        return heads.n_heads
    if count == "kv_heads":
        return heads.n_kv_heads
    if count == "heads_per_kv_head":
        if heads.n_heads % heads.n_kv_heads:
            raise AnatomyError(f"{heads.n_heads} heads cannot be shared by {heads.n_kv_heads} key/value heads")
        return heads.n_heads // heads.n_kv_heads
    number = heads.numbers.get(count, 0)
    if number < 1:
        raise AnatomyError(f"{count!r} is needed to split it, and the config does not tell")
    return number


def head_counts(counts: tuple[Count, Count], heads: HeadCounts | None) -> HeadCounts | None:
    """Look up query heads and key/value heads; None where the config does not tell both."""
    try:
        return HeadCounts(number_of(counts[0], heads), number_of(counts[1], heads))
    except AnatomyError:
        return None
