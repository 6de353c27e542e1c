"""Convert untrusted text to printable ASCII on one line, escaping everything else."""

from __future__ import annotations


def quoted(value: object, longest: int) -> str:
    """Return the repr of a value in ASCII, cut to ``longest`` characters."""
    return _cut(ascii(value), longest)


def unquoted(text: str, longest: int = 200) -> str:
    """Return escaped text without quotes, cut to ``longest`` characters."""
    return _cut(ascii(text)[1:-1], longest)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
