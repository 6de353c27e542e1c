"""Extract the weights of a BERT from an ONNX file, under the names of its checkpoint, with int8 dequantised to F32."""

from __future__ import annotations

import json
from pathlib import Path

from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.hub import open_repository


def write_bert(onnx_file: Path, folder: Path) -> None:
    """Write ``model.safetensors`` and ``config.json``; the ONNX file is read as data and is not run.

    Args:
        onnx_file: A BERT with its weights inside, F32 or dynamically quantised to int8.
        folder: Existing output folder; tokenizer files are written elsewhere.
    """
    from safetensors.torch import save_file

    stored = open_checkpoint(open_repository(str(onnx_file.parent)), file=onnx_file.name)
    weights = {name.removeprefix("bert."): stored.read(name) for name in stored.names()}
    weights = {name: weight for name, weight in weights.items() if name.startswith(("embeddings.", "encoder."))}
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
