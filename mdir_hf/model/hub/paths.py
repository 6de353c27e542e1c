"""Validates names that become part of a local path: plain file names, commits, digests."""

from __future__ import annotations

import hashlib
import re

from mdir_hf.errors import ServerError, UnsafePathError

COMMIT = re.compile(r"[0-9a-f]{40}")
"""The sha of a commit, or the id of a git blob."""
SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
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


def digest(said: object) -> str | None:
    """Return what a server calls a content, if it is 40 or 64 hex digits and nothing else; None otherwise."""
    return said if isinstance(said, str) and _DIGEST.fullmatch(said) else None


def commit_named(said: object, *, asked: str, subject: str) -> str:
    """Return the commit that a server names.

    Args:
        said: What the server says.
        asked: The revision that was asked for.
        subject: What an error calls the repository.

    Raises:
        ServerError: If it is anything but 40 hex digits.
    """
    if isinstance(said, str) and COMMIT.fullmatch(said):
        return said
    what = "nothing" if said is None else repr(said)[:60]
    raise ServerError(
        f"the Hub does not say which commit {asked!r} is: expected 40 hex digits, got {what}; check HF_ENDPOINT and "
        "any proxy",
        subject=subject,
    )


def has_digest(content: bytes, expected: str | None) -> bool:
    """Tell whether bytes are those that a digest names: a SHA-256, or a git blob id. None names any bytes."""
    if expected is None:
        return True
    if SHA256.fullmatch(expected):
        return hashlib.sha256(content).hexdigest() == expected
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == expected
