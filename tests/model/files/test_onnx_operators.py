"""Forms of weights in ONNX operators: orientation, scales, names, and numbers in typed fields."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper

from mdir_hf.budgets import Budget
from mdir_hf.errors import CorruptCheckpointError, MdirError, MissingExtraError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from tests.conformance_tensors import MemoryTree

RNG = np.random.default_rng(0)


def opened(nodes: list, tensors: dict[str, object]):
    """Open a graph with these nodes; arrays become initialisers."""
    made = [
        numpy_helper.from_array(value, name) if isinstance(value, np.ndarray) else value
        for name, value in tensors.items()
    ]
    model = helper.make_model(helper.make_graph(nodes, "main", [], [], made))
    return open_checkpoint(MemoryTree({"model.onnx": model.SerializeToString()}))


def node(op_type: str, inputs: list[str], module: str, **attributes: object):
    return helper.make_node(op_type, inputs, [f"{module}/out"], f"/{module}/{op_type}", **attributes)


def check(weights, name: str, expected: np.ndarray) -> None:
    whole = torch.from_numpy(np.ascontiguousarray(expected, dtype=np.float32))
    assert weights.spec(name).shape == expected.shape
    assert torch.equal(weights.read(name), whole)
    rows = np.array([2, 0, 2])
    assert torch.equal(weights.read_rows(name, rows), whole[torch.from_numpy(rows)])


@pytest.mark.parametrize("shape", [(6, 6), (6, 4)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_scales_lie_along_the_axis_of_the_dequantising_node(shape, axis):
    codes = RNG.integers(-128, 128, size=shape).astype(np.int8)
    n = shape[axis]
    scale, zero = RNG.uniform(0.1, 9, n).astype(np.float32), RNG.integers(-9, 9, n).astype(np.int8)
    weights = opened(
        [
            helper.make_node("DequantizeLinear", ["c", "s", "z"], ["w"], axis=axis),
            node("Gemm", ["x", "w"], "h/up", transB=1),
        ],
        {"c": codes, "s": scale, "z": zero},
    )
    spread = (slice(None), None) if axis in (0, -2) else (None, slice(None))
    check(weights, "h.up.weight", (codes.astype(np.float32) - zero[spread]) * scale[spread])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8], ids=["i4", "u4", "i8"])
def test_scales_of_blocks_lie_along_their_axis(axis, kind):
    shape, block = (10, 6), 4  # the last block is partial
    low, high = {TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16), TensorProto.INT8: (-128, 128)}[kind]
    grid = tuple(-(-size // block) if at == axis else size for at, size in enumerate(shape))
    codes, zero = RNG.integers(low, high, size=shape), RNG.integers(low, high, size=grid)
    scale = RNG.uniform(0.1, 9, grid).astype(np.float32)
    weights = opened(
        [
            helper.make_node("DequantizeLinear", ["c", "s", "z"], ["w"], axis=axis, block_size=block),
            node("MatMul", ["x", "w"], "h/up"),
        ],
        {
            "c": helper.make_tensor("c", kind, shape, codes.flatten()),
            "s": scale,
            "z": helper.make_tensor("z", kind, grid, zero.flatten()),
        },
    )
    spread = [np.repeat(each, block, axis=axis)[: shape[0], : shape[1]] for each in (zero, scale)]
    check(weights, "h.up.weight", ((codes - spread[0]).astype(np.float32) * spread[1]).T)


def test_scales_that_fit_no_axis_are_refused():
    weights = opened(
        [helper.make_node("DequantizeLinear", ["c", "s"], ["w"], axis=0), node("MatMul", ["x", "w"], "h/up")],
        {"c": np.ones((6, 4), np.int8), "s": np.ones(5, np.float32)},
    )
    with pytest.raises(CorruptCheckpointError, match=r"'c' .* \(5,\) scales .* do not fit axis 0 of \(6, 4\)"):
        weights.read("h.up.weight")


def test_a_matrix_under_its_own_name_is_as_the_checkpoint_stored_it():
    """Conv1D stores (in, out), and its product uses that orientation; tables of roles transpose it."""
    values = RNG.normal(size=(4, 12)).astype(np.float32)
    weights = opened([node("Gemm", ["x", "h.0.attn.c_attn.weight"], "h/attn")], {"h.0.attn.c_attn.weight": values})
    check(weights, "h.0.attn.c_attn.weight", values)


SCOPES = "['', 'model', 'model.layers.0', 'model.layers.0.mlp.up_proj', 'linear_3']"
NAMESPACE = ": Llama/model: LlamaModel/model.layers.0: Layer/model.layers.0.mlp.up_proj: {}/linear_3: aten.linear"


@pytest.mark.parametrize("kind", ["torch.nn.modules.linear.Linear", "transformers.pytorch_utils.Conv1D"])
@pytest.mark.parametrize("key", ["pkg.torch.onnx.name_scopes", "namespace"])
def test_a_matrix_is_named_by_the_modules_beside_its_node(key, kind):
    values = RNG.normal(size=(4, 12)).astype(np.float32)
    product = helper.make_node("MatMul", ["x", "val_108"], ["linear_3"], "node_linear_3")
    told = {"pkg.torch.onnx.stack_trace": "x" * 40_000, key: SCOPES if "scopes" in key else NAMESPACE.format(kind)}
    if "scopes" in key:
        told["pkg.torch.onnx.class_hierarchy"] = f"['Llama', 'LlamaModel', 'Layer', '{kind}', 'aten.linear']"
    for name, text in told.items():
        product.metadata_props.add(key=name, value=text)
    weights = opened([product], {"val_108": values})
    assert weights.names() == ("model.layers.0.mlp.up_proj.weight",)
    check(weights, "model.layers.0.mlp.up_proj.weight", values if "Conv1D" in kind else values.T)


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN"])
def test_numbers_in_typed_fields_are_read(kind):
    number = getattr(TensorProto, kind)
    values = RNG.normal(size=(50, 60)).astype(helper.tensor_dtype_to_np_dtype(number))
    typed = helper.make_tensor("h.up.weight", number, values.shape, values.astype(np.float64).flatten())
    weights = opened([], {"h.up.weight": typed})
    assert torch.equal(weights.read("h.up.weight").double(), torch.from_numpy(values.astype(np.float64)))
    rows = weights.read_rows("h.up.weight", np.array([9, 4])).double()
    assert torch.equal(rows, torch.from_numpy(values[[9, 4]].astype(np.float64)))


def test_too_few_numbers_in_a_typed_field_are_refused():
    typed = helper.make_tensor("h.up.weight", TensorProto.FLOAT16, (4, 4), np.ones(16))
    typed.int32_data.pop()
    with pytest.raises(CorruptCheckpointError, match=r"size 15 into shape \(4,4\)"):
        opened([], {"h.up.weight": typed}).read("h.up.weight")


@pytest.mark.parametrize("with_zeros", [False, True])
def test_a_lookup_of_codes_in_blocks_is_read(with_zeros):
    codes, scale = RNG.integers(0, 16, size=(5, 32)), RNG.uniform(0.1, 9, (5, 2)).astype(np.float32)
    zero = RNG.integers(0, 16, size=(5, 2)) if with_zeros else np.full((5, 2), 8)
    packed = [(each[:, ::2] | each[:, 1::2] << 4).astype(np.uint8) for each in (codes, zero)]
    weights = opened(
        [
            helper.make_node(
                "GatherBlockQuantized", ["embed.weight_Q4", "ids", "s"] + ["z"] * with_zeros, ["y"], "/embed/Gather",
                domain="com.microsoft", bits=4, block_size=16, quantize_axis=1,
            )
        ],
        {"embed.weight_Q4": packed[0], "s": scale, "z": packed[1]},
    )  # fmt: skip
    expected = (codes - zero.repeat(16, axis=1)).astype(np.float32) * scale.repeat(16, axis=1)
    check(weights, "embed.weight", expected)


@pytest.mark.parametrize(("op_type", "trans_b"), [("QLinearMatMul", 0), ("QGemm", 0), ("QGemm", 1)])
def test_the_matrix_of_a_product_of_codes_is_read(op_type, trans_b):
    codes = RNG.integers(-128, 128, size=(6, 6)).astype(np.int8)
    scale, zero = RNG.uniform(0.1, 9, 6).astype(np.float32), RNG.integers(-9, 9, 6).astype(np.int8)
    more = ["bias"] if op_type == "QGemm" else []
    attributes = {"transB": 1} if trans_b else {}
    weights = opened(
        [node(op_type, ["x", "xs", "xz", "c", "s", "z", *more, "ys", "yz"], "h/up", **attributes)],
        {"c": codes, "s": scale, "z": zero, "xs": np.float32(1)[None], "xz": np.zeros(1, np.uint8)},
    )  # fmt: skip
    by_output = (slice(None), None) if trans_b else (None, slice(None))
    expected = (codes.astype(np.float32) - zero[by_output]) * scale[by_output]
    check(weights, "h.up.weight", expected if trans_b else expected.T)


def test_codes_of_an_unknown_operator_are_listed_and_refused():
    codes = RNG.integers(0, 255, size=(8, 16)).astype(np.uint8)
    weights = opened(
        [helper.make_node("QMoE", ["x", "experts_q"], ["y"], domain="com.microsoft")],
        {"experts_q": codes, "norm.weight": np.ones(8, np.float32)},
    )
    assert weights.names() == ("experts_q", "norm.weight")
    assert weights.description.unreadable == {"experts_q"}
    assert "1 tensor holds codes that are used by an unknown operator" in weights.description.notes[0]
    with pytest.raises(UnsupportedFormatError):
        weights.read("experts_q")


def test_two_matrices_of_one_module_are_both_listed():
    first, second = (RNG.normal(size=(4, 6)).astype(np.float32) for _ in range(2))
    weights = opened(
        [node("MatMul", ["x", "onnx::MatMul_1"], "h/mix"), node("MatMul", ["x", "onnx::MatMul_2"], "h/mix")],
        {"onnx::MatMul_1": first, "onnx::MatMul_2": second},
    )
    assert weights.names() == ("h.mix.weight", "onnx::MatMul_2")
    check(weights, "onnx::MatMul_2", second.T)


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
def test_codes_of_a_table_are_read(kind):
    codes, absmax = RNG.integers(0, 16, size=(4, 32)), RNG.uniform(0.1, 9, 8).astype(np.float32)
    packed = (codes[:, ::2] << 4 | codes[:, 1::2]).astype(np.uint8).flatten()
    weights = opened(
        [
            helper.make_node("MatMulBnb4", ["x", "w_Bnb4", "a"], ["y"], "/h/up/MatMul", domain="com.microsoft", N=4,
                             K=32, block_size=16, quant_type=kind)
        ],
        {"w_Bnb4": packed, "a": absmax},
    )  # fmt: skip
    read = weights.read("h.up.weight")
    scaled = read / torch.from_numpy(absmax.repeat(16).reshape(4, 32))
    numbers = {int(code): float(scaled[codes == code][0]) for code in np.unique(codes)}
    extremes = {0: (0, 3, 11), 1: (7, 15, 0)}[kind]  # the codes of 0, 1 and -1
    assert [round(numbers[code], 5) for code in extremes if code in numbers] == [0.0, 1.0, -1.0]


def quantised_graphs():
    """Graphs of three quantised layouts, and one with typed fields, for mutation."""
    codes, scale = RNG.integers(0, 255, size=(4, 2, 16)).astype(np.uint8), np.ones((4, 2), np.float32)
    blocks = helper.make_node("MatMulNBits", ["x", "b", "bs", "bz"], ["y"], "/h/b/MatMul", domain="com.microsoft", N=4,
                              K=64, bits=4, block_size=32)  # fmt: skip
    lookup = helper.make_node("GatherBlockQuantized", ["e", "i", "es"], ["z"], "/e/Gather", domain="com.microsoft",
                              bits=4, block_size=16, quantize_axis=1)  # fmt: skip
    table = helper.make_node("MatMulBnb4", ["x", "t", "ts"], ["v"], "/h/t/MatMul", domain="com.microsoft", N=4, K=32,
                             block_size=16, quant_type=1)  # fmt: skip
    dequantise = helper.make_node("DequantizeLinear", ["q", "qs"], ["w"], axis=0, block_size=4)
    tensors = {
        **{"b": codes, "bs": scale.flatten(), "bz": np.full(4, 0x88, np.uint8)},
        **{"e": np.ones((5, 16), np.uint8), "es": np.ones((5, 2), np.float32)},
        **{"t": np.ones(64, np.uint8), "ts": np.ones(8, np.float32), "qs": np.ones((3, 6), np.float32)},
    }
    made = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    made.append(helper.make_tensor("q", TensorProto.INT4, (10, 6), np.zeros(60)))
    made.append(helper.make_tensor("h.half.weight", TensorProto.FLOAT16, (6, 8), np.ones(48)))
    nodes = [blocks, lookup, table, dequantise, helper.make_node("MatMul", ["x", "w"], ["u"], "/h/q/MatMul")]
    return helper.make_model(helper.make_graph(nodes, "main", [], [], made))


SIZES = (0, 1, 2, 3, 7, 16, 33, 64, -1, -64, 2**31, 2**40, 2**62)


def test_a_graph_with_changed_sizes_ends_in_a_known_error():
    rng, original = np.random.default_rng(0), quantised_graphs()
    for _ in range(400):
        model = onnx.ModelProto()
        model.CopyFrom(original)
        for _ in range(int(rng.integers(1, 4))):
            tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
            node = model.graph.node[int(rng.integers(len(model.graph.node)))]
            numbers = [attribute for attribute in node.attribute if attribute.type == 2]
            match int(rng.integers(4)):
                case 0 if tensor.dims:
                    tensor.dims[int(rng.integers(len(tensor.dims)))] = int(rng.choice(SIZES))
                case 1:
                    tensor.data_type = int(rng.integers(28))
                case 2 if numbers:
                    numbers[int(rng.integers(len(numbers)))].i = int(rng.choice(SIZES))
                case _:
                    node.input[int(rng.integers(len(node.input)))] = tensor.name
        try:
            weights = open_checkpoint(MemoryTree({"model.onnx": model.SerializeToString()}))
            for name in weights.names():
                with suppress(MdirError):
                    assert weights.read(name).shape == weights.spec(name).shape
        except MdirError:
            pass


def test_weights_in_branches_within_branches_are_read():
    graph = helper.make_graph([], "main", [], [], [numpy_helper.from_array(np.eye(4, dtype=np.float32), "h.up.weight")])
    for _ in range(20):
        graph = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=graph)], "main", [], [])
    tree = MemoryTree({"model.onnx": helper.make_model(graph).SerializeToString()})
    assert open_checkpoint(tree).names() == ("h.up.weight",)


def test_nodes_that_feed_each_other_end():
    turns = [helper.make_node("Transpose", ["a"], ["b"]), helper.make_node("Transpose", ["b"], ["a"])]
    weights = opened([*turns, node("MatMul", ["x", "a"], "h/up")], {"h.up.weight": np.eye(4, dtype=np.float32)})
    assert weights.names() == ("h.up.weight",)


def test_a_file_over_a_limit_is_refused(monkeypatch):
    model = helper.make_model(helper.make_graph([node("Relu", ["x"], "h")] * 3, "main", [], []))
    data = model.SerializeToString()
    for budget, words in ((Budget(len(data) - 1, 9), "bytes"), (Budget(len(data), 2), "nodes and initialisers")):
        monkeypatch.setattr("mdir_hf.model.files.onnx.ONNX", budget)
        with pytest.raises(UnsupportedFormatError, match=f"{words}; the limit is"):
            open_checkpoint(MemoryTree({"model.onnx": data})).names()


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("mdir_hf.installing._is_installed", lambda module: module != "onnx")
    with pytest.raises(MissingExtraError, match=r"onnx package: pip install .*\[onnx\]"):
        open_checkpoint(MemoryTree({"model.onnx": b""}))
