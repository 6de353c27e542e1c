"""Compares an index with the headers of its shards, which are right if the two disagree. Pure.

Tools that quantise, cut or merge a checkpoint often leave its old index behind. Loaders that open every shard do not
notice; this package reads by the index, so it has to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

HEADER_N_BYTES_PER_TENSOR = 300
"""Most that the header of a safetensors file takes for a tensor; a name has 60 characters or so."""

FRAME_N_BYTES = 1 << 12
"""Most that the metadata and padding of a shard take."""

ROUNDING = 50
"""One part in so many of the size of all shards may be missing from ``total_size`` without a doubt."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Differences between an index and the headers of its shards.

    Attributes:
        unlisted: Tensors that a shard holds and the index does not list, sorted.
        moved: Tensors that lie in another shard than the index says, sorted.
        absent: Tensors that the index lists and that no shard holds, sorted.
    """

    unlisted: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unlisted or self.moved or self.absent)

    def note(self, index: str) -> str:
        """Describe the differences in one sentence.

        Args:
            index: Path of the index.
        """
        kinds = (
            (self.unlisted, "the shards hold {n} that it does not list"),
            (self.moved, "{n} in another shard than it says"),
            (self.absent, "{n} that it lists and no shard holds"),
        )
        clauses = [text.format(n=_counted(names)) for names, text in kinds if names]
        return f"{index} is out of date and the headers of the shards were used: {'; '.join(clauses)}"


def place_by_headers(
    weight_map: Mapping[str, str], headers: Mapping[str, Collection[str]]
) -> tuple[dict[str, str], Disagreement]:
    """Place each tensor in the shard whose header lists it.

    Args:
        weight_map: The shard of each tensor, by the index.
        headers: The tensors in each shard that is there, by path.

    Returns:
        The shard of each tensor, and how the index differs from it. If several shards list a tensor, the index decides
        between them; if it names none of them, the first shard counts. A tensor of a shard that is not there stays in
        it, so that asking for the tensor names the missing file.
    """
    places: dict[str, str] = {}
    for path in sorted(headers):
        for name in headers[path]:
            if name not in places or weight_map.get(name) == path:
                places[name] = path
    unlisted = sorted(name for name in places if name not in weight_map)
    moved = sorted(name for name, path in places.items() if weight_map.get(name, path) != path)
    absent = sorted(name for name, path in weight_map.items() if path in headers and name not in places)
    waiting = {name: path for name, path in weight_map.items() if path not in headers and name not in places}
    moved = [name for name in moved if weight_map[name] in headers]
    return {**places, **waiting}, Disagreement(tuple(unlisted), tuple(moved), tuple(absent))


def contradicts_sizes(total_size: int | None, n_bytes_of_shards: int, *, n_tensors: int, n_shards: int) -> bool:
    """Check the size of all tensors, as the index states it, against the size of the shards.

    Args:
        total_size: Bytes of all tensors by the index; None or 0 if it does not say.
        n_bytes_of_shards: Size of all shards.
        n_tensors: Tensors that the index lists.
        n_shards: Shards that it names.
    """
    if not total_size:
        return False
    frame = n_shards * FRAME_N_BYTES + n_tensors * HEADER_N_BYTES_PER_TENSOR
    return total_size > n_bytes_of_shards or n_bytes_of_shards - total_size > frame + n_bytes_of_shards // ROUNDING


def _counted(names: Collection[str]) -> str:
    first = next(iter(names))
    return f"tensor {first!r}" if len(names) == 1 else f"{len(names):,} tensors ({first!r} for one)"
