"""Tell from a header what a weight file holds: a model, an adapter's factors, an optimizer's state, or something else.

The decision rests on tensor names and shapes, never on the file's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mdir_hf.errors import MdirError
from mdir_hf.model.sources import Checkpoint

FileKind = Literal["model", "adapter", "optimizer", "placeholders", "other"]

Shape = tuple[int, ...]

MOST_RANK = 2048
"""Largest rank of an adapter's factors."""

MOST_BYTES_OF_EMPTY = 2048
"""Largest number of bytes per tensor of a file that may hold only placeholders."""

_OPTIMIZER = re.compile(
    r"(?:.*\.)?(?:exp_avg|exp_avg_sq|step|max_exp_avg_sq|momentum_buffer|square_avg|fp32_flat_groups|"
    r"single_partition_of_fp32_groups|base_optimizer_state)(?:\..*)?|(?:optim|lr_schedul)[^.]*\..*",
    re.DOTALL,
)
_MOMENTS = (".m", ".v")
"""Endings of the two moments of a weight in mlx's optimizers."""

_CHANGES = frozenset({"hada", "lokr", "ia3", "oft", "boft", "vera"})
"""Words in the names of an adapter's tensors that are no pairs of factors."""

_DETAILS = (
    ("averaged weights (EMA)", re.compile(r"(?:ema|ema_model|averaged?)(?:\.|_)", re.IGNORECASE)),
    ("weights of a draft model", re.compile(r"(?:.*\.)?(?:midlayer|medusa\w*|eagle\w*|draft\w*)\.", re.IGNORECASE)),
    ("weights of a tower", re.compile(r"(?:.*\.)?(?:vision\w*|visual\w*|audio\w*|speech\w*)\.", re.IGNORECASE)),
)
"""Contents that more than half of the tensor names tell."""

_OF_DRAFTS = frozenset({"d2t", "t2d"})
"""EAGLE-3's maps between the tokens of the draft and of the model."""

_FACTOR = re.compile(r"(?:^|[._])lora[._]", re.IGNORECASE)
_ENDINGS = frozenset({"weight", "default"})


@dataclass(frozen=True)
class FileContents:
    """Contents of one weight file.

    Attributes:
        shapes: Shapes of its tensors that can be read, keyed by name.
        detail: The contents in words.
    """

    path: str
    kind: FileKind
    detail: str
    shapes: Mapping[str, Shape] = field(default_factory=dict, repr=False)


class LazyShapes(Mapping[str, Shape]):
    """The shapes of a checkpoint's tensors, keyed by name and looked up on access."""

    def __init__(self, source: Checkpoint) -> None:
        self._source = source
        self._names = frozenset(source.names())

    def __getitem__(self, name: str) -> Shape:
        return self._source.spec(name).shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.names())

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


@dataclass(frozen=True)
class FactorPair:
    """The factors of one module's change, ``b @ a``.

    Attributes:
        a: Name of the factor that reads, ``(rank, d_in)``.
        b: Name of the factor that writes, ``(d_out, rank)``.
    """

    a: str
    b: str
    rank: int
    shape: tuple[int, int]


def factor_pairs(shapes: Mapping[str, Shape]) -> dict[str, FactorPair]:
    """Return the pairs of low-rank factors, keyed by module, if the tensors are an adapter's; empty for a model.

    Every matrix must be one of two factors in its module; besides them, adapters may hold vectors, and tables that
    were saved whole.
    """
    modules: dict[str, list[str]] = defaultdict(list)
    for name in shapes:
        modules[_module_of(name)].append(name)
    pairs: dict[str, FactorPair] = {}
    for module, names in modules.items():
        if not module:
            return {}  # not the tensors of a module
        matrices = [name for name in names if len(shapes[name]) >= 2]
        if not matrices:
            continue
        pair = _pair(matrices, shapes) if len(matrices) == 2 else None
        if pair is not None:
            pairs[module] = pair
        elif any(_FACTOR.search(name) for name in matrices):
            continue  # factors in another arrangement
        elif len(matrices) > 1 or re.search(r"\.\d+\.", matrices[0]) or not any(map(_FACTOR.search, shapes)):
            return {}
    return pairs


def _module_of(name: str) -> str:
    words = name.split(".")
    while len(words) > 1 and words[-1] in _ENDINGS:
        words.pop()
    return ".".join(words[:-1])


def _pair(names: list[str], shapes: Mapping[str, Shape]) -> FactorPair | None:
    options: list[FactorPair] = []
    for a, b in (names, names[::-1]):
        if len(shapes[a]) != 2 or len(shapes[b]) != 2:
            return None
        (rank, d_in), (d_out, inner) = shapes[a], shapes[b]
        least = min(d_in, d_out)
        is_named = _FACTOR.search(a) is not None
        if rank == inner and 0 < rank <= MOST_RANK and (rank < least or (is_named and rank == least)):
            options.append(FactorPair(a, b, rank, (d_out, d_in)))
    # If both factors are square, names tell: A comes before B.
    return min(options, key=lambda pair: pair.a) if options else None


def contents_of(source: Checkpoint, path: str) -> FileContents:
    """Classify a file from its header; an unreadable file is of kind ``other``."""
    try:
        names = source.names()
    except MdirError as exc:
        return FileContents(path, "other", f"no weights that can be read: {exc.message.partition(';')[0]:.120}")
    told = told_by_names(names)
    if told is not None:
        return FileContents(path, *told)
    shapes: dict[str, Shape] = {}
    for name in names:
        try:
            shapes[name] = source.spec(name).shape
        except MdirError:
            continue
    pairs = factor_pairs(shapes)
    if pairs:
        return FileContents(path, "adapter", of_factors(pairs), shapes)
    if (told := placeholders_among(source)) is not None:
        return FileContents(path, *told, shapes)
    matrices = [name for name, shape in shapes.items() if len(shape) >= 2]
    if matrices:
        return FileContents(path, "model", _of_weights(shapes), shapes)
    return FileContents(path, "other", "no matrices", shapes)


def _is_change(name: str) -> bool:
    """Return whether a tensor, by its name, is a part of an adapter or a difference to a base model."""
    parts = name.split(".")
    return parts[-1] in ("alpha", "dora_scale") or any(
        not _CHANGES.isdisjoint(part.split("_")[:-1])
        or part.endswith("prompt_embeddings")
        or part.removesuffix("_b").endswith("diff")
        for part in parts
    )


def told_by_names(names: Collection[str]) -> tuple[FileKind, str] | None:
    """Return the kind and the contents of a file whose tensor names alone show that it holds no model."""
    if names and all(map(_is_change, names)):
        return "adapter", "an adapter's changes to a base model"
    if names and all(name.rpartition(".")[2] == "flat_param" for name in names):
        return "other", "flat vectors of FSDP, and only its program knows which weights they hold"
    states = [name for name in names if _OPTIMIZER.fullmatch(name) or name.endswith(_MOMENTS)]
    if 2 * len(states) > len(names) and not {name.rpartition(".")[0] for name in states} & set(names):
        return "optimizer", "the state of an optimizer"
    return None


def placeholders_among(source: Checkpoint) -> tuple[FileKind, str] | None:
    """Return the kind and the contents of a file if most of its tensors are empty."""
    names = source.names()
    if source.n_bytes > MOST_BYTES_OF_EMPTY * len(names):
        return None  # spares reads of archives in which each tensor has a header of its own
    if 2 * sum(0 in source.spec(name).shape for name in names) <= len(names):
        return None
    return "placeholders", "empty placeholders, as DeepSpeed's ZeRO stage 3 leaves"


def _of_weights(names: Collection[str]) -> str:
    for detail, pattern in _DETAILS:
        if sum(pattern.match(name) is not None for name in names) > len(names) // 2:
            return detail
    if any(name.rpartition(".")[2] in _OF_DRAFTS for name in names):
        return "weights of a draft model"
    return "weights"


def of_factors(pairs: Mapping[str, FactorPair]) -> str:
    """Describe an adapter's factors: ``factors of an adapter (8 modules, rank 4)``."""
    ranks = sorted({pair.rank for pair in pairs.values()})
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    return f"factors of an adapter ({len(pairs)} module{'' if len(pairs) == 1 else 's'}, {named})"
