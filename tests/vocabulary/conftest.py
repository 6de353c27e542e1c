"""Tiny tokenizer files, made where they are needed, and the real ones where somebody has them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mdir_hf.vocabulary import Vocabulary, read_vocabulary


@pytest.fixture
def read() -> Callable[[Mapping[str, object]], Vocabulary]:
    """Read the vocabulary of a folder given as file name to content; what is not bytes becomes JSON."""

    def read_files(files: Mapping[str, object]) -> Vocabulary:
        def content(name: str) -> bytes:
            value = files[name]
            return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()

        return read_vocabulary(files, content)

    return read_files


@pytest.fixture(scope="session")
def sentencepiece_file() -> Callable[[Sequence[tuple[str, int]]], bytes]:
    """Serialise a SentencePiece model of (piece, type) by hand; type 0 leaves the field out."""

    def number(value: int) -> bytes:
        low, rest = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + number(rest) if rest else bytes([low])

    def serialise(pieces: Sequence[tuple[str, int]]) -> bytes:
        model = b""
        for piece, kind in pieces:
            text = piece.encode()
            message = b"\x0a" + number(len(text)) + text + b"\x15\0\0\0\0"  # field 1: the piece, field 2: a score of 0
            if kind:
                message += b"\x18" + number(kind)
            model += b"\x0a" + number(len(message)) + message
        return model + b"\x12\x03\x18\x80\x01"  # a trainer_spec, which is skipped

    return serialise


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real tokenizer files."""
    folder = os.environ.get("MDIR_HF_REAL_DATA")
    if not folder:
        pytest.skip("set MDIR_HF_REAL_DATA to the folder of real tokenizer files to run this test")
    return Path(folder)
