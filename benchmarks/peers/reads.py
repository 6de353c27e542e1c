"""Count the bytes of a model's files that a method reads.

Each requested byte counts once: read-ahead by the file system and repeated reads do not count. For memory-mapped files,
the tensors loaded from them count, whether used or not. This is the amount that would have to be fetched from a remote
model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from mdir_hf.model.hub.local import LocalRepository
from mdir_hf.model.sources import ByteSource, Span

WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


class Reads:
    """The bytes requested, by file.

    Tokenizers and configs are counted separately from weights: they are large only compared with small models. The
    vocabulary of a GGUF file is part of its weight file, and counts as such.
    """

    def __init__(self) -> None:
        self._asked: dict[str, set[Span]] = {}

    def add(self, file: Path, start: int = 0, stop: int | None = None) -> None:
        """Count the bytes ``[start, stop)`` of a file, by default all of them; repeated bytes do not count."""
        span = (start, file.stat().st_size if stop is None else stop)
        self._asked.setdefault(_real_path(file), set()).add(span)

    @property
    def n_bytes_of_weights(self) -> int:
        """Bytes of weight files, their headers included."""
        return sum(_n_bytes(spans) for file, spans in self._asked.items() if file.endswith(WEIGHT_SUFFIXES))

    @property
    def n_bytes_beside(self) -> int:
        """Bytes of all other files: tokenizers, configs, indices."""
        return sum(_n_bytes(spans) for file, spans in self._asked.items() if not file.endswith(WEIGHT_SUFFIXES))


_real_path = lru_cache(maxsize=1024)(os.path.realpath)
"""Evaluated once per file, not for each of the many spans read from it."""


def _n_bytes(spans: Iterable[Span]) -> int:
    """Return the number of bytes in the union of some spans."""
    n_bytes = reached = 0
    for start, stop in sorted(spans):
        n_bytes += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return n_bytes


class CountedFolder(LocalRepository):
    """A model's folder that counts the bytes read, for the readers of ``mdir_hf``.

    Args:
        folder: The folder.
        reads: Counts the bytes.
    """

    def __init__(self, folder: Path, reads: Reads) -> None:
        super().__init__(folder, repo=str(folder))
        self._reads = reads

    def open(self, path: str) -> ByteSource:
        """Give random access to a file."""
        return _CountedFile(super().open(path), self.folder / path, self._reads)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return a whole small file."""
        content = super().read(path, max_bytes=max_bytes)
        self._reads.add(self.folder / path)
        return content


class _CountedFile:
    gap_bytes = 0
    """Bytes between two requested rows are not charged."""

    def __init__(self, source: ByteSource, file: Path, reads: Reads) -> None:
        self._source, self._file, self._reads = source, file, reads

    @property
    def label(self) -> str:
        return self._source.label

    @property
    def n_bytes(self) -> int:
        return self._source.n_bytes

    def close(self) -> None:
        self._source.close()

    def read(self, start: int, stop: int) -> bytes:
        self._reads.add(self._file, start, stop)
        return self._source.read(start, stop)

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        for start, stop in spans:
            self._reads.add(self._file, start, stop)
        return self._source.read_many(spans)
