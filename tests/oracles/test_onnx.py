"""ONNX files of torch's exporters and ONNX Runtime's quantisers, against ONNX Runtime and the checkpoint."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.onnx.graph import find_weights, list_graph
from tests.conformance_tensors import MemoryTree
from tests.oracles.tally import IS_FULL, cases

pytestmark = pytest.mark.slow

LIBRARY = "onnx, onnxruntime and torch.onnx"
SHAPES = {"h.0.up.weight": (96, 64), "h.0.square.weight": (64, 64), "h.0.down.weight": (64, 96)}
"""Matrices of products; all sizes are whole blocks of 32."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence warnings and logs of exporters and quantisers."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(level)


def drawn(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {"wte.weight": torch.randn(80, 64, generator=generator)}
    # Rows of different norms, so that a scale on the wrong axis is detected.
    for name, shape in SHAPES.items():
        tensors[name] = torch.randn(*shape, generator=generator) * torch.logspace(-2, 1, shape[0])[:, None]
    return tensors


def network(state: dict[str, torch.Tensor], product: str) -> onnx.ModelProto:
    """Build a chain of products after a lookup, with the names of torch's older exporter."""
    initialisers = [numpy_helper.from_array(state["wte.weight"].numpy(), "wte.weight")]
    nodes = [helper.make_node("Gather", ["wte.weight", "ids"], ["y"], "/wte/Gather")]
    last = "y"
    for number, (name, weight) in enumerate((name, state[name]) for name in ("h.0.square.weight", "h.0.up.weight",
                                                                             "h.0.down.weight")):  # fmt: skip
        path = "/" + name.removesuffix(".weight").replace("h.0.", "h.0/")
        if product == "MatMul":
            stored, attributes = f"onnx::MatMul_{number}", {}
            initialisers.append(numpy_helper.from_array(weight.numpy().T.copy(), stored))
        else:
            stored, attributes = name, {"transB": 1}
            initialisers.append(numpy_helper.from_array(weight.numpy(), stored))
        nodes.append(helper.make_node(product, [last, stored], [f"y{number}"], f"{path}/{product}", **attributes))
        last = f"y{number}"
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", 64])],
        initialisers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


class Reader:
    """Feeds the ids of the lookup to a calibrating quantiser."""

    def __init__(self) -> None:
        self.batches = iter([{"ids": np.arange(80, dtype=np.int64)}])

    def get_next(self):
        return next(self.batches, None)


def run_node(model: onnx.ModelProto, node, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Run one node of a graph with its initialisers in ONNX Runtime."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    output = onnx.ValueInfoProto(name=node.output[0])
    graph = helper.make_graph(
        [node], "one", values, [output], [known[name] for name in node.input if name in known and name not in inputs]
    )
    single = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(single.SerializeToString(), options).run(None, inputs)[0]


def dequantised(model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    """Return the matrices of a quantised graph, dequantised by ONNX Runtime, by module; ``(out, in)``."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    weights = {}
    for node in model.graph.node:
        module = node.name.strip("/").split("/Gather")[0].split("/MatMul")[0].split("/Gemm")[0].replace("/", ".")
        if node.op_type in ("MatMulNBits", "MatMulBnb4"):
            k = next(each.i for each in node.attribute if each.name == "K")
            values = run_node(model, node, {node.input[0]: np.eye(k, dtype=np.float32)}).T
        elif node.op_type == "GatherBlockQuantized":
            values = run_node(model, node, {node.input[1]: np.arange(80, dtype=np.int64)})
        elif node.op_type in ("QLinearMatMul", "QGemm", "MatMulInteger"):
            if node.op_type == "MatMulInteger":
                codes = node.input[1]
                scale, zero = codes.replace("_quantized", "_scale"), node.input[3]
            else:
                codes, scale, zero = node.input[3:6]
            trans_b = any(each.name == "transB" and each.i for each in node.attribute)
            node = helper.make_node("DequantizeLinear", [codes, scale, zero], ["w"], axis=0 if trans_b else 1)
            values = run_node(model, node, {})
            values = values if trans_b else values.T
        elif node.op_type in ("MatMul", "Gemm", "Gather"):
            source = node.input[0 if node.op_type == "Gather" else 1]
            maker = makers.get(source)
            is_turned = node.op_type == "MatMul" or (
                node.op_type == "Gemm" and not any(each.name == "transB" and each.i for each in node.attribute)
            )
            while maker is not None and maker.op_type == "Transpose":
                is_turned = not is_turned
                source, maker = maker.input[0], makers.get(maker.input[0])
            if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] in known:
                values = run_node(model, maker, {})
            elif source in known:
                values = numpy_helper.to_array(known[source])
                if source.endswith("_quantized"):  # a lookup of codes, which are dequantised after it
                    parts = [source, *(source.replace("_quantized", part) for part in ("_scale", "_zero_point"))]
                    values = run_node(model, helper.make_node("DequantizeLinear", parts, ["w"]), {})
            else:
                continue
            values = values.T if is_turned else values
        else:
            continue
        weights[f"{module}.weight"] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return weights


def check(tally, path: Path, case: str, *, n_weights: int = 4) -> None:
    model = onnx.load(str(path))
    expected = dequantised(model)
    graph = list_graph(model.graph, path.name)
    listed = find_weights(graph, path.name).values()
    covered = {name for weight in listed for name in (weight.stored, *(weight.codes.parts if weight.codes else ()))}
    lost = [name for name, tensor in graph.initialisers.items() if len(tensor.shape) > 1 and name not in covered]
    tally.agree(LIBRARY, f"{case}: matrices {lost} are not listed", not lost)
    weights = open_checkpoint(MemoryTree.from_folder(path.parent))
    tally.agree(LIBRARY, f"{case}: {sorted(expected)}", len(expected) == n_weights)
    for name, values in expected.items():
        if name not in weights.names():
            tally.agree(LIBRARY, f"{case}: {name} is not listed among {weights.names()}", False)
            continue
        tally.equal(LIBRARY, f"{case}: {name}", weights.read(name), values)
        rows = np.array([3, 0, 3, len(values) - 1])
        tally.equal(LIBRARY, f"{case}: rows of {name}", weights.read_rows(name, rows), values[torch.from_numpy(rows)])


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_files_of_static_and_dynamic_quantisers(tally, product, tmp_path):
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    onnx.save(network(drawn(0), product), str(tmp_path / "float.onnx"))
    kinds = [QuantType.QInt8, QuantType.QUInt8]
    more = [QuantType.QInt16, QuantType.QInt4, QuantType.QUInt4, QuantType.QFLOAT8E4M3FN] if IS_FULL else []
    for form, by_channel, kind in itertools.product(
        (QuantFormat.QDQ, QuantFormat.QOperator, None), (False, True), kinds + more
    ):
        if kind in more and form is not QuantFormat.QDQ:
            continue  # the quantisers support only this form
        case = f"{product}, {form}, by channel {by_channel}, {kind}"
        folder = tmp_path / case.replace(" ", "").replace(",", "-")
        folder.mkdir()
        if form is None:
            quantize_dynamic(
                str(tmp_path / "float.onnx"), str(folder / "model.onnx"), per_channel=by_channel, weight_type=kind
            )
        else:
            is_narrow = kind in (QuantType.QInt4, QuantType.QUInt4)
            try:
                quantize_static(
                    str(tmp_path / "float.onnx"),
                    str(folder / "model.onnx"),
                    Reader(),
                    quant_format=form,
                    per_channel=by_channel,
                    weight_type=kind,
                    activation_type=QuantType.QUInt8 if is_narrow or kind in kinds else kind,
                )
            except (ValueError, RuntimeError, NotImplementedError):
                continue  # the quantiser itself refuses this combination
        check(tally, folder / "model.onnx", case)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_files_of_the_block_quantiser(tally, bits, tmp_path):
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    for number, (block, symmetric, form) in enumerate(
        itertools.product((32, 64) if IS_FULL else (32,), (True, False), (QuantFormat.QOperator, QuantFormat.QDQ))
    ):
        if form is QuantFormat.QDQ and bits != 4:
            continue  # the quantiser does not support this form
        case = f"{bits} bits, block {block}, symmetric {symmetric}, {form}"
        folder = tmp_path / str(number)
        folder.mkdir()
        quantiser = MatMulNBitsQuantizer(
            network(drawn(1), "MatMul"),
            bits=bits,
            block_size=block,
            is_symmetric=symmetric,
            quant_format=form,
            op_types_to_quantize=("MatMul", "Gather") if bits == 4 and form is QuantFormat.QOperator else ("MatMul",),
        )
        quantiser.process()
        quantiser.model.save_model_to_file(str(folder / "model.onnx"), use_external_data_format=False)
        check(tally, folder / "model.onnx", case)


@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
def test_files_of_the_bitsandbytes_quantiser(tally, kind, tmp_path):
    from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

    for block in (16, 64):
        quantiser = MatMulBnb4Quantizer(network(drawn(2), "MatMul"), kind, block)
        quantiser.process()
        folder = tmp_path / str(block)
        folder.mkdir()
        quantiser.model.save_model_to_file(str(folder / "model.onnx"), use_external_data_format=False)
        check(tally, folder / "model.onnx", f"bnb4 of kind {kind}, block {block}")


def test_every_type_in_its_typed_field_and_as_raw_bytes(tally, tmp_path):
    rng = np.random.default_rng(0)
    readable = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
                "FLOAT8E5M2FNUZ")  # fmt: skip
    for number in range(cases(4, 40)):
        shape = tuple(int(size) for size in rng.integers(2, 30 if number % 2 else 90, size=2))
        for name in readable:
            kind = getattr(TensorProto, name)
            values = rng.normal(size=shape)
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            array = values.astype(dtype)
            expected = torch.from_numpy(array.astype(np.float64 if name == "DOUBLE" else np.float32))
            typed = helper.make_tensor("t.weight", kind, shape, array.astype(np.float64).flatten().tolist())
            raw = numpy_helper.from_array(array, "t.weight")
            for form, tensor in (("typed", typed), ("raw", raw)):
                model = helper.make_model(helper.make_graph([], "main", [], [], [tensor]))
                weights = open_checkpoint(MemoryTree({"model.onnx": model.SerializeToString()}))
                theirs = torch.from_numpy(numpy_helper.to_array(tensor).astype(expected.numpy().dtype))
                tally.equal(LIBRARY, f"{form} {name} {shape}", weights.read("t.weight"), theirs)
                tally.equal(LIBRARY, f"{form} {name} {shape} against what was stored", theirs, expected)


def exported(kind: str, folder: Path, *, newer: bool, optimize: bool = True) -> dict[str, torch.Tensor]:
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    eager = {} if newer else {"attn_implementation": "eager"}
    model = {
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
                        num_key_value_heads=2, vocab_size=100, **eager)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=100, **eager)),
        "bert": lambda: BertForMaskedLM(
            BertConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
                       vocab_size=100, **eager)),
    }[kind]().eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():  # norms of ones are stored only once
            parameter.add_(0.1 * torch.randn(parameter.shape))

    class Logits(torch.nn.Module):
        """A model that returns only its logits, as exporters need."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            more = {} if kind == "bert" else {"use_cache": False}
            return self.model(input_ids=ids, attention_mask=mask, **more).logits

    mask = torch.zeros(1, 1, 6, 6)
    torch.onnx.export(
        Logits(), (torch.arange(6)[None], mask), str(folder / "model.onnx"), dynamo=newer, verbose=False,
        **({"optimize": optimize} if newer else {}),
    )  # fmt: skip
    return {name: values.detach() for name, values in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "newer", "optimize"),
    [
        ("llama", True, True),
        ("gpt2", True, True),
        ("llama", False, True),
        ("gpt2", False, True),
        *([("bert", True, True), ("bert", False, True), ("llama", True, False), ("gpt2", True, False)] * IS_FULL),
    ],
)
def test_matrices_of_torch_exporters_have_the_names_of_the_checkpoint(tally, kind, newer, optimize, tmp_path):
    if newer:
        pytest.importorskip("onnxscript")
    state = exported(kind, tmp_path, newer=newer, optimize=optimize)
    weights = open_checkpoint(MemoryTree.from_folder(tmp_path))
    names = {name.removeprefix("model."): name for name in weights.names()}
    for name, values in state.items():
        # Positions and types of a fixed input are folded into constants.
        if values.ndim == 2 and "position" not in name and "wpe" not in name and "token_type" not in name:
            tally.agree(LIBRARY, f"{kind}, newer {newer}: {name} is listed", name in names)
            if name in names:
                tally.equal(LIBRARY, f"{kind}, newer {newer}: {name}", weights.read(names[name]), values)
