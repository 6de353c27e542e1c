"""Tensors in one file or several shards: with an index only the shards asked for are opened, else all headers."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from mdir_hf.budgets import MAX_TENSORS_UNINDEXED
from mdir_hf.errors import CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files.index import ShardIndex
from mdir_hf.model.files.ranged import RangedTensors
from mdir_hf.model.files.sources import Description, FileTree, TensorSpec
from mdir_hf.model.files.spans import MAX_SPAN_BYTES


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What one weight file holds.

    Attributes:
        tensors: Spec of every tensor, by name.
        unreadable: Tensors whose place or layout is beyond this version, each with what it is.
    """

    tensors: Mapping[str, TensorSpec]
    unreadable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class ShardedTensors(RangedTensors):
    """The tensors of one checkpoint in one file or several. Implements ``TensorSource`` and ``StoredTensors``.

    A format says how the header of one file is read (:meth:`_read_header`); that is done once per file, and with an
    index only for the files that hold the tensors asked for. Safe to use from several threads.

    Args:
        tree: Where the files are.
        paths: The weight files, where no index names them; every header is then read when names are asked for.
        index: The parsed index, where there is one.
        max_span_bytes: Longest single read; bounds memory.

    Attributes:
        format_name: How a user would call the format.
    """

    format_name: ClassVar[str]

    def __init__(
        self,
        tree: FileTree,
        *,
        paths: Iterable[str] = (),
        index: ShardIndex | None = None,
        max_span_bytes: int = MAX_SPAN_BYTES,
    ) -> None:
        super().__init__(tree, max_span_bytes=max_span_bytes)
        self._index = index
        self._paths = tuple(sorted(set(paths if index is None else index.weight_map.values())))
        self._headers: dict[str, ShardHeader] = {}
        self._path_of: Mapping[str, str] | None = None if index is None else index.weight_map

    @abstractmethod
    def _read_header(self, path: str) -> ShardHeader:
        """Read what one file holds."""

    def _most_tensors(self, path: str) -> int:
        """How many tensors one file lists, at most; cheaper than reading its header where a format can tell."""
        header = self._header(path)
        return len(header.tensors) + len(header.unreadable)

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files, sorted; with an index, those that it names."""
        return self._paths

    @property
    def description(self) -> Description:
        """Nothing but the name of the format."""
        return Description(self.format_name)

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted. Reads no header where there is an index, else every header."""
        return tuple(sorted(self._paths_of_names()))

    def spec(self, name: str) -> TensorSpec:
        """Shape, dtype and place of a tensor; reads the header of the one shard that holds it, once.

        Raises:
            TensorNotFoundError: If the checkpoint holds no such tensor.
            CorruptCheckpointError: If header, index and file contradict each other.
            UnsupportedFormatError: If it is stored in a way that this version does not read.
        """
        path = self._paths_of_names().get(name)
        if path is None:
            raise TensorNotFoundError(f"there is no tensor {name!r} in {list_some(self._paths)}", subject=self.label)
        self._check_index(name, path)
        header = self._header(path)
        if name in header.unreadable:
            raise UnsupportedFormatError(
                f"tensor {name!r} is {header.unreadable[name]}, which this version does not read",
                subject=self._byte_source(path).label,
            )
        spec = header.tensors.get(name)
        if spec is None:
            raise CorruptCheckpointError(
                f"the index says that {path} holds tensor {name!r}, but its header does not list it",
                subject=self._label_of_index(),
            )
        return spec

    def _paths_of_names(self) -> Mapping[str, str]:
        with self._lock:
            if self._path_of is None:
                self._path_of = self._listed()
            return self._path_of

    def _listed(self) -> dict[str, str]:
        """Which file holds each tensor, by the headers of all files."""
        n_tensors = 0
        for path in self._paths if len(self._paths) > 1 else ():  # one file has a bound of its own
            n_tensors += self._most_tensors(path)
            if n_tensors > MAX_TENSORS_UNINDEXED:
                raise UnsupportedFormatError(
                    f"the weight files up to {path} list up to {n_tensors:,} tensors, no index names them, and "
                    f"{MAX_TENSORS_UNINDEXED:,} are read without one",
                    subject=self.label,
                )
        headers = {path: self._header(path) for path in self._paths}
        listed = [(name, path) for path, header in headers.items() for name in (*header.tensors, *header.unreadable)]
        path_of = dict(listed)
        if len(path_of) < len(listed):
            twice = next(name for name, n in Counter(name for name, _ in listed).items() if n > 1)
            holders = [path for name, path in listed if name == twice]
            # Shards share no tensor; slices share all names.
            are_slices = 2 * (len(listed) - len(path_of)) >= len(path_of)
            raise CorruptCheckpointError(
                f"tensor {twice!r} stands in {' and in '.join(holders)}, and no index says which one counts"
                + ("; most tensors do, as in slices for tensor parallelism, which are not read" if are_slices else ""),
                subject=self.label,
            )
        return path_of

    def _check_index(self, name: str, path: str) -> None:
        if self._index is None:
            return
        if self._index.complaint is not None:
            raise CorruptCheckpointError(
                f"cannot trust the index for tensor {name!r}: {self._index.complaint}", subject=self._label_of_index()
            )
        if path not in self._tree.files:
            raise CorruptCheckpointError(
                f"the index says that {path} holds tensor {name!r}, but there is no such file; the upload or the "
                "download is incomplete",
                subject=self._label_of_index(),
            )

    def _header(self, path: str) -> ShardHeader:
        with self._lock:
            header = self._headers.get(path)
            if header is None:
                header = self._headers[path] = self._read_header(path)
            return header

    def _label_of_index(self) -> str:
        return self.label if self._index is None else f"{self.label}:{self._index.path}"


def list_some(names: Iterable[str], most: int = 3) -> str:
    """The first few names, for a message."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def check_complete(shards: Mapping[int, str], total: int, *, what: str, named: str) -> None:
    """Refuse a set of numbered files that is not whole.

    Args:
        shards: The files that are there, by number.
        total: How many there should be, as each of their names says.
        what: What the format calls one of them.
        named: What their names have in common.

    Raises:
        CorruptCheckpointError: If one of 1 to ``total`` is missing.
    """
    missing = [number for number in range(1, total + 1) if number not in shards]
    if missing or len(shards) != total:
        raise CorruptCheckpointError(
            f"{len(shards)} of {total} {what}s {named} are there; "
            + (f"{what} {missing[0]} is the first one missing" if missing else "their numbers do not run from 1")
        )
