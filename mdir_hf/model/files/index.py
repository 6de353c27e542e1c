"""Parse a shard index, which maps tensors to files, and compare it with the headers.

Tools often leave an outdated index behind, so headers take precedence.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mdir_hf.budgets import SHARD_INDEX, collector_paused, json_values
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError, naming
from mdir_hf.names import safe_path

# transformers writes model-00001-of-00003; other tools use another separator or width, or count from 0.
_SHARD = re.compile(
    r"(?P<stem>.+?)[-_.](?P<number>\d{1,7})[-_]of[-_](?P<total>\d{1,7})(?P<suffix>\.safetensors|\.bin|\.pth|\.pt|\.ckpt)",
    re.DOTALL,
)
# Names used by Meta, DeepSeek, vLLM, Megatron and SGLang. Each file contains a part of every matrix.
_SLICE = re.compile(
    r"consolidated[._-]\d{1,3}\.(pth|pt|safetensors)"
    r"|model\d{1,3}-mp\d{1,3}\.safetensors"
    r"|model-rank-\d{1,3}-part-\d{1,3}\.safetensors"
    r"|(.*[._-])?(mp|tp)?[._-]?rank[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt|ckpt)"
    r"|layer_\d{1,4}-model_.*\.pt"
    r"|.*[._-]tp[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt|ckpt)",
    re.DOTALL,
)


class Shard(NamedTuple):
    """The components of a shard's file name."""

    stem: str
    number: int
    total: int
    suffix: str


def shard_named(name: str) -> Shard | None:
    """Split a shard's file name into its components; return None for other names."""
    match = _SHARD.fullmatch(name)
    return match and Shard(match["stem"], int(match["number"]), int(match["total"]), match["suffix"])


def slices_among(names: Iterable[str]) -> list[str]:
    """Return the names of slices of ranks, sorted; empty if there are fewer than two."""
    slices = sorted(name for name in names if _SLICE.fullmatch(name.lower()))
    return slices if len(slices) > 1 else []


def slices_beside(path: str, paths: Iterable[str]) -> list[str]:
    """Return a slice's name and the names of the other ranks' slices, sorted; empty for other files."""
    alike = re.sub(r"\d+", "0", path)
    return slices_among(each for each in paths if re.sub(r"\d+", "0", each) == alike)


_PARALLELISM = (
    (re.compile(r"world_size|fsdp", re.IGNORECASE), "the ranks of sharded training (FSDP)"),
    (re.compile(r"mp_rank_\d+_\d+", re.IGNORECASE), "tensor and pipeline parallelism"),
    (re.compile(r"layer_\d+-model", re.IGNORECASE), "pipeline parallelism"),
    (re.compile(r"consolidated|(?:^|[^a-z])[mt]p(?:[^a-z]|\d)|-part-", re.IGNORECASE), "tensor parallelism"),
)
"""Kinds of slices, keyed by patterns of their names."""


def slices_refused(slices: Sequence[str]) -> str:
    """Return the error message for the slices of several ranks."""
    kinds = (kind for pattern, kind in _PARALLELISM if pattern.search(slices[0]))
    kind = next(kinds, "the ranks of a run")
    return (
        f"the weights are split into {len(slices)} slices for {kind} ({slices[0]}, …): each file holds only a part of "
        "the model, which is not supported; compare a copy in the layout of transformers, or gather the slices with "
        "the tool of the framework that wrote them"
    )


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """A parsed shard index.

    Attributes:
        complaint: Error in the metadata, to be raised when a tensor is accessed, or None.
        total_size: Total size of the tensors in bytes, according to the index, or None.
    """

    path: str
    weight_map: Mapping[str, str]
    complaint: str | None = None
    total_size: int | None = None


@collector_paused()
def parse_index(data: bytes, *, path: str, label: str) -> ShardIndex:
    """Parse an index file. Shard names are relative to the folder of ``path``.

    Raises:
        CorruptCheckpointError: If the file is not JSON, or ``weight_map`` does not map tensor names to file names.
        UnsafePathError: If a shard's path is invalid or leaves the folder.
        UnsupportedFormatError: If the index has more values than the limit.
    """
    with naming(label):
        n_structure = json_values(data)
        if n_structure > SHARD_INDEX.n_items:
            raise UnsupportedFormatError(
                f"the index lists {n_structure:,} values; the limit is {SHARD_INDEX.n_items:,}, which is more than any "
                "checkpoint needs"
            )
        try:
            loaded = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as exc:
            raise CorruptCheckpointError(f"the index is not JSON: {exc}") from exc
        weight_map = loaded.get("weight_map") if isinstance(loaded, dict) else None
        if not isinstance(weight_map, dict):
            raise CorruptCheckpointError("the index has no 'weight_map' object that maps tensors to shards")
        folder = posixpath.dirname(path)
        shard_of_value: dict[str, str] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str):
                raise CorruptCheckpointError(
                    f"the index maps tensor {name!r} to {shard!r}; expected the name of a shard"
                )
            if shard not in shard_of_value:
                safe_path(shard)
                shard_of_value[shard] = posixpath.join(folder, shard)
        metadata = loaded.get("metadata")
        complaint = _complain_about_total_size(metadata)
        size = metadata.get("total_size") if isinstance(metadata, dict) and complaint is None else None
        return ShardIndex(
            path=path,
            weight_map={name: shard_of_value[shard] for name, shard in weight_map.items()},
            complaint=complaint,
            total_size=None if size is None else int(size),
        )


def _complain_about_total_size(metadata: object) -> str | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        return f"its metadata is {metadata!r}; expected an object"
    size = metadata.get("total_size")
    # Some writers used division in 2023 and wrote 13476831232.0.
    if size is None or (type(size) in (int, float) and size >= 0 and size == size // 1):
        return None
    return f"its total_size is {size!r}; expected a number of bytes"


HEADER_N_BYTES_PER_TENSOR = 300
"""Upper bound on the size of a tensor's entry in a safetensors header."""

FRAME_N_BYTES = 1 << 12
"""Upper bound on the size of the metadata and padding in a shard."""

ROUNDING = 50
"""``total_size`` may be too small by at most ``1 / ROUNDING`` of the shards' size."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Sorted names of the tensors for which an index and the headers disagree."""

    unlisted: tuple[str, ...]
    moved: tuple[str, ...]
    absent: tuple[str, ...]

    def note(self, index: str) -> str:
        """Describe the differences in one sentence."""
        kinds = (
            (self.unlisted, "the shards hold {n} that it does not list"),
            (self.moved, "{n} in a different shard than it says"),
            (self.absent, "{n} that it lists but no shard holds"),
        )
        clauses = [text.format(n=_counted(names)) for names, text in kinds if names]
        return f"{index} is out of date, so the headers of the shards were used: {'; '.join(clauses)}"


def place_by_headers(
    weight_map: Mapping[str, str], headers: Mapping[str, Collection[str]]
) -> tuple[dict[str, str], Disagreement | None]:
    """Assign each tensor to the shard whose header lists it, and return any disagreement with the index.

    If several shards list a tensor, the one named in the index is used, or else the first by name. If a shard is
    missing, its tensors are placed as in the index.
    """
    places: dict[str, str] = {}
    for path in sorted(headers):
        for name in headers[path]:
            if name not in places or weight_map.get(name) == path:
                places[name] = path
    unlisted = sorted(name for name in places if name not in weight_map)
    moved = sorted(name for name, path in places.items() if weight_map.get(name, path) != path)
    absent = sorted(name for name, path in weight_map.items() if path in headers and name not in places)
    missing = {name: path for name, path in weight_map.items() if path not in headers and name not in places}
    moved = [name for name in moved if weight_map[name] in headers]
    disagreement = Disagreement(tuple(unlisted), tuple(moved), tuple(absent)) if unlisted or moved or absent else None
    return {**places, **missing}, disagreement


def contradicts_sizes(total_size: int | None, n_bytes_of_shards: int, *, n_tensors: int, n_shards: int) -> bool:
    """Return whether the index's total size contradicts the sizes of the shards."""
    if not total_size:
        return False
    frame = n_shards * FRAME_N_BYTES + n_tensors * HEADER_N_BYTES_PER_TENSOR
    return total_size > n_bytes_of_shards or n_bytes_of_shards - total_size > frame + n_bytes_of_shards // ROUNDING


def _counted(names: Collection[str]) -> str:
    first = next(iter(names))
    return f"tensor {first!r}" if len(names) == 1 else f"{len(names):,} tensors (such as {first!r})"
