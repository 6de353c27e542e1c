"""File names inside a repository: plain, relative, and never leaving it; and what a digest looks like."""

from __future__ import annotations

import re

from mdir_hf.errors import UnsafePathError

COMMIT = re.compile(r"[0-9a-f]{40}")
"""The sha of a commit, or the id of a git blob."""
SHA256 = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"^[A-Za-z]:")


def safe_path(path: str, *, subject: str) -> str:
    """Return ``path`` if it names something inside a repository, checked before any disk or network is touched.

    Index files name shards, and an index file may be hostile.

    Args:
        path: ``/``-separated path relative to the repository.
        subject: What an error calls the repository.

    Raises:
        UnsafePathError: If it is empty, absolute, has a drive, a backslash, a control character or a ``..`` part.
    """
    why = None
    if not path or path.startswith("/") or _DRIVE.match(path):
        why = "it is empty or absolute"
    elif "\\" in path:
        why = "it holds a backslash"
    elif any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        why = "it holds control characters"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        why = "it has an empty, '.' or '..' part"
    if why is not None:
        raise UnsafePathError(
            f"the file name {path!r} is refused, {why}; it would leave the repository", subject=subject
        )
    return path
