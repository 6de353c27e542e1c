"""safetensors: random files written by the library, and headers that it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from mdir_hf.errors import MdirError
from mdir_hf.model.files.safetensors import SafetensorsSource
from tests.conformance_tensors import MemoryTree
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

LIBRARY = "safetensors"
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.int8, torch.uint8, torch.int16),
    *(torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.bool, torch.complex64),
)
FLOATS = DTYPES[:8]


def drawn(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Draw tensors of every dtype with up to four axes; floats have random finite bit patterns."""
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        shape = tuple(int(size) for size in rng.integers(0 if number % 5 == 0 else 1, 9, size=rng.integers(0, 5)))
        n_bytes = int(np.prod(shape)) * dtype.itemsize
        content = torch.from_numpy(rng.integers(0, 2 if dtype == torch.bool else 256, n_bytes, dtype=np.uint8))
        tensor = content.view(dtype) if n_bytes else torch.empty(0, dtype=dtype)
        if dtype in FLOATS:
            finite = torch.isfinite(tensor.double())
            tensor = torch.where(finite, tensor.double(), 1.0).to(dtype)
        tensors[f"layer.{number}.{dtype}"] = tensor.reshape(shape)
    return tensors


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def source_of(content: bytes) -> SafetensorsSource:
    return SafetensorsSource(MemoryTree({"model.safetensors": content}), paths=["model.safetensors"])


def test_every_tensor_matches_the_library(tally, tmp_path):
    rng = np.random.default_rng(0)
    for case in range(cases(10, 200)):
        path = tmp_path / "model.safetensors"
        safetensors.torch.save_file(drawn(rng), path, metadata={"format": "pt"})
        source, theirs = source_of(path.read_bytes()), safetensors.torch.load_file(path)
        tally.agree(LIBRARY, f"names of file {case}", source.names() == tuple(sorted(theirs)))
        for name, tensor in theirs.items():
            stored = source.read_stored(name)
            same = stored.shape == tensor.shape and torch.equal(as_bits(stored), as_bits(tensor))
            tally.agree(LIBRARY, f"bits of {name} in file {case}", same)
            if tensor.dtype in FLOATS:
                tally.equal(LIBRARY, f"{name} in file {case}", source.read(name), tensor.to(source.read(name).dtype))
            if tensor.dtype in FLOATS and tensor.ndim > 1 and tensor.numel():
                flat = tensor.reshape(-1, tensor.shape[-1])
                rows = rng.integers(0, len(flat), 3)
                read = source.read_rows(name, rows)
                tally.equal(LIBRARY, f"rows of {name} in file {case}", read, flat.double()[rows].to(read.dtype))


def mutated(rng: np.random.Generator, content: bytes) -> bytes:
    """Change bytes of the header, its length, or the end of the file."""
    n_header = int.from_bytes(content[:8], "little")
    kind = rng.integers(4)
    if kind == 0:
        return content[: int(rng.integers(len(content)))]
    if kind == 1:
        return content[:8] + bytes(reversed(content[8 : 8 + n_header])) + content[8 + n_header :]
    changed = bytearray(content)
    if kind == 2:
        for place in rng.integers(0, 8 + n_header, size=rng.integers(1, 4)):
            changed[int(place)] = int(rng.integers(256))
        return bytes(changed)
    header = json.loads(content[8 : 8 + n_header])
    name = sorted(header)[int(rng.integers(len(header)))]
    if "data_offsets" in header[name]:
        header[name]["data_offsets"][int(rng.integers(2))] += int(rng.integers(-9, 9))
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + n_header :]


def test_files_that_the_library_refuses_are_refused(tally):
    rng = np.random.default_rng(1)
    content = safetensors.torch.save(drawn(rng))
    for case in range(cases(1000, 30_000)):
        changed = mutated(rng, content)
        try:
            safetensors.deserialize(changed)
            continue
        except safetensors.SafetensorError:
            pass
        try:
            source = source_of(changed)
            for name in source.names():
                source.spec(name)
        except MdirError:
            tally.agree(LIBRARY, "", True)
        else:
            tally.agree(LIBRARY, f"mutated header {case} is read", False)
