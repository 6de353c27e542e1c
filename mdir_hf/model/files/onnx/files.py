"""Finds the ONNX file of the model among the precisions and parts that exporters write."""

from __future__ import annotations

import posixpath
import re

from mdir_hf.errors import SeveralModelsError
from mdir_hf.model.files.onnx.source import OnnxSource
from mdir_hf.model.files.sources import FileTree

FOLDERS = ("", "onnx")

# Suffixes that exporters append for a precision, most exact first.
_PRECISIONS = ("", "fp16", "bf16", "int8", "uint8", "quantized", "q8", "bnb4", "q4", "q4f16")
_NAMES = ("model", "decoder_model_merged", "decoder_model", "decoder_with_past_model", "encoder_model")
_PRECISION = re.compile(r"(?P<name>.+?)(_(?P<precision>fp16|bf16|u?int8|quantized|q8|bnb4|q4(f16)?))?\.onnx")


def open_onnx(tree: FileTree, variant: str | None) -> OnnxSource | None:
    """Open the ONNX model in the root or in ``onnx/``; of several precisions, open the most exact.

    Args:
        tree: The files.
        variant: The precision in the file name: ``q4`` for ``model_q4.onnx``.

    Returns:
        The initialisers, or None without an ONNX file (of that variant).

    Raises:
        SeveralModelsError: If there are several models; names them.
    """
    models: dict[str, dict[str, str]] = {}
    for path in sorted(tree.files):
        folder, file = posixpath.split(path)
        match = _PRECISION.fullmatch(file)
        if folder in FOLDERS and match:
            models.setdefault(match["name"], {})[match["precision"] or ""] = path
    if variant is not None:
        models = {name: {variant: paths[variant]} for name, paths in models.items() if variant in paths}
    if not models:
        return None
    name = next((name for name in _NAMES if name in models), None)
    if name is None:
        if len(models) > 1:
            files = tuple(next(iter(paths.values())) for paths in models.values())
            raise SeveralModelsError(
                f"there are {len(models)} ONNX models, and it is unclear which one is meant; name one file", files=files
            )
        (name,) = models
    paths = models[name]
    precision = min(paths, key=lambda name: _PRECISIONS.index(name) if name in _PRECISIONS else len(_PRECISIONS))
    return OnnxSource(tree, paths=[paths[precision]])


def open_named_onnx(tree: FileTree, file: str) -> OnnxSource:
    """Open a given ONNX file."""
    return OnnxSource(tree, paths=[file])
