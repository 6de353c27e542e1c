"""Parses ``model.safetensors.index.json``, which maps tensors to shards. Pure functions.

The uploader controls the file, so shard paths are checked before use.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.budgets import SHARD_INDEX, collector_paused, json_values
from mdir_hf.errors import CorruptCheckpointError, UnsafePathError, UnsupportedFormatError, naming


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """A parsed index.

    Attributes:
        path: Path of the index in its tree.
        weight_map: Path of the shard in the tree, for each tensor.
        complaint: Error in the rest of the file, if any; raised when a tensor is read.
        total_size: Bytes of all tensors according to the index, or None.
    """

    path: str
    weight_map: Mapping[str, str]
    complaint: str | None = None
    total_size: int | None = None


@collector_paused()
def parse_index(data: bytes, *, path: str, label: str) -> ShardIndex:
    """Parse an index file.

    Args:
        data: The bytes of the file.
        path: Its path in the tree. Shards are named relative to its folder.
        label: The file's name in error messages.

    Raises:
        CorruptCheckpointError: If it is not JSON, or its ``weight_map`` does not map names to file names.
        UnsafePathError: If a shard path leaves the folder, or is not a valid path in a repository.
        UnsupportedFormatError: If it has more values than the limit.
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
                check_repository_path(shard)
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


def check_repository_path(path: str) -> None:
    """Reject a file name that is not a plain relative path, on any operating system.

    Raises:
        UnsafePathError: If it is empty, absolute, climbs with ``..``, or holds a backslash, a colon or NUL.
    """
    parts = path.split("/")
    if path.startswith("/"):
        rule = "an absolute path"
    elif ".." in parts:
        rule = "a path that climbs out of its folder"
    elif "\\" in path:
        rule = "a path with a backslash"
    elif re.search(r"[:\x00-\x1f]", path):
        rule = "a path with a drive letter, a stream or a control character"
    elif "" in parts:
        rule = "an empty file or folder name"
    else:
        return
    raise UnsafePathError(f"names the file {path!r}, {rule}; a shard must be a plain path inside the repository")


def _complain_about_total_size(metadata: object) -> str | None:
    """Describe an impossible ``total_size``. It is often out of date, so other wrong values are no errors."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        return f"its metadata is {metadata!r}; expected an object"
    size = metadata.get("total_size")
    # Some writers used division in 2023 and wrote 13476831232.0.
    if size is None or (type(size) in (int, float) and size >= 0 and size == size // 1):
        return None
    return f"its total_size is {size!r}; expected a number of bytes"
