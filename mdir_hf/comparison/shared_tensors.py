"""Tensors that several reads of one model share, read once.

Norms stand before several projections. GPT-2 stores queries, keys and values as columns of one matrix, which has to be
read whole for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.reading import narrowed
from mdir_hf.errors import MdirError
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.files import TensorSource
from mdir_hf.model.files.sources import Description
from mdir_hf.model.inventory.headers import without_tensors
from mdir_hf.model.roles import Anatomy, Role, WeightPart

IntArray = npt.NDArray[np.int64]

KEPT_BYTES = 160 << 20
"""Most bytes that are kept of one model; the rest is read again. GPT-2 has 42 MB of such tensors in 16 bits, GPT-2 XL
737 MB."""


class ReadOnce:
    """A model whose shared tensors are read once. Implements ``PlacedTensors``.

    Args:
        model: The model.
        max_gap_bytes: Gap between two wanted rows that is read over and dropped; None: the default of the byte source.

    Attributes:
        failed: Names of the tensors of the last weight that could not be read, and the error; None if there is none.
    """

    def __init__(self, model: PlacedTensors, *, max_gap_bytes: int | None = None) -> None:
        self.label = model.label
        self.anatomy: Anatomy = model.anatomy
        self.tensors: TensorSource = SharedTensors(model.tensors, model.anatomy, max_gap_bytes=max_gap_bytes)
        self.failed: tuple[tuple[str, ...], MdirError] | None = None
        self._failed_roles: Counter[Role] = Counter()

    def with_alike(self, tensors: tuple[str, ...]) -> tuple[str, ...]:
        """Return tensors that failed; with them those of the same role in all layers, if it is not the first time."""
        failed = set(tensors)
        roles = {
            role for layer in self.anatomy.layers for role, part in layer.parts.items() if failed & set(part.tensors)
        }
        repeated = {role for role in roles if self._failed_roles[role]}
        self._failed_roles.update(roles)
        alike = (
            name
            for layer in self.anatomy.layers
            for role, part in layer.parts.items()
            if role in repeated
            for name in part.tensors
        )
        return tuple(dict.fromkeys((*tensors, *alike)))

    def note_failure(self, tensors: tuple[str, ...], error: MdirError) -> None:
        """Keep which weight an error is about, so that a comparison can go on without it."""
        self.failed = tensors, error

    def without(self, tensors: Collection[str]) -> ReadOnce:
        """Return the model in which some tensors play no role; tensors in memory are kept."""
        rest = copy(self)
        rest.anatomy, rest.failed = without_tensors(self.anatomy, tensors), None
        return rest


class SharedTensors:
    """The tensors of a model, those in memory that several of its roles are read from. Implements ``TensorSource``.

    Threads may read side by side; a tensor that two of them request at the same time is read twice.

    Args:
        source: Source of the tensors.
        anatomy: Which tensor plays which role.
        max_gap_bytes: As in ``TensorSource.read_rows``, for all reads of rows.
    """

    def __init__(self, source: TensorSource, anatomy: Anatomy, *, max_gap_bytes: int | None = None) -> None:
        self._source, self._anatomy, self._max_gap_bytes = source, anatomy, max_gap_bytes
        self._kept: dict[str, torch.Tensor] = {}
        self.label, self.n_bytes, self.paths = source.label, source.n_bytes, source.paths
        self.names, self.spec = source.names, source.spec

    @property
    def description(self) -> Description:
        """Description of the checkpoint, which grows as weights are opened."""
        return self._source.description

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows of a matrix, as the source does."""
        gap = self._max_gap_bytes if max_gap_bytes is None else max_gap_bytes
        return self._source.read_rows(name, rows, max_gap_bytes=gap)

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor, as the source does; the caller does not write to it."""
        kept = self._kept.get(name)
        if kept is not None:
            return kept if kept.dtype == torch.float64 else kept.float()
        tensor = self._source.read(name)
        if tensor.ndim == 1 or name in self._shared:
            stored = narrowed(tensor)
            if stored.nbytes + sum(each.nbytes for each in [*self._kept.values()]) <= KEPT_BYTES:
                self._kept[name] = stored
        return tensor

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Matrices whose columns belong to several roles: one cannot be read without the others."""
        places = Counter(
            part.tensor
            for layer in self._anatomy.layers
            for part in layer.parts.values()
            if isinstance(part, WeightPart) and part.transposed and not part.is_whole and part.expert is None
        )
        return frozenset(name for name, n_roles in places.items() if n_roles > 1)


def of_unread_weight(label: str, tensors: Sequence[str], why: str) -> str:
    """Say in a sentence that a weight of a layer was not compared."""
    return f"{label}: {' x '.join(map(repr, tensors))} was not compared: {why[:300].rstrip('.')}."
