"""Find and open a repository's weight files, using a table of formats."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from mdir_hf.budgets import SHARD_INDEX
from mdir_hf.errors import (
    CheckpointError,
    MdirError,
    NoWeightsError,
    SeveralModelsError,
    UnsupportedFormatError,
    naming,
)
from mdir_hf.model.files.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdaptedSource,
    AdapterConfig,
    has_adapter,
    read_adapter_config,
)
from mdir_hf.model.files.adapters.factors import NamedFactors
from mdir_hf.model.files.choosing import are_numbered, choose_by_headers, open_pytorch_model, refuse_without_model
from mdir_hf.model.files.gguf import GgufSource, open_gguf, open_named_gguf
from mdir_hf.model.files.index import parse_index, shard_named, slices_beside, slices_refused
from mdir_hf.model.files.kinds import (
    FactorPair,
    LazyShapes,
    factor_pairs,
    of_factors,
    placeholders_among,
    told_by_names,
)
from mdir_hf.model.files.onnx import OnnxWeights, open_onnx
from mdir_hf.model.files.pytorch import PYTORCH_SUFFIXES, PytorchSource
from mdir_hf.model.files.quantization import DequantizedSource
from mdir_hf.model.files.safetensors import SafetensorsSource
from mdir_hf.model.files.shards import ShardedTensors, check_complete, list_some
from mdir_hf.model.sources import FileTree, StoredSource, TensorSource, TreeWithTensors

_MLX_ADAPTER = "adapters.safetensors"
OpenBase = Callable[[AdapterConfig], TensorSource]
"""Function that opens the base weights of an adapter."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format for weights, supported or not.

    Attributes:
        looks_for: File names that the error lists if there are no weights; empty for unsupported formats.
        open: Function that opens a variant's tensors in a file tree, or returns None.
    """

    looks_for: str
    open: Callable[[FileTree, str | None], ShardedTensors | OnnxWeights | None]


_UsuallyNamed = type[SafetensorsSource] | type[PytorchSource]
"""A format whose files usually have the names used by transformers."""


def _usual_name(source: _UsuallyNamed, variant: str | None) -> str:
    stem = source.usual_stem if variant is None else f"{source.usual_stem}.{variant}"
    return stem + source.usual_suffix


def _open_single(source: _UsuallyNamed, tree: FileTree, variant: str | None) -> ShardedTensors | None:
    name = _usual_name(source, variant)
    return source(tree, paths=[name]) if name in tree.files else None


def _index_names(source: _UsuallyNamed, variant: str | None) -> list[str]:
    if variant is None:
        return [f"{_usual_name(source, None)}.index.json"]
    # transformers puts the variant before the last suffix; some tools put it before the first.
    return [f"{_usual_name(source, None)}.index.{variant}.json", f"{_usual_name(source, variant)}.index.json"]


def _open_usual_index(source: _UsuallyNamed, tree: FileTree, variant: str | None) -> ShardedTensors | None:
    names = _index_names(source, variant)
    return next((_open_index(tree, name, source) for name in names if name in tree.files), None)


def _open_shards(source: _UsuallyNamed, tree: FileTree, variant: str | None) -> ShardedTensors | None:
    sets: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    suffixes = PYTORCH_SUFFIXES if source is PytorchSource else (source.usual_suffix,)
    for name in _in_root(tree):
        shard = shard_named(name)
        if shard and shard.suffix in suffixes and not name.startswith("adapter_"):
            sets[shard.stem, shard.total][shard.number] = name
    usual = _usual_name(source, variant)
    named_so = {key: shards for key, shards in sets.items() if key[0] + source.usual_suffix == usual}
    candidates = named_so or ({} if variant is not None else sets)
    if not candidates:
        return None
    if len(candidates) > 1:
        listing = ", ".join(sorted(f"{stem}-…-of-{total:05}" for stem, total in candidates))
        raise UnsupportedFormatError(
            f"there are several sets of shards but no index ({listing}), so it is unclear which set is the model"
        )
    ((stem, total), shards) = next(iter(candidates.items()))
    named = f"{stem}-…-of-{total:05}{source.usual_suffix}, which have no index,"
    counts_from_zero = 0 in shards and total not in shards
    numbers = {number + counts_from_zero: name for number, name in shards.items()}
    check_complete(numbers, total, what="shard", named=named)
    return source(tree, paths=shards.values())


def open_checkpoint(
    tree: FileTree, *, variant: str | None = None, file: str | None = None, open_base: OpenBase | None = None
) -> TensorSource:
    """Open the weights in a file tree, usually reading at most an index.

    ``variant`` works as in transformers: ``fp16`` selects ``model.fp16.safetensors``. ``file`` names the weight file
    or index to open. If ``open_base`` is None, adapters are rejected.

    Raises:
        NoWeightsError: If there are no weights, or none for the variant.
        UnsupportedFormatError: If the format is unsupported, or it is unclear which file is the model.
        CorruptCheckpointError: If the index is invalid, or a shard is missing.
        UnsafePathError: If the index names a file outside its folder.
    """
    with naming(tree.label):
        if isinstance(tree, TreeWithTensors) and tree.tensors is not None:
            return _open_tensors(tree, tree.tensors, open_base)
        if open_base is not None and file in ADAPTER_WEIGHTS and has_adapter(tree):
            return _open_adapter(tree, open_base)
        if file is not None:
            return _as_numbers(_open_named(tree, file), tree, open_base)
        for file_format in FORMATS:
            if file_format is _PEFT_ADAPTER and open_base is not None and has_adapter(tree):
                return _open_adapter(tree, open_base)
            source = file_format.open(tree, variant)
            if isinstance(source, ShardedTensors) and file_format is FORMATS[0]:
                return _single_or_shards(source, tree, variant, open_base)
            if source is not None:
                return _as_numbers(source, tree, open_base)
        raise _no_weights(tree, variant)


def first_files(
    names: Collection[str], *, variant: str | None = None, file: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Guess which whole files and which headers are read first when a checkpoint is opened."""
    if file is not None:
        return (file,) if file.endswith(".json") else (), (file,) if file.endswith(".safetensors") else ()
    single = _usual_name(SafetensorsSource, variant)
    if single in names:
        return (), (single,)
    for source in (SafetensorsSource, PytorchSource):
        index = next((name for name in _index_names(source, variant) if name in names), None)
        if index is not None:
            if source is PytorchSource:
                return (index,), ()
            stem = single.removesuffix(SafetensorsSource.usual_suffix)
            named = ((name, shard_named(name)) for name in names)
            shards = sorted(name for name, shard in named if shard and shard.stem == stem)
            return (index,), tuple(shards[:1])
    return (ADAPTER_CONFIG,) if ADAPTER_CONFIG in names else (), ()


def _open_tensors(tree: FileTree, tensors: StoredSource, open_base: OpenBase | None) -> TensorSource:
    if open_base is not None and ADAPTER_CONFIG in tree.files:
        config = read_adapter_config(tree)
        return AdaptedSource(open_base(config), tensors, config)
    return DequantizedSource(tensors, tree)


def _as_numbers(
    source: ShardedTensors | OnnxWeights, tree: FileTree, open_base: OpenBase | None = None
) -> TensorSource:
    if isinstance(source, (GgufSource, OnnxWeights)):
        return source
    pairs = _factors_alone(source)
    if pairs:
        return _open_factors(source, pairs, tree, open_base)
    _refuse_without_weights(source)
    _mention_adapter(source, tree)
    return DequantizedSource(source, tree)


def _factors_alone(source: ShardedTensors) -> dict[str, FactorPair]:
    """Return the pairs of low-rank factors if the file holds nothing else."""
    if len(source.paths) != 1:
        return {}
    with suppress(MdirError):  # errors are raised when the weights are read
        return factor_pairs(LazyShapes(source))
    return {}


def _refuse_without_weights(source: ShardedTensors) -> None:
    told = None
    with suppress(MdirError):  # errors are raised when the weights are read
        told = told_by_names(source.names()) or placeholders_among(source) if len(source.paths) == 1 else None
    if told is not None:
        raise UnsupportedFormatError(f"{source.paths[0]} holds only {told[1]}; {_INSTEAD[told[0]]}")


_INSTEAD = {
    "adapter": "merge them, and compare the result",
    "optimizer": "name the file that holds the weights",
    **dict.fromkeys(("placeholders", "other"), "save the whole state dict on one rank, and compare that"),
}
"""The next step if a file holds something else than a model, by its kind."""


def _open_factors(
    source: ShardedTensors, pairs: dict[str, FactorPair], tree: FileTree, open_base: OpenBase | None
) -> TensorSource:
    path, what = source.paths[0], of_factors(pairs)
    if ADAPTER_CONFIG not in tree.files or open_base is None:
        why = "the base is not opened here" if ADAPTER_CONFIG in tree.files else f"there is no {ADAPTER_CONFIG} here"
        raise UnsupportedFormatError(
            f"{path} holds only the {what}, which are changes to a base model, and {why}; merge it and compare the "
            f"result, or write an {ADAPTER_CONFIG} with base_model_name_or_path, r and lora_alpha beside it"
        )
    config = read_adapter_config(tree)
    base = open_base(config)
    factors = NamedFactors(source, pairs, base)
    return AdaptedSource(base, factors, config, doubts=factors.doubts)


def _mention_adapter(source: ShardedTensors, tree: FileTree) -> None:
    beside = [
        path
        for path in sorted(tree.files)
        if path.rpartition("/")[2] == next((n for n in ADAPTER_WEIGHTS if _beside(path, n) in tree.files), None)
        and path not in source.paths
    ]
    if beside:
        were = "an adapter, lies" if len(beside) == 1 else "adapters, lie"
        was = "was" if len(beside) == 1 else "were"
        source.add_note(f"{list_some(beside)}, {were} beside {list_some(source.paths)} and {was} not applied")


def _beside(path: str, name: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def _single_or_shards(
    single: ShardedTensors, tree: FileTree, variant: str | None, open_base: OpenBase | None
) -> TensorSource:
    """Open the single file or, if its codes cannot be read, the shards next to it."""
    # Converters may leave a quantised model.safetensors next to the shards it was made from, with the shards' config.
    tensors = _as_numbers(single, tree, open_base)
    shards = _open_usual_index(SafetensorsSource, tree, variant)
    if shards is None:
        return tensors
    (path,) = single.paths
    index = next(name for name in _index_names(SafetensorsSource, variant) if name in tree.files)
    beside = f"there are two sets of weights, {path} and the shards of {index}"
    try:
        for name in tensors.names():
            tensors.spec(name)
    except CheckpointError as exc:
        shards.add_note(f"{beside}; the shards were read, because {exc.message}")
        return _as_numbers(shards, tree)
    single.add_note(f"{beside}; {path} was read, as transformers does")
    return tensors


def _open_named(tree: FileTree, file: str) -> ShardedTensors | OnnxWeights:
    name = file.lower()
    if name.endswith(".safetensors"):
        return SafetensorsSource(tree, paths=[file])
    if name.endswith(".json"):
        return _open_index(tree, file, PytorchSource if ".bin." in name else SafetensorsSource)
    if name.endswith(PYTORCH_SUFFIXES):
        slices = slices_beside(file, tree.files)
        if slices:
            raise UnsupportedFormatError(f"{file} is one of several slices: {slices_refused(slices)}")
        return PytorchSource(tree, paths=[file])
    if name.endswith(".gguf"):
        return open_named_gguf(tree, file)
    if name.endswith(".onnx"):
        return OnnxWeights(tree, file)
    raise UnsupportedFormatError(
        f"{file!r} has an unsupported format; name a .safetensors, .bin, .pth, .pt, .ckpt, .gguf or .onnx file, or the "
        "index of a sharded model"
    )


def _open_index(tree: FileTree, name: str, source: type[ShardedTensors]) -> ShardedTensors:
    data = tree.read(name, max_bytes=SHARD_INDEX.n_bytes)
    return source(tree, index=parse_index(data, path=name, label=f"{tree.label}:{name}"))


def _open_only_file(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    names = _safetensors_in_root(tree)
    if variant is not None or len(names) != 1:
        return None
    if shard_named(names[0]) and len(tree.files) > 1:
        return None  # the other shards are missing, which a later format reports
    return SafetensorsSource(tree, paths=names)


def _open_among_several(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    names = _safetensors_in_root(tree)
    if variant is not None or not names:
        return None
    source = choose_by_headers(tree, names, SafetensorsSource)
    if source is None and len(names) > 1:
        raise SeveralModelsError(
            f"there is no model.safetensors and no index, so it is unclear which of {len(names)} files is the model "
            f"({list_some(names)}); name one file, or a variant",
            files=tuple(names),
        )
    return source


def _open_adapter(tree: FileTree, open_base: OpenBase) -> TensorSource:
    config = read_adapter_config(tree)
    weights = next(name for name in ADAPTER_WEIGHTS if name in tree.files)
    source = PytorchSource if weights.endswith(PYTORCH_SUFFIXES) else SafetensorsSource
    factors = source(tree, paths=[weights])
    _mention_adapter(factors, tree)
    return AdaptedSource(open_base(config), factors, config)


def _refuse_adapter(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    weights = next((name for name in ADAPTER_WEIGHTS if name in tree.files), None)
    if variant is not None or weights is None:
        return None
    raise UnsupportedFormatError(
        f"this is a PEFT adapter ({weights}), which holds only differences to a base model, "
        + ("and the base is not opened here" if ADAPTER_CONFIG in tree.files else f"and there is no {ADAPTER_CONFIG}")
        + "; compare its base model, or a merged copy"
    )


def _refuse_mlx_adapter(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    del variant
    if _MLX_ADAPTER in tree.files and ADAPTER_CONFIG in tree.files:
        raise UnsupportedFormatError(
            f"this is an mlx-lm adapter ({_MLX_ADAPTER}), which holds only differences to a base model and is not "
            "supported; fuse it (`mlx_lm.fuse`) and compare the result"
        )
    return None


def _refusal(name: str, patterns: str, advice: str) -> Format:
    def refuse(tree: FileTree, variant: str | None) -> ShardedTensors | None:
        del variant
        matches = [
            path
            for path in sorted(tree.files)
            if any(fnmatch.fnmatchcase(path, p) and ("/" in path) is ("/" in p) for p in patterns.split())
        ]
        if matches and not _readable_below(tree):
            raise UnsupportedFormatError(
                f"the weights are in {name} ({list_some(matches)}), which is not supported; {advice}"
            )
        return None

    return Format("", refuse)


def _open_onnx(tree: FileTree, variant: str | None) -> OnnxWeights | None:
    """Open an ONNX export, unless a subfolder contains a checkpoint."""
    return None if _readable_below(tree) else open_onnx(tree, variant)


def _refuse_ctranslate2(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    del variant
    in_root = set(_in_root(tree))
    if "model.bin" in in_root and any(fnmatch.fnmatchcase(path, "*vocabulary.*") for path in in_root):
        raise UnsupportedFormatError(
            f"the weights are in CTranslate2's format (model.bin), which is not supported; {_EXPORTED}"
        )
    return None


_EXPORTED = "compare the checkpoint that they were exported from"
_PEFT_ADAPTER = Format(" and ".join((ADAPTER_CONFIG, ADAPTER_WEIGHTS[0])), _refuse_adapter)
_GATHER = (
    "gather it into one file (`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt`), and "
    "compare that"
)
_CONVERT = "convert them to safetensors (`save_pretrained` writes it), or compare a copy that has it"

FORMATS: tuple[Format, ...] = (
    Format("model.safetensors", partial(_open_single, SafetensorsSource)),
    Format("model.safetensors.index.json", partial(_open_usual_index, SafetensorsSource)),
    Format("pytorch_model.bin", partial(_open_single, PytorchSource)),
    Format("pytorch_model.bin.index.json", partial(_open_usual_index, PytorchSource)),
    Format("", _refuse_mlx_adapter),
    Format("*.safetensors", _open_only_file),
    Format("model-00001-of-000NN.safetensors", partial(_open_shards, SafetensorsSource)),
    Format("pytorch_model-00001-of-000NN.bin", partial(_open_shards, PytorchSource)),
    Format("*.safetensors", _open_among_several),
    _PEFT_ADAPTER,
    Format("", _refuse_ctranslate2),
    Format("*.pth, *.pt, *.ckpt, *.bin", open_pytorch_model),
    Format("*.gguf", open_gguf),
    Format("*.onnx, onnx/*.onnx", _open_onnx),
    _refusal("a distributed checkpoint of PyTorch (DCP)", "*.distcp */*.distcp", _GATHER),
    _refusal(
        "a DeepSpeed checkpoint",
        "*/*_optim_states.pt */*_model_states.pt zero_pp_rank_*.pt",
        "gather them with the script zero_to_fp32.py that DeepSpeed writes beside them, and compare the result",
    ),
    _refusal("TensorFlow or Flax files", "tf_model*.h5 flax_model*.msgpack *.ckpt.* *.ckpt-*", _CONVERT),
    _refusal("a TensorRT engine", "*.engine *.plan", _EXPORTED),
    _refusal("TensorFlow Lite", "*.tflite *.task", _EXPORTED),
    _refusal("ExecuTorch", "*.pte", _EXPORTED),
    _refusal("Core ML", "*.mlmodel *.mlpackage/*", _EXPORTED),
    _refusal("a NeMo archive", "*.nemo", _CONVERT),
    _refusal("NumPy archives", "*.npz", _CONVERT),
    Format("", refuse_without_model),
)
"""Every known format, in order of preference.

As in transformers, a single file takes precedence over an index. Within each format, the file names that transformers
uses come first."""


def _no_weights(tree: FileTree, variant: str | None) -> CheckpointError:
    below = _readable_below(tree)
    if variant is not None:
        others = _safetensors_in_root(tree) or [
            path for path in _in_root(tree) if path.lower().endswith((".gguf", *PYTORCH_SUFFIXES))
        ]
        looked_for = f"{_usual_name(SafetensorsSource, variant)} or its index, for the variant {variant!r}"
        hint = f"; without a variant there is {list_some(others)}" if others else ""
    else:
        looked_for = ", ".join(dict.fromkeys(file_format.looks_for for file_format in FORMATS if file_format.looks_for))
        hint = ""
    ranks = [path for path in below if re.search(r"(?:^|/)mp_rank_[\d_]+/|(?:^|/)layer_\d+-model_", path)]
    if len(ranks) > 1 and ranks == below and are_numbered(ranks):
        raise UnsupportedFormatError(slices_refused(ranks))
    if below and not hint:
        return NoWeightsError(f"no weights in its root; name the subfolder that holds them ({list_some(below)})")
    if not tree.files:
        return NoWeightsError("no weights, and no other file")
    n_files = len(tree.files)
    what_is_there = f"{n_files} file{'' if n_files == 1 else 's'} ({list_some(sorted(tree.files))})"
    return NoWeightsError(f"no weights among {what_is_there}; looked for {looked_for}{hint}")


def _readable_below(tree: FileTree) -> list[str]:
    patterns = ("*/*.safetensors", "*/*.bin", "*/*.gguf", "*/*.pth", "*/*.pt", "*/*.ckpt")
    # The folders of distributed checkpoints, which have errors of their own.
    distributed = {path.rpartition("/")[0] for path in tree.files if path.endswith((".distcp", "_optim_states.pt"))}
    return [
        path
        for path in sorted(tree.files)
        if any(fnmatch.fnmatchcase(path, p) for p in patterns)
        and ".mlpackage/" not in path
        and path.rpartition("/")[0] not in distributed
    ]


def _in_root(tree: FileTree) -> list[str]:
    return sorted(path for path in tree.files if "/" not in path)


def _safetensors_in_root(tree: FileTree) -> list[str]:
    return [path for path in _in_root(tree) if path.endswith(".safetensors") and not path.startswith("adapter_")]
