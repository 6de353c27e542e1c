"""The schema of a saved reconstruction, ``mdir-hf/reconstruction/1``, checked before any array is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from annotated_types import Ge, Gt, Le
from pydantic import ValidationError

from mdir_hf.budgets import Budget
from mdir_hf.errors import ReconstructionError
from mdir_hf.method.gauge import MapKind
from mdir_hf.method.inner_maps import BlockKind
from mdir_hf.method.neuron_maps import NeuronKind
from mdir_hf.method.planes import PlanePairing
from mdir_hf.validation import AS_WRITTEN, read_json

SCHEMA: Literal["mdir-hf/reconstruction/1"] = "mdir-hf/reconstruction/1"

INDEX_BUDGET = Budget(16 << 20, 2 << 20)
"""The index of a model of 61 layers with 256 experts each takes 5 MB and 0.7 million items."""

MAX_ARRAYS_BYTES = 8 << 30
"""Limit on all arrays. A rotation of 16,384 channels in float64 takes 2 GiB."""

AGAIN = "save it again with `mdir-hf align` or `mdir-hf compare --output`"

Residual = Annotated[float, Ge(0.0)]
NChannels = Annotated[int, Ge(1), Le(1 << 20)]
NNeurons = Annotated[int, Ge(0), Le(1 << 24)]
NHeads = Annotated[int, Ge(1), Le(1 << 16)]
Position = Annotated[int, Ge(0), Le(1 << 16)]
NormName = Literal["attention_norm", "mlp_norm", "shared_norm"]


class _Strict:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN


@dataclass(frozen=True)
class StreamIndex(_Strict):
    """The map of the residual stream."""

    kind: MapKind
    n_reference: NChannels
    n_candidate: NChannels
    scale: Annotated[float, Gt(0.0)]
    residual: Residual
    fitted_on: str
    rotation_left_out: bool


@dataclass(frozen=True)
class GainsIndex(_Strict):
    """The gains of a norm; they have arrays if they are moved."""

    is_moved: bool


@dataclass(frozen=True)
class BlocksIndex(_Strict):
    """One matrix for each matched head."""

    kind: BlockKind
    residual: Residual


@dataclass(frozen=True)
class AttentionIndex(_Strict):
    """The heads of a layer."""

    n_kv_heads: NHeads
    n_heads: NHeads
    layouts: tuple[PlanePairing, PlanePairing] | None
    rotary_dim: Annotated[int, Ge(0), Le(1 << 16)] | None
    values: BlocksIndex | None
    keys: BlocksIndex | None


@dataclass(frozen=True)
class MlpIndex(_Strict):
    """The neurons of an MLP or expert."""

    kind: NeuronKind
    n_neurons: NNeurons
    matched: NNeurons


@dataclass(frozen=True)
class ExpertsIndex(_Strict):
    """The experts of a layer."""

    routed: list[MlpIndex]
    shared: list[MlpIndex]


@dataclass(frozen=True)
class LayerIndex(_Strict):
    """One layer of the candidate."""

    reference: Position | None
    candidate: Position
    residuals: dict[str, Residual]
    attention: AttentionIndex | None
    mlp: MlpIndex | None
    experts: ExpertsIndex | None
    gains: dict[NormName, GainsIndex | None]


@dataclass(frozen=True)
class Index(_Strict):
    """The content of ``reconstruction.json``."""

    schema: Literal["mdir-hf/reconstruction/1"]
    version: str
    reference: str
    candidate: str
    stream: StreamIndex
    residuals: dict[str, Residual]
    final_gain: GainsIndex | None
    layers: list[LayerIndex]


Arrays = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and torch dtype of each array in the array file."""


def read_index(content: bytes, arrays: Arrays, label: str) -> Index:
    """Read an index, and check it together with the shapes of the arrays in the array file.

    Raises:
        ReconstructionError: If anything in it is impossible; the message names the entry.
    """
    try:
        index = read_json(content, Index, what="it", label=label, budget=INDEX_BUDGET, error=ReconstructionError)
    except ReconstructionError as exc:
        raise ReconstructionError(f"{_named(exc.__cause__) or exc.message}; {AGAIN}", subject=label) from exc
    _Checker(index, arrays, label).check()
    return index


def _named(exc: BaseException | None) -> str:
    """Name the whole path of an invalid entry, or return an empty string."""
    if not isinstance(exc, ValidationError):
        return ""
    wrong = max(exc.errors(include_url=False), key=lambda error: len(error["loc"]))
    path = ".".join(str(step) for step in wrong["loc"])
    return f"its {path:.200} is {wrong['input']!r:.80}; {wrong['msg']}" if path else ""


_FLOATS, _INTEGERS = ("float32", "float64"), ("int32", "int64")


@dataclass(frozen=True, slots=True)
class _Checker:
    index: Index
    arrays: Arrays
    label: str
    used: set[str] = field(default_factory=set)

    def check(self) -> None:
        self._stream(self.index.stream)
        self._gains(self.index.final_gain, "final_gain")
        for position, layer in enumerate(self.index.layers):
            at = f"layers.{position}"
            if layer.candidate != position:
                self.fail(f"{at} is for layer {layer.candidate} of the candidate, expected {position}")
            for role, gains in layer.gains.items():
                self._gains(gains, f"{at}.{role}")
            if layer.attention is not None:
                self._attention(layer.attention, at)
            if layer.mlp is not None:
                self._mlp(layer.mlp, at)
            if layer.experts is not None:
                n_matched = self.array(f"{at}.experts", (2, None), _INTEGERS)[1]
                if n_matched > len(layer.experts.routed):
                    self.fail(f"{at}.experts matches {n_matched} of {len(layer.experts.routed)} experts")
                for prefix, mlps in (("experts", layer.experts.routed), ("shared_experts", layer.experts.shared)):
                    for number, mlp in enumerate(mlps):
                        self._mlp(mlp, f"{at}.{prefix}.{number}")
        unused = self.arrays.keys() - self.used
        if unused:
            self.fail(f"the array {min(unused)!r:.80} belongs to nothing in it")

    def fail(self, what: str) -> NoReturn:
        raise ReconstructionError(f"{what}; {AGAIN}", subject=self.label)

    def array(self, name: str, shape: tuple[int | None, ...], dtypes: Collection[str]) -> tuple[int, ...]:
        """Return the shape of an array, in which None stands for any size."""
        self.used.add(name)
        if name not in self.arrays:
            self.fail(f"there is no array {name!r}")
        actual_shape, dtype = self.arrays[name]
        fits = len(actual_shape) == len(shape) and all(
            size in (None, real) for size, real in zip(shape, actual_shape, strict=True)
        )
        if not fits or dtype not in dtypes:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            self.fail(f"the array {name!r} is {dtype} {actual_shape}, expected {' or '.join(dtypes)} ({wanted})")
        return actual_shape

    def _stream(self, stream: StreamIndex) -> None:
        sizes = (stream.n_reference, stream.n_candidate)
        if stream.rotation_left_out:
            raise ReconstructionError(
                "it was saved without its rotation, which is large; save it with full_rotation "
                "(`mdir-hf align --full-rotation`)",
                subject=self.label,
            )
        if stream.kind not in ("rotation", "channels") and sizes[0] != sizes[1]:
            self.fail(f"the stream is mapped by {stream.kind}, but has {sizes[0]} and {sizes[1]} channels")
        if stream.kind == "rotation":
            self.array("stream.rotation", sizes, _FLOATS)
        elif stream.kind != "identity":
            k = self.array("stream.reference", (None if stream.kind == "channels" else sizes[0],), _INTEGERS)
            self.array("stream.candidate", k, _INTEGERS)
            self.array("stream.signs", k, ("int8",))

    def _gains(self, gains: GainsIndex | None, name: str) -> None:
        if gains is None or not gains.is_moved:
            return
        stream = self.index.stream
        for side, size in (("reference", stream.n_reference), ("candidate", stream.n_candidate)):
            self.array(f"{name}.{side}", (size,), _FLOATS)
            if f"{name}.{side}_bias" in self.arrays:
                self.array(f"{name}.{side}_bias", (size,), _FLOATS)

    def _attention(self, heads: AttentionIndex, at: str) -> None:
        if heads.n_heads % heads.n_kv_heads:
            self.fail(f"{at} has {heads.n_heads} query heads, which {heads.n_kv_heads} key-value heads cannot share")
        n_matched = {
            name: self.array(f"{at}.heads.{name}", (2, None), _INTEGERS)[1] for name in ("kv", "q")
        }  # fmt: skip
        for name, n_heads in (("kv", heads.n_kv_heads), ("q", heads.n_heads)):
            if n_matched[name] > n_heads:
                self.fail(f"{at}.heads.{name} matches {n_matched[name]} of {n_heads} heads")
        for name, blocks in (("values", heads.values), ("keys", heads.keys)):
            array = f"{at}.{name}"
            # An identity has matrices if the models pair rotary rows in different ways.
            if blocks is None or (blocks.kind == "identity" and array not in self.arrays):
                continue
            d = self.array(array, (n_matched["kv"], None, None), _FLOATS)[1]
            self.array(array, (n_matched["kv"], d, d), _FLOATS)

    def _mlp(self, mlp: MlpIndex, at: str) -> None:
        if mlp.matched > mlp.n_neurons:
            self.fail(f"{at} matches {mlp.matched} of {mlp.n_neurons} neurons")
        self.array(f"{at}.neurons", (2, mlp.matched), _INTEGERS)
        if mlp.kind != "order":
            self.array(f"{at}.scales", (mlp.matched,), _FLOATS)
