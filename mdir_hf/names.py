"""Names of models made fit to show: whatever somebody called a repo or a folder, one short line comes out."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"
_NOT_SHOWN = {"Cc", "Zl", "Zp"}
"""Control characters and line breaks become blanks."""

_NOTHING = {"Cf"}
"""Marks that turn the direction of the text around them, and other invisible ones, are left out."""


def shown_name(name: str, *, length: int = 60) -> str:
    """Return a name as one line of at most ``length`` characters, elided in the middle: both ends tell models apart.

    Markup is left as it is: whoever writes HTML, SVG or Markdown escapes it there.

    Args:
        name: A repo id, or a path, of any length, with anything in it.
        length: In characters, at least 3.

    Returns:
        The line; never empty, without control characters, marks of direction or lone surrogates.
    """
    # A long name is cut before it is looked at, with enough left over for what is dropped in between.
    if len(name) > 20 * length:
        name = name[: 10 * length] + ELLIPSIS + name[-10 * length :]
    shown = " ".join("".join(_shown(character) for character in name).split()) or "(no name)"
    if len(shown) <= length:
        return shown
    head = (length - 1) // 2
    return shown[:head] + ELLIPSIS + shown[len(shown) - (length - 1 - head) :]


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if category in _NOTHING:
        return ""
    if category in _NOT_SHOWN:
        return " "
    return "\N{REPLACEMENT CHARACTER}" if category == "Cs" else character
