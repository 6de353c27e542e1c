"""Match like ``re`` and count the steps, so that growth can be measured without a clock.

It walks the standard library's parse tree of an expression in the same order as ``re``. It omits ``re``'s optimisations
(such as skipping to a literal prefix), so it counts the largest possible number of steps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

if sys.version_info >= (3, 11):
    from re import _compiler, _constants, _parser
else:
    import sre_compile as _compiler
    import sre_constants as _constants
    import sre_parse as _parser

ONE_CHARACTER = {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
EVERYWHERE = ("search", "finditer", "split", "sub")
"""Methods that start at every character; the others start at the first one."""

Nodes = Any  # a list of (operation, argument), as returned by the parser


class Counter:
    """Count the steps of matching an expression.

    Args:
        pattern: The expression.
    """

    def __init__(self, pattern: re.Pattern[str] | re.Pattern[bytes]) -> None:
        source = pattern.pattern
        self._flags = pattern.flags
        self._text = source if isinstance(source, str) else source.decode("latin-1")
        parsed_flags = self._flags & ~re.UNICODE if isinstance(source, bytes) else self._flags
        self._tree = _parser.parse(self._text, parsed_flags & ~re.DEBUG)
        self._single = lru_cache(maxsize=None)(self._character)
        self.steps = 0

    def run(self, method: str, text: str) -> int:
        """Match, and return the number of steps.

        Args:
            method: The method of the pattern.
            text: The text to match; for bytes, one character for each.
        """
        self.steps = 0
        self._subject = text
        ends: Iterator[int] = iter(())
        at = 0
        while at <= len(text):
            ends = self._sequence(self._tree, 0, at)
            end = next((end for end in ends if method != "fullmatch" or end == len(text)), None)
            if method not in EVERYWHERE or (end is not None and method == "search"):
                break
            at = at + 1 if end is None or end == at else end
        return self.steps

    def _sequence(self, nodes: Nodes, first: int, at: int) -> Iterator[int]:
        """Yield the ends of the nodes from ``first`` on, in the order in which they are tried."""
        if first == len(nodes):
            yield at
            return
        for end in self._node(nodes[first], at):
            yield from self._sequence(nodes, first + 1, end)

    def _node(self, node: tuple[Any, Any], at: int) -> Iterator[int]:
        self.steps += 1
        name, argument = str(node[0]), node[1]
        if name in ONE_CHARACTER:
            if self._takes(node, at):
                yield at + 1
        elif name == "SUBPATTERN":
            yield from self._sequence(argument[-1], 0, at)
        elif name == "BRANCH":
            for choice in argument[1]:
                yield from self._sequence(choice, 0, at)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from self._repeat(*argument, at=at, is_greedy=name == "MAX_REPEAT")
        elif name == "POSSESSIVE_REPEAT":
            yield from list(self._repeat(*argument, at=at, is_greedy=True))[:1]
        elif name == "ATOMIC_GROUP":
            yield from list(self._sequence(argument, 0, at))[:1]
        elif name in ("ASSERT", "ASSERT_NOT"):
            direction, nodes = argument
            start = at - nodes.getwidth()[0] if direction < 0 else at
            holds = start >= 0 and any(direction > 0 or end == at for end in self._sequence(nodes, 0, start))
            if holds == (name == "ASSERT"):
                yield at
        elif name == "AT":
            if self._is_at(argument, at):
                yield at
        else:
            raise NotImplementedError(f"{name} in {self._text!r}")

    def _repeat(self, least: int, most: Any, nodes: Nodes, *, at: int, is_greedy: bool) -> Iterator[int]:
        if len(nodes) == 1 and str(nodes[0][0]) in ONE_CHARACTER:
            end = at
            while True:
                if not is_greedy and end - at >= least:
                    yield end
                if end - at >= int(most) or not self._takes(nodes[0], end):
                    break
                self.steps += 1
                end += 1
            yield from range(end, at + least - 1, -1) if is_greedy else ()
            return
        yield from self._again(least, int(most), nodes, at, is_greedy, before=-1)

    def _again(self, least: int, most: int, nodes: Nodes, at: int, is_greedy: bool, before: int) -> Iterator[int]:
        if not is_greedy and least <= 0:
            yield at
        if most > 0 and at != before:  # empty matches are not repeated
            for end in self._sequence(nodes, 0, at):
                yield from self._again(least - 1, most - 1, nodes, end, is_greedy, at)
        if is_greedy and least <= 0:
            yield at

    def _takes(self, node: tuple[Any, Any], at: int) -> bool:
        return at < len(self._subject) and self._single((node[0], repr(node[1])), self._subject[at])

    def _character(self, key: tuple[Any, str], character: str) -> bool:
        return self._compiled(key).fullmatch(character) is not None

    def _compiled(self, key: tuple[Any, str]) -> re.Pattern[str]:
        if not hasattr(self, "_nodes"):
            self._nodes: dict[tuple[Any, str], re.Pattern[str]] = {}
            self._collect(self._tree)
        return self._nodes[key]

    def _collect(self, nodes: Nodes) -> None:
        """Compile each node that matches one character, separately."""
        for node in nodes:
            name, argument = str(node[0]), node[1]
            if name in ONE_CHARACTER:
                alone = _parser.SubPattern(_parser.State(), [node])
                alone.state.flags = self._tree.state.flags
                alone.state.str = self._text
                self._nodes[node[0], repr(argument)] = _compiler.compile(alone, self._tree.state.flags)
            elif name == "BRANCH":
                for choice in argument[1]:
                    self._collect(choice)
            elif name in ("SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "ASSERT", "ASSERT_NOT"):
                self._collect(argument[-1])
            elif name == "ATOMIC_GROUP":
                self._collect(argument)

    def _is_at(self, where: Any, at: int) -> bool:
        text = self._subject
        if where in (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING):
            return at == 0 or (bool(self._flags & re.MULTILINE) and text[at - 1] == "\n")
        if where in (_constants.AT_END, _constants.AT_END_STRING):
            is_last = at == len(text) or (where == _constants.AT_END and text[at:] == "\n")
            return is_last or (bool(self._flags & re.MULTILINE) and text[at] == "\n")
        is_boundary = (at > 0 and _is_word(text[at - 1])) != (at < len(text) and _is_word(text[at]))
        return is_boundary == (where == _constants.AT_BOUNDARY)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
