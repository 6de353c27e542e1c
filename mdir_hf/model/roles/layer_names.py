"""Names of tensors in layers: where the number stands, and which patterns of the tables a name matches.

Files may hold a million names of anyone's choice, so that everything here is linear in them: expressions that
do not backtrack, and a dictionary of all names that the patterns spell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from mdir_hf.model.roles.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.model.roles.rows import LayerRow
from mdir_hf.model.roles.spelling import EXPERTS, is_endless, spelled

_NUMBER = re.compile(r"(?:^|(?<=[\s\S])\.)(0|[1-9][0-9]{0,5})\.(?=[\s\S])")
"""The number of a layer, of at most six digits: none of its steps can be taken in two ways."""

_WRAPPED = ".base_layer."
"""What adapters put into the name of a weight that they stand beside."""


def split_at_layer(name: str) -> tuple[str, int, str] | None:
    """Return what stands in front of the first number in a name, the number, and what stands behind it.

    Args:
        name: ``model.layers.3.mlp.up_proj.weight``.

    Returns:
        ``("model.layers", 3, "mlp.up_proj.weight")``; None where no number stands between dots. A number with zeros in
        front of it is none: no other name could be told from it.
    """
    found = _NUMBER.search(name)
    return None if found is None else (name[: found.start()], int(found[1]), name[found.end() :])


def is_in_layer(name: str) -> bool:
    """Whether a tensor stands under a number, hence in a layer (of any stack)."""
    return _NUMBER.search(name) is not None


class NamesOfLayer:
    """The names in one layer, and by which patterns of the tables each is known.

    Args:
        rests: The rest of each tensor name, behind the layer's number.
    """

    def __init__(self, rests: Iterable[str]) -> None:
        self.rests = tuple(rests)
        self._patterns = {rest: _patterns_of(rest) for rest in self.rests}
        self._by_pattern: dict[str, list[str]] = defaultdict(list)
        for rest, patterns in self._patterns.items():
            for pattern in patterns:
                self._by_pattern[pattern].append(rest)

    def rows_of(self, rest: str) -> tuple[LayerRow, ...]:
        """The rows whose pattern one of the names matches, in the order of the table."""
        patterns = self._patterns[rest]
        return _rows_with(patterns) if patterns else ()

    def has(self, pattern: str) -> bool:
        """Whether a tensor matches this pattern of a table."""
        return pattern in self._by_pattern

    def only(self, pattern: str | None) -> str | None:
        """The tensor that a pattern means; None where none does, or several."""
        found = [] if pattern is None else self._by_pattern.get(pattern, [])
        return found[0] if len(found) == 1 else None


def is_factor(rest: str) -> bool:
    """Whether a tensor is a factor of an adapter that is stored beside the weight."""
    return ".lora_A." in rest or ".lora_B." in rest


@lru_cache(maxsize=1 << 14)
def expert_of(rest: str, row: LayerRow) -> int:
    """The number of the expert in a name that a row with numbered experts matches."""
    match = _compiled(row.pattern).fullmatch(rest.replace(_WRAPPED, "."))
    assert match is not None
    return int(match["expert"])


@lru_cache(maxsize=1 << 14)  # layers repeat their names
def _patterns_of(rest: str) -> frozenset[str]:
    names, endless = _patterns_by_name()
    rest = rest.replace(_WRAPPED, ".")
    found = names.get(rest) or names.get(".".join(map(_alike, rest.split("."))), frozenset())
    more = [pattern for pattern in endless if pattern.fullmatch(rest)]
    return found.union(pattern.pattern for pattern in more) if more else found


def _alike(word: str) -> str:
    """A pattern treats all numbers of experts alike, except those that it names."""
    return EXPERTS[-1] if 0 < len(word) <= 4 and word not in EXPERTS and word.isascii() and word.isdigit() else word


@cache
def _patterns_by_name() -> tuple[dict[str, frozenset[str]], tuple[re.Pattern[str], ...]]:
    """The patterns that each name matches, and those beside that match names without end."""
    of_rows = [pattern for row in LAYER_ROWS for pattern in (row.pattern, row.beside, row.unless_beside)]
    of_rows += [pattern for row in PRODUCT_ROWS for pattern in (row.left, row.right, row.gain)]
    patterns = sorted({pattern for pattern in of_rows if pattern is not None})
    by_name: dict[str, set[str]] = defaultdict(set)
    for pattern in patterns:
        for name in () if is_endless(pattern) else spelled(pattern):
            by_name[name].add(pattern)
    endless = tuple(_compiled(pattern) for pattern in patterns if is_endless(pattern))
    return {name: frozenset(found) for name, found in by_name.items()}, endless


@cache
def _rows_with(patterns: frozenset[str]) -> tuple[LayerRow, ...]:
    return tuple(row for row in LAYER_ROWS if row.pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # the tables have more than ``re`` itself remembers
