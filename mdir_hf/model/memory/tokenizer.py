"""A tokenizer of transformers as the files that saving it would write."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mdir_hf.errors import InputError
from mdir_hf.model.memory.repository import LoadedRepository

MAX_FILE_N_BYTES = 256 << 20
"""Larger than any tokenizer file; what ``save_pretrained`` writes beyond is not kept."""


def load_tokenizer(tokenizer: object) -> LoadedRepository:
    """Take a ``PreTrainedTokenizerBase``, or a processor that has one, as a repository of tokenizer files.

    A fast tokenizer gives its ``tokenizer.json`` straight from memory. Others are saved to a temporary folder, which is
    read and removed.

    Args:
        tokenizer: The tokenizer.

    Raises:
        InputError: If it is not a tokenizer.
    """
    found: Any = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
    label = f"memory:{type(found).__name__}"
    backend: Any = getattr(found, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        return LoadedRepository(label, {"tokenizer.json": backend.to_str().encode()})
    if not callable(getattr(found, "save_vocabulary", None)):
        raise InputError(
            f"tokenizer is a {type(tokenizer).__name__}; expected a tokenizer of transformers, or the name or folder "
            "of one"
        )
    with tempfile.TemporaryDirectory(prefix="mdir-hf-") as folder:
        found.save_pretrained(folder)
        written = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        contents = {path.name: path.read_bytes() for path in written if path.stat().st_size <= MAX_FILE_N_BYTES}
    return LoadedRepository(label, contents)
