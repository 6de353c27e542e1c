"""Parses numbers in the names of weight files: shards, and slices for tensor parallelism. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# transformers writes model-00001-of-00003; other tools use another separator or width, or count from 0.
_SHARD = re.compile(
    r"(?P<stem>.+?)[-_.](?P<number>\d{1,7})[-_]of[-_](?P<total>\d{1,7})(?P<suffix>\.safetensors|\.bin|\.pth|\.pt)",
    re.DOTALL,
)
# Written by Meta, DeepSeek, vLLM, Megatron and SGLang. Each file holds a part of every matrix.
_SLICE = re.compile(
    r"consolidated[._-]\d{1,3}\.(pth|pt|safetensors)"
    r"|model\d{1,3}-mp\d{1,3}\.safetensors"
    r"|model-rank-\d{1,3}-part-\d{1,3}\.safetensors"
    r"|(.*[._-])?(mp|tp)?[._-]?rank[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt)"
    r"|.*[._-]tp[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt)",
    re.DOTALL,
)


class Shard(NamedTuple):
    """The parts of the name of a shard."""

    stem: str
    number: int
    total: int
    suffix: str


def shard_named(name: str) -> Shard | None:
    """Split the name of a shard into its parts, or return None if it is not a shard."""
    match = _SHARD.fullmatch(name)
    return match and Shard(match["stem"], int(match["number"]), int(match["total"]), match["suffix"])


def slices_among(names: Iterable[str]) -> list[str]:
    """Return the sorted files that are named like slices for tensor parallelism; empty for fewer than two."""
    slices = sorted(name for name in names if _SLICE.fullmatch(name.lower()))
    return slices if len(slices) > 1 else []


def slices_refused(slices: list[str]) -> str:
    """Return an error message for slices."""
    return (
        f"the weights are split into {len(slices)} slices for tensor parallelism ({slices[0]}, …): each file holds a "
        "part of every matrix, which is not supported; compare a copy in the layout of transformers, which most such "
        "repositories have in their root or under another name"
    )
