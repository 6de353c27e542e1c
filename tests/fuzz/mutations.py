"""Changes of valid files that keep most of the structure: other values, items and lengths, and then single bytes.

A file of random bytes is refused at its first byte. Only a nearly valid file reaches the inner parts of a parser.
"""

from __future__ import annotations

import copy
import json
import pickletools
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]

NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(-(2**70), 2**70),
    st.integers(-8, 300),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", ".", "..", "../x", "/", "a/b", "weight", "model", "\0", "\x1b[2J", "\u202e", "\ud800", "<|x|>"]
    ),
    st.sampled_from(["1" * 400, "1." * 60, "9e999", "NaN", "\u2581", "\u0120a", "<0x41>", "##a", "[PAD7]", "a" * 300]),
    st.text(max_size=6),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
"""Replacements for any value of JSON."""


def places(node: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values inside a JSON value, itself first."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


@st.composite
def changed_json(draw: Draw, value: Any) -> Any:
    """A JSON object in which up to three values were replaced, dropped, repeated or moved under another name."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, 3))):
        found = places(value)[1:]
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        node = value
        for key in path:
            node = node[key]
        how = draw(st.sampled_from(("replace", "replace", "drop", "repeat", "rename", "copy")))
        if how == "replace":
            node[last] = draw(VALUES)
        elif how == "copy":
            node[last] = copy.deepcopy(value if draw(st.booleans()) else node)
        elif isinstance(node, list):
            node[last : last + 1] = [node[last]] * (0 if how == "drop" else 2)
        elif how == "drop":
            del node[last]
        else:
            node[draw(TEXTS)] = node[last] if how == "repeat" else node.pop(last)
    return value


@st.composite
def json_files(draw: Draw, value: Any) -> bytes:
    """A changed valid JSON file."""
    text = json.dumps(draw(changed_json(value)), ensure_ascii=draw(st.booleans()))
    return draw(damaged(text.encode("utf-8", "surrogatepass")))


@st.composite
def changed_list(draw: Draw, items: Sequence[T], replacements: st.SearchStrategy[T] | None = None) -> list[T]:
    """A list in which up to three items were dropped, repeated, swapped or replaced."""
    found = list(items)
    for _ in range(draw(st.integers(0, 3)) if found else 0):
        if not found:
            break
        at, other = (draw(st.integers(0, len(found) - 1)) for _ in range(2))
        how = draw(st.sampled_from(("drop", "repeat", "swap", "replace")))
        if how == "drop":
            del found[at]
        elif how == "repeat":
            found.insert(other, found[at])
        elif how == "replace" and replacements is not None:
            found[at] = draw(replacements)
        else:
            found[at], found[other] = found[other], found[at]
    return found


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """A file; in one case of four, some bytes were replaced, dropped, repeated, or made a large number."""
    if draw(st.integers(0, 3)):
        return data
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 8)))
        how = draw(st.sampled_from(("fill", "number", "repeat", "cut")))
        if how == "cut":
            data = data[:start] if draw(st.booleans()) else data[:start] + data[stop:]
        elif how == "repeat":
            data = data[:stop] + data[start:]
        else:
            filling = draw(st.binary(max_size=4))
            if how == "number":
                width = draw(st.sampled_from((2, 4, 8)))
                filling = (draw(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
                stop = min(len(data), start + width)
            data = data[:start] + filling + data[stop:]
    return data


@st.composite
def safetensors_files(draw: Draw, header: dict[str, Any], content: bytes) -> bytes:
    """A safetensors file with another header, whose length is correct in most cases."""
    text = json.dumps(draw(changed_json(header)), ensure_ascii=False).encode("utf-8", "surrogatepass")
    n_bytes = len(text) if draw(st.integers(0, 4)) else draw(NUMBERS) % 2**64
    return struct.pack("<Q", n_bytes) + draw(damaged(text)) + content


OPCODES = (b"}", b"]", b")", b"(", b"N", b"0", b"2", b"q\x00", b"h\x00", b"R", b"b", b"Q", b"a")


@st.composite
def pickles(draw: Draw, data: bytes) -> bytes:
    """A pickle with changed opcodes."""
    starts = [at for _, _, at in pickletools.genops(data) if at is not None]
    codes = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]
    more = st.sampled_from([*codes, *OPCODES])
    return draw(damaged(b"".join(draw(changed_list(codes, more)))))


@st.composite
def line_files(draw: Draw, lines: Sequence[bytes], others: st.SearchStrategy[bytes] | None = None) -> bytes:
    """A file of changed lines; ``others`` gives lines that may be added."""
    replacements = st.binary(max_size=12) if others is None else st.one_of(st.binary(max_size=12), others)
    return draw(damaged(b"\n".join(draw(changed_list(lines, replacements))) + b"\n"))


@st.composite
def joined(draw: Draw, parts: Sequence[bytes]) -> bytes:
    """A binary file made of parts, some of them replaced."""
    return draw(damaged(b"".join(draw(changed_list(parts, st.sampled_from(parts))))))


def string(text: bytes) -> bytes:
    """Return a GGUF string."""
    return struct.pack("<Q", len(text)) + text


@st.composite
def gguf_files(draw: Draw, pairs: Sequence[bytes], tensors: Sequence[bytes], content: bytes) -> bytes:
    """A GGUF file with changed pairs and tensors, whose counts are correct in most cases."""
    keys, table = draw(changed_list(pairs)), draw(changed_list(tensors))
    counts = [len(table), len(keys)]
    if not draw(st.integers(0, 4)):
        counts[draw(st.integers(0, 1))] = draw(NUMBERS) % 2**64
    head = b"GGUF" + struct.pack("<IQQ", draw(st.sampled_from((3, 3, 3, 2, 1))), *counts)
    header = draw(damaged(head + b"".join(keys) + b"".join(table)))
    return header + bytes(-len(header) % 32) + content
