"""Data classes for the rows of the naming tables."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from mdir_hf.model.roles.roles import FusedRows, Layout, Role, StatedCount

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

RopeLayout = Literal["half", "interleaved", "none", "unknown"]
"""How rotary positions pair up the rows of a head: ``half`` (i, i + d/2), ``interleaved`` (2i, 2i + 1), or ``none`` if
positions do not affect q and k."""


RoleLayouts = tuple[tuple[Role, Layout | None], ...]
"""The role of each weight in a tensor, and the rows that belong to it; None for all rows."""

Answer = bool | str | None
ExpertStorage = Literal["numbered", "stacked", "below", "shared", "stacked shared"]


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """A possible name of a tensor outside the layers.

    Attributes:
        pattern: Regular expression for the name, after any prefix that consists of whole components.
        model_types: Families that it applies to; empty for any.
        at_root: Whether the name must have no prefix.
    """

    pattern: str
    model_types: frozenset[str] = frozenset()
    at_root: bool = False


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A possible name of a tensor in a layer, and the weights that it contains.

    Attributes:
        pattern: Regular expression for the name after the prefix and layer number.
        transposed: Whether the tensor is ``(d_in, d_out)``; None to infer it from the model's width.
        model_types: Families that it applies to; empty for any.
        when: Config keys (``outer.inner`` if nested), each with the values for which the row applies; None stands for
            a missing key.
        beside: Pattern of a tensor that the layer must also have.
        unless_beside: Pattern of a tensor that the layer must not have.
        experts: ``numbered``: one expert, whose number is the pattern's group ``expert``. ``stacked``: all experts,
            along the first axis. ``below``: all experts, one below the other. ``shared``: the expert for every token.
            ``stacked shared``: several shared experts.
        joined: Whether to merge the last two of three axes.
        rope: How rotated rows pair up, if different from the rest of the family.
        n_heads: Numbers of query and key/value heads, if they differ from the model's.
        first_half: Whether only the first half of the columns reads the stream.
    """

    pattern: str
    parts: RoleLayouts
    transposed: bool | None = False
    model_types: frozenset[str] = frozenset()
    when: tuple[tuple[str, frozenset[Answer]], ...] = ()
    beside: str | None = None
    unless_beside: str | None = None
    needs_number: str | None = None
    experts: ExpertStorage | None = None
    joined: bool = False
    rope: RopeLayout | None = None
    n_heads: tuple[StatedCount, StatedCount] | None = None
    first_half: bool = False


@dataclass(frozen=True, slots=True)
class ProductRow:
    """Possible tensor names of a factored weight, ``left diag(gain) right``.

    The row applies to layers that contain all these tensors. Patterns are as in :class:`LayerRow`.

    Attributes:
        left: Pattern of the factor that provides the rows.
        right: Pattern of the factor that reads the stream.
        gain: Pattern of the norm's scale; None if there is no norm.
        left_transposed: Whether the left factor is ``(d_in, d_out)``.
        left_first_half: Whether only the first half of the left factor's columns is used.
    """

    role: Role
    left: str
    right: str
    gain: str | None
    left_layout: Layout | None = None
    right_layout: Layout | None = None
    left_per_head: bool = False
    left_transposed: bool = False
    left_first_half: bool = False
    model_types: frozenset[str] = frozenset()
    except_model_types: frozenset[str] = frozenset()
    rope: RopeLayout | None = None
    n_heads: tuple[StatedCount, StatedCount] | None = None


ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
QKV = (Role.Q, Role.K, Role.V)
GATED_MLP = (Role.GATE, Role.UP, Role.DOWN)
MLP = (Role.UP, Role.DOWN)
NORMS = (Role.ATTENTION_NORM, Role.MLP_NORM)
OUT_NORMS = (Role.ATTENTION_OUT_NORM, Role.MLP_OUT_NORM)
HEAD_NORMS = (Role.Q_NORM, Role.K_NORM)
"""Roles in the order in which :func:`named` expects their words."""

NUMBER = r"(?P<expert>\d{1,4})"
"""Pattern for the number of an expert."""


def fused_rows(roles: tuple[Role, ...], groups: StatedCount, shares: tuple[StatedCount, ...]) -> RoleLayouts:
    """Return the weights that a tensor contains, with their rows; see :class:`~mdir_hf.model.roles.roles.FusedRows`."""
    return tuple((role, FusedRows(groups, shares, at)) for at, role in enumerate(roles))


GATE_THEN_UP = fused_rows((Role.GATE, Role.UP), 1, (1, 1))
UP_THEN_GATE = fused_rows((Role.UP, Role.GATE), 1, (1, 1))
GATE_AND_UP_IN_TURNS = fused_rows((Role.GATE, Role.UP), "rows", (1, 1))
THIRDS = fused_rows(QKV, 1, (1, 1, 1))
CONTIGUOUS = fused_rows(QKV, 1, ("heads", "kv_heads", "kv_heads"))
PER_HEAD = fused_rows(QKV, "heads", (1, 1, 1))
PER_GROUP = fused_rows(QKV, "kv_heads", ("heads_per_kv_head", 1, 1))
"""Parts of a tensor that contains gate and up, or q, k and v: contiguous, interleaved, or grouped by head or
key/value head."""

YES: frozenset[Answer] = frozenset({True})
NO: frozenset[Answer] = frozenset({False})
YES_OR_UNSAID: frozenset[Answer] = frozenset({True, None})
NO_OR_UNSAID: frozenset[Answer] = frozenset({False, None})
"""Sets of accepted values for ``LayerRow.when``."""


class RowOptions(TypedDict, total=False):
    """Keyword arguments of :func:`rows`; see :class:`LayerRow`."""

    transposed: bool | None
    when: tuple[tuple[str, frozenset[Answer]], ...]
    beside: str | None
    unless_beside: str | None
    needs_number: str | None
    experts: ExpertStorage | None
    joined: bool
    rope: RopeLayout | None
    n_heads: tuple[StatedCount, StatedCount] | None
    first_half: bool


def rows(
    weights: Mapping[str, Role | tuple[Role | tuple[Role, Layout | None], ...]],
    model_types: Set[str] = frozenset(),
    *,
    ending: str = r"\.weight",
    **options: Unpack[RowOptions],
) -> tuple[LayerRow, ...]:
    """Return rows for several tensors with the same options.

    ``weights`` maps patterns, which omit the ``ending``, to one role, to two roles that share a norm, or to the role
    and layout of each weight.
    """
    return tuple(
        LayerRow(rf"(?:{name}){ending}", _parts(content), model_types=frozenset(model_types), **options)
        for name, content in weights.items()
    )


def named(pattern: str, words: str, roles: tuple[Role, ...]) -> dict[str, Role]:
    """Map ``pattern``, with ``%s`` replaced by each word, to the role at the same position; for :func:`rows`."""
    return {pattern.replace("%s", word): role for word, role in zip(words.split(), roles, strict=True)}


def _parts(content: Role | tuple[Role | tuple[Role, Layout | None], ...]) -> RoleLayouts:
    roles = (content,) if isinstance(content, Role) else content
    return tuple((entry, None) if isinstance(entry, Role) else entry for entry in roles)
