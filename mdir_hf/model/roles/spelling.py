r"""Lists all names that a pattern of the tables matches.

Patterns are a small subset of regular expressions: characters, ``\.``, sets, groups, ``|``, ``?``, and ``\d{1,4}`` for
the number of an expert. So all matches can be listed, and arbitrary names can be looked up among them.
"""

from __future__ import annotations

import re

EXPERTS = ("0", "1", "2", "3")
"""Numbers of experts in the listed names. Patterns mention numbers up to 2; 3 stands for all others."""

_NUMBER = r"\d{1,4}"
_GROUP = re.compile(r"\((?:\?:|\?P<[a-z]{1,9}>)?")


def is_endless(pattern: str) -> bool:
    """Return whether a pattern repeats something, so that it matches infinitely many names."""
    return any(sign in pattern.replace(r"\+", "").replace(r"\*", "") for sign in "+*")


def spelled(pattern: str) -> frozenset[str]:
    """Return all matches of a finite pattern, with numbers of experts as in :data:`EXPERTS`."""
    names, end = _alternatives(pattern, 0)
    assert end == len(pattern), f"{pattern!r} is parsed up to {end}"
    return frozenset(names)


def _alternatives(pattern: str, at: int) -> tuple[list[str], int]:
    """Return all matches of the alternatives up to the end of a group, and the end."""
    names: list[str] = []
    sequence = [""]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            names, sequence, at = names + sequence, [""], at + 1
            continue
        matches, at = _atom(pattern, at)
        if pattern[at : at + 1] == "?":
            matches, at = [*matches, ""], at + 1
        sequence = [name + more for name in sequence for more in matches]
    return names + sequence, at


def _atom(pattern: str, at: int) -> tuple[list[str], int]:
    """Return all matches of a character, a set, a number or a group, and its end."""
    if pattern.startswith(_NUMBER, at):
        return list(EXPERTS), at + len(_NUMBER)
    if pattern[at] == "\\":
        return [pattern[at + 1]], at + 2
    if pattern[at] == "[":
        end = pattern.index("]", at)
        return list(pattern[at + 1 : end]), end + 1
    group = _GROUP.match(pattern, at)
    if group is None:
        return [pattern[at]], at + 1
    names, end = _alternatives(pattern, group.end())
    return names, end + 1
