"""Which files of a tree are one GGUF model: a repository often holds a dozen quantisations of it, some in parts."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict

from ...errors import UnsupportedFormatError
from ..shards import check_complete, list_some
from ..sources import FileTree
from .source import GgufSource

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
# Projectors of vision towers, statistics for quantising, heads for drafting, tokenizers alone.
_NOT_THE_MODEL = re.compile(r"(.*[-._])?(mmproj|imatrix)([-._].*)?|(mtp|ggml-vocab)-.*", re.IGNORECASE)


def open_gguf(tree: FileTree, variant: str | None) -> GgufSource | None:
    """Open the one GGUF model in the root of a tree.

    Args:
        tree: The files.
        variant: Part of the file name that says which quantisation: ``Q4_K_M`` for ``model-Q4_K_M.gguf``.

    Returns:
        Its tensors; None where there is no GGUF file (of that variant).

    Raises:
        UnsupportedFormatError: If there are several models; names them.
        CorruptCheckpointError: If a part of a split one is missing.
    """
    models = _models(tree)
    if variant is not None:
        is_variant = re.compile(rf"(.*[-._])?{re.escape(variant)}([-.].*)?", re.IGNORECASE)
        models = {stem: parts for stem, parts in models.items() if is_variant.fullmatch(stem)}
    if not models:
        return None
    if len(models) > 1:
        raise UnsupportedFormatError(
            f"there are {len(models)} GGUF models, and which one is meant cannot be told: "
            f"{list_some(sorted(models), 8)}; name one file by its address (hf://owner/name/file.gguf, or a path), or "
            "a variant such as Q4_K_M"
        )
    (paths,) = models.values()
    return GgufSource(tree, paths=_complete(paths))


def open_named_gguf(tree: FileTree, file: str) -> GgufSource:
    """Open the model that a file belongs to: the file, or all parts of the split one that it is a part of.

    Raises:
        CorruptCheckpointError: If another part is missing.
    """
    match = _PART.fullmatch(file)
    if match is None:
        return GgufSource(tree, paths=(file,))
    folder = posixpath.dirname(file)
    same = [path for path in tree.files if posixpath.dirname(path) == folder and _stem(path) == _stem(file)]
    return GgufSource(tree, paths=_complete(same))


def _models(tree: FileTree) -> dict[str, list[str]]:
    models: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tree.files):
        if "/" not in path and path.lower().endswith(".gguf"):
            stem = _stem(path)
            if not _NOT_THE_MODEL.fullmatch(stem):
                models[stem].append(path)
    return dict(models)


def _stem(path: str) -> str:
    """Name without suffix and number of the part."""
    match = _PART.fullmatch(path)
    if match is None:
        return path[: -len(".gguf")]
    return f"{match['stem']}-of-{match['total']}"


def _complete(paths: list[str]) -> tuple[str, ...]:
    """Return the parts in order, or refuse a set that is not whole."""
    parts = {int(match["number"]): path for path in paths if (match := _PART.fullmatch(path))}
    if not parts:
        return tuple(paths)
    total = int(next(match["total"] for path in paths if (match := _PART.fullmatch(path))))
    check_complete(parts, total, what="part", named=f"of {_stem(paths[0])}")
    return tuple(parts[number] for number in sorted(parts))
