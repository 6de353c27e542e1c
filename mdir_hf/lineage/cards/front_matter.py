"""The YAML front matter of a model card: read as data, edited in place.

A YAML writer would write the whole block anew. Here only the value of a field is written; every other byte stays:
comments, quotes, order, line ends. The YAML parser tells where a value begins and ends, and the result is parsed again
to check it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

from mdir_hf.errors import CardError
from mdir_hf.lineage.cards.printable import unquoted
from mdir_hf.lineage.cards.text_lines import line_end, split_lines
from mdir_hf.plain_yaml import read_yaml

BOM = "\ufeff"
MOST_BYTES = 8 << 20
"""Largest README.md that is read. Pictures do not belong into it, and the longest cards have some hundred kB."""

_NOT_A_MAPPING = "its front matter is not a mapping of fields to values"


@dataclass(frozen=True, slots=True)
class Card:
    """A README.md in its parts; put together they are its bytes.

    Attributes:
        bom: A byte order mark, or nothing.
        opening: The line that opens the front matter; empty without one.
        block: The YAML.
        closing: The line that closes it, with the line end before it.
        body: The Markdown.
    """

    bom: str
    opening: str
    block: str
    closing: str
    body: str

    def __str__(self) -> str:
        return self.bom + self.opening + self.block + self.closing + self.body

    def to_bytes(self) -> bytes:
        """The file."""
        return str(self).encode("utf-8")

    @property
    def line_end(self) -> str:
        """What ends most of its lines."""
        return line_end(str(self))


def parse_card(content: bytes, *, subject: str) -> Card:
    """Split a README.md where the Hub does.

    Args:
        content: The file.
        subject: What an error calls it.

    Raises:
        CardError: If it is not UTF-8.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise CardError(f"is not UTF-8 (byte {exc.start:,}); save it as UTF-8 first", subject=subject) from exc
    bom = BOM if text.startswith(BOM) else ""
    text = text[len(bom) :]
    match = REGEX_YAML_BLOCK.search(text)
    if match is None:
        return Card(bom, "", "", "", text)
    return Card(bom, match[1], match[2], match[3], text[match.end() :])


def read_metadata(card: Card, *, subject: str) -> dict[str, Any]:
    """Return the metadata of a card, built of plain values only; empty where it has none.

    Raises:
        CardError: If the YAML is not a mapping, is larger than a card's may be, asks for anything but plain values, or
            multiplies itself through aliases.
    """
    try:
        data = read_yaml(card.block, first_line=2)
    except ValueError as exc:
        raise CardError(f"its front matter {unquoted(str(exc))}", subject=subject) from exc
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise CardError(_NOT_A_MAPPING, subject=subject)
    return data


def with_metadata(card: Card, values: Mapping[str, str | list[str]], *, subject: str) -> Card:
    """Set fields in the front matter; add one to a card without.

    A field that has the value already is left as it is written; a list that only grows gets lines of its own; new
    fields go to the end.

    Args:
        card: The card.
        values: New values by name, texts or lists of texts.
        subject: What an error calls the card.

    Returns:
        The card, with every byte outside of the changed values as it was.

    Raises:
        CardError: If the front matter is written in a way in which that cannot be done safely.
    """
    before = read_metadata(card, subject=subject)
    changes = {name: value for name, value in values.items() if before.get(name) != value}
    if not changes:
        return card
    changed, expected = card, dict(before)
    for name, value in changes.items():
        changed, expected[name] = _with_field(changed, name, value, subject), value
        try:  # each by itself: the next is set in what the last one left
            after = read_metadata(parse_card(changed.to_bytes(), subject=subject), subject=subject)
        except CardError:
            after = {}
        if after != expected:
            raise CardError(
                f"its front matter is written in a way in which {name} cannot be set without touching the rest; add it "
                "by hand",
                subject=subject,
            )
    return changed


def _with_field(card: Card, name: str, value: str | list[str], subject: str) -> Card:
    # The Hub knows no front matter that a lone carriage return ends.
    end = "\n" if card.line_end == "\r" else card.line_end
    new = str(yaml_dump({name: value}, sort_keys=False)).rstrip("\n").replace("\n", end)
    if not card.opening:
        return replace(card, opening=f"---{end}", block=new, closing=f"{end}---{end}")
    if card.opening.endswith("\r") and card.closing.startswith("\n"):  # an empty block, in the middle of a line end
        card = replace(card, opening=f"{card.opening}\n", closing=f"\r{card.closing}")
    root = yaml.compose(card.block, Loader=yaml.SafeLoader)
    fields = root if isinstance(root, yaml.MappingNode) else None  # "null" and a second "---" are read as no fields
    if fields is not None and fields.flow_style:
        raise CardError(f"its front matter is one {{…}}; add {name} by hand", subject=subject)
    found = [pair for pair in (fields.value if fields else ()) if pair[0].value == name]
    if len(found) > 1:
        raise CardError(f"its front matter names {name} {len(found)} times; leave one", subject=subject)
    if found:
        key, node = found[0]
        if ":" not in card.block[key.end_mark.index :]:  # "? base_model", and nothing more
            raise CardError(f"its front matter names {name} without a colon; add it by hand", subject=subject)
        return replace(card, block=_replaced(card.block, key, node, value, end))
    separator = "" if not card.block or card.block.endswith(("\n", "\r")) else end
    return replace(card, block=f"{card.block}{separator}{new}")


def _replaced(block: str, key: yaml.Node, node: yaml.Node, value: str | list[str], end: str) -> str:
    """Return the block with another value for a field that is there."""
    stop = len(block[: _end_of(node)].rstrip())  # the mark of a text in lines lies behind its last line end
    old = [item.value for item in node.value] if isinstance(node, yaml.SequenceNode) else None
    if old and not node.flow_style and isinstance(value, list) and value[: len(old)] == old:
        indent = " " * node.start_mark.column
        added = "".join(f"{end}{indent}- {_scalar(item)}" for item in value[len(old) :])
        stop += len("".join(split_lines(block[stop:])[:1]).rstrip("\r\n"))  # behind a comment
        return block[:stop] + added + block[stop:]
    written = f"[{', '.join(map(_scalar, value))}]" if isinstance(value, list) else _scalar(value)
    colon = block.index(":", key.end_mark.index)
    return f"{block[: colon + 1]} {written}{block[stop:]}"


def _end_of(node: yaml.Node) -> int:
    """Return where the text of a node ends; the mark of a block collection lies behind what follows it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end_of(last[1] if isinstance(last, tuple) else last)


def _scalar(text: str) -> str:
    return str(yaml_dump({"k": text})).removeprefix("k:").strip()
