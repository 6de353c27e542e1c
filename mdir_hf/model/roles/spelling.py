r"""The names that a pattern of the tables spells, all of them.

Patterns are a small part of regular expressions: characters, ``\.``, sets, groups, ``|``, ``?``, and ``\d{1,4}`` for
the number of an expert. What such a pattern matches can be listed, and names that anyone may choose be looked up.
"""

from __future__ import annotations

import re

EXPERTS = ("0", "1", "2", "3")
"""What the number of an expert is spelled as. Patterns hold numbers up to 2; to them, all others are as 3."""

_NUMBER = r"\d{1,4}"
_GROUP = re.compile(r"\((?:\?:|\?P<[a-z]{1,9}>)?")


def is_endless(pattern: str) -> bool:
    """Whether names without end match a pattern: it repeats something."""
    return any(sign in pattern.replace(r"\+", "").replace(r"\*", "") for sign in "+*")


def spelled(pattern: str) -> frozenset[str]:
    """List what a pattern that is not endless matches, the numbers of experts as :data:`EXPERTS`."""
    names, end = _alternatives(pattern, 0)
    assert end == len(pattern), f"{pattern!r} is read up to {end}"
    return frozenset(names)


def _alternatives(pattern: str, at: int) -> tuple[list[str], int]:
    """What stands between ``|`` up to the end of a group, each spelled."""
    names: list[str] = []
    sequence = [""]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            names, sequence, at = names + sequence, [""], at + 1
            continue
        one, at = _atom(pattern, at)
        if pattern[at : at + 1] == "?":
            one, at = [*one, ""], at + 1
        sequence = [name + more for name in sequence for more in one]
    return names + sequence, at


def _atom(pattern: str, at: int) -> tuple[list[str], int]:
    """A character, a set, a number or a group."""
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
