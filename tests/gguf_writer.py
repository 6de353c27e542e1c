"""GGUF files for tests, written by the format's own package."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

Tensors = Mapping[str, "torch.Tensor | tuple[np.ndarray, Type]"]


def gguf_bytes(tensors: Tensors, metadata: Mapping[str, Any] | None = None, *, architecture: str = "llama") -> bytes:
    """A valid file.

    Args:
        tensors: Tensors by name, each stored in its own dtype; an array of bytes is stored as blocks of the given type.
        metadata: Values by key; an int becomes u32, a list an array.
        architecture: ``general.architecture``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in (metadata or {}).items():
            add_value(writer, key, value)
        for name, tensor in tensors.items():
            if isinstance(tensor, tuple):
                writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
            elif tensor.dtype == torch.bfloat16:
                as_bytes = tensor.contiguous().view(torch.uint8).numpy()
                writer.add_tensor(name, as_bytes, raw_dtype=Type.BF16)
            else:
                writer.add_tensor(name, tensor.contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if key == "general.architecture":
        return  # written by the writer itself
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
