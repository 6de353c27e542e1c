"""Tiny tokenizer files, created for each test, and the real files if they are available."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mdir_hf.model.tokens import Vocabulary, read_vocabulary
from tests.specimens import sentencepiece_bytes


@pytest.fixture
def read() -> Callable[[Mapping[str, object]], Vocabulary]:
    """Read the vocabulary of a folder given as file names and contents; contents other than bytes become JSON."""

    def read_files(files: Mapping[str, object]) -> Vocabulary:
        def content(name: str) -> bytes:
            value = files[name]
            return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()

        return read_vocabulary(files, content)

    return read_files


@pytest.fixture(scope="session")
def sentencepiece_file() -> Callable[[Sequence[tuple[str, int]]], bytes]:
    """Serialise a SentencePiece model of (piece, type)."""
    return sentencepiece_bytes


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real tokenizer files."""
    folder = os.environ.get("MDIR_HF_REAL_DATA")
    if not folder:
        pytest.skip("set MDIR_HF_REAL_DATA to the folder of real tokenizer files to run this test")
    return Path(folder)
