"""Returns a tokenizer of transformers as the files that saving it would write."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mdir_hf.errors import InputError
from mdir_hf.model.memory.repository import LoadedRepository

MAX_FILE_N_BYTES = 256 << 20
"""Limit per file, above any tokenizer file; larger files that ``save_pretrained`` writes are ignored."""


def load_tokenizer(tokenizer: object) -> LoadedRepository:
    """Return a ``PreTrainedTokenizerBase``, or a processor with one, as a repository of tokenizer files.

    The ``tokenizer.json`` of a fast tokenizer comes directly from memory. Others are saved to a temporary folder.

    Raises:
        InputError: If it is not a tokenizer.
    """
    unwrapped: Any = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
    label = f"memory:{type(unwrapped).__name__}"
    backend: Any = getattr(unwrapped, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        return LoadedRepository(label, {"tokenizer.json": backend.to_str().encode()})
    if not callable(getattr(unwrapped, "save_vocabulary", None)):
        raise InputError(
            f"tokenizer is a {type(tokenizer).__name__}; expected a tokenizer of transformers, or the name or folder "
            "of one"
        )
    with tempfile.TemporaryDirectory(prefix="mdir-hf-") as folder:
        unwrapped.save_pretrained(folder)
        written = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        contents = {path.name: path.read_bytes() for path in written if path.stat().st_size <= MAX_FILE_N_BYTES}
    return LoadedRepository(label, contents)
