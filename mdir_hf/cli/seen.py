"""Remembers the Hub names of models that were read, for suggestions and for completion."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from mdir_hf.own_cache import cache_max_bytes, cache_root

MOST_NAMES = 500
_LONGEST_FILE = MOST_NAMES * 200


def seen_models() -> tuple[str, ...]:
    """Return the names, the latest last; empty if none are stored."""
    with contextlib.suppress(OSError, UnicodeDecodeError), _place().open(encoding="utf-8") as file:
        return tuple(name for name in file.read(_LONGEST_FILE).splitlines() if name.isprintable())
    return ()


def remember_models(names: Iterable[str]) -> None:
    """Store the names of models on the Hub; does nothing if the file cannot be written.

    Args:
        names: Names as typed, of models that could be read.
    """
    from mdir_hf.errors import MdirError
    from mdir_hf.model.hub import parse_reference

    new: dict[str, None] = {}
    with contextlib.suppress(MdirError):
        repo_ids = [parse_reference(name).repo_id for name in names] if cache_max_bytes() else []
        new = dict.fromkeys(repo_id for repo_id in repo_ids if repo_id is not None)
    known = seen_models()
    if not new or tuple(new) == known[-len(new) :]:
        return
    latest = [*(name for name in known if name not in new), *new][-MOST_NAMES:]
    path = _place()
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("".join(f"{name}\n" for name in latest), encoding="utf-8")
        beside.replace(path)


def _place() -> Path:
    return cache_root() / "models.txt"
