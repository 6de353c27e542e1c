"""Read PyTorch's own files with range requests. Pickles are parsed as data and never executed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from mdir_hf.budgets import PICKLE
from mdir_hf.errors import CheckpointError, CorruptCheckpointError, UnsupportedFormatError, naming
from mdir_hf.model.files.decode import DTYPES, Encoding, check_finite, result_dtype
from mdir_hf.model.files.pytorch.archive import TORCH_ALIGNMENT, Archive, Entry, NoArchiveError
from mdir_hf.model.files.pytorch.machine import find_tensors, read_pickle, unread_parts
from mdir_hf.model.files.pytorch.objects import PickledTensor, UnreadableTensor
from mdir_hf.model.files.ranged import IntArray, check_rows
from mdir_hf.model.files.shards import Header, ShardedTensors, list_some
from mdir_hf.model.sources import ByteSource, TensorSpec, excess_of_shape

_SMALL_ENTRIES_N_BYTES = 4096
"""The entries for byte order and alignment are read with the pickle if they end within this distance of it."""

# A pickle of torch's magic number, in any protocol; framed from protocol 4 on.
_LEGACY = re.compile(rb"\x80[\x02-\x05](\x95.{8})?\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
_OTHER_FORMATS = (
    (b"version https://git-lfs", "this is a Git LFS pointer, not the weights; fetch the file itself (`git lfs pull`)"),
    (b"GGUF", "this is a GGUF file under another name; give it the suffix .gguf"),
    (b"\x89HDF", "this is an HDF5 file (TensorFlow weights), which is not supported"),
    (b"lmgg", "this is a file of an old llama.cpp (GGML), which is not supported; convert it to GGUF"),
    (b"fmgg", "this is a file of an old llama.cpp (GGMF), which is not supported; convert it to GGUF"),
    (b"tjgg", "this is a file of an old llama.cpp (GGJT), which is not supported; convert it to GGUF"),
)
_LOAD_AND_SAVE = "load it with torch.load(weights_only=True), and save it again with torch.save or as safetensors"


@dataclass(frozen=True, slots=True)
class StridedSpec(TensorSpec):
    """The spec of a transposed, sliced or negated view, with the stride along each axis in elements."""

    stride: tuple[int, ...] = ()
    is_negated: bool = False


class PytorchSource(ShardedTensors):
    """The tensors of a PyTorch checkpoint, read lazily.

    Each header (zip directory and pickle) takes two or three reads.
    """

    format_name = "PyTorch"
    usual_stem = "pytorch_model"
    usual_suffix = ".bin"

    def _read_header(self, path: str) -> Header:
        source = self._byte_source(path)
        with naming(source.label):
            try:
                archive = Archive(source)
            except NoArchiveError as exc:
                raise _other_format(source) from exc
            root, pickle_entry = _find_pickle(archive)
            alignment = _read_small_entries(archive, root, pickle_entry)
            content = read_pickle(archive.content(pickle_entry), label=source.label)
            leaves = find_tensors(content, as_named=self._index is not None, is_shard=len(self.paths) > 1)
        archive.forget()
        if unread := unread_parts(content):
            self.add_note(f"not read in {path}, beside the model: {list_some(unread, 8)}")
        return _Specs(leaves, archive, path, root, alignment)

    def _pieces(self, spec: TensorSpec, encoding: Encoding) -> Iterator[torch.Tensor]:
        if not isinstance(spec, StridedSpec):
            yield from super()._pieces(spec, encoding)
        else:
            flat = self._flat(spec, spec.start, spec.stop, encoding)
            values = _as_strided(flat, spec.shape, spec.stride, encoding.n_decoded).reshape(-1)
            yield _negated(values, spec) if spec.is_negated else values

    def _gather(
        self, spec: TensorSpec, rows: IntArray, encoding: Encoding, max_gap_bytes: int | None, *, widen: bool
    ) -> torch.Tensor:
        if not isinstance(spec, StridedSpec):
            return super()._gather(spec, rows, encoding, max_gap_bytes, widen=widen)
        label = self._byte_source(spec.path).label
        wanted = check_rows(spec, rows, label)
        index = torch.from_numpy(wanted)
        if not wanted.size:
            values = encoding.decode(b"").new_empty((0, encoding.decoded(spec.shape[-1])))
        elif len(spec.shape) == 2:
            values = self._rows_of_matrix(spec, index, encoding)
        else:
            (whole,) = self._pieces(spec, encoding)
            values = whole.reshape(-1, encoding.decoded(spec.shape[-1]))[index]
        if not widen:
            return values
        return check_finite(values.to(result_dtype(values.dtype)), spec, label, rows=wanted)

    def _rows_of_matrix(self, spec: StridedSpec, rows: torch.Tensor, encoding: Encoding) -> torch.Tensor:
        (down, along), width = spec.stride, spec.shape[1]
        first, last = int(rows.min()), int(rows.max())
        start = spec.start + encoding.bytes_of(first * down)
        stop = start + encoding.bytes_of((last - first) * down + (width - 1) * along + 1)
        flat = self._flat(spec, start, stop, encoding)
        view = _as_strided(flat, (last - first + 1, width), spec.stride, encoding.n_decoded)
        values = view[rows - first].reshape(len(rows), -1)
        return _negated(values, spec) if spec.is_negated else values

    def _flat(self, spec: TensorSpec, start: int, stop: int, encoding: Encoding) -> torch.Tensor:
        out: torch.Tensor | None = None
        at = 0
        for piece in super()._pieces(replace(spec, start=start, stop=stop), encoding):
            if out is None:
                out = torch.empty(encoding.decoded((stop - start) // encoding.n_bytes), dtype=piece.dtype)
            out[at : at + piece.numel()] = piece
            at += piece.numel()
        assert out is not None
        return out


class _Specs(Mapping[str, TensorSpec | str]):
    """The specs of a file's tensors, created on access."""

    def __init__(
        self,
        tensors: Mapping[str, PickledTensor | UnreadableTensor],
        archive: Archive,
        path: str,
        root: str,
        alignment: int,
    ) -> None:
        self._tensors = tensors
        self._archive = archive
        self._path = path
        self._root = root
        self._alignment = alignment
        self._specs: dict[str, TensorSpec] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # without creating its spec, which may raise an error

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> TensorSpec | str:
        spec = self._specs.get(name)
        if spec is None:
            tensor = self._tensors[name]
            if isinstance(tensor, UnreadableTensor):
                return tensor.kind
            with naming(self._archive.label):
                entry, start = self._place(tensor, name)
                spec = _spec(name, tensor, path=self._path, start=start, n_bytes=entry.n_bytes)
            self._specs[name] = spec
        return spec

    def _place(self, tensor: PickledTensor, name: str) -> tuple[Entry, int]:
        key = f"{self._root}data/{tensor.storage.key}"
        entry = self._archive.entries.get(key)
        if entry is None:
            raise CorruptCheckpointError(f"tensor {name!r} should be in the entry {key!r}, but the archive has none")
        self._archive.check_stored(entry)
        start = entry.aligned_start(self._alignment)
        return entry, self._archive.data_start(entry) if start is None else start


def _as_strided(flat: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], n_decoded: int) -> torch.Tensor:
    return flat.as_strided((*shape, n_decoded), (*(step * n_decoded for step in stride), 1))


def _negated(values: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    as_bytes = values.contiguous().view(torch.uint8).clone()
    as_bytes.reshape(-1, DTYPES[spec.dtype].n_bits // 8)[:, -1] ^= 0x80
    return as_bytes.view(values.dtype)


def _other_format(source: ByteSource) -> CheckpointError:
    head = source.read(0, min(source.n_bytes, 512))
    for magic, what in _OTHER_FORMATS:
        if head.startswith(magic):
            return UnsupportedFormatError(what)
    if _LEGACY.match(head) or head[257:262] == b"ustar":
        return UnsupportedFormatError(
            f"this was written by torch before 1.6, or without its zip format, and cannot be read by ranges; "
            f"{_LOAD_AND_SAVE}"
        )
    if head.startswith(b"PK"):
        return CorruptCheckpointError(
            f"this zip archive of {source.n_bytes:,} bytes ends before its directory; the upload or the download "
            "is incomplete"
        )
    return CorruptCheckpointError(
        f"this is not a file of torch.save: it starts with {head[:8]!r} and is not a zip archive"
    )


def _find_pickle(archive: Archive) -> tuple[str, Entry]:
    pickles = [name for name in archive.entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        what = "none" if not pickles else f"{len(pickles)}"
        raise UnsupportedFormatError(
            f"this zip archive was not written by torch.save: it should hold one data.pkl but has {what}"
        )
    root = pickles[0][: -len("data.pkl")]
    if f"{root}constants.pkl" in archive.entries:
        raise UnsupportedFormatError(
            "this is a TorchScript program, which is not supported; save the state dict of the model that it was made "
            "from"
        )
    entry = archive.entries[pickles[0]]
    if entry.n_bytes > PICKLE.n_bytes:
        raise UnsupportedFormatError(
            f"its data.pkl has {entry.n_bytes:,} bytes; the limit is {PICKLE.n_bytes:,}; save the state dict "
            "alone, as safetensors"
        )
    return root, entry


def _read_small_entries(archive: Archive, root: str, pickle_entry: Entry) -> int:
    """Read the pickle and the small entries after it in one request, and return the storage alignment."""
    order = archive.entries.get(f"{root}byteorder")
    alignment = archive.entries.get(f"{root}.storage_alignment")
    stop = pickle_entry.furthest_stop
    for entry in (order, alignment):
        if entry is not None and stop <= entry.furthest_stop <= pickle_entry.furthest_stop + _SMALL_ENTRIES_N_BYTES:
            stop = entry.furthest_stop
    archive.keep(pickle_entry.header_start, stop)
    if order is not None:
        _refuse_long(order)
        if archive.content(order) != b"little":
            raise UnsupportedFormatError(f"its numbers are stored big-endian, which is not supported; {_LOAD_AND_SAVE}")
    if alignment is None:
        return TORCH_ALIGNMENT
    _refuse_long(alignment)
    text = archive.content(alignment)
    return int(text) if text.isdigit() and 0 < int(text) <= 1 << 30 else TORCH_ALIGNMENT


def _refuse_long(entry: Entry) -> None:
    if entry.n_bytes > _SMALL_ENTRIES_N_BYTES:
        raise CorruptCheckpointError(f"its entry {entry.name!r} has {entry.n_bytes:,} bytes")


def _spec(name: str, tensor: PickledTensor, *, path: str, start: int, n_bytes: int) -> TensorSpec:
    item = DTYPES[tensor.dtype].n_bits // 8
    n_stored = n_bytes // item
    storage = tensor.storage
    n_values = storage.n_values if storage.dtype is not None else storage.n_values // item
    if n_values > n_stored:
        raise CorruptCheckpointError(
            f"tensor {name!r}: its storage should have {n_values:,} elements of {tensor.dtype}, but the archive holds "
            f"only {n_bytes:,} bytes of it"
        )
    shape, stride = tensor.shape, tensor.stride
    n_elements = math.prod(shape)
    if n_elements == 0:
        excess = excess_of_shape(shape)
        if excess is not None:
            raise CorruptCheckpointError(f"tensor {name!r} of shape {shape} {excess}")
        # An empty view needs no read, whatever its offset.
        return TensorSpec(name, shape, tensor.dtype, path, start, start)
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if tensor.offset + extent > n_values:
        raise CorruptCheckpointError(
            f"tensor {name!r} of shape {shape} with strides {stride} spans elements {tensor.offset:,} to "
            f"{tensor.offset + extent:,} of a storage that has {n_values:,}"
        )
    if _repeats(shape, stride):
        raise UnsupportedFormatError(
            f"tensor {name!r} of shape {shape} with strides {stride} repeats elements of its storage (an expanded or "
            "overlapping view), which is not supported; save its contiguous copy"
        )
    first = start + tensor.offset * item
    if _is_contiguous(shape, stride) and not tensor.is_negated:
        return TensorSpec(name, shape, tensor.dtype, path, first, first + n_elements * item)
    return StridedSpec(name, shape, tensor.dtype, path, first, first + extent * item, stride, tensor.is_negated)


def _repeats(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


PYTORCH_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")
"""File name suffixes in common use with torch.save."""

__all__ = ["PYTORCH_SUFFIXES", "PytorchSource"]
