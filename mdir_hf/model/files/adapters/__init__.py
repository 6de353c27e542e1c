"""Apply PEFT adapters to their base models."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.adapters.config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterConfig,
    has_adapter,
    read_adapter_config,
)
from mdir_hf.model.files.adapters.placing import HEAD, Placement
from mdir_hf.model.files.adapters.row_changes import RowChange
from mdir_hf.model.files.decode import check_finite
from mdir_hf.model.files.ranged import IntArray, check_rows
from mdir_hf.model.sources import Description, ListsContents, StoredTensor, TensorSource, TensorSpec
from mdir_hf.report.words import counted

KEPT_TENSORS = 16
"""Maximum number of small adapter tensors in the cache."""

_BLOCK_N_VALUES = 1 << 24
"""Number of values read at once (64 MiB in float32) to compute column lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors of a weight's change, ``left @ right``, in the stored orientation."""

    left: torch.Tensor
    right: torch.Tensor
    magnitude: torch.Tensor | None


class AdaptedSource:
    """A base model with a PEFT adapter.

    LoRA adds s B A to the base, with s = alpha / r, or alpha / sqrt(r) for rsLoRA. DoRA then rescales rows,
    or columns of embeddings and transposed matrices, which are read whole once. :mod:`.row_changes` applies the other
    methods. Tensors saved whole replace the base's tensors. If an adapter is unsupported, the tensors that it changes
    cannot be read; ``doubts`` are reasons why single modules cannot be, completing "an adapter that …".

    Results are float32, whereas a merged file would be rounded to the base's dtype. Thread-safe.

    Raises:
        CorruptCheckpointError: If factors are missing or inconsistent.
        UnsupportedFormatError: If the base lacks a weight that the adapter changes.
    """

    def __init__(
        self,
        base: TensorSource,
        adapter: TensorSource,
        config: AdapterConfig,
        *,
        doubts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.label = adapter.label
        self._base = base
        self._adapter = adapter
        self._config = config
        self._doubts = doubts
        self._lock = threading.Lock()
        self._last_factors: tuple[str, _Factors] | None = None
        self._column_scales: dict[str, torch.Tensor] = {}
        self._small: dict[str, torch.Tensor] = {}
        placed = self._placed = Placement(base, adapter, config, doubts)
        self._changes, self._biases, self._bias_factors = placed.changes, placed.biases, placed.bias_factors
        self._token_rows, self._replaced = placed.token_rows, placed.replaced
        self._row_changes, self._blocked, self._owners = placed.row_changes, placed.blocked, placed.owners

    @property
    def n_bytes(self) -> int:
        """Size of the base and adapter files in bytes."""
        return self._base.n_bytes + (self._adapter.n_bytes if self._config.changes_weights else 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """Weight files of the base and the adapter."""
        return (*self._base.paths, *(self._adapter.paths if self._config.changes_weights else ()))

    @property
    def description(self) -> Description:
        """The base's description, with a note about the adapter."""
        base = self._base.description
        notes = (*base.notes, *self._adapter.description.notes, self._note())
        return replace(base, notes=notes, unreadable=base.unreadable | self._blocked.keys())

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all tensors."""
        return tuple(sorted({*self._base.names(), *self._replaced, *([HEAD] if self._placed.head else [])}))

    def spec(self, name: str) -> TensorSpec:
        """Return a tensor's spec."""
        spec = self._unchanged_spec(name)
        if name in self._changes:
            self._check_fit(name, spec)
        if name in self._row_changes:
            self._check_rows_fit(name, spec)
        return spec

    def check_fits(self) -> None:
        """Compare the shapes of all changes with the base's tensors; reads the headers of all shards.

        Raises:
            CorruptCheckpointError: If a change has another shape than its tensor.
            UnsupportedFormatError: If the change of a tensor cannot be applied.
        """
        for name in self._blocked:
            self._check_is_applied(name)
        for name in (*self._changes, *self._row_changes):
            self.spec(name)
        for name in self._token_rows:
            self._check_token_rows_fit(name, self.spec(name))
        of_biases = {name: stored for name, (stored, _) in self._biases.items()} | self._bias_factors
        for name, stored in of_biases.items():
            if math.prod(self._adapter.spec(stored).shape) != math.prod(self.spec(name).shape):
                raise self._other_base(name, self._adapter.spec(stored).shape)
        base_names = frozenset(self._base.names())
        for name, stored in self._replaced.items():
            shape = self._adapter.spec(stored).shape
            # An adapter may resize the vocabulary.
            if name in base_names and shape[1:] != self._base.spec(name).shape[1:]:
                raise self._other_base(name, shape)

    def _other_base(self, name: str, shape: tuple[int, ...]) -> CorruptCheckpointError:
        return self._corrupt(
            f"the adapter's tensor for {name!r} has shape {shape}, which does not fit; the adapter was made for "
            "another base"
        )

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor, with adapter tensors assigned to the weights that they change."""
        for tensor in self._base.contents() if isinstance(self._base, ListsContents) else ():
            if tensor.weight == self._placed.head:
                yield replace(tensor, weight=HEAD)
            elif tensor.weight in self._replaced:
                yield replace(tensor, reason=tensor.reason or "the adapter replaces it")
            else:
                yield replace(tensor, reason=tensor.reason or self._blocked.get(tensor.weight))
        whole = {stored: name for name, stored in self._replaced.items()}
        for tensor in self._adapter.contents() if isinstance(self._adapter, ListsContents) else ():
            if tensor.name in whole:
                yield replace(tensor, weight=whole[tensor.name])
            else:
                owner = self._owners.get(tensor.name, tensor.weight)
                yield replace(tensor, weight=owner, belongs_to_other=True, reason=None)

    def read_all_headers(self) -> None:
        """Read all headers."""
        for source in (self._base, self._adapter):
            if isinstance(source, ListsContents):
                source.read_all_headers()

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        self._check_is_applied(name)
        source, stored = self._origin(name)
        whole = source.read(stored)
        if name in self._biases:
            added, scaling = self._biases[name]
            return check_finite(whole + scaling * self._adapter.read(added), self.spec(name), self.label)
        if name in self._bias_factors:
            return whole * self._read_cached(self._bias_factors[name]).reshape(whole.shape)
        if not self._is_changed(name):
            return whole
        matrix = whole.reshape(-1, whole.shape[-1])  # a stack is treated as one tall matrix
        return self._change(name, matrix, np.arange(len(matrix), dtype=np.int64)).reshape(whole.shape)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        self._check_is_applied(name)
        source, stored = self._origin(name)
        values = source.read_rows(stored, rows, max_gap_bytes=max_gap_bytes)
        return self._change(name, values, np.asarray(rows, dtype=np.int64)) if self._is_changed(name) else values

    def _check_is_applied(self, name: str) -> None:
        if name in self._blocked:
            raise UnsupportedFormatError(f"tensor {name!r} cannot be read: {self._blocked[name]}", subject=self.label)

    def _origin(self, name: str) -> tuple[TensorSource, str]:
        stored = self._replaced.get(name)
        if name == HEAD and self._placed.head is not None:
            return self._base, self._placed.head
        return (self._base, name) if stored is None else (self._adapter, stored)

    def _unchanged_spec(self, name: str) -> TensorSpec:
        source, stored = self._origin(name)
        return replace(source.spec(stored), name=name)

    def _is_changed(self, name: str) -> bool:
        return name in self._changes or name in self._token_rows or name in self._row_changes

    def _check_fit(self, name: str, spec: TensorSpec) -> bool:
        change = self._changes[name]
        d_in, d_out = self._adapter.spec(change.a).shape[1], self._adapter.spec(change.b).shape[0]
        if change.transposed and spec.shape == (d_in, d_out):
            return True
        if not change.is_embedding and spec.shape in ((d_out, d_in), (d_in, d_out)):
            return spec.shape != (d_out, d_in)
        raise self._corrupt(
            f"the adapter changes tensor {name!r} of shape {spec.shape} by a product of shape {(d_out, d_in)}, which "
            "does not fit; the adapter was made for another base"
        )

    def _check_rows_fit(self, name: str, spec: TensorSpec) -> RowChange:
        change = self._row_changes[name]
        misfit = change.misfit(spec.shape, lambda stored: self._adapter.spec(stored).shape)
        if misfit is not None:
            raise self._corrupt(
                f"the adapter {misfit} tensor {name!r} of shape {spec.shape}, which does not fit; the adapter was made "
                "for another base"
            )
        return change

    def _change(self, name: str, values: torch.Tensor, rows: IntArray) -> torch.Tensor:
        spec = self._unchanged_spec(name)
        check_rows(spec, rows, self.label)
        if name in self._changes:
            transposed = self._check_fit(name, spec)
            factors = self._factors(name, transposed=transposed)
            values = _add(values, factors, rows)
            if factors.magnitude is not None:
                values *= self._column_scale(name, spec, factors) if transposed else _row_scale(values, factors, rows)
        if name in self._row_changes:
            change = self._check_rows_fit(name, spec)
            values = change.apply(values, torch.from_numpy(rows), spec.shape, self._read_cached)
        if name in self._token_rows:
            values = self._with_tokens(name, spec, values, rows)
        return check_finite(values, spec, self.label, rows=rows)

    def _read_cached(self, name: str) -> torch.Tensor:
        with self._lock:
            if name in self._small:
                return self._small[name]
        values = self._adapter.read(name)
        with self._lock:
            if len(self._small) >= KEPT_TENSORS:
                self._small.clear()
            self._small[name] = values
        return values

    def _factors(self, name: str, *, transposed: bool) -> _Factors:
        with self._lock:
            if self._last_factors is not None and self._last_factors[0] == name:
                return self._last_factors[1]
        change = self._changes[name]
        a, b = self._adapter.read(change.a), self._adapter.read(change.b)
        left, right = (a.T, b.T) if transposed else (b, a)
        magnitude = None
        if self._config.has_magnitudes and change.magnitude is not None:
            magnitude = self._adapter.read(change.magnitude).reshape(-1)
            if len(magnitude) != len(b):
                raise self._corrupt(
                    f"the adapter has {len(magnitude)} magnitudes for tensor {name!r}; expected {len(b)}"
                )
        factors = _Factors(left, change.scaling * right, magnitude)
        with self._lock:
            self._last_factors = (name, factors)
        return factors

    def _column_scale(self, name: str, spec: TensorSpec, factors: _Factors) -> torch.Tensor:
        with self._lock:
            scale = self._column_scales.get(name)
        if scale is None:
            assert factors.magnitude is not None
            source, stored = self._origin(name)
            n_rows, width = spec.shape
            squares = torch.zeros(width, dtype=torch.float64)
            step = max(1, _BLOCK_N_VALUES // width)
            for start in range(0, n_rows, step):
                rows = np.arange(start, min(start + step, n_rows), dtype=np.int64)
                squares += _add(source.read_rows(stored, rows), factors, rows).double().square().sum(dim=0)
            scale = (factors.magnitude.double() / squares.sqrt()).float()
            with self._lock:
                self._column_scales[name] = scale
        return scale

    def _check_token_rows_fit(self, name: str, spec: TensorSpec) -> tuple[str, Mapping[int, int]]:
        stored, place_of = self._token_rows[name]
        shape = self._adapter.spec(stored).shape
        if shape != (len(place_of), spec.shape[-1]):
            raise self._corrupt(
                f"the adapter replaces {len(place_of)} rows of tensor {name!r} of shape {spec.shape}, but its tensor "
                f"of new rows has shape {shape}"
            )
        if max(place_of, default=0) >= spec.shape[0]:
            raise self._corrupt(f"the adapter replaces row {max(place_of):,} of tensor {name!r} of shape {spec.shape}")
        return stored, place_of

    def _with_tokens(self, name: str, spec: TensorSpec, values: torch.Tensor, rows: IntArray) -> torch.Tensor:
        stored, place_of = self._check_token_rows_fit(name, spec)
        replaced_rows = [(at, place_of[row]) for at, row in enumerate(rows.tolist()) if row in place_of]
        if replaced_rows:
            at, places = (list(column) for column in zip(*replaced_rows, strict=True))
            new = self._adapter.read_rows(stored, np.array(places, dtype=np.int64))
            values = values.clone()
            values[at] = new.to(values.dtype)
        return values

    def _corrupt(self, message: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(message, subject=self.label)

    def _note(self) -> str:
        config = self._config
        label = f"{self.label}: an adapter ({config.method}) on {self._base.label}"
        if not config.changes_weights:
            return f"{label}, which leaves the weights unchanged, so the base's weights were compared."
        clauses: list[str] = []
        if self._changes:
            scale = "alpha / sqrt(r)" if config.is_rank_stabilized else "alpha / r"
            rescaled = ", rescaled to learnt lengths," if config.has_magnitudes else ""
            clauses.append(f"W = W_base + ({scale}) B A{rescaled} for {counted(len(self._changes), 'module')}")
        if self._row_changes:
            clauses.append(f"{config.method} on {counted(len(self._row_changes), 'weight')}")
        if self._blocked:
            why = config.not_applied or next(iter(self._doubts.values()), "lacks tensors")
            clauses.append(f"{counted(len(self._blocked), 'changed weight')} not compared, because the adapter {why}")
        if self._token_rows:
            n_rows = sum(len(places) for _, places in self._token_rows.values())
            clauses.append(f"{counted(n_rows, 'token row')} replaced")
        if self._replaced:
            clauses.append(f"{counted(len(self._replaced), 'tensor')} saved whole")
        return f"{label}; {', '.join(clauses) if clauses else 'it changes nothing'}."


def _add(values: torch.Tensor, factors: _Factors, rows: IntArray) -> torch.Tensor:
    return values + (factors.left[torch.from_numpy(rows)] @ factors.right).to(values.dtype)


def _row_scale(values: torch.Tensor, factors: _Factors, rows: IntArray) -> torch.Tensor:
    assert factors.magnitude is not None
    lengths = torch.linalg.norm(values, dim=1)
    scale: torch.Tensor = factors.magnitude[torch.from_numpy(rows)].to(values.dtype) / lengths
    return scale[:, None]


__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "AdaptedSource",
    "AdapterConfig",
    "has_adapter",
    "read_adapter_config",
]
