"""Finds the ONNX file of the model among the precisions and parts that exporters write."""

from __future__ import annotations

import posixpath
import re

from mdir_hf.errors import SeveralModelsError
from mdir_hf.model.files.onnx.source import OnnxSource
from mdir_hf.model.files.sources import FileTree

FOLDERS = ("", "onnx")

# What exporters append for a precision, the most exact first.
_PRECISIONS = ("", "fp16", "bf16", "int8", "uint8", "quantized", "q8", "bnb4", "q4", "q4f16")
_NAMES = ("model", "decoder_model_merged", "decoder_model", "decoder_with_past_model", "encoder_model")
_PRECISION = re.compile(r"(?P<name>.+?)(_(?P<precision>fp16|bf16|u?int8|quantized|q8|bnb4|q4(f16)?))?\.onnx")


def open_onnx(tree: FileTree, variant: str | None) -> OnnxSource | None:
    """Open the one ONNX model of a tree, in its root or in ``onnx/``; of several precisions the most exact.

    Args:
        tree: The files.
        variant: The precision in the file name: ``q4`` for ``model_q4.onnx``.

    Returns:
        Its initialisers; None where there is no ONNX file (of that variant).

    Raises:
        SeveralModelsError: If there are several models; names them.
    """
    found: dict[str, dict[str, str]] = {}
    for path in sorted(tree.files):
        folder, file = posixpath.split(path)
        match = _PRECISION.fullmatch(file)
        if folder in FOLDERS and match:
            found.setdefault(match["name"], {})[match["precision"] or ""] = path
    if variant is not None:
        found = {name: {variant: of[variant]} for name, of in found.items() if variant in of}
    if not found:
        return None
    name = next((name for name in _NAMES if name in found), None)
    if name is None:
        if len(found) > 1:
            files = tuple(next(iter(of.values())) for of in found.values())
            raise SeveralModelsError(
                f"there are {len(found)} ONNX models, and which one is meant cannot be told; name one file", files=files
            )
        (name,) = found
    of_name = found[name]
    precision = min(of_name, key=lambda one: _PRECISIONS.index(one) if one in _PRECISIONS else len(_PRECISIONS))
    return OnnxSource(tree, paths=[of_name[precision]])


def open_named_onnx(tree: FileTree, file: str) -> OnnxSource:
    """Open an ONNX file that somebody named."""
    return OnnxSource(tree, paths=[file])
