"""Save a reconstruction as safetensors with a JSON index, and read it back.

The guide "Align" describes the schema, ``mdir-hf/reconstruction/1``. Identity maps have no array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdir_hf.errors import InputError, ReconstructionError, one_line
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.inner_maps import BlockMap
from mdir_hf.method.neuron_maps import NeuronMap
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.reconstruction.records import (
    AttentionMap,
    ExpertsMap,
    MlpMap,
    NormGains,
    ReconstructedLayer,
    Reconstruction,
)

SCHEMA = "mdir-hf/reconstruction/1"
INDEX, ARRAYS = "reconstruction.json", "reconstruction.safetensors"

LARGE_ROTATION_BYTES = 16 << 20
"""Rotations that take more bytes than this in float32 are omitted unless requested."""

MAX_INDEX_BYTES = 64 << 20


def save_reconstruction(
    reconstruction: Reconstruction, folder: Path, *, full_rotation: bool = False
) -> tuple[Path, Path]:
    """Write the index and the arrays of a reconstruction, and return their paths.

    With ``full_rotation``, a rotation is stored in float64. By default, it is stored in float32, or omitted if it
    exceeds 16 MiB.

    Raises:
        InputError: If the folder cannot be written.
    """
    from mdir_hf.render.folder import write_file

    index, arrays = reconstruction_files(reconstruction, full_rotation=full_rotation)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_file(folder / INDEX, index), write_file(folder / ARRAYS, arrays)
    except OSError as exc:
        raise InputError(f"cannot save into {folder}: {exc.strerror}") from exc


def reconstruction_files(reconstruction: Reconstruction, *, full_rotation: bool = False) -> tuple[bytes, bytes]:
    """Return the contents of the index and the array file; see :func:`save_reconstruction`."""
    from safetensors.torch import save

    arrays: dict[str, torch.Tensor] = {}
    index = _index_of(reconstruction, arrays, full_rotation=full_rotation)
    return (json.dumps(index, indent=1) + "\n").encode(), save(arrays, {"schema": SCHEMA})


def load_reconstruction(folder: Path) -> Reconstruction:
    """Read a saved reconstruction.

    Raises:
        ReconstructionError: If the files are missing, are not a reconstruction, or lack a large rotation.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        if (folder / INDEX).stat().st_size > MAX_INDEX_BYTES:
            raise ReconstructionError(f"{INDEX} is larger than {MAX_INDEX_BYTES:,} bytes", subject=str(folder))
        index = json.loads((folder / INDEX).read_bytes())
        if not isinstance(index, dict) or index.get("schema") != SCHEMA:
            raise ReconstructionError(f"{INDEX} is not of schema {SCHEMA}", subject=str(folder))
        return _Reader(index, load((folder / ARRAYS).read_bytes())).reconstruction()
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as exc:
        if isinstance(exc, ReconstructionError):
            raise
        raise ReconstructionError(
            f"it holds no reconstruction that can be read: {one_line(exc)}", subject=str(folder)
        ) from exc


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
        "arrays": {name: {"shape": list(array.shape), "dtype": str(array.dtype)[6:]} for name, array in arrays.items()},
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
    index: Mapping[str, Any]
    arrays: Mapping[str, torch.Tensor] = field(repr=False)

    def reconstruction(self) -> Reconstruction:
        index = self.index
        return Reconstruction(
            reference=str(index["reference"]),
            candidate=str(index["candidate"]),
            stream=self._stream(),
            layers=tuple(self._layers()),
            final_gain=self._gains(index["final_gain"], "final_gain"),
            residuals=dict(index["residuals"]),
            version=str(index["version"]),
        )

    def _stream(self) -> StreamMap:
        stream = self.index["stream"]
        if stream["rotation_left_out"]:
            raise ReconstructionError("it was saved without its rotation, which is large; save it with full_rotation")
        matrix = self.arrays.get("stream.rotation")
        outer = ResidualBasisMap(
            stream["kind"],
            int(stream["n_reference"]),
            int(stream["n_candidate"]),
            matrix=None if matrix is None else _orthogonal(matrix.double()),
            reference=self.arrays.get("stream.reference"),
            candidate=self.arrays.get("stream.candidate"),
            signs=self.arrays.get("stream.signs"),
            fitted_on=stream["fitted_on"],
        )
        return StreamMap(outer, float(stream["scale"]), float(stream["residual"]))

    def _layers(self) -> Iterator[ReconstructedLayer]:
        for layer in self.index["layers"]:
            at = f"layers.{layer['candidate']}"
            mlp, experts = layer["mlp"], layer["experts"]
            yield ReconstructedLayer(
                layer["reference"],
                int(layer["candidate"]),
                self._attention(layer["attention"], at),
                None if mlp is None else self._mlp(mlp, at),
                None if experts is None else self._experts(experts, at),
                {
                    role: gains
                    for role, gain_index in layer["gains"].items()
                    if (gains := self._gains(gain_index, f"{at}.{role}")) is not None
                },
                dict(layer["residuals"]),
            )

    def _attention(self, index: Mapping[str, Any] | None, at: str) -> AttentionMap | None:
        if index is None:
            return None
        (kv, other_kv), (queries, other_queries) = (self.arrays[f"{at}.heads.{name}"].numpy() for name in ("kv", "q"))
        layouts = index["layouts"]
        return AttentionMap(
            kv,
            other_kv,
            queries,
            other_queries,
            int(index["n_kv_heads"]),
            int(index["n_heads"]),
            self._blocks(index["values"], f"{at}.values"),
            self._blocks(index["keys"], f"{at}.keys"),
            None if layouts is None else (layouts[0], layouts[1]),
            index["rotary_dim"],
        )

    def _blocks(self, index: Mapping[str, Any] | None, name: str) -> BlockMap | None:
        if index is None:
            return None
        matrices = self.arrays.get(name)
        return BlockMap(index["kind"], None if matrices is None else matrices.double(), float(index["residual"]))

    def _mlp(self, index: Mapping[str, Any], at: str) -> MlpMap:
        reference, candidate = self.arrays[f"{at}.neurons"].long().numpy()
        scales = self.arrays.get(f"{at}.scales")
        ones = torch.ones(len(reference), dtype=torch.float64)
        return MlpMap(
            NeuronMap(index["kind"], reference, candidate, ones if scales is None else scales.double()),
            int(index["n_neurons"]),
        )

    def _experts(self, index: Mapping[str, Any], at: str) -> ExpertsMap:
        reference, candidate = self.arrays[f"{at}.experts"].numpy()
        routed, shared = (
            tuple(self._mlp(mlp, f"{at}.{prefix}.{number}") for number, mlp in enumerate(index[name]))
            for name, prefix in (("routed", "experts"), ("shared", "shared_experts"))
        )
        return ExpertsMap(reference, candidate, routed, shared)

    def _gains(self, index: Mapping[str, Any] | None, name: str) -> NormGains | None:
        if index is None:
            return None
        get = self.arrays.get
        fields = (get(f"{name}.{part}") for part in ("reference", "candidate", "reference_bias", "candidate_bias"))
        reference, candidate, bias, other_bias = (None if values is None else values.double() for values in fields)
        return NormGains(reference, candidate, bool(index["is_moved"]), bias, other_bias)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Re-orthogonalise, in float64, a rotation that was stored in float32."""
    if matrix.shape[0] != matrix.shape[1]:
        return matrix
    for _ in range(2):
        matrix = 1.5 * matrix - 0.5 * (matrix @ (matrix.T @ matrix))
    return matrix
