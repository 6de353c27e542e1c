"""The rows of the naming tables."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from mdir_hf.model.roles.roles import WHOLE, Count, FusedRows, Layout, Role

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

RopeLayout = Literal["half", "interleaved", "none", "unknown"]
"""How the rows of a head pair up where positions turn them: ``half`` (i, i + d/2), ``interleaved`` (2i, 2i + 1),
``none`` where positions do not enter q and k."""


Answer = bool | str | None
ExpertStorage = Literal["numbered", "stacked", "below", "shared", "stacked shared"]


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """How a tensor outside of the layers may be called.

    Attributes:
        pattern: Matches the name after any prefix of whole components.
        model_types: Families it holds for; empty: any.
        at_root: Whether the name must have no prefix, because it is too short to tell anything.
    """

    pattern: str
    model_types: frozenset[str] = frozenset()
    at_root: bool = False


@dataclass(frozen=True, slots=True)
class LayerRow:
    """How a tensor of a layer may be called, and which weights it holds.

    Attributes:
        pattern: Matches the name after prefix and layer number.
        parts: Role and layout of each weight in it.
        transposed: Whether it is stored ``(d_in, d_out)``; None where files hold it either way round, and the width of
            the model tells.
        model_types: Families it holds for; empty: any.
        when: Keys of the config that say yes, no or a word (those of dictionaries inside as ``outer.inner``), and the
            answers the row holds for; None: the config does not say.
        beside: The row holds only in a layer that also has a tensor matching this.
        unless_beside: The row does not hold in a layer that has a tensor matching this.
        said: A number that the config must give.
        experts: How it holds experts, None outside of them. ``numbered``: it belongs to the routed expert whose number
            is the pattern's group ``expert``. ``stacked``: it holds those of all routed experts along its first axis.
            ``below``: theirs lie one below another in one matrix. ``shared``: it belongs to the expert that every token
            passes. ``stacked shared``: it holds those of several such experts.
        joined: Whether it has three axes of which the last two, heads and their width, are one.
        rope: How rotated rows of the layer pair up, where that is not as everywhere in the family.
        n_heads: Query heads and key/value heads of the layer, where they are not as everywhere in the model.
        first_half: Whether it reads two things side by side, and the first, half of its columns, is the stream.
    """

    pattern: str
    parts: tuple[tuple[Role, Layout], ...]
    transposed: bool | None = False
    model_types: frozenset[str] = frozenset()
    when: tuple[tuple[str, frozenset[Answer]], ...] = ()
    beside: str | None = None
    unless_beside: str | None = None
    said: str | None = None
    experts: ExpertStorage | None = None
    joined: bool = False
    rope: RopeLayout | None = None
    n_heads: tuple[Count, Count] | None = None
    first_half: bool = False


@dataclass(frozen=True, slots=True)
class ProductRow:
    """How the two factors of a weight may be called, and the norm between them: ``left diag(gain) right``.

    The factors stay free for rows of their own; the row holds in a layer that has all of them.

    Attributes:
        role: What the product does.
        left: Matches the name of the factor that gives its rows, after prefix and layer number.
        right: Matches the name of the factor that reads the stream.
        gain: Matches the name of the norm's scale, None without a norm.
        left_layout: Which rows of the left factor.
        right_layout: Which rows of the right factor.
        left_per_head: Whether the left factor is a stack of one matrix for each head.
        left_transposed: Whether those are stored ``(d_in, d_out)``.
        left_first_half: Whether the left factor reads two things side by side, of which the first is behind the norm.
        model_types: Families it holds for; empty: any.
        except_model_types: Families that use these names and put something else together.
        rope: As in :class:`LayerRow`.
        n_heads: As in :class:`LayerRow`.
    """

    role: Role
    left: str
    right: str
    gain: str | None
    left_layout: Layout = WHOLE
    right_layout: Layout = WHOLE
    left_per_head: bool = False
    left_transposed: bool = False
    left_first_half: bool = False
    model_types: frozenset[str] = frozenset()
    except_model_types: frozenset[str] = frozenset()
    rope: RopeLayout | None = None
    n_heads: tuple[Count, Count] | None = None


Parts = tuple[tuple[Role, Layout], ...]
"""Role and layout of each weight in a tensor."""

ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
QKV = (Role.Q, Role.K, Role.V)
GATED_MLP = (Role.GATE, Role.UP, Role.DOWN)
MLP = (Role.UP, Role.DOWN)
NORMS = (Role.ATTENTION_NORM, Role.MLP_NORM)
OUT_NORMS = (Role.ATTENTION_OUT_NORM, Role.MLP_OUT_NORM)
HEAD_NORMS = (Role.Q_NORM, Role.K_NORM)
"""Roles in the order in which :func:`named` takes words for them."""

NUMBER = r"(?P<expert>\d{1,4})"
"""The number of an expert, in a pattern."""


def fused_rows(roles: tuple[Role, ...], groups: Count, shares: tuple[Count, ...]) -> Parts:
    """Parts of a tensor that holds several weights, as :class:`~mdir_hf.model.roles.roles.FusedRows` says, in order."""
    return tuple((role, FusedRows(groups, shares, at)) for at, role in enumerate(roles))


GATE_THEN_UP = fused_rows((Role.GATE, Role.UP), 1, (1, 1))
UP_THEN_GATE = fused_rows((Role.UP, Role.GATE), 1, (1, 1))
GATE_AND_UP_IN_TURNS = fused_rows((Role.GATE, Role.UP), "rows", (1, 1))
THIRDS = fused_rows(QKV, 1, (1, 1, 1))
CONTIGUOUS = fused_rows(QKV, 1, ("heads", "kv_heads", "kv_heads"))
PER_HEAD = fused_rows(QKV, "heads", (1, 1, 1))
PER_GROUP = fused_rows(QKV, "kv_heads", ("heads_per_kv_head", 1, 1))
"""Parts of a tensor that holds the rows of gate and of up, or those of q, k and v: one after the other, for each head,
or for each group of heads that share a key."""

YES: frozenset[Answer] = frozenset({True})
NO: frozenset[Answer] = frozenset({False})
YES_OR_UNSAID: frozenset[Answer] = frozenset({True, None})
NO_OR_UNSAID: frozenset[Answer] = frozenset({False, None})
"""Answers for ``LayerRow.when``."""


class Said(TypedDict, total=False):
    """What :func:`rows` may say of each of its rows, as in :class:`LayerRow`."""

    transposed: bool | None
    when: tuple[tuple[str, frozenset[Answer]], ...]
    beside: str | None
    unless_beside: str | None
    said: str | None
    experts: ExpertStorage | None
    joined: bool
    rope: RopeLayout | None
    n_heads: tuple[Count, Count] | None
    first_half: bool


def rows(
    weights: Mapping[str, Role | tuple[Role | tuple[Role, Layout], ...]],
    model_types: Set[str] = frozenset(),
    *,
    ending: str = r"\.weight",
    **said: Unpack[Said],
) -> tuple[LayerRow, ...]:
    """Rows that say the same of several tensors.

    Args:
        weights: What a tensor holds, by its name, a regular expression without ``ending``: one whole weight; two roles
            where one norm stands in front of both attention and MLP; or role and layout of each weight in it.
        model_types: As in :class:`LayerRow`.
        ending: What all names end with, a regular expression.
        said: As in :class:`LayerRow`.
    """
    return tuple(
        LayerRow(rf"(?:{name}){ending}", _parts(held), model_types=frozenset(model_types), **said)
        for name, held in weights.items()
    )


def named(pattern: str, words: str, roles: tuple[Role, ...]) -> dict[str, Role]:
    """Roles by name, for :func:`rows`, of tensors whose names differ in one word.

    Args:
        pattern: The names, with ``%s`` for the word.
        words: The word for each role, with spaces between them.
        roles: One for each word.
    """
    return {pattern.replace("%s", word): role for word, role in zip(words.split(), roles, strict=True)}


def _parts(held: Role | tuple[Role | tuple[Role, Layout], ...]) -> Parts:
    roles = (held,) if isinstance(held, Role) else held
    return tuple((one, WHOLE) if isinstance(one, Role) else one for one in roles)
