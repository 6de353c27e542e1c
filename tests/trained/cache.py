"""Cache models that tests train; each is built once, by the first process that needs it."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_folder(*files):
    """Folder for the results of these source files: under MDIR_HF_TEST_CACHE, named by a hash of their content."""
    root = os.environ.get("MDIR_HF_TEST_CACHE") or Path(__file__).parents[2] / ".trained-models"
    return Path(root) / hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def build_once(folder: Path, build: Callable[[], None]) -> None:
    """Build a missing folder; a second process that needs it waits for the first."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                build()
