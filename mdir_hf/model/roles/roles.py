"""The roles of weights, and which rows of a stored matrix belong to them."""

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
    """A weight's function in a layer. Matrices are ``(d_out, d_in)``."""

    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741  the paper's letter
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ATTENTION_NORM = "attention_norm"
    """Scale ``(d_model,)`` of the norm before attention, or before a mixer that replaces attention."""
    MLP_NORM = "mlp_norm"
    """Scale of the norm before the MLP, ``(d_model,)``."""
    ATTENTION_OUT_NORM = "attention_out_norm"
    """Scale ``(d_model,)`` of a norm applied to attention's output before it is added to the stream."""
    MLP_OUT_NORM = "mlp_out_norm"
    """Scale ``(d_model,)`` of a norm applied to the MLP's output before it is added to the stream."""
    MIXER_NORM = "mixer_norm"
    """Scale of the norm before a state-space mixer that runs parallel to attention."""
    SHARED_NORM = "shared_norm"
    """Scale ``(d_model,)`` of the norm before shared experts, if routed experts have a different input."""
    Q_NORM = "q_norm"
    """Scale of the norm on queries, per head or for all heads together."""
    K_NORM = "k_norm"
    """Scale of the norm on keys, per head or for all heads together."""
    KV_LATENT = "kv_latent"
    """Projection ``(rank, d_model)`` to the latent for keys and values, which can be rotated freely."""
    SSM_IN = "ssm_in"
    """Input projection ``(d_inner, d_model)`` of a state-space mixer or gated convolution, excluding the gate."""
    SSM_OUT = "ssm_out"
    """Output projection ``(d_model, d_inner)`` of a state-space mixer or gated convolution."""
    MIXER_GATE = "mixer_gate"
    """Gate ``(d_inner, d_model)`` on a mixer's output before the output projection."""
    ROUTER = "router"
    """Router that selects the experts for a token, ``(n_experts, d_model)``."""

    @property
    def reads_stream(self) -> bool:
        """Whether the role's input is the residual stream: ``d_in == d_model``."""
        return self in _READERS

    @property
    def writes_stream(self) -> bool:
        """Whether the role's output is the residual stream: ``d_out == d_model``."""
        return self in (Role.O, Role.DOWN, Role.SSM_OUT)

    @property
    def is_norm(self) -> bool:
        """Whether the role is the scale of a norm (a vector)."""
        return self.value.endswith("norm")


_READERS = frozenset(
    {
        *(Role.Q, Role.K, Role.V, Role.GATE, Role.UP, Role.ROUTER),
        *(Role.KV_LATENT, Role.SSM_IN, Role.MIXER_GATE),
    }
)


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """Numbers of attention heads.

    Attributes:
        n_heads: Number of query heads.
        n_kv_heads: Number of key/value heads; equal to ``n_heads`` if heads do not share keys.
        numbers: All integers in the config, under the same keys, for layouts that need other counts.
    """

    n_heads: int
    n_kv_heads: int
    numbers: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)


StatedCount = int | str
"""A number in a layout: an integer, ``heads``, ``kv_heads``, ``heads_per_kv_head``, a config key, or a product of these
(``mamba_n_heads*mamba_d_head``). The number of groups may also be ``rows``, the number of rows in the matrix."""


class Layout(Protocol):
    """The rows of a ``(d_out, d_in)`` matrix that belong to a role."""

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the role's rows in a matrix with ``n_rows`` rows.

        Raises:
            AnatomyError: If the rows cannot be divided, or a head count is needed but unknown.
        """
        ...

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Return whether the config states the numbers that the layout needs."""
        ...


@dataclass(frozen=True, slots=True)
class FusedRows:
    """The rows of one weight in a tensor that contains several.

    The tensor's rows form equal groups. ``shares`` are the relative sizes of the weights in a group, and ``take`` is
    the index of this one.

    Examples:
        ``FusedRows(1, ("heads", "kv_heads", "kv_heads"), 0)`` is q in a contiguous q|k|v; ``FusedRows("heads", (1, 1,
        1), 2)`` is v in GPT-NeoX, ``view(n_heads, 3, d_head, d_model)``; ``FusedRows(1, (1, 1), 0)`` is gate in
        gate|up; ``FusedRows("rows", (1, 1), 0)`` is the even rows.
    """

    groups: StatedCount
    shares: tuple[StatedCount, ...]
    take: int

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers, group by group."""
        shares = [number_of(share, heads) for share in self.shares]
        common = math.gcd(*shares)
        shares = [share // common for share in shares]
        groups = n_rows // sum(shares) if self.groups == "rows" else number_of(self.groups, heads)
        n_units = groups * sum(shares)
        if n_units == 0 or n_rows % n_units:
            raise AnatomyError(
                f"{n_rows} rows cannot be split into {groups} group(s) of shares {tuple(shares)}; "
                "the number of heads in the config does not fit this tensor"
            )
        unit = n_rows // n_units
        first = sum(shares[: self.take]) * unit
        within = np.arange(first, first + shares[self.take] * unit, dtype=np.int64)
        group_starts = np.arange(groups, dtype=np.int64) * (sum(shares) * unit)
        return (group_starts[:, None] + within[None, :]).reshape(-1)

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Return whether groups and shares are known."""
        return _are_known(self.shares if self.groups == "rows" else (self.groups, *self.shares), heads)


@dataclass(frozen=True, slots=True)
class InterleavedRows:
    """All rows of a tensor that interleaves the two halves of each head.

    Rotary positions pair row ``i`` of a head with row ``i + d/2`` in transformers, and with row ``i + 1`` in Meta's
    files and GGUF.
    """

    heads: StatedCount

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers in transformers' order."""
        n_heads = number_of(self.heads, heads)
        if n_rows % (2 * n_heads):
            raise AnatomyError(f"{n_rows} rows cannot be divided into pairs in {n_heads} heads")
        place = np.arange(n_rows, dtype=np.int64)
        in_pairs: IntArray = place.reshape(n_heads, n_rows // n_heads // 2, 2).transpose(0, 2, 1).reshape(-1)
        return in_pairs

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Return whether the number of heads is known."""
        return _are_known((self.heads,), heads)


@dataclass(frozen=True, slots=True)
class RowsOfEach:
    """The first or last ``count`` rows of each of several equal groups."""

    groups: StatedCount
    count: StatedCount
    from_end: bool = False

    def rows(self, n_rows: int, heads: HeadCounts | None) -> IntArray:
        """Return the row numbers, group by group."""
        groups, count = number_of(self.groups, heads), number_of(self.count, heads)
        size = n_rows // groups
        if n_rows % groups or count > size:
            raise AnatomyError(f"{n_rows} rows cannot be divided into {groups} group(s) of at least {count} rows")
        first = size - count if self.from_end else 0
        starts = first + size * np.arange(groups, dtype=np.int64)
        numbers: IntArray = (starts[:, None] + np.arange(count, dtype=np.int64)).reshape(-1)
        return numbers

    def is_known(self, heads: HeadCounts | None) -> bool:
        """Return whether the config states both numbers."""
        return _are_known((self.groups, self.count), heads)


def _are_known(counts: tuple[StatedCount, ...], heads: HeadCounts | None) -> bool:
    try:
        for count in counts:
            number_of(count, heads)
    except AnatomyError:
        return False
    return True


def is_number(word: str) -> bool:
    """Return whether a word is a short ASCII decimal number."""
    return word.isascii() and word.isdecimal() and len(word) < 10


def number_of(count: StatedCount, heads: HeadCounts | None) -> int:
    """Return a count in a layout as an integer.

    Raises:
        AnatomyError: If the number is unknown, or heads cannot be divided evenly.
    """
    if isinstance(count, int):
        return count
    if is_number(count):
        return int(count)
    if "*" in count:
        return math.prod(number_of(factor, heads) for factor in count.split("*"))
    if heads is None:
        raise AnatomyError("the number of attention heads is needed to split it, but the config does not state it")
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
        raise AnatomyError(f"{count!r} is needed to split it, but the config does not state it")
    return number


def head_counts(counts: tuple[StatedCount, StatedCount], heads: HeadCounts | None) -> HeadCounts | None:
    """Return both head counts as integers, or None if either is unknown."""
    try:
        return HeadCounts(number_of(counts[0], heads), number_of(counts[1], heads))
    except AnatomyError:
        return None
