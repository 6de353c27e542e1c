"""Read the same entries of a quantised model, its declared base, and other candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.lineage.entries import WeightEntries, matrix_shape
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import WeightPart, WeightProduct
from mdir_hf.names import visible_text
from mdir_hf.reconstruction.places import BUFFERS

ROWS, COLUMNS = 8, 512
"""Largest numbers of neighbouring rows and columns that are read of a matrix."""

EDGE_ROWS = 32
"""Number of rows that are read of an embedding or output head, in any place."""

BLOCK = 32
"""Columns begin at a multiple of this."""

MOST_BYTES = 512 << 20
"""Layers are read in random order until this many bytes were read: a few rows of all layers take less, unless a format
stores rows in one piece."""

FEWEST_LAYERS = 4
MOST_EXPERTS, MOST_OTHERS = 2, 256
"""Maximum numbers of experts of a layer, and of tensors without a known role, that are read."""

PLAIN = {
    **dict.fromkeys(("BF16", "bfloat16"), torch.bfloat16),
    **dict.fromkeys(("F16", "float16"), torch.float16),
    **dict.fromkeys(("F32", "float32"), torch.float32),
    **dict.fromkeys(("F64", "float64"), torch.float64),
}

LONGEST_NAME = 100

EMBEDDING, HEAD, FINAL_NORM = "the embedding", "the output head", "the final norm"


_Parts = Mapping[str, WeightPart]
ColumnFactors = tuple[npt.NDArray[np.int64], torch.Tensor]
"""Columns of a matrix, and the factors that fit each of them to the base's."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReadPair:
    """The same entries of a tensor, as float64: ``(r, c)``, or all of ``(d,)``.

    Attributes:
        is_plain: Whether the model stores them in a dtype of numbers, and not as codes.
        dtype: The model's dtype if it is plain, else float32.
        width: Number of columns of the whole tensor.
        columns: The columns that are read; None for a vector.
        next_factors: If this is a norm, the factors of matrices that may read its output.
    """

    place: str
    values: torch.Tensor
    of_base: torch.Tensor
    is_plain: bool
    dtype: torch.dtype
    width: int
    columns: npt.NDArray[np.int64] | None = None
    of_others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_norm: bool = False
    next_factors: tuple[ColumnFactors, ...] = ()

    def column_factors(self) -> ColumnFactors | None:
        """Fit the columns of a matrix to the base's; None for a vector."""
        if self.columns is None:
            return None
        squares = self.values.square().sum(dim=0).clamp(min=1e-30)
        return self.columns, (self.values * self.of_base).sum(dim=0) / squares


@dataclass(frozen=True, slots=True)
class Skipped:
    """Tensors that were not read.

    Attributes:
        unlike: Clauses about tensors that only one of the two models has, or that have other shapes.
        untested: Names of groups of tensors that were not read.
    """

    unlike: tuple[str, ...]
    untested: tuple[str, ...]
    n_layers: int
    n_read_layers: int


def read_pairs(model: Model, base: Model, others: Mapping[str, Model]) -> tuple[list[ReadPair], Skipped]:
    """Read a few rows of each tensor of a quantised model and of its base.

    Rows and the order of layers are drawn from system entropy.
    """
    reader = _PairReader(model, base, others)
    layers = sorted({layer.index for side in (model, base) for layer in side.anatomy.layers})
    ledger = model.repository.ledger
    pairs = [*reader.edges(), *reader.without_role()]
    n_bytes, n_read = ledger.bytes_read, 0
    for number in np.random.default_rng().permutation(layers).tolist():
        if n_read >= FEWEST_LAYERS and ledger.bytes_read - n_bytes > MOST_BYTES:
            break
        pairs += reader.layer(number)
        n_read += 1
    return pairs, Skipped(tuple(reader.unlike), tuple(reader.untested), len(layers), n_read)


class _PairReader:
    def __init__(self, model: Model, base: Model, others: Mapping[str, Model]) -> None:
        self._model, self._base, self._others = model, base, others
        self._draw = np.random.default_rng()
        self.unlike: list[str] = []
        self.untested: dict[str, None] = {}

    def edges(self) -> list[ReadPair]:
        """Read the embedding, the output head and the final norm; a head that is not stored is the embedding."""
        model, base = self._model.anatomy, self._base.anatomy
        pairs = list(self._pairs(_present({EMBEDDING: model.embedding}), _present({EMBEDDING: base.embedding})))
        heads: list[ReadPair] = []
        if base.unembedding is not None or model.unembedding is not None:
            of_model, of_base = model.unembedding or model.embedding, base.unembedding or base.embedding
            heads = list(self._pairs(_present({HEAD: of_model}), _present({HEAD: of_base})))
        norms = _present({FINAL_NORM: model.final_norm}), _present({FINAL_NORM: base.final_norm})
        return [*pairs, *heads, *self._pairs(*norms, readers=heads)]

    def layer(self, number: int) -> list[ReadPair]:
        """Read one layer."""
        n_experts = max((len(layer.experts) for layer in self._base.anatomy.layers if layer.index == number), default=0)
        experts = self._draw.permutation(n_experts)[:MOST_EXPERTS].tolist()
        if n_experts > MOST_EXPERTS:
            self.untested[f"all but {MOST_EXPERTS} of the {n_experts} experts of a layer"] = None
        model, base, *others = (
            _parts_of_layer(side, number, experts) for side in (self._model, self._base, *self._others.values())
        )
        of_others = dict(zip(self._others, others, strict=True))
        matrices = list(self._pairs(_norms(model, False), _norms(base, False), of_others))
        return [*matrices, *self._pairs(_norms(model, True), _norms(base, True), readers=matrices)]

    def without_role(self) -> Iterator[ReadPair]:
        """Read tensors that have no role, such as biases and towers, by their names."""
        in_model, in_base = (_names_without_role(side) for side in (self._model, self._base))
        if bool(self._model.tensors.description.metadata) != bool(self._base.tensors.description.metadata):
            if in_base:  # names in GGUF files differ
                self.untested["tensors without a known role"] = None
            return
        biases = [name for name in in_model if name.endswith("bias") and name not in in_base]
        names = [*in_base, *biases]
        if len(names) > MOST_OTHERS:
            self.untested[f"{len(names) - MOST_OTHERS} of {len(names)} tensors without a known role"] = None
            names = [names[at] for at in np.sort(self._draw.permutation(len(names))[:MOST_OTHERS])]
        stored = set(self._model.tensors.names())
        self._note("it lacks", [name for name in names if name not in stored])
        for name in names:
            if name in in_base and name in stored:
                yield from self._whole_tensors(name)
            elif name in stored and bool(self._model.tensors.read(name).any()):  # GPTQ adds biases of zeros
                self._note("the base lacks", [name])

    def _whole_tensors(self, name: str) -> Iterator[ReadPair]:
        place = visible_text(name, length=LONGEST_NAME)
        shape, of_base = (side.tensors.spec(name).shape for side in (self._model, self._base))
        if shape != of_base:
            self._note_shapes(place, shape, of_base)
        elif math.prod(shape):
            n_rows = math.prod(shape[:-1])
            rows = self._neighbours(n_rows, ROWS)
            values, base = (
                (side.tensors.read(name).reshape(-1) if len(shape) < 2 else side.tensors.read_rows(name, rows)).double()
                for side in (self._model, self._base)
            )
            columns = None if len(shape) < 2 else np.arange(shape[-1], dtype=np.int64)
            yield self._pair(place, name, values, base, columns=columns, width=values.shape[-1])

    def _pairs(
        self,
        parts: _Parts,
        of_base: _Parts,
        of_others: Mapping[str, _Parts] = MappingProxyType({}),
        readers: Sequence[ReadPair] | None = None,
    ) -> Iterator[ReadPair]:
        """Yield pairs of the same place. If ``readers`` is given, they are norms, whose output these matrices read."""
        self._note("it lacks", [place for place in of_base if place not in parts])
        self._note("the base lacks", [place for place in parts if place not in of_base])
        for place in parts.keys() & of_base.keys():
            part, base_part = parts[place], of_base[place]
            if any(p.per_head or p.joined or p.expert is not None for p in (part, base_part)):
                is_stack = part.expert is not None or base_part.expert is not None
                self.untested["stacked experts" if is_stack else place] = None
                continue
            shape, base_shape = matrix_shape(self._model, part), matrix_shape(self._base, base_part)
            if shape != base_shape:
                self._note_shapes(place, shape, base_shape)
            elif len(shape) == 1:
                values, base = (
                    side.tensors.read(of_side.tensor)[of_side.rows(side.tensors.spec(of_side.tensor).shape)].double()
                    + float(readers is not None and side.anatomy.norms_add_one)
                    for side, of_side in ((self._model, part), (self._base, base_part))
                )
                factors = [reader.column_factors() for reader in readers or () if reader.width == shape[0]]
                yield self._pair(
                    place,
                    part.tensor,
                    values,
                    base,
                    width=shape[0],
                    is_norm=readers is not None,
                    next_factors=tuple(pair for pair in factors if pair is not None),
                )
            elif len(shape) == 2:
                yield self._matrix(place, part, base_part, of_others)
            else:
                self.untested[place] = None

    def _matrix(self, place: str, part: WeightPart, base_part: WeightPart, of_others: Mapping[str, _Parts]) -> ReadPair:
        n_rows, width = matrix_shape(self._model, part)
        if place in (EMBEDDING, HEAD):
            rows = np.sort(self._draw.permutation(n_rows)[:EDGE_ROWS]).astype(np.int64)
        else:
            rows = self._neighbours(n_rows, ROWS)
        start = BLOCK * int(self._draw.integers(0, max(0, width - COLUMNS) // BLOCK + 1))
        entries = WeightEntries(part, rows, np.arange(start, min(start + COLUMNS, width), dtype=np.int64))
        others = {
            name: entries.of(parts[place]).read(self._others[name]).double()
            for name, parts in of_others.items()
            if place in parts and matrix_shape(self._others[name], parts[place]) == (n_rows, width)
        }
        values, base = entries.read(self._model).double(), entries.of(base_part).read(self._base).double()
        return self._pair(place, part.tensor, values, base, columns=entries.columns, width=width, of_others=others)

    def _pair(
        self,
        place: str,
        name: str,
        values: torch.Tensor,
        base: torch.Tensor,
        **fields: Any,  # noqa: ANN401
    ) -> ReadPair:
        dtype = PLAIN.get(self._model.tensors.spec(name).dtype)
        return ReadPair(
            place=place,
            values=values,
            of_base=base,
            is_plain=dtype is not None,
            dtype=dtype or torch.float32,
            **fields,
        )

    def _neighbours(self, n: int, most: int) -> npt.NDArray[np.int64]:
        start = int(self._draw.integers(0, max(0, n - most) + 1))
        return np.arange(start, min(start + most, n), dtype=np.int64)

    def _note(self, clause: str, places: Sequence[str]) -> None:
        if places:
            first = visible_text(places[0], length=LONGEST_NAME)
            self.unlike.append(f"{clause} {first}" + (f" and {len(places) - 1} more" if len(places) > 1 else ""))

    def _note_shapes(self, place: str, shape: tuple[int, ...], base_shape: tuple[int, ...]) -> None:
        self.unlike.append(f"{place} has the shape {shape}, and {base_shape} in the base")


def _present(parts: Mapping[str, WeightPart | None]) -> _Parts:
    return {place: part for place, part in parts.items() if part is not None}


def _norms(parts: _Parts, are_norms: bool) -> _Parts:
    return {place: part for place, part in parts.items() if place.endswith("norm") is are_norms}


def _parts_of_layer(model: Model, number: int, experts: Sequence[int]) -> _Parts:
    """Return the parts of a layer, with both factors of products, and only the given experts."""
    parts: dict[str, WeightPart] = {}
    for layer in model.anatomy.layers:
        if layer.index != number:
            continue
        groups = {f"layer {number}": layer.parts}
        groups |= {f"layer {number} expert {at}": layer.experts[at] for at in experts if at < len(layer.experts)}
        groups |= {f"layer {number} shared expert {at}": group for at, group in enumerate(layer.shared_experts)}
        for prefix, group in groups.items():
            for role, part in group.items():
                place = f"{prefix} {role.value.replace('_', ' ')}"
                if isinstance(part, WeightProduct):
                    factors = {"left factor": part.left, "right factor": part.right, "inner norm": part.gain}
                    parts |= _present({f"{place} {name}": factor for name, factor in factors.items()})
                else:
                    parts[place] = part
    return parts


def _names_without_role(model: Model) -> dict[str, None]:
    anatomy = model.anatomy
    edges = (anatomy.embedding, anatomy.unembedding, anatomy.final_norm)
    placed = {part.tensor for part in edges if part is not None}
    for layer in anatomy.layers:
        for _, part in layer.all_parts():
            placed.update(part.tensors)
    names = (name for name in sorted(model.tensors.names()) if not name.endswith(BUFFERS))
    return dict.fromkeys(name for name in names if name not in placed)
