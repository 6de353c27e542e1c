"""Validates names that become part of a local path: file names, commits, digests."""

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
    """Return ``path`` if it stays inside a repository. Touches neither disk nor network.

    Paths may come from an index file, which may be hostile.

    Args:
        path: ``/``-separated path relative to the repository.
        subject: The repository's name in error messages.

    Raises:
        UnsafePathError: If it is empty, absolute, has a drive, a backslash, a control character or a ``..`` part.
    """
    why = None
    if not path or path.startswith("/") or _DRIVE.match(path):
        why = "it is empty or absolute"
    elif "\\" in path:
        why = "it contains a backslash"
    elif any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        why = "it contains control characters"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        why = "it has an empty, '.' or '..' part"
    if why is not None:
        raise UnsafePathError(
            f"the file name {path!r} is rejected, {why}; it could leave the repository", subject=subject
        )
    return path


def digest(etag: object) -> str | None:
    """Return an ETag if it consists of 40 or 64 hex digits, else None."""
    return etag if isinstance(etag, str) and _DIGEST.fullmatch(etag) else None


def commit_named(commit: object, *, revision: str, subject: str) -> str:
    """Return the commit in a response of the Hub.

    Raises:
        ServerError: If it is anything but 40 hex digits.
    """
    if isinstance(commit, str) and COMMIT.fullmatch(commit):
        return commit
    what = "nothing" if commit is None else repr(commit)[:60]
    raise ServerError(
        f"the Hub does not say which commit {revision!r} is: expected 40 hex digits, got {what}; check HF_ENDPOINT and "
        "any proxy",
        subject=subject,
    )


def has_digest(content: bytes, expected: str | None) -> bool:
    """Return whether bytes match a digest: a SHA-256 or a git blob id. None matches any bytes."""
    if expected is None:
        return True
    if SHA256.fullmatch(expected):
        return hashlib.sha256(content).hexdigest() == expected
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == expected
