"""JSON of tokenizers, loaded with care: only UTF-8, only objects, without the merges, and no error but ours."""

from __future__ import annotations

import json
import re
from typing import Any

from mdir_hf.budgets import TOKENIZER_JSON, json_weight
from mdir_hf.errors import VocabularyError

# A quote with no backslash before it, closed right after the name and followed by ": [", can only be a key with an
# array: inside a string the quotes would be escaped.
_MERGES = re.compile(rb'(?<!\\)"merges"\s*:\s*\[')
# At each byte one continuation is possible, so nothing is tried twice. What the engine remembers to step back is small:
# up to 256 merges at a time, of up to 64 escapes each. What has more escapes is not a merge, and is left to the parser.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*){0,64}"'
_SOME_MERGES = re.compile(
    rb"(?:\s*(?:" + _STRING + rb"|\[\s*" + _STRING + rb"\s*,\s*" + _STRING + rb"\s*\])\s*,?){1,256}", re.DOTALL
)
_CLOSE = re.compile(rb"\s*\]")


def without_merges(data: bytes) -> bytes:
    """Empty the array of BPE merges, which takes half of a tokenizer.json or more and says nothing about rows.

    Data that do not look as expected come back as they are, for the JSON parser to judge.

    Args:
        data: The file.

    Returns:
        The same JSON with ``"merges": []``.
    """
    start = _MERGES.search(data)
    if start is None:
        return data
    position = start.end()
    while some := _SOME_MERGES.match(data, position):
        position = some.end()
    close = _CLOSE.match(data, position)
    return data if close is None else data[: start.end()] + data[close.end() - 1 :]


def load_object(data: bytes, file: str) -> dict[str, Any]:
    """Load a JSON object.

    Args:
        data: The file, UTF-8, with or without a byte order mark.
        file: Its name, for errors.

    Returns:
        The object; of repeated keys the last stays, as in every reader of these files.

    Raises:
        VocabularyError: The bytes are not UTF-8, no JSON, no object, nested too deep, or hold a number too long to be
            one.
    """
    told = data
    data = without_merges(data)
    excess = TOKENIZER_JSON.excess(n_bytes=len(told)) or TOKENIZER_JSON.excess(n_items=json_weight(data), of="values")
    if excess is not None:
        raise VocabularyError(f"expected the JSON of a tokenizer, found a file that {excess}", subject=file)
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except RecursionError as exc:
        raise VocabularyError("expected a JSON object, found brackets nested too deep to be one", subject=file) from exc
    except ValueError as exc:  # also UnicodeDecodeError, JSONDecodeError, and integers of more than 4300 digits
        raise VocabularyError(f"expected JSON in UTF-8, found {glimpse(told)}: {exc}", subject=file) from exc
    if not isinstance(found, dict):
        raise VocabularyError(f"expected a JSON object, found {described(found)}", subject=file)
    return found


def described(value: object) -> str:
    """Name the JSON type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def glimpse(data: bytes) -> str:
    """Say what a file that is not what it should be looks like, for an error message."""
    if not data:
        return "an empty file"
    if data.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer instead of the file (run `git lfs pull`)"
    if is_web_page(data):
        return "a web page instead of the file (an error page that was saved; download it again)"
    return f"{len(data)} bytes that begin with {data[:24]!r}"


def is_web_page(data: bytes) -> bool:
    """Whether a file is HTML: what a server says instead of a file is often saved under the name of the file."""
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:9].lower().startswith((b"<!doctype", b"<html"))


def shown(value: object) -> str:
    """Show a JSON value in an error message: scalars as they are, shortened, the others by their type alone."""
    # The repr of something nested deep enough would be an error of its own.
    return described(value) if isinstance(value, dict | list) else f"{value!r:.60}"


def row_id(value: object, token: str) -> int:
    """Check that a JSON value is an integer.

    Raises:
        VocabularyError: It is something else.
    """
    if type(value) is not int:
        raise VocabularyError(f"token {token[:40]!r} has the id {shown(value)}; expected an integer")
    return value
