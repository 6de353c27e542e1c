"""What a row of the naming tables is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .roles import WHOLE, Count, FusedRows, Layout, Role

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
        experts: How it holds experts, None outside of them. ``numbered``: it belongs to the routed expert whose number
            is the pattern's group ``expert``. ``stacked``: it holds those of all routed experts along its first axis.
            ``below``: theirs lie one below another in one matrix. ``shared``: it belongs to the expert that every token
            passes. ``stacked shared``: it holds those of several such experts.
        joined: Whether it has three axes of which the last two, heads and their width, are one.
        rope: How rotated rows of the layer pair up, where that is not as everywhere in the family.
        n_heads: Query heads and key/value heads of the layer, where they are not as everywhere in the model.
    """

    pattern: str
    parts: tuple[tuple[Role, Layout], ...]
    transposed: bool | None = False
    model_types: frozenset[str] = frozenset()
    when: tuple[tuple[str, frozenset[Answer]], ...] = ()
    beside: str | None = None
    unless_beside: str | None = None
    experts: ExpertStorage | None = None
    joined: bool = False
    rope: RopeLayout | None = None
    n_heads: tuple[Count, Count] | None = None


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
    model_types: frozenset[str] = frozenset()
    except_model_types: frozenset[str] = frozenset()
    rope: RopeLayout | None = None
    n_heads: tuple[Count, Count] | None = None


GATE_THEN_UP: tuple[tuple[Role, Layout], ...] = (
    (Role.GATE, FusedRows(1, (1, 1), 0)),
    (Role.UP, FusedRows(1, (1, 1), 1)),
)
"""Parts of a tensor that holds the rows of gate, then those of up."""


def whole_rows(
    roles: Mapping[str, Role | tuple[Role, ...]],
    model_types: Iterable[str] = (),
    *,
    transposed: bool = False,
    when: tuple[tuple[str, frozenset[Answer]], ...] = (),
) -> tuple[LayerRow, ...]:
    """Rows for tensors that are one weight each.

    Args:
        roles: Role by name, a regular expression without its ending ``.weight``; two roles where one norm stands in
            front of both attention and MLP.
        model_types: As in :class:`LayerRow`.
        transposed: As in :class:`LayerRow`.
        when: As in :class:`LayerRow`.
    """
    families = frozenset(model_types)
    return tuple(
        LayerRow(
            rf"(?:{name})\.weight",
            tuple((one, WHOLE) for one in ((role,) if isinstance(role, Role) else role)),
            transposed=transposed,
            model_types=families,
            when=when,
        )
        for name, role in roles.items()
    )


def fused_rows(roles: tuple[Role, ...], groups: Count, shares: tuple[Count, ...]) -> tuple[tuple[Role, Layout], ...]:
    """Parts of a tensor in which several weights lie as :class:`~mdir_hf.anatomy.roles.FusedRows` says, in order."""
    return tuple((role, FusedRows(groups, shares, at)) for at, role in enumerate(roles))


YES: frozenset[Answer] = frozenset({True})
NO: frozenset[Answer] = frozenset({False})
YES_OR_UNSAID: frozenset[Answer] = frozenset({True, None})
NO_OR_UNSAID: frozenset[Answer] = frozenset({False, None})
"""Answers for ``LayerRow.when``."""


def rows_in_folder(
    names: dict[str, Role],
    *,
    folder: str,
    beside: str | None = None,
    model_types: frozenset[str] = frozenset(),
    n_heads: tuple[Count, Count] | None = None,
) -> tuple[LayerRow, ...]:
    """One row for each name in a folder; positions do not enter any of them."""
    return tuple(
        LayerRow(
            rf"{folder}\.{name}\.weight",
            ((role, WHOLE),),
            beside=beside,
            model_types=model_types,
            rope="none",
            n_heads=n_heads,
        )
        for name, role in names.items()
    )
