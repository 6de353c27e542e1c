"""GGUF: every type that the gguf package dequantises, with several alignments and shapes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from mdir_hf.errors import MdirError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.gguf.dequantise import GGML_TYPES
from tests.conformance_tensors import MemoryTree
from tests.gguf_writer import gguf_bytes
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

LIBRARY = "gguf"


def dequantised(blocks: np.ndarray, kind: Type) -> np.ndarray | None:
    """Dequantise blocks with the package; return None if it does not support the type."""
    try:
        with np.errstate(all="ignore"):
            return gguf.quants.dequantize(blocks, kind)
    except NotImplementedError:
        return None


def finite_blocks(rng: np.random.Generator, kind: Type, n_blocks: int) -> np.ndarray:
    n_bytes = GGML_TYPES[kind].n_bytes
    blocks = rng.integers(0, 256, (8 * n_blocks + 8, n_bytes), dtype=np.uint8)
    values = dequantised(blocks, kind)
    assert values is not None
    blocks = blocks[np.isfinite(values).all(axis=1)]
    return blocks[np.arange(n_blocks) % len(blocks)]


def written(path: Path, rng: np.random.Generator, alignment: int) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_string("general.name", "é" * int(rng.integers(0, 40)))
    expected = {}
    for kind in Type:
        n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        if dequantised(np.zeros((1, n_bytes), np.uint8), kind) is None:
            continue
        shape = (*rng.integers(1, 6, size=rng.integers(1, 3)).tolist(), n_values * int(rng.integers(1, 3)))
        blocks = finite_blocks(rng, kind, int(np.prod(shape)) // n_values).reshape(*shape[:-1], -1)
        name = f"blk.0.{kind.name}.weight"
        if kind in (Type.F32, Type.F16):
            plain = blocks.view({Type.F32: "<f4", Type.F16: "<f2"}[kind])
            writer.add_tensor(name, plain)
        else:
            writer.add_tensor(name, blocks, raw_dtype=kind)
        values = dequantised(blocks.reshape(-1, blocks.shape[-1]), kind)
        assert values is not None
        expected[name] = values.reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_every_type_matches_the_package(tally, tmp_path):
    rng = np.random.default_rng(0)
    for case in range(cases(6, 60)):
        alignment = int(rng.choice([8, 32, 64, 256]))
        path = tmp_path / f"{case}.gguf"
        expected = written(path, rng, alignment)
        theirs = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            for tensor in gguf.GGUFReader(path).tensors
        }
        source = open_checkpoint(MemoryTree({"model.gguf": path.read_bytes()}))
        tally.agree(LIBRARY, f"names of file {case}", source.names() == tuple(sorted(theirs)))
        for name, values in theirs.items():
            whole = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(expected[name].shape)
            tally.equal(LIBRARY, f"{name}, alignment {alignment}, file {case}", source.read(name), whole)
            flat = whole.reshape(-1, whole.shape[-1])
            rows = rng.integers(0, len(flat), 3)
            if whole.ndim > 1:
                tally.equal(LIBRARY, f"rows of {name}, file {case}", source.read_rows(name, rows), flat[rows])
        path.unlink()


def test_tensors_quantised_by_the_package_are_read_back(tally):
    """The package's quantisers on ordinary numbers."""
    rng = np.random.default_rng(2)
    for kind in Type:
        n_values, _ = gguf.GGML_QUANT_SIZES[kind]
        values = rng.normal(size=(5, 4 * n_values)).astype(np.float32)
        try:
            blocks = gguf.quants.quantize(values, kind)
        except NotImplementedError:
            continue
        theirs = dequantised(blocks, kind)
        if theirs is None or kind in (Type.F32, Type.F16):
            continue
        source = open_checkpoint(MemoryTree({"model.gguf": gguf_bytes({"w": (blocks, kind)})}))
        tally.equal(LIBRARY, f"quantised as {kind.name}", source.read("w"), torch.from_numpy(theirs))


def test_a_header_that_the_package_refuses_is_refused(tally, tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "model.gguf"
    written(path, rng, 32)
    content = path.read_bytes()
    n_header = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    changed_path = tmp_path / "changed.gguf"
    for case in range(cases(60, 3000)):
        changed = bytearray(content)
        if case % 5 == 0:
            changed = changed[: int(rng.integers(len(content)))]
        else:
            for place in rng.integers(0, n_header, size=rng.integers(1, 3)):
                changed[int(place)] = int(rng.integers(256))
        changed_path.write_bytes(changed)
        try:
            for tensor in gguf.GGUFReader(changed_path).tensors:
                del tensor
            continue
        except Exception:  # the package defines no exceptions
            pass
        try:
            source = open_checkpoint(MemoryTree({"model.gguf": bytes(changed)}))
            for name in source.names():
                source.read(name)
        except (MdirError, MemoryError):
            tally.agree(LIBRARY, "", True)
        else:
            tally.agree(LIBRARY, f"mutated header {case} is read", False)
