"""Parse untrusted YAML into plain values, within size limits."""

from __future__ import annotations

import re

import yaml

MOST_CHARACTERS = 1 << 20
"""Maximum number of characters. Cards with all results of a large benchmark have several hundred thousand."""
MOST_MARKS = 100_000
"""Maximum number of value separators, including those inside strings. A card with 6,000 results has 28,000 (0.45 MB).
The parser takes about 20 us for each."""
_MARK = re.compile(r"[,\[{]|[-?:](?!\S)")
_MOST_DIGITS = 1000  # YAML's base-60 numbers take quadratic time to parse
_MOST_NODES = 200_000
"""Maximum number of values after expanding all aliases. A card has a few hundred; nested aliases grow exponentially."""


def read_yaml(text: str, *, first_line: int = 1) -> object:
    """Parse YAML into mappings, lists and scalars; return None if the text is empty.

    Raises:
        ValueError: If the text is not YAML with plain values, or is too large. The message is worded to complete a
            sentence, and counts lines from ``first_line``.
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
            document: object = loader.construct_document(root)
            return document
    except Exception as exc:  # hostile text can make the YAML parser raise almost anything, even AttributeError
        # The parser's message quotes the text; the problem and the line are enough.
        mark = getattr(exc, "problem_mark", None)
        where = f" in line {mark.line + first_line}" if mark is not None else ""
        raise ValueError(f"cannot be read{where}: {getattr(exc, 'problem', None) or type(exc).__name__}") from exc
    raise ValueError(too_large)


def _what_is_too_large(root: yaml.Node) -> str | None:
    """Return why a document is too large to load, or None."""
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
        complaints.append(f"has more than {_MOST_NODES:,} values once its aliases are expanded")
    return next(iter(complaints), None)
