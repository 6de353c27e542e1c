"""Tiny models as ONNX in the variants of exporters: names, transposes, quantised forms, external data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

Stored = Literal["float32", "float16", "int8", "dequantize", "blocks4", "blocks8", "blocks4-zeros"]


def write_onnx(
    path: Path,
    state: Mapping[str, torch.Tensor],
    stored: Stored = "float32",
    *,
    external: bool = False,
    by_builder: bool = False,
    inside: bool = False,
) -> None:
    """Write the weights of a Llama or BERT.

    Args:
        path: The file; its folder is created.
        state: Weights by the names of the checkpoint.
        stored: Form of the matrices of products.
        external: Whether all weights are in a separate file.
        by_builder: Whether to use the names of ONNX Runtime's own exporter of language models.
        inside: Whether the nodes are in the branches of an ``If``, as in a merged decoder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    initialisers: list[Any] = []
    nodes: list[Any] = []
    for number, (name, weight) in enumerate(state.items()):
        values = weight.detach().float().numpy()
        module = name.removesuffix(".weight")
        is_product = values.ndim == 2 and "embed" not in name and name.endswith(".weight")
        if not is_product:
            initialisers.append(numpy_helper.from_array(values, name))
            nodes.append(helper.make_node("Gather" if values.ndim == 2 else "Mul", ["x", name], [f"y{number}"]))
            continue
        if by_builder:
            module = module.replace("self_attn", "attn")
        node_name = "/" + module.replace(".", "/").replace("/layers/", "/layers.") + "/MatMul"
        anonymous = f"{module}.MatMul.weight" if by_builder else f"onnx::MatMul_{1000 + number}"
        made, node = _product(anonymous, node_name, values, stored, number)
        initialisers += made
        nodes += node
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])]
    if inside:
        branch = helper.make_graph(nodes, "branch", [], outputs)
        nodes = [helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)]
    model = helper.make_model(helper.make_graph(nodes, "main", inputs, outputs, initialisers))
    if external:
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{path.name}_data", size_threshold=64)
    else:
        onnx.save_model(model, str(path))


def _product(name: str, node_name: str, values: np.ndarray, stored: Stored, number: int) -> tuple[list, list]:
    output = [f"y{number}"]
    if stored in ("float32", "float16"):
        weight = numpy_helper.from_array(values.T.astype(stored).copy(), name)
        return [weight], [helper.make_node("MatMul", ["x", name], output, node_name)]
    if stored in ("int8", "dequantize"):
        scale = np.float32(np.abs(values).max() / 124)  # room for the zero point
        codes = np.clip(np.round(values.T / scale) + 3, -128, 127).astype(np.int8)
        zero = helper.make_tensor(f"{name}_zero_point", TensorProto.INT8, [], [3])
        made = [numpy_helper.from_array(codes, f"{name}_quantized"), zero]
        made.append(numpy_helper.from_array(np.array(scale), f"{name}_scale"))
        names = [each.name for each in (made[0], made[2], made[1])]
        if stored == "int8":
            return made, [
                helper.make_node("MatMulInteger", ["x", names[0], "z", names[2]], output, f"{node_name}_quant")
            ]
        passed = [f"{name}_dq"]
        return made, [
            helper.make_node("DequantizeLinear", names, passed),
            helper.make_node("MatMul", ["x", *passed], output, node_name),
        ]
    n_bits, block = (8 if stored == "blocks8" else 4), 32
    n, k = values.shape
    n_blocks = -(-k // block)
    padded = np.zeros((n, n_blocks * block), np.float32)
    padded[:, :k] = values
    blocks = padded.reshape(n, n_blocks, block)
    middle = 1 << (n_bits - 1)
    scales = np.maximum(np.abs(blocks).max(axis=2) / (middle - 1), 1e-8).astype(np.float32)
    zero = middle - 1 if stored == "blocks4-zeros" else middle
    codes = np.clip(np.round(blocks / scales[:, :, None]) + zero, 0, 2 * middle - 1).astype(np.uint8)
    packed = codes if n_bits == 8 else codes[:, :, ::2] | codes[:, :, 1::2] << 4
    made = [
        numpy_helper.from_array(packed, f"{name}_Q4"),
        numpy_helper.from_array(scales.reshape(-1), f"{name}_scales"),
    ]
    given = ["x", *(each.name for each in made)]
    if stored == "blocks4-zeros":
        zeros = np.full((n, 2 * (-(-n_blocks // 2))), zero, np.uint8)
        made.append(numpy_helper.from_array((zeros[:, ::2] | zeros[:, 1::2] << 4).reshape(-1), f"{name}_zero_points"))
        given.append(made[-1].name)
    node = helper.make_node(
        "MatMulNBits", given, output, f"{node_name}_Q4", domain="com.microsoft", K=k, N=n, bits=n_bits, block_size=block
    )
    return made, [node]
