"""Lines of a file whose every byte counts: whatever ends them stays what it is."""

from __future__ import annotations

import re

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def split_lines(text: str) -> list[str]:
    """Split a text into lines with their ends (LF, CRLF or CR); joined they are the text again."""
    return _LINE.findall(text)


def line_end(text: str) -> str:
    """Return what ends most lines of a text; a line feed where there is none."""
    n_pairs = text.count("\r\n")
    counts = {"\n": text.count("\n") - n_pairs, "\r\n": n_pairs, "\r": text.count("\r") - n_pairs}
    return max(counts, key=lambda end: counts[end])
