"""Split text into lines, keeping every line ending."""

from __future__ import annotations

import re

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def split_lines(text: str) -> list[str]:
    """Split text into lines with their endings (LF, CRLF or CR); joining them gives the original text."""
    return _LINE.findall(text)


def line_end(text: str) -> str:
    """Return the most common line ending of a text, or a line feed if there is none."""
    n_pairs = text.count("\r\n")
    counts = {"\n": text.count("\n") - n_pairs, "\r\n": n_pairs, "\r": text.count("\r") - n_pairs}
    return max(counts, key=lambda end: counts[end])
