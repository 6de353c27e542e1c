"""Read GGUF, llama.cpp's format, whose header contains the config and vocabulary."""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, SeveralModelsError, UnsupportedFormatError, naming
from mdir_hf.model.files.decode import Encoding, view_bytes
from mdir_hf.model.files.gguf.dequantise import GgmlType, type_named, weight_encoding
from mdir_hf.model.files.gguf.header import FIRST_READ_N_BYTES, GgufHeader, read_gguf_header
from mdir_hf.model.files.shards import Header, ShardedTensors, check_complete, list_some
from mdir_hf.model.sources import Description, FileTree, TensorSpec


class GgufSource(ShardedTensors):
    """The tensors of a GGUF checkpoint, read lazily.

    The dtype in a spec is the name of the ggml type.
    """

    format_name = "GGUF"
    chosen: str | None = None
    _metadata: Mapping[str, object] = MappingProxyType({})

    @property
    def description(self) -> Description:
        """The format, the quantised types, and the key/value pairs of the first header."""
        n_bytes: Counter[str] = Counter()
        unreadable: dict[str, str] = {}
        for spec in map(self.spec, self.names()):
            kind = _type_of(spec)
            if not kind.is_in_use:
                unreadable[spec.name] = kind.name
            if len(spec.shape) > 1 and not kind.is_plain:
                n_bytes[kind.name] += spec.n_bytes
        quantization = ", ".join(name for name, _ in n_bytes.most_common()) or None
        chosen = () if self.chosen is None else (self.chosen,)
        notes = (*chosen, _note_on(unreadable)) if unreadable else chosen
        return Description(self.format_name, quantization, notes, self._metadata, frozenset(unreadable))

    def _weight_encoding(self, spec: TensorSpec, label: str) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._weight_encoding(spec, label)
        with naming(label):
            return weight_encoding(kind, tensor=spec.name)

    def _stored_encoding(self, spec: TensorSpec) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._stored_encoding(spec)
        if not kind.n_bytes:
            raise UnsupportedFormatError(f"tensor {spec.name!r} has the unknown {kind.name}", subject=self.label)
        return Encoding(kind.n_values, kind.n_bytes, partial(view_bytes, dtype=torch.uint8), n_decoded=kind.n_bytes)

    def _paths_of_names(self) -> Mapping[str, str]:
        paths_of_names = super()._paths_of_names()
        if not paths_of_names:
            raise NoWeightsError(
                f"{self.paths[0]} holds no tensors, only a vocabulary or settings; name the file that holds the model",
                subject=self.label,
            )
        return paths_of_names

    def _read_header(self, path: str) -> Header:
        source, number = self._byte_source(path), self.paths.index(path)
        # The first part contains the vocabulary; the other parts have short headers.
        header = read_gguf_header(source, path=path, first_n_bytes=FIRST_READ_N_BYTES[0] if number else None)
        with naming(source.label):
            _check_part(header, number, len(self.paths))
            if number == 0:
                _check_is_model(header)
                self._metadata = header.metadata
        return header.tensors


def _type_of(spec: TensorSpec) -> GgmlType:
    return type_named(spec.dtype)


def _note_on(unreadable: Mapping[str, str]) -> str:
    number = "1 tensor holds" if len(unreadable) == 1 else f"{len(unreadable):,} tensors hold"
    return (
        f"{number} values of GGUF types that are unknown or no longer in use "
        f"({list_some(sorted(set(unreadable.values())))}) and cannot be read: {list_some(sorted(unreadable))}"
    )


def _check_part(header: GgufHeader, number: int, n_parts: int) -> None:
    count, stated_number = header.metadata.get("split.count", n_parts), header.metadata.get("split.no", number)
    if n_parts == 1 and count in (0, 1):
        return
    if (count, stated_number) != (n_parts, number):
        raise CorruptCheckpointError(
            f"the header says that this is part {stated_number!r:.20} (counted from 0) of {count!r:.20}, but its name "
            f"says part {number} of {n_parts}; the files belong to different splits, or were renamed"
        )


def _check_is_model(header: GgufHeader) -> None:
    kind, architecture = (header.metadata.get(key) for key in ("general.type", "general.architecture"))
    descriptions = {
        "adapter": "a LoRA adapter, which holds only differences; compare its base model, or a merged copy",
        "imatrix": "statistics for quantising, not a model",
        "mmproj": "the vision tower of a model; name the file of the language model",
    }
    refused = descriptions.get(str(kind)) or (descriptions["mmproj"] if architecture == "clip" else None)
    if refused is not None:
        raise UnsupportedFormatError(f"this GGUF file is {refused}")


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
# Projectors of vision towers, statistics for quantising, draft heads, and vocabularies without a model.
_NOT_THE_MODEL = re.compile(r"(.*[-._])?(mmproj|imatrix)([-._].*)?|(mtp|ggml-vocab)-.*", re.IGNORECASE | re.DOTALL)


# A ggml type in a file name, or a converter's name for a float type.
_TYPE = re.compile(r"(B?F16|FP16|F32|FP32|MXFP4(_MOE)?|(I?Q|TQ)[1-8](_[0-9A-Z]{1,4}){0,3})", re.IGNORECASE)
_PREFIXES = frozenset({"ud", "i1"})  # may precede a type and say how it was made


def open_gguf(tree: FileTree, variant: str | None) -> GgufSource | None:
    """Open the GGUF model in the root, or else in a subfolder, preferring the largest quantisation.

    ``variant`` is a quantisation: ``Q4_K_M`` selects ``model-Q4_K_M.gguf``. Returns None if no file matches.

    Raises:
        SeveralModelsError: If there are several models.
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
    """Open the model that a file belongs to, including all parts if it is split."""
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
    name, variant = f"-{name.lower()}-", variant.lower()
    at = name.find(variant)
    while at > 0:
        if name[at - 1] in "-._" and name[at + len(variant)] in "-.":
            return True
        at = name.find(variant, at + 1)
    return False


def _widest(tree: FileTree, models: Mapping[str, list[str]]) -> str | None:
    types = {stem: _type(stem) for stem in models}
    if len({kind and kind[0] for kind in types.values()}) != 1 or None in types.values():
        return None
    # F16 and BF16 have the same size; the name breaks the tie, so that the choice is stable.
    return max(models, key=lambda stem: (sum(tree.files[path].n_bytes for path in models[stem]), stem))


def _type(stem: str) -> tuple[str, str] | None:
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
    match = _PART.fullmatch(path)
    if match is None:
        return path[: -len(".gguf")]
    return f"{match['stem']}-of-{match['total']}"


def _complete(paths: list[str]) -> tuple[str, ...]:
    parts = {int(match["number"]): path for path in paths if (match := _PART.fullmatch(path))}
    if not parts:
        return tuple(paths)
    total = int(next(match["total"] for path in paths if (match := _PART.fullmatch(path))))
    check_complete(parts, total, what="part", named=f"of {_stem(paths[0])}")
    return tuple(parts[number] for number in sorted(parts))


__all__ = ["GgufSource", "open_gguf", "open_named_gguf"]
