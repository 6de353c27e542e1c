"""Fuzz targets for files that this package writes into an output: reconstructions, and the manifest of an output."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from mdir_hf.errors import MdirError
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
    RowMap,
    describe,
)
from mdir_hf.reconstruction.storage import ARRAYS, INDEX, load_reconstruction, reconstruction_files
from mdir_hf.writing import HIDDEN, write_together
from tests.fuzz.mutations import Draw, json_files, safetensors_files
from tests.fuzz.property import Target


def _reconstruction() -> Reconstruction:
    """Two layers, with all kinds of arrays."""

    def gains() -> NormGains:
        return NormGains(torch.full((4,), 2.0), torch.full((4,), 0.5), True, torch.ones(4), torch.zeros(4))

    def mlp() -> MlpMap:
        return MlpMap(NeuronMap("scales", np.arange(3), np.array([2, 0, 1]), torch.tensor([1.0, -2.0, 0.5])), 3)

    values = BlockMap("matrices", torch.tensor([[[2.0, 1.0], [0.0, 1.0]]] * 2), 0.1)
    heads = np.arange(2), np.array([1, 0]), np.arange(4), np.array([2, 3, 1, 0])
    attention = AttentionMap(*heads, 2, 4, values, BlockMap("identity", None, 0.0), ("half", "half"), 2)
    experts = ExpertsMap(np.array([0, 0]), np.arange(2), (mlp(), mlp()), (mlp(),))
    rotation = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).kron(torch.eye(2))
    stream = StreamMap(ResidualBasisMap.rotation(rotation), 1.5, 0.1)
    layers = (
        ReconstructedLayer(1, 0, attention, mlp(), None, {"mlp_norm": gains()}, {"up": 0.1}),
        ReconstructedLayer(None, 1, None, None, experts, {}, {}),
    )
    return Reconstruction("a/base", "a/tuned", stream, layers, gains(), {"embedding": 0.1}, "1")


VALID_INDEX, VALID_ARRAYS = reconstruction_files(_reconstruction())
_LENGTH = struct.unpack("<Q", VALID_ARRAYS[:8])[0]
HEADER: dict[str, Any] = json.loads(VALID_ARRAYS[8 : 8 + _LENGTH])
VALUES = VALID_ARRAYS[8 + _LENGTH :]


def _row_maps(found: Reconstruction) -> list[RowMap]:
    maps = []
    for layer in found.layers:
        heads, experts = layer.attention, layer.experts
        mlps = [] if experts is None else [*experts.mlps, *experts.shared]
        for mlp in mlps if layer.mlp is None else [*mlps, layer.mlp]:
            if mlp.n_neurons <= len(mlp.neurons.reference) + 100:  # the model decides whether this is its number
                maps += [mlp.gate_rows, mlp.up_rows, mlp.down_rows]
        if heads is not None and heads.n_heads <= 100:
            maps += [heads.value_rows, heads.output_rows, heads.key_rows, heads.query_rows]
    return maps


def _reader(name: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as place:
            for file, content in {INDEX: VALID_INDEX, ARRAYS: VALID_ARRAYS, name: data}.items():
                Path(place, file).write_bytes(content)
            try:
                found = load_reconstruction(Path(place))
            except MdirError as exc:
                exc.subject = name  # the folder varies
                raise
        for row_map in _row_maps(found):
            assert sorted(row_map.order) == list(range(len(row_map.order)))
            for each in (row_map, row_map.inverse):
                assert each.matrices is None or bool(torch.isfinite(each.matrices).all())
        assert 0.0 < found.stream.scale < float("inf")
        return describe(found), repr(found)

    return read


@st.composite
def changed_values(draw: Draw) -> bytes:
    """Valid arrays in which up to three numbers were replaced."""
    values = bytearray(VALUES)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(values) // 4 - 1)) * 4
        number = st.one_of(
            st.floats(width=32).map(lambda value: struct.pack("<f", value)),
            st.integers(-2, 300).map(lambda value: struct.pack("<i", value)),
            st.binary(min_size=4, max_size=4),
        )
        values[at : at + 4] = draw(number)
    return VALID_ARRAYS[: 8 + _LENGTH] + bytes(values)


MANIFEST = {
    "schema": "mdir-hf/output/1",
    "inputs": None,
    "is_whole": True,
    "files": {name: {"n_bytes": 1, "sha256": "0" * 64, "note": [["x", 0.5]]} for name in ("a", "b.json")},
}


def _manifest(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "out")
        write_together(folder, {"a": b"1"})
        (folder / HIDDEN / "next.json").write_bytes(data)
        Path(place, "beside").write_bytes(b"mine")
        try:
            write_together(folder, {"c": b"2"})
        except MdirError as exc:
            exc.subject = "next.json"
            raise
        finally:
            assert Path(place, "beside").read_bytes() == b"mine"
            assert sorted(path.name for path in Path(place).iterdir()) == ["beside", "out"]
        shutil.rmtree(folder / HIDDEN)
        return sorted(path.name for path in folder.iterdir())


WRITTEN: dict[str, Target] = {
    "reconstruction": Target(json_files(json.loads(VALID_INDEX)), VALID_INDEX, _reader(INDEX)),
    "reconstruction-header": Target(safetensors_files(HEADER, VALUES), VALID_ARRAYS, _reader(ARRAYS)),
    "reconstruction-values": Target(changed_values(), VALID_ARRAYS, _reader(ARRAYS)),
    "manifest": Target(json_files(MANIFEST), json.dumps(MANIFEST).encode(), _manifest),
}
