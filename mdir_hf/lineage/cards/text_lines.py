"""Splits a file into lines and keeps every line ending."""

from __future__ import annotations

import re

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def split_lines(text: str) -> list[str]:
    """Split a text into lines with their ends (LF, CRLF or CR); joined they are the text again."""
    return _LINE.findall(text)


def line_end(text: str) -> str:
    """Return the most common line ending of a text; a line feed for a text without any."""
    n_pairs = text.count("\r\n")
    counts = {"\n": text.count("\n") - n_pairs, "\r\n": n_pairs, "\r": text.count("\r") - n_pairs}
    return max(counts, key=lambda end: counts[end])
