"""Write safetensors files one tensor at a time, so that a shard need not fit in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from mdir_hf.errors import InputError
from mdir_hf.model.files.decode import DTYPES, NAME_OF_TORCH_DTYPE

ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to be written; ``dtype`` is the type's name in safetensors."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * DTYPES[self.dtype].n_bits // 8


class ShardWriter:
    """Writes one file with tensors in the planned order, and removes it if not all are written.

    Raises:
        InputError: If the file cannot be written.
    """

    def __init__(self, path: Path, tensors: Sequence[Planned]) -> None:
        self._path = path
        self._waiting = list(tensors)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start = 0
        for tensor in tensors:
            stop = start + tensor.n_bytes
            header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
            start = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        try:
            self._file = self._path.open("wb")
            self._file.write(len(text).to_bytes(8, "little") + text)
        except OSError as exc:
            raise InputError(f"cannot write {self._path}: {exc.strerror}") from exc

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None or self._waiting:
            self._path.unlink(missing_ok=True)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Append the next tensor.

        Raises:
            ValueError: If it is not the next planned tensor.
            InputError: If the disk is full.
        """
        planned = self._waiting.pop(0)
        if (name, tuple(tensor.shape), NAME_OF_TORCH_DTYPE[tensor.dtype]) != (
            planned.name,
            planned.shape,
            planned.dtype,
        ):
            raise ValueError(f"tensor {name!r} {tuple(tensor.shape)} {tensor.dtype} was planned as {planned}")
        try:
            self._file.write(tensor.contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
        except OSError as exc:
            raise InputError(f"cannot write {self._path}: {exc.strerror}") from exc
