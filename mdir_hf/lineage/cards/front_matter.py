"""Read a model card's YAML front matter as data, and edit it in place.

A YAML writer would rewrite the whole block, whereas this module changes only the values that are set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

from mdir_hf.errors import CardError
from mdir_hf.names import unquoted
from mdir_hf.plain_yaml import read_yaml

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def split_lines(text: str) -> list[str]:
    """Split text into lines with their endings (LF, CRLF or CR)."""
    return _LINE.findall(text)


def line_end(text: str) -> str:
    """Return the most common line ending of a text, or a line feed."""
    n_pairs = text.count("\r\n")
    counts = {"\n": text.count("\n") - n_pairs, "\r\n": n_pairs, "\r": text.count("\r") - n_pairs}
    return max(counts, key=lambda end: counts[end])


BOM = "\ufeff"
MOST_BYTES = 8 << 20
"""Maximum size of README.md; the longest cards have a few hundred kB."""

_NOT_A_MAPPING = "its front matter is not a mapping of fields to values"


@dataclass(frozen=True, slots=True)
class Card:
    """A README.md split into parts, which concatenate to the whole file.

    Attributes:
        bom: Byte order mark, or empty.
        closing: The preceding line ending, and the line that closes the front matter.
    """

    bom: str
    opening: str
    block: str
    closing: str
    body: str

    def __str__(self) -> str:
        return self.bom + self.opening + self.block + self.closing + self.body

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        return str(self).encode("utf-8")

    @property
    def line_end(self) -> str:
        """The most common line ending."""
        return line_end(str(self))


def parse_card(content: bytes, *, subject: str) -> Card:
    """Split a README.md at the same position as the Hub does.

    Raises:
        CardError: If the file is not UTF-8.
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
    """Return a card's metadata as plain values; empty if there is none.

    Raises:
        CardError: If the YAML is not a mapping of plain values, or a limit is exceeded.
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
    """Set fields in the front matter of a card.

    All other bytes are left unchanged.

    Raises:
        CardError: If the front matter cannot be changed safely.
    """
    before = read_metadata(card, subject=subject)
    changes = {name: value for name, value in values.items() if before.get(name) != value}
    if not changes:
        return card
    new_card, expected_metadata = card, dict(before)
    for name, value in changes.items():
        new_card, expected_metadata[name] = _with_field(new_card, name, value, subject), value
        try:  # check each field separately
            after = read_metadata(parse_card(new_card.to_bytes(), subject=subject), subject=subject)
        except CardError:
            after = {}
        if after != expected_metadata:
            raise CardError(
                f"{name} cannot be set in its front matter without changing other lines; add it by hand",
                subject=subject,
            )
    return new_card


def _with_field(card: Card, name: str, value: str | list[str], subject: str) -> Card:
    # The Hub does not recognise front matter that ends with a lone carriage return.
    end = "\n" if card.line_end == "\r" else card.line_end
    new = str(yaml_dump({name: value}, sort_keys=False)).rstrip("\n").replace("\n", end)
    if not card.opening:
        return replace(card, opening=f"---{end}", block=new, closing=f"{end}---{end}")
    if card.opening.endswith("\r") and card.closing.startswith(
        "\n"
    ):  # an empty block, between the two characters of a line ending
        card = replace(card, opening=f"{card.opening}\n", closing=f"\r{card.closing}")
    root = yaml.compose(card.block, Loader=yaml.SafeLoader)
    fields = root if isinstance(root, yaml.MappingNode) else None  # "null" and a second "---" count as empty
    if fields is not None and fields.flow_style:
        raise CardError(f"its front matter is one {{…}}; add {name} by hand", subject=subject)
    pairs = [pair for pair in (fields.value if fields else ()) if pair[0].value == name]
    if len(pairs) > 1:
        raise CardError(f"its front matter names {name} {len(pairs)} times; leave one", subject=subject)
    if pairs:
        key, node = pairs[0]
        if ":" not in card.block[key.end_mark.index :]:  # "? base_model" without a value
            raise CardError(f"its front matter names {name} without a colon; add it by hand", subject=subject)
        return replace(card, block=_replaced(card.block, key, node, value, end))
    separator = "" if not card.block or card.block.endswith(("\n", "\r")) else end
    return replace(card, block=f"{card.block}{separator}{new}")


def _replaced(block: str, key: yaml.Node, node: yaml.Node, value: str | list[str], end: str) -> str:
    stop = len(block[: _end_of(node)].rstrip())  # the end mark of a block scalar is after its last line ending
    old = [item.value for item in node.value] if isinstance(node, yaml.SequenceNode) else None
    if old and not node.flow_style and isinstance(value, list) and value[: len(old)] == old:
        indent = " " * node.start_mark.column
        added = "".join(f"{end}{indent}- {_scalar(item)}" for item in value[len(old) :])
        stop += len("".join(split_lines(block[stop:])[:1]).rstrip("\r\n"))  # after a comment
        return block[:stop] + added + block[stop:]
    value_text = f"[{', '.join(map(_scalar, value))}]" if isinstance(value, list) else _scalar(value)
    colon = block.index(":", key.end_mark.index)
    return f"{block[: colon + 1]} {value_text}{block[stop:]}"


def _end_of(node: yaml.Node) -> int:
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end_of(last[1] if isinstance(last, tuple) else last)


def _scalar(text: str) -> str:
    return str(yaml_dump({"k": text})).removeprefix("k:").strip()
