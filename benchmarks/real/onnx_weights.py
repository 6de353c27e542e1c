"""Weights of a BERT in an ONNX file, under the names that its checkpoint had: in F32, int8 is dequantised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

PREFIX = re.compile(r"^(model\.)?(0\.auto_model\.|model\.0\.auto_model\.|bert\.)")
"""What exporters put in front of the names of a BERT."""

MATRIX_PRODUCTS = ("MatMul", "MatMulInteger")
QUANTIZED, SCALE, ZERO_POINT = "_quantized", "_scale", "_zero_point"


def write_bert(onnx_file: Path, folder: Path) -> None:
    """Write ``model.safetensors`` and ``config.json``; the file is read as data, nothing of it is run.

    Args:
        onnx_file: A BERT with its weights inside, F32 or dynamically quantised to int8.
        folder: Exists; tokenizer files are somebody else's.
    """
    from safetensors.torch import save_file

    weights = dict(_weights(onnx_file))
    vocabulary, width = weights["embeddings.word_embeddings.weight"].shape
    layers = {int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")}
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": width,
        "intermediate_size": weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": weights["embeddings.position_embeddings.weight"].shape[0],
        "num_attention_heads": 12,
        "num_hidden_layers": len(layers),
        "vocab_size": vocabulary,
    }
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _weights(onnx_file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(onnx_file)).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}

    def values(name: str) -> npt.NDArray[np.float32]:
        array = numpy_helper.to_array(stored[name])
        if not name.endswith(QUANTIZED):
            return array.astype(np.float32)
        stem = name.removesuffix(QUANTIZED)
        scale, zero = (numpy_helper.to_array(stored[stem + end]).astype(np.float32) for end in (SCALE, ZERO_POINT))
        return (array.astype(np.float32) - zero) * scale

    # The weights of products lost their names when they were transposed; the nodes that use them have kept theirs.
    for node in graph.node:
        for given in node.input:
            if (
                node.op_type in MATRIX_PRODUCTS
                and given in stored
                and len(stored[given].dims) == 2
                and "MatMul_" in given
            ):
                module = node.name.strip("/").rpartition("/")[0].replace("/", ".")
                yield PREFIX.sub("", f"{module}.weight"), torch.from_numpy(values(given).T.copy())
    for name in stored:
        plain = PREFIX.sub("", name.removesuffix(QUANTIZED))
        if plain.startswith(("embeddings.", "encoder.")) and plain.endswith((".weight", ".bias")):
            yield plain, torch.from_numpy(values(name).copy())
