"""PyTorch files for tests: written by torch, written by hand, or broken on purpose."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping

import torch


def saved(value: object, **options: object) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def zipped(entries: Mapping[str, bytes], *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as other programs write it: no alignment, no data descriptors."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def with_pickle(data: bytes, storages: Mapping[str, bytes] | None = None) -> bytes:
    """An archive with the given pickle and storages."""
    held = {f"archive/data/{key}": content for key, content in (storages or {}).items()}
    return zipped({"archive/data.pkl": data, "archive/byteorder": b"little", **held})


class Tensor:
    """Pickles as a tensor would in ``torch.save``, with arbitrary arguments."""

    def __init__(
        self, shape: object, stride: object, *, offset: object = 0, n_values: object = 6, key: object = "0"
    ) -> None:
        self.arguments = (("storage", torch.FloatStorage, key, "cpu", n_values), offset, shape, stride, False, {})

    def __reduce__(self) -> tuple[object, ...]:
        storage, *rest = self.arguments
        return torch._utils._rebuild_tensor_v2, (_Persistent(storage), *rest)


class _Persistent:
    """An object that a pickle stores by its persistent id."""

    def __init__(self, pid: object) -> None:
        self.pid = pid


class _Pickler(pickle.Pickler):
    """A pickler that stores :class:`_Persistent` by its id, as torch stores storages."""

    def persistent_id(self, value: object) -> object:
        return value.pid if isinstance(value, _Persistent) else None


def pickled(value: object, *, protocol: int = 2) -> bytes:
    """A pickle in which :class:`Tensor` stands for tensors."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def holding(value: object, *, n_values: int = 6) -> bytes:
    """An archive whose only storage holds ``0, 1, 2, …`` in float32."""
    return with_pickle(pickled(value), {"0": struct.pack(f"<{n_values}f", *range(n_values))})
