"""The cache folder of this package and its size limit, from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from mdir_hf.errors import InputError

DEFAULT_MAX_BYTES = 4 << 30


def cache_root() -> Path:
    """Return where they lie: ``MDIR_HF_CACHE``, else ``mdir-hf`` under ``HF_HOME``, read now."""
    own = os.environ.get("MDIR_HF_CACHE")
    if own:
        return Path(own).expanduser()
    # The client reads HF_ENDPOINT when it is imported, and an invalid one is then an error without our words.
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HOME") or constants.HF_HOME).expanduser() / "mdir-hf"


def cache_max_bytes() -> int:
    """Return the bound on the cache's size: ``MDIR_HF_CACHE_MAX_BYTES``, else 4 GiB, read now; 0 turns the cache off.

    Raises:
        InputError: If the variable is not a whole number of bytes.
    """
    text = os.environ.get("MDIR_HF_CACHE_MAX_BYTES", "").replace("_", "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InputError(
            f"MDIR_HF_CACHE_MAX_BYTES is {text[:40]!r}, expected a whole number of bytes; 0 turns the cache off"
        )
    return int(text)
