"""Compares an index with the headers of its shards, which take precedence. Pure functions.

Tools that quantise, cut or merge a checkpoint often leave an outdated index. Loaders that open every shard do not
notice, but this package reads by the index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

HEADER_N_BYTES_PER_TENSOR = 300
"""Upper bound for a tensor's share of a safetensors header; a name has about 60 characters."""

FRAME_N_BYTES = 1 << 12
"""Upper bound for the metadata and padding of a shard."""

ROUNDING = 50
"""``total_size`` may be smaller than all shards by one part in this many."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Differences between an index and the headers of its shards.

    Attributes:
        unlisted: Sorted tensors that are in a shard but not in the index.
        moved: Sorted tensors that are in a different shard than the index says.
        absent: Sorted tensors that are in the index but in no shard.
    """

    unlisted: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unlisted or self.moved or self.absent)

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
) -> tuple[dict[str, str], Disagreement]:
    """Place each tensor in the shard whose header lists it.

    Args:
        weight_map: The shard of each tensor, according to the index.
        headers: The tensors in each existing shard, by path.

    Returns:
        The shard of each tensor, and the differences to the index. If several shards list a tensor, the index decides,
        or the first shard if the index names none of them. A tensor in a missing shard stays there, so that reading it
        raises an error about the missing file.
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
    return {**places, **missing}, Disagreement(tuple(unlisted), tuple(moved), tuple(absent))


def contradicts_sizes(total_size: int | None, n_bytes_of_shards: int, *, n_tensors: int, n_shards: int) -> bool:
    """Return whether the index's total size (if stated) contradicts the size of the shards."""
    if not total_size:
        return False
    frame = n_shards * FRAME_N_BYTES + n_tensors * HEADER_N_BYTES_PER_TENSOR
    return total_size > n_bytes_of_shards or n_bytes_of_shards - total_size > frame + n_bytes_of_shards // ROUNDING


def _counted(names: Collection[str]) -> str:
    first = next(iter(names))
    return f"tensor {first!r}" if len(names) == 1 else f"{len(names):,} tensors (such as {first!r})"
