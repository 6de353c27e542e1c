"""The numbers in the names of weight files: shards of one checkpoint, and slices for tensor parallelism. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# transformers writes model-00001-of-00003; others write another separator, other widths, or count from 0.
_SHARD = re.compile(
    r"(?P<stem>.+?)[-_.](?P<number>\d{1,7})[-_]of[-_](?P<total>\d{1,7})(?P<suffix>\.safetensors|\.bin|\.pth|\.pt)",
    re.DOTALL,
)
# Meta, DeepSeek, vLLM, Megatron and SGLang. Each of the files holds a part of every matrix.
_SLICE = re.compile(
    r"consolidated[._-]\d{1,3}\.(pth|pt|safetensors)"
    r"|model\d{1,3}-mp\d{1,3}\.safetensors"
    r"|model-rank-\d{1,3}-part-\d{1,3}\.safetensors"
    r"|(.*[._-])?(mp|tp)?[._-]?rank[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt)"
    r"|.*[._-]tp[._-]?\d{1,3}([._-].*)?\.(safetensors|bin|pth|pt)",
    re.DOTALL,
)


class Shard(NamedTuple):
    """The parts of the name of a shard.

    Attributes:
        stem: Everything before the number.
        number: Its number.
        total: How many shards there are.
        suffix: With its dot.
    """

    stem: str
    number: int
    total: int
    suffix: str


def shard_named(name: str) -> Shard | None:
    """Take the name of a shard apart; None if it is no such name."""
    match = _SHARD.fullmatch(name)
    return match and Shard(match["stem"], int(match["number"]), int(match["total"]), match["suffix"])


def slices_among(names: Iterable[str]) -> list[str]:
    """Return the files that are named like slices for tensor parallelism, sorted; empty for fewer than two."""
    slices = sorted(name for name in names if _SLICE.fullmatch(name.lower()))
    return slices if len(slices) > 1 else []


def slices_refused(slices: list[str]) -> str:
    """Word the refusal of slices."""
    return (
        f"the weights are cut into {len(slices)} slices for tensor parallelism ({slices[0]}, …): each file holds a "
        "part of every matrix, which this version does not put together; compare the copy in the layout of "
        "transformers, which most such repositories have in their root or under another name"
    )
