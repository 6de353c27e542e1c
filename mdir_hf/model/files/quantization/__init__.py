"""Read quantised checkpoints as numbers, under the unquantised weights' names."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from mdir_hf.errors import CheckpointError, CorruptCheckpointError, NotFiniteError, UnsupportedFormatError
from mdir_hf.model.files.decode import first_not_finite, rows_not_finite
from mdir_hf.model.files.quantization.coded import CodedTensor, KeptTensors
from mdir_hf.model.files.quantization.float_codes import FLOAT8
from mdir_hf.model.files.quantization.opening import Declared, Opening, read_declared, rescaled
from mdir_hf.model.files.quantization.parts import (
    REASON,
    SCALES_OF_PLAIN_CODES,
    QuantizedParts,
    TensorGroups,
    group_tensors,
)
from mdir_hf.model.files.quantization.schemes import open_coded
from mdir_hf.model.files.ranged import IntArray, check_rows
from mdir_hf.model.sources import (
    Description,
    FileTree,
    ListsContents,
    StoredRows,
    StoredSource,
    StoredTensor,
    StoredTensors,
    TensorSpec,
)

VALUES_AT_ONCE = 1 << 21
"""Number of values decoded at once if codes are in memory. Decoding takes about ten extra bytes per value."""

ROW_VALUES_AT_ONCE = 1 << 23
"""Number of values decoded at once if their codes must be read first; large, so that requests are large."""

NARROW = (*FLOAT8, "F4")
"""Dtypes that are read as plain numbers unless scales belong to them."""

KEPT_COMPANIONS = 64
MOST_KEPT_N_BYTES = 1 << 20
"""Limits of the cache for small companions that are read whole, such as tables of 16 numbers."""


class DequantizedSource:
    """A checkpoint whose quantised weights are read as numbers. Implements ``TensorSource``.

    A quantised weight has the name, shape and orientation of its unquantised version, and its spec points to the codes.
    Unless the layout stores rows as columns, only the codes and scales of the requested rows are read. Thread-safe.
    """

    def __init__(self, stored: StoredSource, tree: FileTree) -> None:
        self.label = stored.label
        self._source = stored
        self._tree = tree
        self._lock = threading.RLock()
        self._grouped: TensorGroups | None = None
        self._grouped_names: tuple[str, ...] = ()
        self._config: Declared | None = None
        self._coded: dict[str, CodedTensor | None] = {}
        self._specimens: tuple[str, ...] | None = None
        self._cache: tuple[str, KeptTensors] | None = None
        self._plain_narrow: str | None = None

    @property
    def n_bytes(self) -> int:
        """Stored size of all weight files."""
        return self._source.n_bytes

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files."""
        return self._source.paths

    @property
    def description(self) -> Description:
        """The source's description, with its quantisation schemes. Reads one header per scheme."""
        description = self._source.description
        notes = [*description.notes]
        meanings = self._meanings()
        if meanings:
            notes += self._declared().notes()
            if any("AWQ" in meaning for meaning in meanings) and not any("AWQ" in note for note in notes):
                notes.append(rescaled("AWQ"))
        if self._plain_narrow is not None:
            kind = self._plain_narrow.replace("F", "FP")
            notes.append(f"some weights are stored as {kind} without any scale, and are read as they are")
        return replace(
            description, quantization="; ".join(meanings) if meanings else description.quantization, notes=tuple(notes)
        )

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all weights."""
        return self._inventory().names

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor, assigning codes and companions to their weights."""
        if not isinstance(self._source, ListsContents):
            return
        inventory = self._inventory()
        owners = {parts.codes: (weight, False) for weight, parts in inventory.quantized.items()}
        for weight, parts in inventory.quantized.items():
            owners |= {name: (weight, True) for name in parts.companions.values() if name not in owners}
        listed_names = set(inventory.names)
        for tensor in self._source.contents():
            weight, is_companion = owners.get(tensor.name, (tensor.name, False))
            if tensor.name not in owners and tensor.name not in listed_names:
                is_companion, weight = True, f"{tensor.name.rpartition('.')[0]}.weight"  # the scale of an activation
            reason = tensor.reason
            form = inventory.quantized[weight].form if weight in inventory.quantized else ""
            if form in REASON and reason is None and not self._is_plain(weight):
                reason = f"{form}, {REASON[form]}"
            yield replace(tensor, weight=weight, belongs_to_other=is_companion, reason=reason)

    def _is_plain(self, weight: str) -> bool:
        """Return whether the codes of a scheme that is not supported are stored as plain numbers."""
        if self._inventory().quantized[weight].form not in SCALES_OF_PLAIN_CODES:
            return False
        try:
            return self._open(weight) is not None
        except CheckpointError:
            return False

    def read_all_headers(self) -> None:
        """Read all headers."""
        if isinstance(self._source, ListsContents):
            self._source.read_all_headers()

    def spec(self, name: str) -> TensorSpec:
        """Return a tensor's logical shape, a dtype for display, and the location of its codes."""
        coded = self._open(name)
        if coded is None:
            spec = self._source.spec(name)
            if spec.dtype in NARROW and not self._unknown_scales(name):
                self._plain_narrow = spec.dtype[:2]
            return spec
        return replace(coded.codes, name=name, shape=coded.shape, dtype=coded.dtype)

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        coded = self._open(name)
        if coded is None:
            self._check_plain(name)
            return self._source.read(name)
        d = coded.shape[-1]
        n_rows = math.prod(coded.shape[:-1])
        out = torch.empty((n_rows, d), dtype=torch.float32)
        cached = self._cached(name) or KeptTensors(self._source)
        step = max(1, VALUES_AT_ONCE // max(1, d * coded.rows_together)) * coded.rows_together
        for at in range(0, n_rows, step):
            rows = np.arange(at, min(at + step, n_rows), dtype=np.int64)
            out[at : at + step] = self._checked(coded.rows(cached, rows), rows, name, coded)
        return out.reshape(coded.shape)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        coded = self._open(name)
        if coded is None:
            self._check_plain(name)
            return self._source.read_rows(name, rows, max_gap_bytes=max_gap_bytes)
        numbers = check_rows(self.spec(name), rows, self.label)
        stored: StoredRows = self._companions if coded.reads_rows else self._keep(name)
        d = coded.shape[-1]
        out = torch.empty((numbers.size, d), dtype=torch.float32)
        unique, places = np.unique(numbers, return_inverse=True)
        places = places.reshape(-1)
        step = max(1, ROW_VALUES_AT_ONCE // max(1, d))
        for at in range(0, unique.size, step):
            part = unique[at : at + step]
            values = self._checked(coded.rows(stored, part, max_gap_bytes=max_gap_bytes), part, name, coded)
            slots = np.flatnonzero((places >= at) & (places < at + step))
            out[torch.from_numpy(slots)] = values[torch.from_numpy(places[slots] - at)]
        return out

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a tensor as stored."""
        return self._source.read_stored(name)

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows as stored."""
        return self._source.read_stored_rows(name, rows, max_gap_bytes=max_gap_bytes)

    @cached_property
    def _companions(self) -> _Companions:
        return _Companions(self._source)

    def _inventory(self) -> TensorGroups:
        with self._lock:
            names = self._source.names()
            if self._grouped is None or names is not self._grouped_names:  # headers may have contradicted the index
                self._grouped, self._grouped_names = group_tensors(names), names
                self._coded.clear()
                self._specimens = None
            return self._grouped

    def _declared(self) -> Declared:
        with self._lock:
            if self._config is None:
                self._config = read_declared(self._tree)
            return self._config

    def _open(self, name: str) -> CodedTensor | None:
        with self._lock:
            if name not in self._coded:
                inventory = self._inventory()
                parts = inventory.quantized.get(name)
                if parts is None:
                    self._check_orphan(inventory, name)
                    self._coded[name] = None
                else:
                    opening = Opening(self._source, parts, self._declared())
                    unknown = inventory.unknown_beside(name)
                    if unknown:
                        raise opening.refuse(f"its companions {', '.join(unknown[:3])} belong to no known scheme")
                    self._coded[name] = open_coded(opening)
            return self._coded[name]

    def _check_orphan(self, inventory: TensorGroups, name: str) -> None:
        orphan = inventory.orphans.get(name)
        if orphan is not None and not inventory.holds(name):
            raise CorruptCheckpointError(
                f"tensor {orphan!r} belongs to the codes of a quantised weight {name!r}, which are not in the "
                "checkpoint; the upload or the conversion is incomplete",
                subject=self.label,
            )

    def _check_plain(self, name: str) -> None:
        spec = self._source.spec(name)
        if spec.dtype not in NARROW:
            return
        inventory = self._inventory()
        of_fp8 = (parts for parts in inventory.quantized.values() if {"scale", "scale_inv"} & parts.companions.keys())
        sibling = next(of_fp8, None)
        if sibling is not None and name.endswith(".weight") == sibling.name.endswith(".weight"):
            suffix = "_scale_inv" if "scale_inv" in sibling.companions else "_scale"
            raise CorruptCheckpointError(
                f"tensor {name!r} holds {spec.dtype} codes, but its scales {name + suffix!r} are not in the "
                "checkpoint, unlike those for other weights; the upload or the conversion is incomplete",
                subject=self.label,
            )
        unknown = self._unknown_scales(name)
        if unknown:
            raise UnsupportedFormatError(
                f"tensor {name!r} holds {spec.dtype} codes, and {', '.join(unknown[:3])} may scale them in a way that "
                "is unknown to this version; compare the unquantised checkpoint it was made from, if available",
                subject=self.label,
            )
        self._plain_narrow = spec.dtype[:2]

    def _unknown_scales(self, name: str) -> tuple[str, ...]:
        inventory = self._inventory()
        return inventory.unknown_beside(name) or inventory.scales_beside(name)

    def _meanings(self) -> tuple[str, ...]:
        with self._lock:
            if self._specimens is None:
                self._specimens = tuple(self._meanings_by_kind())
            opened_meanings = (coded.meaning for coded in self._coded.values() if coded is not None)
            return tuple(dict.fromkeys((*self._specimens, *opened_meanings)))

    def _meanings_by_kind(self) -> Iterator[str]:
        first: dict[tuple[str, ...], QuantizedParts] = {}
        for parts in self._inventory().quantized.values():
            first.setdefault(parts.kind, parts)
        for parts in sorted(first.values(), key=lambda parts: parts.name):
            try:
                coded = self._open(parts.name)
            except UnsupportedFormatError:
                yield f"{parts.form if parts.form in REASON else 'an unknown scheme'}, not read"
            except CorruptCheckpointError:
                continue  # reported when the weight is read
            else:
                if coded is not None:
                    yield coded.meaning

    def _keep(self, name: str) -> KeptTensors:
        with self._lock:
            cached = self._cached(name) or KeptTensors(self._source)
            self._cache = name, cached
            return cached

    def _cached(self, name: str) -> KeptTensors | None:
        with self._lock:
            return self._cache[1] if self._cache is not None and self._cache[0] == name else None

    def _checked(self, values: torch.Tensor, rows: IntArray, name: str, coded: CodedTensor) -> torch.Tensor:
        bad = first_not_finite(values)
        if bad is None:
            return values
        parts = self._inventory().quantized[name]
        sources = ", ".join((parts.codes, *parts.companions.values()))
        raise NotFiniteError(
            f"tensor {name!r} ({coded.dtype}, shape {coded.shape}, from {sources}) holds NaN or infinity, first seen "
            f"in row {int(rows[bad // coded.shape[-1]]):,}; such weights cannot be compared",
            rows=rows_not_finite(values, rows),
            subject=self.label,
        )


class _Companions:
    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._cache: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def read_stored(self, name: str) -> torch.Tensor:
        with self._lock:
            if name in self._cache:
                self._cache.move_to_end(name)
                return self._cache[name]
        values = self._stored.read_stored(name)
        if values.numel() * values.element_size() <= MOST_KEPT_N_BYTES:
            with self._lock:
                self._cache[name] = values
                if len(self._cache) > KEPT_COMPANIONS:
                    self._cache.popitem(last=False)
        return values

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        return self._stored.read_stored_rows(name, rows, max_gap_bytes=max_gap_bytes)


__all__ = ["DequantizedSource"]
