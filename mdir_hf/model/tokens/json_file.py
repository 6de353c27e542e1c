"""Load tokenizer JSON files, raising this package's errors."""

from __future__ import annotations

import json
import re
from typing import Any

from mdir_hf.budgets import TOKENIZER_JSON, json_weight
from mdir_hf.errors import VocabularyError

# A quote without a backslash before it, closed right after the name and followed by ": [", can only be a key with an
# array: inside a string the quotes would be escaped.
_MERGES = re.compile(rb'(?<!\\)"merges"\s*:\s*\[')
# At each byte only one continuation is possible, so there is no backtracking. The engine's state is small: up to 256
# merges at a time, each with up to 64 escapes. Strings with more escapes are not merges, and are left to the parser.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*){0,64}"'
_SOME_MERGES = re.compile(
    rb"(?:\s*(?:" + _STRING + rb"|\[\s*" + _STRING + rb"\s*,\s*" + _STRING + rb"\s*\])\s*,?){1,256}", re.DOTALL
)
_CLOSE = re.compile(rb"\s*\]")


def without_merges(data: bytes) -> bytes:
    """Empty the array of BPE merges, which is most of a typical file. Unexpected data is returned unchanged."""
    start = _MERGES.search(data)
    if start is None:
        return data
    position = start.end()
    while some := _SOME_MERGES.match(data, position):
        position = some.end()
    close = _CLOSE.match(data, position)
    return data if close is None else data[: start.end()] + data[close.end() - 1 :]


def load_object(data: bytes, file: str) -> dict[str, Any]:
    """Load a JSON object. If a key is repeated, its last value is used.

    Raises:
        VocabularyError: If the data is not a JSON object in UTF-8, is nested too deeply, or contains too long a number.
    """
    original = data
    data = without_merges(data)
    excess = TOKENIZER_JSON.excess(n_bytes=len(original)) or TOKENIZER_JSON.excess(
        n_items=json_weight(data), of="values"
    )
    if excess is not None:
        raise VocabularyError(f"expected the JSON of a tokenizer, found a file that {excess}", subject=file)
    try:
        loaded = json.loads(data.decode("utf-8-sig"))
    except RecursionError as exc:
        raise VocabularyError("expected a JSON object, found brackets nested too deeply", subject=file) from exc
    except ValueError as exc:  # also UnicodeDecodeError, JSONDecodeError, and integers of more than 4300 digits
        raise VocabularyError(f"expected JSON in UTF-8, found {glimpse(original)}: {exc}", subject=file) from exc
    if not isinstance(loaded, dict):
        raise VocabularyError(f"expected a JSON object, found {described(loaded)}", subject=file)
    return loaded


def described(value: object) -> str:
    """Return the JSON type of a value, for error messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def glimpse(data: bytes) -> str:
    """Describe the content of an invalid file, for error messages."""
    if not data:
        return "an empty file"
    if data.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer instead of the file (run `git lfs pull`)"
    if is_web_page(data):
        return "a web page instead of the file (an error page that was saved; download it again)"
    return f"{len(data)} bytes that begin with {data[:24]!r}"


def is_web_page(data: bytes) -> bool:
    """Return whether a file is HTML, such as a server's error page."""
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:9].lower().startswith((b"<!doctype", b"<html"))


def shown(value: object) -> str:
    """Format a JSON value for error messages: a shortened scalar, or the type of a container."""
    # The repr of a deeply nested value would itself raise an error.
    return described(value) if isinstance(value, dict | list) else f"{value!r:.60}"


def row_id(value: object, token: str) -> int:
    """Return a JSON value, raising ``VocabularyError`` unless it is an integer."""
    if type(value) is not int:
        raise VocabularyError(f"token {token[:40]!r} has the id {shown(value)}; expected an integer")
    return value
