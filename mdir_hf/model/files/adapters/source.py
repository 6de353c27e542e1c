"""The weights of a base model with an adapter: bytes of the base, and a difference added while reading."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.adapters.config import AdapterConfig
from mdir_hf.model.files.adapters.experts import fitting_stack, stacked_experts
from mdir_hf.model.files.adapters.names import BaseNames, ModuleChange, components_of, sort_by_slots, sort_names
from mdir_hf.model.files.adapters.row_changes import KINDS, SHARED_SLOTS, ExpertRows, ModuleRows, RowChange, rank_of
from mdir_hf.model.files.decode import check_finite
from mdir_hf.model.files.ranged import check_rows
from mdir_hf.model.files.sources import Description, ListsContents, StoredTensor, TensorSource, TensorSpec
from mdir_hf.model.files.spans import IntArray

KEPT_TENSORS = 16
"""Small tensors of an adapter that are kept."""

_SORTED_AS_LORA = frozenset({"LORA", "TRAINABLE_TOKENS", "LN_TUNING"})
_OF_CONVOLUTIONS = frozenset({"hada_t1", "hada_t2", "lokr_t2"})

_BLOCK_N_VALUES = 1 << 24
"""Values of a block where all rows must be seen to know the lengths of columns: 64 MiB in float32."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What is done to one matrix of the base: ``scaling`` times ``B A``, or its transpose, is added."""

    a: str
    b: str
    magnitude: str | None
    is_embedding: bool
    scaling: float
    transposed: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors of one matrix as rows and columns of what is stored: ``left[rows] @ right`` is the difference."""

    left: torch.Tensor
    right: torch.Tensor
    magnitude: torch.Tensor | None


class AdaptedSource:
    """A base model with a PEFT adapter on it. Implements ``TensorSource``.

    W = W_base + s B A for the modules of the adapter (LoRA; s = alpha / r, or alpha / sqrt(r) for rsLoRA), rescaled
    row by row for DoRA; for experts in one tensor, s B_e A_e is added to the matrix of expert e. LoHa, LoKr, IA3, VeRA,
    OFT and AdaLoRA are applied as :mod:`.row_changes` says. Tensors that the adapter saved whole replace those of the
    base. A tensor that an adapter of another kind changes cannot be read; all others can. Rows cost the same rows of
    the base, and the small tensors. Where DoRA rescales columns (embeddings, Conv1D), their lengths cost one pass over
    the matrix. Results are float32, and are not rounded to the base's dtype as a merged file would be. Safe to use from
    several threads.

    Args:
        base: The weights of the base.
        adapter: The tensors of the adapter.
        config: What the adapter says about itself.

    Raises:
        CorruptCheckpointError: If factors are missing, or do not fit each other.
        UnsupportedFormatError: If the adapter changes something that the base does not hold under such a name.
    """

    def __init__(self, base: TensorSource, adapter: TensorSource, config: AdapterConfig) -> None:
        self.label = adapter.label
        self._base = base
        self._adapter = adapter
        self._config = config
        self._lock = threading.Lock()
        self._held: tuple[str, _Factors] | None = None
        self._column_scales: dict[str, torch.Tensor] = {}
        self._changes: dict[str, _Change] = {}
        self._biases: dict[str, tuple[str, float]] = {}
        self._token_rows: dict[str, tuple[str, dict[int, int]]] = {}
        self._replaced: dict[str, str] = {}
        self._row_changes: dict[str, RowChange] = {}
        self._blocked: dict[str, str] = {}
        self._small: dict[str, torch.Tensor] = {}
        self._bias_factors: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        if not config.changes_weights:
            return
        if config.kind in _SORTED_AS_LORA:
            self._place()
        elif config.kind in KINDS:
            self._place_kind()
        else:
            self._block_targets()

    @property
    def n_bytes(self) -> int:
        """Size of the weight files of both, in bytes."""
        return self._base.n_bytes + (self._adapter.n_bytes if self._config.changes_weights else 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files of both, each in its own tree."""
        return (*self._base.paths, *(self._adapter.paths if self._config.changes_weights else ()))

    @property
    def description(self) -> Description:
        """That of the base, and what the adapter does to it."""
        base = self._base.description
        return replace(base, notes=(*base.notes, self._note()), unreadable=base.unreadable | self._blocked.keys())

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted: the base's, and those that only the adapter has."""
        return tuple(sorted({*self._base.names(), *self._replaced}))

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a tensor, and the place of what it is made of most: the base's tensor, or the adapter's.

        Raises:
            TensorNotFoundError: If neither holds such a tensor.
            CorruptCheckpointError: If the adapter does not fit it.
        """
        spec = self._unchanged_spec(name)
        if name in self._changes:
            self._check_fit(name, spec)
        if name in self._row_changes:
            self._check_rows_fit(name, spec)
        return spec

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor of both; those of the adapter belong to the weights that they change."""
        for tensor in self._base.contents() if isinstance(self._base, ListsContents) else ():
            if tensor.weight in self._replaced:
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
        """Read the headers of all files of both."""
        for source in (self._base, self._adapter):
            if isinstance(source, ListsContents):
                source.read_all_headers()

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor as float32 (float64 stays float64).

        Raises:
            CorruptCheckpointError: If it, or what is added to it, is not finite, or does not fit.
        """
        self._check_is_applied(name)
        source, stored = self._origin(name)
        whole = source.read(stored)
        if name in self._biases:
            added, scaling = self._biases[name]
            return check_finite(whole + scaling * self._adapter.read(added), self.spec(name), self.label)
        if name in self._bias_factors:
            return whole * self._kept(self._bias_factors[name]).reshape(whole.shape)
        if not self._is_changed(name):
            return whole
        matrix = whole.reshape(-1, whole.shape[-1])  # a stack counts as one matrix of all its rows
        return self._change(name, matrix, np.arange(len(matrix), dtype=np.int64)).reshape(whole.shape)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows as float32 (float64 stays float64), in the order asked.

        Raises:
            InputError: If it has no rows, or a row is outside of it.
            CorruptCheckpointError: If a wanted row is not finite, or the adapter does not fit.
        """
        self._check_is_applied(name)
        source, stored = self._origin(name)
        values = source.read_rows(stored, rows, max_gap_bytes=max_gap_bytes)
        return self._change(name, values, np.asarray(rows, dtype=np.int64)) if self._is_changed(name) else values

    def _place(self) -> None:
        """Find what each tensor of the adapter belongs to."""
        config = self._config
        names = sort_names(self._adapter.names(), label=self.label, has_parameters=bool(config.parameters))
        known = self._replace(names.replaced)
        changes = [(module, change) for module, change in names.modules.items()]
        for module, wrapped in names.parameters.items():
            self._place_parameters(module, wrapped, known)
        for module, change in changes:
            weight = known.find(f"{module}.weight")
            if weight is None and config.parameters and change.a is not None:
                self._place_parameters(module, (change,), known)
                continue
            if weight is None:
                raise self._no_such_weight(module)
            self._owners |= dict.fromkeys(change.names, weight)
            if config.not_applied is not None:
                self._block(weight, config.not_applied)
                continue
            if change.tokens is not None:
                self._token_rows[weight] = (change.tokens, self._rows_of(module))
            if change.a is not None and change.b is not None:
                self._changes[weight] = self._pair(module, change.a, change.b, change)
                bias = known.find(f"{module}.bias")
                if change.bias is not None and bias is not None:
                    self._biases[bias] = (change.bias, self._changes[weight].scaling)

    def _replace(self, whole: Mapping[str, str]) -> BaseNames:
        """Note the tensors that the adapter saved whole; returns all names that there are then."""
        base = BaseNames(self._base.names())
        for name, stored in whole.items():
            replaced = base.find(name) or name
            if replaced in self._replaced:
                raise self._corrupt(f"the adapter holds two tensors for {replaced!r}")
            self._replaced[replaced] = stored
        return BaseNames({*self._base.names(), *self._replaced}) if self._replaced else base

    def _no_such_weight(self, module: str) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"the adapter changes {module!r}, and its base {self._base.label} holds no weight of that name: "
            "its files have another layout than the model in memory; merge the adapter "
            "(`model.merge_and_unload()`) and compare the result",
            subject=self.label,
        )

    def _place_parameters(self, module: str, wrapped: Sequence[ModuleChange], known: BaseNames) -> None:
        """Place factors of parameters that are no modules: stacked experts, in the base one by one or as a stack."""
        config = self._config
        parameters = [name.rpartition(".")[2] for name in config.parameters if _ends_module(name, module)]
        stacks = stacked_experts(
            module, parameters, known, self._base.names(), lambda name: self._base.spec(name).shape
        )
        for change in wrapped:
            if change.a is None or change.b is None:
                raise self._corrupt(f"the adapter lacks a factor of a parameter of {module!r}")
            a, b = (self._adapter.spec(name).shape for name in (change.a, change.b))
            fitting = fitting_stack(stacks, a, b, config.rank)
            if fitting is None:
                raise self._no_such_weight(f"{module} ({', '.join(parameters) or 'a parameter'})")
            scaling = config.scaling(f"{module}.{fitting.parameter}", a[0] // fitting.n_experts)
            for weight, place in fitting.weights.items():
                self._owners.setdefault(change.a, weight)
                self._owners.setdefault(change.b, weight)
                if config.not_applied is not None or fitting.is_transposed is None:
                    why = config.not_applied or "changes square matrices of experts, which could be stored either way"
                    self._block(weight, why)
                    continue
                self._row_changes[weight] = ExpertRows(
                    change.a,
                    change.b,
                    fitting.n_experts,
                    scaling,
                    is_transposed=fitting.is_transposed,
                    expert=place[0],
                    first_row=place[1],
                )

    def _place_kind(self) -> None:
        """Place the tensors of a kind that is applied row by row."""
        config = self._config
        kind = KINDS[config.kind]
        shared = SHARED_SLOTS.get(config.kind, ())
        modules, whole = sort_by_slots(self._adapter.names(), kind.slots, shared)
        known = self._replace(whole)
        for module, slots in modules.items():
            weight = known.find(f"{module}.weight")
            if weight is None:
                raise self._no_such_weight(module)
            self._owners |= dict.fromkeys(slots.values(), weight)
            shapes = {slot: self._adapter.spec(name).shape for slot, name in slots.items()}
            rank = rank_of(shapes) or (None if config.ranks else config.rank)
            is_whole = any(slots.keys() >= needed for needed in kind.needed)
            if config.not_applied is None and is_whole and rank is not None and not slots.keys() & _OF_CONVOLUTIONS:
                self._row_changes[weight] = ModuleRows(
                    config.kind, slots, config.settings, config.scaling(module, rank)
                )
                bias = known.find(f"{module}.bias")
                if bias is not None and shapes.get("ia3_l", (0,))[0] > 1:  # IA3 scales outputs, biases among them
                    self._bias_factors[bias] = slots["ia3_l"]
                continue
            self._block(weight, config.not_applied or f"lacks tensors of {config.method} that its files do not hold")

    def _block_targets(self) -> None:
        """Refuse every weight that an adapter of an unknown kind changes, and read all others."""
        why = self._config.not_applied
        assert why is not None
        known = BaseNames(self._base.names())
        for name in self._adapter.names():
            parts = components_of(name)
            ends = (".".join(parts[:stop]) for stop in range(len(parts), 0, -1))
            weight = next((found for end in ends if (found := known.find(f"{end}.weight")) is not None), None)
            if weight is None:
                raise UnsupportedFormatError(
                    f"this adapter on {self._config.base!r} {why}; and which weights its tensor {name!r} changes is "
                    "unknown",
                    subject=self.label,
                )
            self._owners[name] = weight
            self._block(weight, why)

    def _block(self, weight: str, why: str) -> None:
        self._blocked[weight] = f"an adapter that {why} changes it"

    def _check_is_applied(self, name: str) -> None:
        if name in self._blocked:
            raise UnsupportedFormatError(f"tensor {name!r} is not read: {self._blocked[name]}", subject=self.label)

    def _pair(self, module: str, a_name: str, b_name: str, change: ModuleChange) -> _Change:
        """Check the two factors of a module against each other and the config."""
        a, b = self._adapter.spec(a_name).shape, self._adapter.spec(b_name).shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or 0 in (*a, *b):
            raise self._corrupt(
                f"the factors of {module!r} do not make a product: A has shape {a} and B {b}, expected (r, d_in) and "
                "(d_out, r)"
            )
        config = self._config
        if a[0] != config.rank and a[0] not in config.ranks:
            raise self._corrupt(
                f"the factors of {module!r} have rank {a[0]}, and the config says {config.rank}"
                + (f" or {', '.join(map(str, sorted(config.ranks)))}" if config.ranks else "")
            )
        if config.has_magnitudes and change.magnitude is None:
            raise self._corrupt(f"the adapter lacks the magnitudes of {module!r} (DoRA)")
        scaling = config.scaling(module, a[0])
        transposed = change.is_embedding or (config.is_transposed and a[1] == b[0])
        return _Change(a_name, b_name, change.magnitude, change.is_embedding, scaling, transposed)

    def _rows_of(self, module: str) -> dict[int, int]:
        """Row of the base to row of the adapter's tensor."""
        for pattern, numbers in self._config.token_rows.items():
            if pattern in ("", module) or module.endswith("." + pattern):
                return {row: at for at, row in enumerate(numbers)}
        raise self._corrupt(f"the adapter holds rows of {module!r}, and its config does not say which")

    def _origin(self, name: str) -> tuple[TensorSource, str]:
        """Where a tensor is before it is changed, and its name there."""
        stored = self._replaced.get(name)
        return (self._base, name) if stored is None else (self._adapter, stored)

    def _unchanged_spec(self, name: str) -> TensorSpec:
        source, stored = self._origin(name)
        return replace(source.spec(stored), name=name)

    def _is_changed(self, name: str) -> bool:
        return name in self._changes or name in self._token_rows or name in self._row_changes

    def _check_fit(self, name: str, spec: TensorSpec) -> bool:
        """Check a matrix against its factors; return whether the difference is the transpose of their product."""
        change = self._changes[name]
        d_in, d_out = self._adapter.spec(change.a).shape[1], self._adapter.spec(change.b).shape[0]
        if change.transposed and spec.shape == (d_in, d_out):
            return True
        if not change.is_embedding and spec.shape in ((d_out, d_in), (d_in, d_out)):
            return spec.shape != (d_out, d_in)
        raise self._corrupt(
            f"the adapter changes tensor {name!r} of shape {spec.shape} by a product of shape {(d_out, d_in)}, which "
            "does not fit; it was made for another base"
        )

    def _check_rows_fit(self, name: str, spec: TensorSpec) -> RowChange:
        change = self._row_changes[name]
        misfit = change.misfit(spec.shape, lambda stored: self._adapter.spec(stored).shape)
        if misfit is not None:
            raise self._corrupt(
                f"the adapter {misfit} tensor {name!r} of shape {spec.shape}, which does not fit; it was made for "
                "another base"
            )
        return change

    def _change(self, name: str, values: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Add the difference to some rows, rescale them, and put in the rows that the adapter replaces."""
        spec = self._unchanged_spec(name)
        check_rows(spec, rows, self.label)
        if name in self._changes:
            transposed = self._check_fit(name, spec)
            factors = self._factors(name, transposed)
            values = _add(values, factors, rows)
            if factors.magnitude is not None:
                values *= self._column_scale(name, spec, factors) if transposed else _row_scale(values, factors, rows)
        if name in self._row_changes:
            change = self._check_rows_fit(name, spec)
            values = change.apply(values, torch.from_numpy(rows), spec.shape, self._kept)
        if name in self._token_rows:
            values = self._with_tokens(name, spec, values, rows)
        return check_finite(values, spec, self.label, rows=rows)

    def _kept(self, name: str) -> torch.Tensor:
        """Read a small tensor of the adapter; the last ones are kept, as rows of one weight are read often."""
        with self._lock:
            if name in self._small:
                return self._small[name]
        values = self._adapter.read(name)
        with self._lock:
            if len(self._small) >= KEPT_TENSORS:
                self._small.clear()
            self._small[name] = values
        return values

    def _factors(self, name: str, transposed: bool) -> _Factors:
        """The factors of a matrix, scaled; those of the last one are kept, as rows of an embedding are read often."""
        with self._lock:
            if self._held is not None and self._held[0] == name:
                return self._held[1]
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
            self._held = (name, factors)
        return factors

    def _column_scale(self, name: str, spec: TensorSpec, factors: _Factors) -> torch.Tensor:
        """What each column is multiplied by, ``(d,)``; its length over all rows is found once, block by block."""
        with self._lock:
            known = self._column_scales.get(name)
        if known is None:
            assert factors.magnitude is not None
            source, stored = self._origin(name)
            n_rows, width = spec.shape
            squares = torch.zeros(width, dtype=torch.float64)
            step = max(1, _BLOCK_N_VALUES // width)
            for start in range(0, n_rows, step):
                rows = np.arange(start, min(start + step, n_rows), dtype=np.int64)
                squares += _add(source.read_rows(stored, rows), factors, rows).double().square().sum(dim=0)
            known = (factors.magnitude.double() / squares.sqrt()).float()
            with self._lock:
                self._column_scales[name] = known
        return known

    def _with_tokens(self, name: str, spec: TensorSpec, values: torch.Tensor, rows: IntArray) -> torch.Tensor:
        stored, place_of = self._token_rows[name]
        shape = self._adapter.spec(stored).shape
        if shape != (len(place_of), spec.shape[-1]):
            raise self._corrupt(
                f"the adapter replaces {len(place_of)} rows of tensor {name!r} of shape {spec.shape} by a tensor of "
                f"shape {shape}"
            )
        if max(place_of, default=0) >= spec.shape[0]:
            raise self._corrupt(f"the adapter replaces row {max(place_of):,} of tensor {name!r} of shape {spec.shape}")
        wanted = [(at, place_of[row]) for at, row in enumerate(rows.tolist()) if row in place_of]
        if wanted:
            at, places = (list(column) for column in zip(*wanted, strict=True))
            new = self._adapter.read_rows(stored, np.array(places, dtype=np.int64))
            values = values.clone()
            values[at] = new.to(values.dtype)
        return values

    def _corrupt(self, message: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(message, subject=self.label)

    def _note(self) -> str:
        config = self._config
        where = f"{self.label}: an adapter ({config.method}) on {self._base.label}"
        if not config.changes_weights:
            return f"{where}, which leaves all weights as they are: those of the base were compared."
        said: list[str] = []
        if self._changes:
            scale = "alpha / sqrt(r)" if config.is_rank_stabilized else "alpha / r"
            rescaled = ", rescaled to learnt lengths," if config.has_magnitudes else ""
            said.append(f"W = W_base + ({scale}) B A{rescaled} for {_count(len(self._changes), 'module')}")
        if self._row_changes:
            said.append(f"{config.method} on {_count(len(self._row_changes), 'weight')}")
        if self._blocked:
            why = config.not_applied or "lacks tensors"
            said.append(f"{_count(len(self._blocked), 'weight')} that it changes not compared, because it {why}")
        if self._token_rows:
            n_rows = sum(len(places) for _, places in self._token_rows.values())
            said.append(f"{_count(n_rows, 'row')} of tokens replaced")
        if self._replaced:
            said.append(f"{_count(len(self._replaced), 'tensor')} saved whole")
        return f"{where}; {', '.join(said) if said else 'it changes nothing'}."


def _add(values: torch.Tensor, factors: _Factors, rows: IntArray) -> torch.Tensor:
    return values + (factors.left[torch.from_numpy(rows)] @ factors.right).to(values.dtype)


def _row_scale(values: torch.Tensor, factors: _Factors, rows: IntArray) -> torch.Tensor:
    """What each row is multiplied by, ``(k, 1)``: its learnt length over its length."""
    assert factors.magnitude is not None
    lengths = torch.linalg.norm(values, dim=1)
    scale: torch.Tensor = factors.magnitude[torch.from_numpy(rows)].to(values.dtype) / lengths
    return scale[:, None]


def _ends_module(parameter: str, module: str) -> bool:
    """Whether ``target_parameters`` means a parameter of a module: ``mlp.experts.down_proj`` of ``…mlp.experts``."""
    owner = parameter.rpartition(".")[0]
    return not owner or module == owner or module.endswith("." + owner)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
