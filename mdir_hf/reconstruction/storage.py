"""Save a reconstruction as safetensors with a JSON index, and read it back.

The guide "Align" describes the schema, ``mdir-hf/reconstruction/1``. Identity maps have no array.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdir_hf.errors import CheckpointError, HubError, ReconstructionError, one_line
from mdir_hf.method.blocks import IntArray
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.inner_maps import BlockMap
from mdir_hf.method.neuron_maps import NeuronMap
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.files.decode import DTYPES, first_not_finite, view_bytes
from mdir_hf.model.files.safetensors import LENGTH_N_BYTES, parse_header, read_header_n_bytes
from mdir_hf.model.hub.local import LocalFile
from mdir_hf.model.sources import TensorSpec
from mdir_hf.reconstruction.records import (
    AttentionMap,
    ExpertsMap,
    MlpMap,
    NormGains,
    ReconstructedLayer,
    Reconstruction,
)
from mdir_hf.reconstruction.schema import (
    AGAIN,
    INDEX_BUDGET,
    MAX_ARRAYS_BYTES,
    SCHEMA,
    AttentionIndex,
    BlocksIndex,
    ExpertsIndex,
    GainsIndex,
    Index,
    LayerIndex,
    MlpIndex,
    read_index,
)
from mdir_hf.writing import write_together

INDEX, ARRAYS = "reconstruction.json", "reconstruction.safetensors"

LARGE_ROTATION_BYTES = 16 << 20
"""Rotations that take more bytes than this in float32 are omitted unless requested."""

MOST_OF_REFERENCE = 1 << 24
"""Limit on numbers of the reference's heads, neurons and experts, which the files do not state."""

ROTATION_ERROR = 1e-3
"""Largest deviation of a stored rotation from an orthogonal matrix. In float32, rounding causes less than 1e-5."""

MOST_CONDITION = 1e9
"""Largest condition number of a matrix of a head. Fitted ones reach 1e8, before they are rounded to float32."""


def save_reconstruction(
    reconstruction: Reconstruction, folder: Path, *, full_rotation: bool = False
) -> tuple[Path, Path]:
    """Write the index and the arrays of a reconstruction, and return their paths.

    With ``full_rotation``, a rotation is stored in float64. By default, it is stored in float32, or omitted if it
    exceeds 16 MiB.

    Raises:
        InputError: If the folder cannot be written.
        ReconstructionError: If an array is not finite.
    """
    index, arrays = reconstruction_files(reconstruction, full_rotation=full_rotation)
    arrays_path, index_path = write_together(folder, {ARRAYS: arrays, INDEX: index})
    return index_path, arrays_path


def reconstruction_files(reconstruction: Reconstruction, *, full_rotation: bool = False) -> tuple[bytes, bytes]:
    """Return the contents of the index and the array file; see :func:`save_reconstruction`.

    Raises:
        ReconstructionError: If an array is not finite.
    """
    from safetensors.torch import save

    arrays: dict[str, torch.Tensor] = {}
    index = _index_of(reconstruction, arrays, full_rotation=full_rotation)
    for name, values in arrays.items():
        if values.is_floating_point() and first_not_finite(values) is not None:
            raise ReconstructionError(
                f"{name!r} holds NaN or infinity, so the transformation is not saved; check the weights of both models "
                "for extreme values",
                subject=reconstruction.candidate,
            )
    return (json.dumps(index, indent=1) + "\n").encode(), save(arrays, {"schema": SCHEMA})


def load_reconstruction(folder: str | os.PathLike[str]) -> Reconstruction:
    """Read a saved reconstruction, and check everything in it that can be checked without the models.

    Raises:
        ReconstructionError: If the files are missing, are not a reconstruction, or lack a large rotation.
    """
    try:
        index_file, arrays_file = (LocalFile(Path(folder) / name) for name in (INDEX, ARRAYS))
        for file, limit in ((index_file, INDEX_BUDGET.n_bytes), (arrays_file, MAX_ARRAYS_BYTES)):
            if file.n_bytes > limit:
                raise ReconstructionError(f"has {file.n_bytes:,} bytes; the limit is {limit:,}", subject=file.label)
        n_bytes = arrays_file.n_bytes
        n_header = read_header_n_bytes(
            arrays_file.read(0, min(9, n_bytes)), n_file_bytes=n_bytes, label=arrays_file.label
        )
        header = arrays_file.read(LENGTH_N_BYTES, LENGTH_N_BYTES + n_header)
        specs = parse_header(header, n_file_bytes=n_bytes, path=ARRAYS, label=arrays_file.label)
        in_file = {name: (spec.shape, str(DTYPES[spec.dtype].torch_dtype)[6:]) for name, spec in specs.items()}
        index = read_index(index_file.read(0, index_file.n_bytes), in_file, index_file.label)
        return _Reader(index, specs, arrays_file).reconstruction()
    except (MemoryError, RuntimeError) as exc:  # torch raises RuntimeError if memory is short, or a matrix too odd
        raise ReconstructionError(
            f"its arrays cannot be read on this machine: {one_line(exc)}; {AGAIN}", subject=str(folder)
        ) from exc
    except (HubError, CheckpointError) as exc:
        raise ReconstructionError(f"{exc.message}; {AGAIN}", subject=exc.subject or str(folder)) from exc


def _index_of(
    reconstruction: Reconstruction, arrays: dict[str, torch.Tensor], *, full_rotation: bool
) -> dict[str, Any]:
    outer = reconstruction.stream.outer
    stream: dict[str, Any] = {
        "kind": outer.kind,
        "n_reference": outer.n_reference,
        "n_candidate": outer.n_candidate,
        "scale": reconstruction.stream.scale,
        "residual": reconstruction.stream.residual,
        "fitted_on": outer.fitted_on,
        "rotation_left_out": False,
    }
    if outer.matrix is not None:
        if full_rotation:
            arrays["stream.rotation"] = outer.matrix.double().contiguous()
        elif outer.matrix.numel() * 4 <= LARGE_ROTATION_BYTES:
            arrays["stream.rotation"] = outer.matrix.float().contiguous()
        else:
            stream["rotation_left_out"] = True
    elif outer.reference is not None and outer.candidate is not None and outer.signs is not None:
        arrays["stream.reference"], arrays["stream.candidate"] = outer.reference.clone(), outer.candidate.clone()
        arrays["stream.signs"] = outer.signs.to(torch.int8)
    layers = [_layer_index(layer, f"layers.{layer.candidate}", arrays) for layer in reconstruction.layers]
    return {
        "schema": SCHEMA,
        "version": reconstruction.version,
        "reference": reconstruction.reference,
        "candidate": reconstruction.candidate,
        "stream": stream,
        "residuals": dict(reconstruction.residuals),
        "final_gain": _gains_index(reconstruction.final_gain, "final_gain", arrays),
        "layers": layers,
    }


def _layer_index(layer: ReconstructedLayer, at: str, arrays: dict[str, torch.Tensor]) -> dict[str, Any]:
    index: dict[str, Any] = {
        "reference": layer.reference,
        "candidate": layer.candidate,
        "residuals": dict(layer.residuals),
        "attention": None,
        "mlp": None,
        "experts": None,
        "gains": {role: _gains_index(gains, f"{at}.{role}", arrays) for role, gains in layer.gains.items()},
    }
    heads = layer.attention
    if heads is not None:
        arrays[f"{at}.heads.kv"] = torch.from_numpy(np.stack([heads.kv_reference, heads.kv_candidate]))
        arrays[f"{at}.heads.q"] = torch.from_numpy(np.stack([heads.q_reference, heads.q_candidate]))
        index["attention"] = {
            "n_kv_heads": heads.n_kv_heads,
            "n_heads": heads.n_heads,
            "moves_heads": heads.moves_heads,
            "layouts": heads.layouts,
            "rotary_dim": heads.rotary_dim,
            "values": _blocks_index(heads.values, f"{at}.values", arrays),
            "keys": _blocks_index(heads.keys, f"{at}.keys", arrays),
        }
    if layer.mlp is not None:
        index["mlp"] = _mlp_index(layer.mlp, at, arrays)
    if layer.experts is not None:
        experts = layer.experts
        arrays[f"{at}.experts"] = torch.from_numpy(np.stack([experts.reference, experts.candidate]))
        index["experts"] = {
            name: [_mlp_index(mlp, f"{at}.{prefix}.{number}", arrays) for number, mlp in enumerate(mlps)]
            for name, prefix, mlps in (
                ("routed", "experts", experts.mlps),
                ("shared", "shared_experts", experts.shared),
            )
        }
    return index


def _blocks_index(blocks: BlockMap | None, name: str, arrays: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    if blocks is None:
        return None
    if blocks.matrices is not None:
        arrays[name] = blocks.matrices.float().contiguous()
    return {"kind": blocks.kind, "residual": blocks.residual}


def _mlp_index(mlp: MlpMap, at: str, arrays: dict[str, torch.Tensor]) -> dict[str, Any]:
    neurons = mlp.neurons
    arrays[f"{at}.neurons"] = torch.from_numpy(np.stack([neurons.reference, neurons.candidate])).to(torch.int32)
    if neurons.kind != "order":
        arrays[f"{at}.scales"] = neurons.scales.float()
    return {
        "kind": neurons.kind,
        "n_neurons": mlp.n_neurons,
        "matched": len(neurons.reference),
        "moved": int((neurons.reference != neurons.candidate).sum()),
    }


def _gains_index(gains: NormGains | None, name: str, arrays: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    if gains is None:
        return None
    if gains.is_moved:
        for field_name in ("reference", "candidate", "reference_bias", "candidate_bias"):
            values: torch.Tensor | None = getattr(gains, field_name)
            if values is not None:
                arrays[f"{name}.{field_name}"] = values.float().contiguous()
    return {"is_moved": gains.is_moved}


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes records from arrays whose shapes have been checked, and checks their values."""

    index: Index
    specs: Mapping[str, TensorSpec] = field(repr=False)
    file: LocalFile

    def reconstruction(self) -> Reconstruction:
        index = self.index
        return Reconstruction(
            reference=index.reference,
            candidate=index.candidate,
            stream=self._stream(),
            layers=tuple(self._layer(layer, f"layers.{layer.candidate}") for layer in index.layers),
            final_gain=self._gains(index.final_gain, "final_gain"),
            residuals=index.residuals,
            version=index.version,
        )

    def _expect(self, is_so: bool, name: str, what: str) -> None:
        if not is_so:
            raise ReconstructionError(f"{name!r} {what}; {AGAIN}", subject=self.file.label)

    def _values(self, name: str) -> torch.Tensor:
        spec = self.specs[name]
        dtype = DTYPES[spec.dtype].torch_dtype
        assert dtype is not None  # all other dtypes have been refused
        return view_bytes(self.file.read(spec.start, spec.stop), dtype).reshape(spec.shape)

    def _floats(self, name: str) -> torch.Tensor:
        values = self._values(name)
        self._expect(first_not_finite(values) is None, name, "holds NaN or infinity, expected finite numbers")
        return values.double()

    def _distinct(self, values: torch.Tensor, n: int, name: str) -> IntArray:
        """Return different numbers from 0 to n - 1."""
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        is_inside = least >= 0 and most < max(n, 1)
        self._expect(is_inside, name, f"holds {least} and {most}, expected numbers from 0 to {n - 1}")
        n_distinct = len(np.unique(values.numpy()))
        self._expect(n_distinct == len(values), name, f"has {n_distinct} numbers in {len(values)}, expected none twice")
        return values.long().numpy()

    def _pairs(self, name: str, n_candidate: int, n_reference: int = MOST_OF_REFERENCE) -> tuple[IntArray, IntArray]:
        reference, candidate = self._values(name)
        return self._distinct(reference, n_reference, name), self._distinct(candidate, n_candidate, name)

    def _stream(self) -> StreamMap:
        stream = self.index.stream
        matrix = reference = candidate = signs = None
        if stream.kind == "rotation":
            matrix = self._rotation("stream.rotation")
        elif stream.kind != "identity":
            names = "stream.reference", "stream.candidate"
            reference, candidate = (
                torch.from_numpy(self._distinct(self._values(name), n, name))
                for name, n in zip(names, (stream.n_reference, stream.n_candidate), strict=True)
            )
            signs = self._values("stream.signs")
            allowed = (signs == 1) if stream.kind == "permutation" else (signs.abs() == 1)
            self._expect(bool(allowed.all()), "stream.signs", f"holds other numbers than the signs of a {stream.kind}")
        outer = ResidualBasisMap(
            stream.kind, stream.n_reference, stream.n_candidate, matrix, reference, candidate, signs, stream.fitted_on
        )
        return StreamMap(outer, stream.scale, stream.residual)

    def _rotation(self, name: str) -> torch.Tensor:
        """Re-orthogonalise, in float64, a rotation that was stored in float32."""
        matrix = self._floats(name)
        if matrix.shape[0] != matrix.shape[1]:
            return matrix
        error = float((matrix @ matrix.T - torch.eye(len(matrix), dtype=matrix.dtype)).abs().max())
        what = f"differs from an orthogonal matrix by {error:.1e}, expected at most {ROTATION_ERROR:g}"
        self._expect(error <= ROTATION_ERROR, name, what)
        for _ in range(2):
            matrix = 1.5 * matrix - 0.5 * (matrix @ (matrix.T @ matrix))
        return matrix

    def _layer(self, layer: LayerIndex, at: str) -> ReconstructedLayer:
        return ReconstructedLayer(
            layer.reference,
            layer.candidate,
            None if layer.attention is None else self._attention(layer.attention, at),
            None if layer.mlp is None else self._mlp(layer.mlp, at),
            None if layer.experts is None else self._experts(layer.experts, at),
            {
                role: gains
                for role, gain_index in layer.gains.items()
                if (gains := self._gains(gain_index, f"{at}.{role}")) is not None
            },
            layer.residuals,
        )

    def _attention(self, index: AttentionIndex, at: str) -> AttentionMap:
        return AttentionMap(
            *self._pairs(f"{at}.heads.kv", index.n_kv_heads),
            *self._pairs(f"{at}.heads.q", index.n_heads),
            index.n_kv_heads,
            index.n_heads,
            self._blocks(index.values, f"{at}.values"),
            self._blocks(index.keys, f"{at}.keys"),
            index.layouts,
            index.rotary_dim,
        )

    def _blocks(self, index: BlocksIndex | None, name: str) -> BlockMap | None:
        if index is None:
            return None
        matrices = self._floats(name) if name in self.specs else None
        if matrices is not None and matrices.numel():
            condition = float(torch.linalg.cond(matrices).max())
            what = f"holds a matrix of condition {condition:.1e}, expected at most {MOST_CONDITION:g}"
            self._expect(condition <= MOST_CONDITION, name, what)
        return BlockMap(index.kind, matrices, index.residual)

    def _mlp(self, index: MlpIndex, at: str) -> MlpMap:
        reference, candidate = self._pairs(f"{at}.neurons", index.n_neurons)
        scales = torch.ones(len(reference), dtype=torch.float64)
        if index.kind != "order":
            scales = self._floats(f"{at}.scales")
            is_fit = torch.isfinite(1.0 / scales.float()) & (index.kind != "signs" or scales.abs() == 1.0)
            self._expect(bool(is_fit.all()), f"{at}.scales", f"holds numbers that are no {index.kind}, such as 0")
        return MlpMap(NeuronMap(index.kind, reference, candidate, scales), index.n_neurons)

    def _experts(self, index: ExpertsIndex, at: str) -> ExpertsMap:
        reference, candidate = self._values(f"{at}.experts").long()
        self._distinct(
            torch.from_numpy(np.unique(reference.numpy())), MOST_OF_REFERENCE, f"{at}.experts"
        )  # one may have become several
        routed, shared = (
            tuple(self._mlp(mlp, f"{at}.{prefix}.{number}") for number, mlp in enumerate(mlps))
            for prefix, mlps in (("experts", index.routed), ("shared_experts", index.shared))
        )
        own = self._distinct(candidate, len(routed), f"{at}.experts")
        return ExpertsMap(reference.numpy(), own, routed, shared)

    def _gains(self, index: GainsIndex | None, name: str) -> NormGains | None:
        if index is None:
            return None
        gain, own_gain, bias, own_bias = (
            self._floats(f"{name}.{part}") if f"{name}.{part}" in self.specs else None
            for part in ("reference", "candidate", "reference_bias", "candidate_bias")
        )
        if gain is not None:
            self._expect(bool((gain != 0.0).all()), f"{name}.reference", "holds 0, by which weights would be divided")
        return NormGains(gain, own_gain, index.is_moved, bias, own_bias)
