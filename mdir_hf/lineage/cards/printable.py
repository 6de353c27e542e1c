"""Foreign text as printable ASCII on one line, everything else written as escapes."""

from __future__ import annotations


def quoted(value: object, longest: int) -> str:
    """Return a value as Python would write it, cut to ``longest`` characters."""
    return _cut(ascii(value), longest)


def unquoted(text: str, longest: int = 200) -> str:
    """Return a text without quotes around it, cut to ``longest`` characters."""
    return _cut(ascii(text)[1:-1], longest)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
