"""Finds the GGUF files of one model in a repository that may hold many quantisations, some split into parts."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping

from mdir_hf.errors import SeveralModelsError
from mdir_hf.model.files.gguf.source import GgufSource
from mdir_hf.model.files.shards import check_complete, list_some
from mdir_hf.model.files.sources import FileTree

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
# Projectors of vision towers, statistics for quantising, draft heads, and vocabularies without a model.
_NOT_THE_MODEL = re.compile(r"(.*[-._])?(mmproj|imatrix)([-._].*)?|(mtp|ggml-vocab)-.*", re.IGNORECASE | re.DOTALL)


# One word of a file name: types of ggml with several bits, and converters' words for float types.
_TYPE = re.compile(r"(B?F16|FP16|F32|FP32|MXFP4(_MOE)?|(I?Q|TQ)[1-8](_[0-9A-Z]{1,4}){0,3})", re.IGNORECASE)
_PREFIXES = frozenset({"ud", "i1"})  # how it was quantised, in front of a type


def open_gguf(tree: FileTree, variant: str | None) -> GgufSource | None:
    """Open the GGUF model of a tree; of several quantisations of one model, open the widest.

    The root is searched first, then subfolders, which some repositories use for one quantisation each.

    Args:
        tree: The files.
        variant: Part of the file name that selects a quantisation: ``Q4_K_M`` for ``model-Q4_K_M.gguf``.

    Returns:
        The tensors, or None without a GGUF file (of that variant).

    Raises:
        SeveralModelsError: If there are several models; names them.
        CorruptCheckpointError: If a part of a split model is missing.
    """
    models = _models(tree, variant, in_root=True) or _models(tree, variant, in_root=False)
    if not models:
        return None
    widest = _widest(tree, models) if variant is None and len(models) > 1 else None
    if widest is not None:
        source = GgufSource(tree, paths=_complete(models[widest]))
        alternative = next(kind for stem in sorted(models) if stem != widest and (kind := _type(stem)))
        source.chosen = (
            f"the repository holds {len(models)} quantisations, and the widest was read, {source.paths[0]}; select "
            f"another after a colon, as in owner/name:{alternative[1]}"
        )
        return source
    if len(models) > 1:
        files = tuple(paths[0] for _, paths in sorted(models.items()))
        raise SeveralModelsError(
            f"there are {len(models)} GGUF models, and it is unclear which one is meant: {list_some(files, 8)}; name "
            "one file (hf://owner/name/file.gguf, or a path), or a variant such as Q4_K_M",
            files=files,
        )
    (paths,) = models.values()
    return GgufSource(tree, paths=_complete(paths))


def open_named_gguf(tree: FileTree, file: str) -> GgufSource:
    """Open the model that a file belongs to: the file itself, or all parts of a split model.

    Raises:
        CorruptCheckpointError: If another part is missing.
    """
    match = _PART.fullmatch(file)
    if match is None:
        return GgufSource(tree, paths=(file,))
    folder = posixpath.dirname(file)
    same = [path for path in tree.files if posixpath.dirname(path) == folder and _stem(path) == _stem(file)]
    return GgufSource(tree, paths=_complete(same))


def _models(tree: FileTree, variant: str | None, *, in_root: bool) -> dict[str, list[str]]:
    models: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tree.files):
        if ("/" in path) != in_root and path.lower().endswith(".gguf"):
            stem = _stem(path)
            name = posixpath.basename(stem)
            if not _NOT_THE_MODEL.fullmatch(name) and (variant is None or _is_variant(name, variant)):
                models[stem].append(path)
    return dict(models)


def _is_variant(name: str, variant: str) -> bool:
    """Return whether a name contains a variant between separators."""
    name, variant = f"-{name.lower()}-", variant.lower()
    at = name.find(variant)
    while at > 0:
        if name[at - 1] in "-._" and name[at + len(variant)] in "-.":
            return True
        at = name.find(variant, at + 1)
    return False


def _widest(tree: FileTree, models: Mapping[str, list[str]]) -> str | None:
    """Return the stem with most bytes, or None unless all are quantisations of one model."""
    types = {stem: _type(stem) for stem in models}
    if len({kind and kind[0] for kind in types.values()}) != 1 or None in types.values():
        return None
    # F16 and BF16 have the same size; the name breaks the tie, so that the choice is stable.
    return max(models, key=lambda stem: (sum(tree.files[path].n_bytes for path in models[stem]), stem))


def _type(stem: str) -> tuple[str, str] | None:
    """Return the model's name and its type, or None for a name that does not end in a type."""
    words = re.split("[-.]", posixpath.basename(stem))
    if len(words) > 2 and words[-2] == "of" and words[-1].isdecimal():
        del words[-2:]
    kind = words.pop()
    if _TYPE.fullmatch(kind) is None:
        return None
    if words and words[-1].lower() in _PREFIXES:
        kind = f"{words.pop()}-{kind}"
    return "-".join(words).lower(), kind


def _stem(path: str) -> str:
    """Return the name without suffix and part number."""
    match = _PART.fullmatch(path)
    if match is None:
        return path[: -len(".gguf")]
    return f"{match['stem']}-of-{match['total']}"


def _complete(paths: list[str]) -> tuple[str, ...]:
    """Return the parts in order, checked to be complete."""
    parts = {int(match["number"]): path for path in paths if (match := _PART.fullmatch(path))}
    if not parts:
        return tuple(paths)
    total = int(next(match["total"] for path in paths if (match := _PART.fullmatch(path))))
    check_complete(parts, total, what="part", named=f"of {_stem(paths[0])}")
    return tuple(parts[number] for number in sorted(parts))
