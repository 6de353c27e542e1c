"""Find the cache folder of this package and its size limit."""

from __future__ import annotations

import os
from pathlib import Path

from mdir_hf.errors import InputError

DEFAULT_MAX_BYTES = 4 << 30


def cache_root() -> Path:
    """Return the cache folder: ``MDIR_HF_CACHE`` or, if unset, ``mdir-hf`` under ``HF_HOME``."""
    own_folder = os.environ.get("MDIR_HF_CACHE")
    if own_folder:
        return Path(own_folder).expanduser()
    # The client reads HF_ENDPOINT on import, and raises its own error if it is invalid.
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HOME") or constants.HF_HOME).expanduser() / "mdir-hf"


def cache_max_bytes() -> int:
    """Return the size limit: ``MDIR_HF_CACHE_MAX_BYTES`` or, if unset, 4 GiB. 0 disables the cache.

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
