r"""Text of strangers made fit to show: what a repo, a tensor, an architecture or a file is called.

A terminal obeys what stands in a name: escape sequences move its cursor and change what was printed before, and marks
of direction turn the text around them. :func:`visible_text` writes them out, as ``\u001b``. All that leaves for a
terminal, a log, a page or a document passes it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

ELLIPSIS = "…"
LONGEST_TEXT = 4000
"""Characters of one sentence; a name of ten thousand is a joke or an attack."""

_BLANKS = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")
_WRITTEN_OUT = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, invisible marks and those of direction, halves of characters, breaks of lines."""


def visible_text(text: str, *, length: int | None = None, keeps_lines: bool = False) -> str:
    r"""Return a text in which nothing is invisible and nothing is obeyed.

    Args:
        text: Of any origin.
        length: Most characters, at least 3, elided in the middle: both ends tell names apart. None: any number.
        keeps_lines: Whether breaks of lines and tabs are ours and stay; else they become blanks.

    Returns:
        The text, with control characters, marks of direction and lone surrogates written as JSON writes them
        (``\u009b``), so that JSON stays JSON with the same values.
    """
    if length is not None and len(text) > 20 * length:
        # It is cut before it is looked at, with enough left over for blanks that become one.
        text = text[: 10 * length] + ELLIPSIS + text[-10 * length :]
    if not keeps_lines:
        text = _BLANKS.sub(" ", text).strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() or (keeps_lines and c in "\n\t") else _written(c) for c in text)
    if length is None or len(text) <= length:
        return text
    head = (length - 1) // 2
    return text[:head] + ELLIPSIS + text[len(text) - (length - 1 - head) :]


def shown_name(name: str, *, length: int = 60) -> str:
    """Return a name as one line of at most ``length`` characters; never empty.

    Markup is left as it is: the writers of HTML, SVG and Markdown escape it.

    Args:
        name: A repo id, or a path, of any length, with anything in it.
        length: In characters, at least 3.
    """
    return visible_text(name, length=length) or "(no name)"


def without_folders(names: Sequence[str]) -> tuple[str, ...]:
    """Return names for a picture: of a path on this disk its last part, where that tells it from the others."""
    last = [Path(name).name or name if name.startswith(("/", "~", ".")) else name for name in names]
    return tuple(short if last.count(short) == 1 else name for short, name in zip(last, names, strict=True))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the known name that a mistyped or cut one is closest to, or nothing."""
    by_lower = {name.lower(): name for name in known if name != word}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.75)
    close += [name for name in by_lower if len(word) > 1 and name.startswith(word.lower())]
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def _written(character: str) -> str:
    if unicodedata.category(character) not in _WRITTEN_OUT:
        return character  # blanks other than a space, and what has no meaning yet
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
