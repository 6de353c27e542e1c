"""Which files of a repository are its weights. Formats are rows of one table, tried in order."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import CheckpointError, CorruptCheckpointError, NoWeightsError, UnsupportedFormatError
from .index import parse_index
from .safetensors import SafetensorsSource
from .sources import FileTree, TensorSource

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_ADAPTER = "adapter_model.safetensors"
MAX_INDEX_N_BYTES = 256 << 20
"""Largest index file read; that of a 671B mixture of experts has 9 MB."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which weights may lie in a tree.

    Attributes:
        name: For messages.
        looks_for: The file names it looks for, as a user would write them.
        open: Returns the tensors, or None where this format is not there. Takes the tree and the variant.
    """

    name: str
    looks_for: str
    open: Callable[[FileTree, str | None], TensorSource | None]


def open_checkpoint(tree: FileTree, *, variant: str | None = None, file: str | None = None) -> TensorSource:
    """Find the weights of a model and give lazy access to them. Reads at most the index file.

    Args:
        tree: The files of the model; its root is where the weights are looked for.
        variant: As in transformers: ``fp16`` for ``model.fp16.safetensors``.
        file: The one weight file, or index, that somebody named; nothing else is looked for then.

    Raises:
        NoWeightsError: If nothing in the root holds weights (of that variant).
        UnsupportedFormatError: If there are weights, in a format that this version does not read, or if several
            files could be the model.
        CorruptCheckpointError: If the index is no index, or a shard of a set without index is missing.
        UnsafePathError: If the index names a file outside of its folder.
    """
    if file is not None:
        return _open_named(tree, file)
    for known in FORMATS:
        source = known.open(tree, variant)
        if source is not None:
            return source
    raise _no_weights(tree, variant)


def _open_named(tree: FileTree, file: str) -> TensorSource:
    if file.endswith(".safetensors"):
        return SafetensorsSource(tree, paths=[file])
    if file.endswith(".json"):
        data = tree.read(file, max_bytes=MAX_INDEX_N_BYTES)
        return SafetensorsSource(tree, index=parse_index(data, path=file, label=f"{tree.label}:{file}"))
    raise UnsupportedFormatError(
        f"{file!r} is neither a .safetensors file nor the index of a sharded one, which is what this version reads",
        subject=tree.label,
    )


def _open_single(tree: FileTree, variant: str | None) -> TensorSource | None:
    name = _stem(variant) + ".safetensors"
    return SafetensorsSource(tree, paths=[name]) if name in tree.files else None


def _open_index(tree: FileTree, variant: str | None) -> TensorSource | None:
    names = ["model.safetensors.index.json"]
    if variant is not None:
        # transformers puts the variant before the last suffix; some tools put it before the first.
        names = [f"model.safetensors.index.{variant}.json", f"model.{variant}.safetensors.index.json"]
    for name in names:
        if name in tree.files:
            data = tree.read(name, max_bytes=MAX_INDEX_N_BYTES)
            return SafetensorsSource(tree, index=parse_index(data, path=name, label=f"{tree.label}:{name}"))
    return None


def _open_only_file(tree: FileTree, variant: str | None) -> TensorSource | None:
    """One weight file under any name: a folder with nothing else, or a path that named the file itself."""
    names = _safetensors_in_root(tree)
    if variant is not None or len(names) != 1:
        return None
    if _SHARD.fullmatch(names[0]) and len(tree.files) > 1:
        return None  # the rest of a set of shards is missing; that is said below
    return SafetensorsSource(tree, paths=names)


def _open_shards_without_index(tree: FileTree, variant: str | None) -> TensorSource | None:
    sets: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in _safetensors_in_root(tree):
        match = _SHARD.fullmatch(name)
        if match:
            sets[match["stem"], int(match["total"])][int(match["number"])] = name
    stem = _stem(variant)
    named_so = {key: shards for key, shards in sets.items() if key[0] == stem}
    candidates = named_so or ({} if variant is not None else sets)
    if not candidates:
        return None
    if len(candidates) > 1:
        found = ", ".join(sorted(f"{stem}-…-of-{total:05}" for stem, total in candidates))
        raise UnsupportedFormatError(
            f"there are several sets of shards and no index ({found}); which one is the model cannot be told",
            subject=tree.label,
        )
    ((stem, total), shards) = next(iter(candidates.items()))
    missing = [number for number in range(1, total + 1) if number not in shards]
    if missing or len(shards) != total:
        raise CorruptCheckpointError(
            f"{len(shards)} of {total} shards {stem}-…-of-{total:05}.safetensors are there and there is no index; "
            + (f"shard {missing[0]} is the first one missing" if missing else "their numbers do not run from 1"),
            subject=tree.label,
        )
    return SafetensorsSource(tree, paths=shards.values())


def _refuse_unclear(tree: FileTree, variant: str | None) -> TensorSource | None:
    names = _safetensors_in_root(tree)
    if variant is None and len(names) > 1:
        raise UnsupportedFormatError(
            f"there is no model.safetensors and no index, and which of {len(names)} files is the model cannot be told "
            f"({_some(names)}); name one file, or a variant",
            subject=tree.label,
        )
    return None


def _refuse_adapter(tree: FileTree, variant: str | None) -> TensorSource | None:
    if variant is not None or _ADAPTER not in tree.files:
        return None
    base = None
    if "adapter_config.json" in tree.files:
        try:
            config = json.loads(tree.read("adapter_config.json", max_bytes=1 << 20))
            base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
        except (ValueError, RecursionError):
            base = None
    whose = f"of {base!r}" if isinstance(base, str) and base else "of a base model that its adapter_config.json omits"
    raise UnsupportedFormatError(
        f"this is a PEFT adapter {whose}: it holds only differences ({_ADAPTER}), which this version does not read; "
        "compare its base model, or a merged copy",
        subject=tree.label,
    )


def _refusal(name: str, patterns: str, advice: str) -> Format:
    """A format that is recognised by its file names, and not read by this version."""

    def refuse(tree: FileTree, variant: str | None) -> TensorSource | None:
        del variant
        found = [path for path in _in_root(tree) if any(fnmatch.fnmatchcase(path, p) for p in patterns.split())]
        if found:
            raise UnsupportedFormatError(
                f"the weights are in {name} ({_some(found)}), which this version does not read; {advice}",
                subject=tree.label,
            )
        return None

    return Format(name, patterns, refuse)


_CONVERT = "convert them to safetensors (`save_pretrained` writes it), or compare a copy that has it"

FORMATS: tuple[Format, ...] = (
    Format("safetensors, one file", "model.safetensors", _open_single),
    Format("safetensors, sharded", "model.safetensors.index.json", _open_index),
    Format("safetensors, one file of any name", "*.safetensors", _open_only_file),
    Format("safetensors, shards without index", "model-00001-of-000NN.safetensors", _open_shards_without_index),
    Format("safetensors, several files", "*.safetensors", _refuse_unclear),
    Format("PEFT adapter", _ADAPTER, _refuse_adapter),
    _refusal("PyTorch pickle files", "pytorch_model*.bin model*.bin consolidated*.pth *.pth model*.pt", _CONVERT),
    _refusal("GGUF", "*.gguf", "compare the checkpoint that it was converted from"),
    _refusal("TensorFlow or Flax files", "tf_model*.h5 flax_model*.msgpack model.ckpt*", _CONVERT),
    _refusal("ONNX", "*.onnx", "compare the checkpoint that it was exported from"),
    _refusal("NumPy archives", "*.npz", _CONVERT),
)
"""Every format this version knows, in the order of preference; a new format is a new row.

Where one file and an index are both there, transformers loads the one file, so it is what users run.
"""


def _no_weights(tree: FileTree, variant: str | None) -> CheckpointError:
    patterns = ("*.safetensors", "*.bin", "*.gguf", "*.pth")
    below = [path for path in sorted(tree.files) if any(fnmatch.fnmatchcase(path, "*/" + p) for p in patterns)]
    if variant is not None:
        others = _safetensors_in_root(tree)
        looked_for = f"{_stem(variant)}.safetensors or its index, for the variant {variant!r}"
        hint = f"; without a variant there is {_some(others)}" if others else ""
    else:
        looked_for = ", ".join(dict.fromkeys(known.looks_for for known in FORMATS))
        hint = ""
    if below and not hint:
        hint = f"; there are weights in a subfolder ({_some(below)}): name that subfolder"
    n_files = len(tree.files)
    what_is_there = f"{n_files} file{'' if n_files == 1 else 's'}" + (
        f" ({_some(sorted(tree.files))})" if n_files else ""
    )
    return NoWeightsError(f"no weights among {what_is_there}; looked for {looked_for}{hint}", subject=tree.label)


def _stem(variant: str | None) -> str:
    return "model" if variant is None else f"model.{variant}"


def _in_root(tree: FileTree) -> list[str]:
    return sorted(path for path in tree.files if "/" not in path)


def _safetensors_in_root(tree: FileTree) -> list[str]:
    return [path for path in _in_root(tree) if path.endswith(".safetensors") and not path.startswith("adapter_")]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", …" if len(listed) > 3 else "")
