"""Local paths as names of models: telling them from names on the Hub, and errors for missing ones.

The command line checks paths before it imports torch, so that typos fail at once.
"""

from __future__ import annotations

import re
from pathlib import Path

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.names import did_you_mean

WEIGHT_SUFFIXES = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
)
"""Suffixes of files that can be named as a model."""

_PATH = re.compile(r"^(\.{1,2}($|[/\\])|[/~\\]|[A-Za-z]:[/\\])|\\")


def looks_like_a_path(text: str) -> bool:
    """Whether a name can only be a path, by its beginning or a backslash."""
    return _PATH.search(text) is not None


def check_path(text: str) -> None:
    """Raise an error if a name can only be a path, but does not exist.

    Args:
        text: The name as typed.

    Raises:
        InvalidReferenceError: If there is no such file or folder.
    """
    if not looks_like_a_path(text) or "\0" in text:
        return
    try:
        exists = Path(text).expanduser().exists()
    except (OSError, RuntimeError):  # the name is too long for this disk, or the home folder unknown
        exists = False
    if not exists:
        raise missing_path(text)


def missing_path(text: str) -> InvalidReferenceError:
    """Return the error for a path that does not exist, with the nearest name beside it."""
    is_weight_file = text.lower().endswith(WEIGHT_SUFFIXES)
    kind = "file" if is_weight_file else "folder"
    hint = did_you_mean(text, names_beside(text))
    return InvalidReferenceError(f"there is no such {kind} here{hint}", subject=text)


def names_beside(text: str) -> list[str]:
    """Return the names in the parent folder of a path, with its prefix; empty if there is no such folder."""
    folder, slash, _ = text.rstrip("/").rpartition("/")
    try:
        return [folder + slash + path.name for path in Path(folder + slash or ".").expanduser().iterdir()]
    except (OSError, RuntimeError):
        return []
