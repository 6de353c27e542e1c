"""Folders of models that several processes may need at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a folder, and build it if it is missing.

    Another process that needs the folder waits. A folder that exists is complete, because it is built under another
    name.

    Args:
        folder: The folder.
        build: Writes the folder at the path that it is given, which does not exist yet.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
                made = Path(building) / folder.name
                build(made)
                made.rename(folder)
    return folder
