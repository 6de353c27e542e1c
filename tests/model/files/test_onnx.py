"""ONNX files as exporters write them: the weights are read by ranges, and hostile files cannot cause other reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")

from mdir_hf import compare
from mdir_hf.errors import CorruptCheckpointError, InputError, MdirError, SeveralModelsError, UnsafePathError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.onnx import OnnxWeights
from tests.comparison.relatives import drift
from tests.conformance_tensors import MATRICES, MemoryTree, TensorSourceConformance, random_tensors
from tests.method.obfuscation import new_model
from tests.onnx_exporter import write_onnx
from tests.specimens import tokenizer_json, tokens

TYPES = {
    torch.bfloat16: 16, torch.float16: 10, torch.float32: 1, torch.float64: 11, torch.float8_e4m3fn: 17,
    torch.float8_e5m2: 19,
}  # fmt: skip


class TestInitialisers(TensorSourceConformance):
    """Only matrices are weights under any name, and none is read as stored."""

    is_external = False
    test_rows_without_columns_are_empty = None
    test_rows_of_a_tensor_that_is_not_a_matrix_are_refused = None
    test_a_row_that_is_not_there_is_refused = None
    test_a_stored_tensor_is_read_as_it_is = None
    test_stored_rows_are_read_as_they_are = None

    @pytest.fixture
    def tensors(self):
        return {name: tensor for name, tensor in random_tensors().items() if name in (*set(MATRICES) - {"one"}, "cube")}

    def test_a_row_of_a_matrix_that_is_not_there_is_refused(self, source):
        for row in (-1, 40, 1 << 40):
            with pytest.raises(InputError, match=r"shape \(40, 6\) has no row"):
                source.read_rows("embed.weight", np.array([0, row]))

    def make(self, tensors, tmp_path):
        import onnx

        stored = [
            onnx.TensorProto(
                name=name,
                dims=tensor.shape,
                data_type=TYPES[tensor.dtype],
                raw_data=tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
            )
            for name, tensor in tensors.items()
        ]
        graph = onnx.helper.make_graph([], "main", [], [], stored)
        where = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 0}
        path = tmp_path / "model.onnx"
        onnx.save_model(onnx.helper.make_model(graph), str(path), **(where if self.is_external else {}))
        return OnnxWeights(MemoryTree.from_folder(tmp_path), "model.onnx")


class TestInitialisersInAnotherFile(TestInitialisers):
    is_external = True


SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
TOLERANCE = {"float32": 0.0, "float16": 1e-3, "int8": 8e-3, "dequantize": 8e-3, "blocks8": 8e-3, "blocks4": 0.15,
             "blocks4-zeros": 0.15}  # fmt: skip
"""Relative to a matrix's largest weight: half a step of the codes, plus a step that zero points may cut off."""


@pytest.fixture(scope="module")
def model():
    return new_model(seed=0, **SIZES).float()


@pytest.fixture(scope="module")
def state(model):
    return dict(model.state_dict())


@pytest.mark.parametrize("how", [{}, {"external": True}, {"by_builder": True}, {"inside": True}], ids=str)
@pytest.mark.parametrize("stored", TOLERANCE)
def test_weights_have_the_names_shapes_and_values_of_the_checkpoint(state, stored, how, tmp_path):
    write_onnx(tmp_path / "onnx" / "model.onnx", state, stored, **how)
    weights = open_checkpoint(MemoryTree.from_folder(tmp_path))
    assert weights.names() == tuple(sorted(state))
    for name, expected in state.items():
        read = weights.read(name)
        assert read.shape == expected.shape == weights.spec(name).shape
        most = TOLERANCE[stored] * float(expected.abs().max()) if expected.ndim == 2 and "embed" not in name else 0.0
        assert float((read - expected).abs().max()) <= most, name
        if expected.ndim == 2:
            rows = np.array([3, 0, 3, len(expected) - 1])
            assert torch.equal(weights.read_rows(name, rows), read[torch.from_numpy(rows)])
    bits = {"float32": None, "float16": None, "int8": "8 bits", "dequantize": "8 bits", "blocks8": "8 bits"}
    assert weights.description.quantization == bits.get(stored, "4 bits")


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        (["model.onnx", "onnx/model.onnx"], "onnx/model.onnx"),
        (["onnx/model_q4.onnx", "onnx/model_fp16.onnx", "onnx/model_quantized.onnx"], "onnx/model_fp16.onnx"),
        (["onnx/decoder_model_merged.onnx", "onnx/encoder_model.onnx"], "onnx/decoder_model_merged.onnx"),
        (["paraphrase.onnx"], "paraphrase.onnx"),
    ],
)
def test_the_most_exact_of_several_files_is_read(state, files, opened, tmp_path):
    write_onnx(tmp_path / "x.onnx", {name: state[name] for name in list(state)[:3]})
    content = (tmp_path / "x.onnx").read_bytes()
    assert open_checkpoint(MemoryTree(dict.fromkeys(files, content))).paths == (opened,)
    if "onnx/model_q4.onnx" in files:
        tree = MemoryTree(dict.fromkeys(files, content))
        assert open_checkpoint(tree, variant="q4").paths == ("onnx/model_q4.onnx",)
        assert open_checkpoint(tree, file="onnx/model_q4.onnx").paths == ("onnx/model_q4.onnx",)


def test_several_models_are_named():
    with pytest.raises(SeveralModelsError, match="2 ONNX models") as caught:
        open_checkpoint(MemoryTree({"a.onnx": b"", "b.onnx": b""}))
    assert caught.value.files == ("a.onnx", "b.onnx")


def test_a_relative_is_found_in_a_repository_with_nothing_else(model, loopback_hub, tmp_path):
    for name, weights, stored in (
        ("base", model, "float32"),
        ("tuned", drift(new_model(seed=0, **SIZES), 0.1), "blocks4"),
    ):
        folder = tmp_path / name
        weights.float().save_pretrained(folder)
        write_onnx(folder / "onnx" / "model.onnx", dict(weights.float().state_dict()), stored)
        (folder / "model.safetensors").unlink()
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(model.config.vocab_size))))
        loopback_hub.add_repository(f"lab/{name}", folder)
    report = compare("lab/base", "lab/tuned", level="layers", progress=False)
    assert report.verdict == "homologous"
    assert [(match.reference, match.candidate) for match in report.layers.matches] == [(at, at) for at in range(4)]


def forged(state: dict, tmp_path: Path, location: str, **more: str) -> MemoryTree:
    import onnx

    write_onnx(tmp_path / "model.onnx", state)
    made = onnx.load(str(tmp_path / "model.onnx"))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return MemoryTree({"model.onnx": made.SerializeToString(), "secret": b"x" * 99})


@pytest.mark.parametrize(
    ("location", "more", "error"),
    [
        ("../secret", {}, UnsafePathError),
        ("/etc/passwd", {}, UnsafePathError),
        ("secret", {}, CorruptCheckpointError),
        ("none", {}, CorruptCheckpointError),
        ("secret", {"offset": "-5"}, CorruptCheckpointError),
        ("secret", {"offset": "9" * 40}, CorruptCheckpointError),
    ],
)
def test_bytes_that_lie_elsewhere_are_refused(state, location, more, error, tmp_path):
    few = {name: state[name] for name in list(state)[:2]}
    with pytest.raises(error):
        open_checkpoint(forged(few, tmp_path, location, **more)).names()


def test_a_file_cut_or_changed_anywhere_ends_in_a_known_error(state, tmp_path):
    write_onnx(tmp_path / "model.onnx", {name: state[name] for name in list(state)[:9]}, "int8")
    content = (tmp_path / "model.onnx").read_bytes()
    rng = np.random.default_rng(0)
    for at in range(300):
        forged = bytearray(content)
        if at % 3 == 0:
            forged = forged[: int(rng.integers(len(content)))]
        else:
            # A reader trusts the messages rather than the weights.
            for place in (
                rng.integers(0, 400, size=3) if at % 3 == 1 else rng.integers(len(content) - 2000, len(content), 3)
            ):
                forged[int(place)] = int(rng.integers(256))
        try:
            weights = open_checkpoint(MemoryTree({"model.onnx": bytes(forged)}))
            for name in weights.names():
                weights.read(name)
        except MdirError:
            pass


def test_an_invalid_onnx_file_is_reported():
    for content in (b"", b"nonsense" * 100, b"\x08" + b"\xff" * 20):
        with pytest.raises(CorruptCheckpointError, match="ONNX file"):
            open_checkpoint(MemoryTree({"model.onnx": content})).names()


def test_an_exported_bert_is_read_from_its_file(state, tmp_path):
    """Encoders are named by their nodes, after a prefix that a library adds."""
    names = {
        "0.auto_model.embeddings.word_embeddings.weight": (50, 32),
        "0.auto_model.encoder.layer.0.attention.self.query.weight": (32, 32),
        "0.auto_model.encoder.layer.0.attention.self.query.bias": (32,),
    }
    made = {name: torch.randn(*shape) for name, shape in names.items()}
    write_onnx(tmp_path / "model.onnx", made)
    shutil.copy(tmp_path / "model.onnx", tmp_path / "again")
    weights = open_checkpoint(MemoryTree.from_folder(tmp_path))
    assert weights.names() == tuple(sorted(name.removeprefix("0.auto_model.") for name in names))
