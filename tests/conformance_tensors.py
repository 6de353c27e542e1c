"""Test suite for tensor sources, and a file tree in memory for them.

A new source subclasses :class:`TensorSourceConformance` in a test module, implements ``make``, and inherits the suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from mdir_hf.errors import (
    CorruptCheckpointError,
    FileMissingError,
    InputError,
    ShortReadError,
    TensorNotFoundError,
    UnsupportedFormatError,
)
from mdir_hf.model.files import ranged
from mdir_hf.model.sources import FileEntry, Span, TensorSource


class MemoryBytes:
    """A file in memory that records which spans were read."""

    def __init__(self, label: str, content: bytes, *, gap_bytes: int | None = None) -> None:
        self.label = label
        self.content = content
        self.reads: list[Span] = []
        if gap_bytes is not None:
            self.gap_bytes = gap_bytes

    @property
    def n_bytes(self) -> int:
        return len(self.content)

    def read(self, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        if not 0 <= start <= stop <= len(self.content):
            raise ShortReadError(f"asked for {start}..{stop} of {len(self.content)}", subject=self.label)
        return self.content[start:stop]

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        for start, stop in spans:
            yield self.read(start, stop)


class MemoryTree:
    """Files in memory; ``opened`` holds the byte source of each file that was opened."""

    def __init__(self, files: Mapping[str, bytes], *, label: str = "tree", gap_bytes: int | None = 0) -> None:
        self.label = label
        self.contents = dict(files)
        self.files = {path: FileEntry(path, len(content)) for path, content in files.items()}
        self.opened: dict[str, MemoryBytes] = {}
        self._gap_bytes = gap_bytes

    @classmethod
    def from_folder(cls, folder: Path) -> MemoryTree:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return cls({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})

    def open(self, path: str) -> MemoryBytes:
        if path not in self.contents:
            raise FileMissingError(f"there is no {path}", subject=self.label)
        source = MemoryBytes(f"{self.label}:{path}", self.contents[path], gap_bytes=self._gap_bytes)
        return self.opened.setdefault(path, source)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        if path not in self.contents:
            raise FileMissingError(f"there is no {path}", subject=self.label)
        assert len(self.contents[path]) <= max_bytes
        return self.contents[path]


def safetensors_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A valid file, written by the format's own library."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def random_tensors() -> dict[str, torch.Tensor]:
    """A few tensors of every readable dtype, with edge-case shapes."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    return {
        "embed.weight": normal(40, 6).bfloat16(),
        "half": normal(9, 5).half(),
        "single": normal(7, 3).float(),
        "double": normal(4, 3),
        "norm": normal(6).float(),
        "scalar": normal().float(),
        "cube": normal(2, 3, 4).float(),
        "one": normal(1, 1).bfloat16(),
        "fp8": normal(6, 8).to(torch.float8_e4m3fn),
        "fp8_wide": normal(3, 4).to(torch.float8_e5m2),
        "no_rows": normal(0, 4).float(),
        "no_columns": normal(4, 0).float(),
        "integers": torch.arange(12, dtype=torch.int32).reshape(3, 4),
        "mask": torch.tensor([True, False]),
    }


READABLE = [name for name in random_tensors() if name not in ("integers", "mask")]
MATRICES = ["embed.weight", "half", "single", "double", "one", "fp8", "fp8_wide"]


class TensorSourceConformance:
    """The suite; subclasses create a source over given tensors."""

    def make(self, tensors: Mapping[str, torch.Tensor], tmp_path: Path) -> TensorSource:
        raise NotImplementedError

    @pytest.fixture
    def tensors(self) -> dict[str, torch.Tensor]:
        return random_tensors()

    @pytest.fixture
    def source(self, tensors, tmp_path):
        return self.make(tensors, tmp_path)

    def test_names_are_all_names_sorted(self, source, tensors):
        assert source.names() == tuple(sorted(tensors))

    def test_size_counts_at_least_every_tensor(self, source, tensors):
        assert source.n_bytes >= sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def test_a_spec_has_the_stored_shape_and_size(self, source, tensors):
        for name, tensor in tensors.items():
            spec = source.spec(name)
            assert (spec.name, spec.shape) == (name, tuple(tensor.shape))
            assert spec.n_bytes == self.stored_bytes(tensor), name

    def stored_bytes(self, tensor: torch.Tensor) -> int:
        """Number of bytes that a tensor takes in a file."""
        return tensor.numel() * tensor.element_size()

    def test_a_spec_names_the_stored_dtype(self, source):
        names = ("embed.weight", "half", "single", "double")
        assert [source.spec(name).dtype for name in names] == ["BF16", "F16", "F32", "F64"]

    def test_a_whole_tensor_is_read_exactly(self, source, tensors):
        for name in (name for name in READABLE if name in tensors):  # a format may lack a dtype
            expected = tensors[name] if name == "double" else tensors[name].float()
            got = source.read(name)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
            assert torch.equal(got, expected), name

    def test_rows_come_in_the_requested_order_and_may_repeat(self, source, tensors):
        for name in (name for name in MATRICES if name in tensors):
            n_rows = tensors[name].shape[0]
            rows = np.random.default_rng(1).integers(0, n_rows, size=2 * n_rows)
            got = source.read_rows(name, rows)
            assert got.dtype == (torch.float64 if name == "double" else torch.float32), name
            assert torch.equal(got, tensors[name].to(got.dtype)[torch.from_numpy(rows)]), name

    def test_the_gap_read_over_does_not_change_rows(self, source, tensors):
        rows = np.array([31, 2, 3, 39, 0, 8], dtype=np.int64)
        expected = tensors["embed.weight"][torch.from_numpy(rows)].float()
        for max_gap_bytes in (0, 1, 12, 24, 1 << 20):
            assert torch.equal(source.read_rows("embed.weight", rows, max_gap_bytes=max_gap_bytes), expected)

    def test_no_requested_rows_give_no_rows(self, source):
        assert source.read_rows("embed.weight", np.empty(0, dtype=np.int64)).shape == (0, 6)

    def test_rows_without_columns_are_empty(self, source):
        assert source.read_rows("no_columns", np.array([3, 0])).shape == (2, 0)

    def test_read_tensors_may_be_changed(self, source, tensors):
        source.read("embed.weight").zero_()
        source.read_rows("embed.weight", np.array([0])).zero_()
        assert torch.equal(source.read("embed.weight"), tensors["embed.weight"].float())

    def test_a_row_that_is_not_there_is_refused(self, source):
        for row in (-1, 40, 1 << 40):
            with pytest.raises(InputError, match=r"shape \(40, 6\) has no row"):
                source.read_rows("embed.weight", np.array([0, row]))
        with pytest.raises(InputError, match=r"'no_rows' of shape \(0, 4\) has no row 0"):
            source.read_rows("no_rows", np.array([0]))

    def test_rows_of_a_stack_of_matrices_are_numbered_through(self, source, tensors):
        rows = np.array([5, 0, 3], dtype=np.int64)
        assert torch.equal(source.read_rows("cube", rows), tensors["cube"].reshape(-1, 4)[torch.from_numpy(rows)])
        with pytest.raises(InputError, match=r"shape \(2, 3, 4\) has no row 6"):
            source.read_rows("cube", np.array([6]))

    def test_a_stored_tensor_is_read_as_it_is(self, source, tensors):
        for name, tensor in tensors.items():
            got = source.read_stored(name)
            assert got.dtype == tensor.dtype, name
            assert torch.equal(got.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name

    def test_stored_rows_are_read_as_they_are(self, source, tensors):
        rows = np.array([2, 0, 2], dtype=np.int64)
        for name in (name for name in ("embed.weight", "integers", "fp8", "cube") if name in tensors):
            got = source.read_stored_rows(name, rows)
            expected = tensors[name].reshape(-1, tensors[name].shape[-1])[torch.from_numpy(rows)]
            assert got.dtype == expected.dtype, name
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), name

    def test_a_checkpoint_names_its_format(self, source):
        assert source.description.format
        assert source.description.quantization is None

    def test_rows_of_a_tensor_that_is_not_a_matrix_are_refused(self, source):
        for name in ("norm", "scalar"):
            with pytest.raises(InputError, match="only a matrix has rows"):
                source.read_rows(name, np.array([0]))

    def test_an_unknown_name_is_reported(self, source):
        for ask in (source.spec, source.read):
            with pytest.raises(TensorNotFoundError, match=r"no tensor 'embed\.weigth'"):
                ask("embed.weigth")

    def test_other_dtypes_than_weights_are_refused(self, source, tensors):
        for name in (name for name in ("integers", "mask") if name in tensors):
            with pytest.raises(UnsupportedFormatError, match=rf"'{name}' holds .* \({source.spec(name).dtype}\)"):
                source.read(name)

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (float("nan"), torch.bfloat16),
            (float("inf"), torch.float16),
            (float("-inf"), torch.float32),
            (float("nan"), torch.float64),
        ],
    )
    def test_weights_that_are_not_numbers_name_their_row(self, tmp_path, value, dtype):
        weights = torch.ones(8, 3, dtype=dtype)
        weights[5, 1] = value
        source = self.make({"w": weights}, tmp_path)
        with pytest.raises(CorruptCheckpointError, match=r"'w' .* NaN or infinity, first seen in row 5"):
            source.read("w")
        with pytest.raises(CorruptCheckpointError, match=r"'w' .* NaN or infinity, first seen in row 5"):
            source.read_rows("w", np.array([7, 5, 0]))

    def test_rows_that_are_widened_a_few_at_a_time_keep_their_places(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ranged, "ROWS_AT_ONCE", 2)
        weights = torch.arange(8.0).repeat_interleave(3).reshape(8, 3)  # FP8 represents these exactly
        source = self.make({"w": weights}, tmp_path)
        order = np.array([7, 0, 5, 5, 2])
        assert torch.equal(source.read_rows("w", order, max_gap_bytes=1 << 20), weights[order])
        weights[5, 1] = float("nan")
        (tmp_path / "bad").mkdir()
        source = self.make({"w": weights}, tmp_path / "bad")
        with pytest.raises(CorruptCheckpointError, match="first seen in row 5"):
            source.read_rows("w", np.array([0, 1, 2, 5, 7]), max_gap_bytes=1 << 20)

    def test_rows_are_read_next_to_one_that_is_not_a_number(self, tmp_path):
        weights = torch.ones(8, 3)
        weights[5, 1] = float("nan")
        source = self.make({"w": weights}, tmp_path)
        assert torch.equal(source.read_rows("w", np.array([4, 6]), max_gap_bytes=1 << 20), torch.ones(2, 3))

    def test_huge_finite_weights_are_not_taken_for_infinity(self, tmp_path):
        weights = torch.full((4, 3), torch.finfo(torch.float32).max)
        assert torch.equal(self.make({"w": weights}, tmp_path).read("w"), weights)
