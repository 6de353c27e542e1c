"""Read rows for the same tokens from two models, and cache tensors that are needed repeatedly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import NotFiniteError, naming
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy, WeightPart
from mdir_hf.model.sources import Description

MOST_NOT_FINITE = 64
"""Maximum number of rows of one matrix that may contain NaN or infinity."""

IntArray = npt.NDArray[np.int64]


class FiniteRows:
    """Reader that replaces rows containing NaN or infinity with zeros, which every test ignores.

    Some checkpoints have such rows for tokens that were never trained.
    """

    def __init__(self, model: PlacedTensors) -> None:
        self._model = model
        self._not_finite: set[int] = set()

    @property
    def n_not_finite(self) -> int:
        """Number of rows replaced with zeros so far."""
        return len(self._not_finite)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return rows of a matrix, as ``TensorSource.read_rows`` does.

        Raises:
            NotFiniteError: If too many rows are not finite.
        """
        while True:
            is_finite = ~np.isin(rows, sorted(self._not_finite)) if self._not_finite else np.ones(len(rows), dtype=bool)
            try:
                with naming(self._model.label):
                    values = self._model.tensors.read_rows(name, rows[is_finite], max_gap_bytes=max_gap_bytes)
            except NotFiniteError as exc:
                not_finite = self._not_finite.union(exc.rows)
                if not exc.rows or len(not_finite) > MOST_NOT_FINITE:
                    raise
                self._not_finite = not_finite
                continue
            if bool(is_finite.all()):
                return values
            with_zeros = values.new_zeros((len(rows), values.shape[1]))
            with_zeros[torch.from_numpy(is_finite)] = values
            return with_zeros


def narrowed(rows: torch.Tensor) -> torch.Tensor:
    """Convert rows to 16 bits to save memory, if that is lossless."""
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(block.to(dtype).to(rows.dtype), block) for block in torch.split(rows, CHECKED_ROWS)):
            return rows.to(dtype)
    return rows


CHECKED_ROWS = 1024
"""Number of rows that are converted at once to see whether that is lossless."""

KEPT_BYTES = 160 << 20
"""Maximum bytes of shared tensors kept per model; beyond that, tensors are read again. GPT-2 has 42 MB of shared
tensors in 16 bits, GPT-2 XL 737 MB."""

KEPT_ROW_BYTES = 512 << 20
"""Maximum bytes of sampled rows kept per model. For an 8B model, 64 rows of every projection of 32 layers take 320
MB."""


LOCAL_GAP_BYTES = 4096
"""Largest gap, in bytes, between sampled rows of local files that is read rather than skipped."""


class ReadOnce:
    """A model whose sampled rows and shared tensors are kept in memory; implements ``PlacedTensors``.

    Each row is read only once, as long as all rows fit in :data:`KEPT_ROW_BYTES`. If the model is local, few unneeded
    bytes are read between rows.
    """

    def __init__(self, model: Comparable) -> None:
        self.label = model.label
        self.is_remote = model.is_remote
        self.anatomy: Anatomy = model.anatomy
        self.tensors: TensorSource = SharedTensors(
            model.tensors, model.anatomy, max_gap_bytes=None if model.is_remote else LOCAL_GAP_BYTES
        )

    def with_anatomy(self, anatomy: Anatomy) -> ReadOnce:
        """Return a copy of the model with other tensor roles."""
        model = copy(self)
        model.anatomy = anatomy
        return model


def read_closely(model: Comparable | ReadOnce) -> ReadOnce:
    """Wrap a model in :class:`ReadOnce` unless it is wrapped already."""
    if isinstance(model, ReadOnce):
        return model
    return ReadOnce(model)


class SharedTensors:
    """A model's tensors, kept in memory if they store the weights of several roles; implements ``TensorSource``.

    The class is thread-safe. ``max_gap_bytes`` is the largest gap between rows that is read rather than skipped; it
    defaults to the byte source's limit.
    """

    def __init__(self, source: TensorSource, anatomy: Anatomy, *, max_gap_bytes: int | None = None) -> None:
        self._source, self._anatomy, self._max_gap_bytes = source, anatomy, max_gap_bytes
        self._cached: dict[str, torch.Tensor] = {}
        self._rows: dict[str, tuple[IntArray, torch.Tensor]] = {}
        self.label, self.n_bytes, self.paths = source.label, source.n_bytes, source.paths
        self.names, self.spec = source.names, source.spec

    @property
    def description(self) -> Description:
        """Current description of the checkpoint."""
        return self._source.description

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return rows of a matrix, as the source does."""
        gap = self._max_gap_bytes if max_gap_bytes is None else max_gap_bytes
        numbers, cached_rows = self._rows.get(name, (rows[:0], None))
        missing_rows = np.setdiff1d(rows, numbers)
        if len(missing_rows) or cached_rows is None:
            new_rows = narrowed(self._source.read_rows(name, missing_rows, max_gap_bytes=gap))
            if cached_rows is not None:
                dtype = torch.promote_types(cached_rows.dtype, new_rows.dtype)
                new_rows = torch.cat([cached_rows.to(dtype), new_rows.to(dtype)])
            numbers = np.concatenate([numbers, missing_rows])
            order = np.argsort(numbers)
            numbers, cached_rows = numbers[order], new_rows[torch.from_numpy(order)]
            others = (other_rows.nbytes for other_name, (_, other_rows) in [*self._rows.items()] if other_name != name)
            if cached_rows.nbytes + sum(others) <= KEPT_ROW_BYTES:
                self._rows[name] = numbers, cached_rows
        result = cached_rows[torch.from_numpy(np.searchsorted(numbers, rows))]
        return result if result.dtype == torch.float64 else result.float()

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor, which callers must not modify."""
        cached = self._cached.get(name)
        if cached is not None:
            return cached if cached.dtype == torch.float64 else cached.float()
        tensor = self._source.read(name)
        if tensor.ndim == 1 or name in self._shared:
            stored = narrowed(tensor)
            if stored.nbytes + sum(cached_tensor.nbytes for cached_tensor in [*self._cached.values()]) <= KEPT_BYTES:
                self._cached[name] = stored
        return tensor

    @cached_property
    def _shared(self) -> frozenset[str]:
        places = Counter(
            part.tensor
            for layer in self._anatomy.layers
            for part in layer.parts.values()
            if isinstance(part, WeightPart) and part.transposed and not part.is_whole and part.expert is None
        )
        return frozenset(name for name, n_roles in places.items() if n_roles > 1)


def of_unread_weight(label: str, tensors: Sequence[str], why: str) -> str:
    """Explain that a layer's weight was not compared."""
    return f"{label}: {' x '.join(map(repr, tensors))} was not compared: {why[:300].rstrip('.')}."
