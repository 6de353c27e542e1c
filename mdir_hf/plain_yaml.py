"""YAML of strangers, read as plain values: no objects, and no more values than somebody would write by hand."""

from __future__ import annotations

import re

import yaml

MOST_CHARACTERS = 1 << 20
"""Cards with all results of a large benchmark reach several hundred thousand."""
MOST_MARKS = 100_000
"""Marks that part one value from the next, wherever they stand. A card with 6,000 results has 28,000 (0.45 MB); the
parser takes some 20 us for each."""
_MARK = re.compile(r"[,\[{]|[-?:](?!\S)")
_MOST_DIGITS = 1000  # YAML knows numbers to base 60, whose reading takes the square of their length
_MOST_NODES = 200_000
"""Values of a text with every alias written out. A card has some hundred; aliases of aliases make any number."""


def read_yaml(text: str, *, first_line: int = 1) -> object:
    """Read a text as mappings, lists and scalars.

    Args:
        text: The YAML.
        first_line: Number of its first line, for messages.

    Returns:
        What it says; None where it says nothing.

    Raises:
        ValueError: If it is not YAML of plain values, or is larger than one by hand may be. Says what is wrong, as the
            end of a sentence about the text.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}")
    n_marks = sum(1 for _ in _MARK.finditer(text))
    if n_marks > MOST_MARKS:
        raise ValueError(f"has {n_marks:,} commas, dashes, colons and brackets, expected at most {MOST_MARKS:,}")
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        too_large = _what_is_too_large(root)
        if too_large is None:
            found: object = loader.construct_document(root)
            return found
    except Exception as exc:  # on hostile text the YAML parser raises nearly anything, AttributeError included
        # The parser's message quotes the text; what it says of the problem and the line is enough.
        mark = getattr(exc, "problem_mark", None)
        where = f" in line {mark.line + first_line}" if mark is not None else ""
        raise ValueError(f"cannot be read{where}: {getattr(exc, 'problem', None) or type(exc).__name__}") from exc
    raise ValueError(too_large)


def _what_is_too_large(root: yaml.Node) -> str | None:
    """Say what of a text is more than somebody can mean; loading it would fill the memory."""
    weights: dict[int, int] = {}
    open_nodes: set[int] = set()
    complaints: list[str] = []

    def weight(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > _MOST_DIGITS and node.tag.endswith((":int", ":float")):
                complaints.append(f"holds a number of {len(node.value):,} characters")
            return 1
        if id(node) in open_nodes:
            complaints.append("contains itself")
            return 1
        if id(node) not in weights:
            open_nodes.add(id(node))
            children = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
            weights[id(node)] = 1 + sum(map(weight, children))
            open_nodes.discard(id(node))
        return weights[id(node)]

    if weight(root) > _MOST_NODES:
        complaints.append(f"stands for more than {_MOST_NODES:,} values once its aliases are written out")
    return next(iter(complaints), None)
