"""Where models that tests train are kept, and how each is built once, whichever process wants it first."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_folder(*files):
    """Where what these source files build is kept: under MDIR_HF_TEST_CACHE, in a folder named by their content."""
    root = os.environ.get("MDIR_HF_TEST_CACHE") or Path(__file__).parents[2] / ".trained-models"
    return Path(root) / hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def build_once(folder: Path, build: Callable[[], None]) -> None:
    """Build a folder that is not there yet; a second process that wants it waits for the first."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                build()
