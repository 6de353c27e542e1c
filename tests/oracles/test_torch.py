"""torch.save: random views, dtypes and containers, against torch.load, and pickles that it refuses."""

from __future__ import annotations

import io
import warnings
import zipfile

import numpy as np
import pytest
import torch

from mdir_hf.errors import MdirError
from mdir_hf.model.files.pytorch import PytorchSource
from tests.conformance_tensors import MemoryTree
from tests.model.files.pytorch.archives import zipped
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

LIBRARY = "torch.save"
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64),
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def view_of(rng: np.random.Generator, tensor: torch.Tensor) -> torch.Tensor:
    """Return a transposed, cut, stepped, negated or plain view, or a parameter."""
    kind = rng.integers(7)
    if kind == 0 and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if kind == 1 and tensor.ndim and tensor.shape[0] > 2:
        return tensor[1:-1]
    if kind == 2 and tensor.ndim and tensor.shape[-1] > 3:
        return tensor[..., ::2]
    if kind == 3 and tensor.dtype in FLOATS:
        return torch._neg_view(tensor)
    if kind == 4 and tensor.dtype in FLOATS:
        return torch.nn.Parameter(tensor)
    if kind == 5 and tensor.ndim > 2:
        return tensor.permute(*rng.permutation(tensor.ndim).tolist())
    return tensor


def drawn(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    shared: torch.Tensor | None = None
    for number in range(12):
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        shape = tuple(int(size) for size in rng.integers(1, 9, size=rng.integers(0, 5)))
        values = torch.from_numpy(np.array(rng.normal(size=shape) * 3)).to(dtype)
        if shared is not None and shared.dtype == dtype and number % 3 == 0:
            values = shared  # several views of one storage
        shared = values
        tensors[f"block.{number}.weight"] = view_of(rng, values)
    return tensors


def source_of(content: bytes) -> PytorchSource:
    return PytorchSource(MemoryTree({"m.bin": content}), paths=["m.bin"])


def loaded_by_torch(content: bytes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that protocols after 2 are new
        return torch.load(io.BytesIO(content), weights_only=True)


def saved(rng: np.random.Generator, tensors: dict[str, torch.Tensor]) -> bytes:
    around = [tensors, {"model": tensors, "step": 3}, {"state_dict": tensors, "args": {"lr": 1e-3}}]
    buffer = io.BytesIO()
    torch.save(around[int(rng.integers(3))], buffer, pickle_protocol=int(rng.integers(2, 6)))
    return buffer.getvalue()


def test_every_view_matches_the_library(tally):
    rng = np.random.default_rng(0)
    for case in range(cases(40, 1500)):
        content = saved(rng, drawn(rng))
        theirs = torch.load(io.BytesIO(content), weights_only=False)  # written here; protocol 4 has frames
        theirs = theirs.get("model", theirs.get("state_dict", theirs))
        source = source_of(content)
        tally.agree(LIBRARY, f"names of file {case}", source.names() == tuple(sorted(theirs)))
        for name, tensor in theirs.items():
            plain = tensor.detach().resolve_neg().contiguous()
            stored = source.read_stored(name)
            same_bits = stored.shape == plain.shape and torch.equal(
                stored.reshape(-1).view(torch.uint8), plain.reshape(-1).view(torch.uint8)
            )
            tally.agree(LIBRARY, f"bits of {name} in file {case}", same_bits)
            if plain.dtype in FLOATS and plain.ndim > 1:
                rows = rng.integers(0, plain[..., 0].numel(), 3)
                read = source.read_rows(name, rows)
                expected = plain.reshape(-1, plain.shape[-1])[torch.from_numpy(rows)]
                tally.equal(LIBRARY, f"rows of {name} in file {case}", read, expected.to(read.dtype))


def test_a_pickle_that_the_library_refuses_is_refused(tally):
    """Change bytes of data.pkl in a valid archive."""
    rng = np.random.default_rng(1)
    tensors = {f"block.{number}.weight": torch.ones(3, 4) * number for number in range(4)}
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    archive = zipfile.ZipFile(buffer)
    entries = {name: archive.read(name) for name in archive.namelist()}
    place = next(name for name in entries if name.endswith("data.pkl"))
    for case in range(cases(150, 6000)):
        pickle = bytearray(entries[place])
        for at in rng.integers(0, len(pickle), size=rng.integers(1, 3)):
            pickle[int(at)] = int(rng.integers(256))
        content = zipped({**entries, place: bytes(pickle)})
        try:
            loaded = loaded_by_torch(content)
        except Exception:
            loaded = None
        try:
            source = source_of(content)
            read = {name: source.read_stored(name) for name in source.names()}
        except MdirError:
            tally.agree(LIBRARY, "", True)
            continue
        if loaded is None:
            # torch also runs all opcodes that concern no weights; even so, our numbers must be correct.
            originals = {value for tensor in tensors.values() for value in tensor.reshape(-1).tolist()}
            are_right = all(originals.issuperset(tensor.reshape(-1).tolist()) for tensor in read.values())
            tally.agree(LIBRARY, f"mutated pickle {case} is read, with other numbers", are_right)
        else:
            same = all(torch.equal(tensor, loaded[name]) for name, tensor in read.items() if name in loaded)
            tally.agree(LIBRARY, f"mutated pickle {case} is read with other numbers", same)
