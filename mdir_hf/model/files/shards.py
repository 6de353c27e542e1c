"""Read tensors from one file or several shards.

If there is an index, only the needed shards are opened, unless it contradicts a header or the file sizes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar

from mdir_hf.budgets import MAX_TENSORS, MAX_TENSORS_UNINDEXED
from mdir_hf.errors import CheckpointError, CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files.index import Disagreement, ShardIndex, contradicts_sizes, place_by_headers
from mdir_hf.model.files.ranged import MAX_SPAN_BYTES, RangedTensors
from mdir_hf.model.sources import Description, FileTree, StoredTensor, TensorSpec, TreeThatReadsAhead

Header = Mapping[str, TensorSpec | str]
"""Specs of a weight file's tensors, keyed by name; for an unsupported tensor, a description instead."""


class ShardedTensors(RangedTensors):
    """Base class for tensors in one file or several.

    Subclasses implement :meth:`_read_header`, which is called at most once per file. They set ``sizes_tell`` if file
    sizes can reveal that an index is out of date. Thread-safe.
    """

    format_name: ClassVar[str]
    sizes_tell: ClassVar[bool] = False

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
        self._headers: dict[str, Header] = {}
        self._path_of: Mapping[str, str] | None = None
        self._names: tuple[str, ...] | None = None
        self._were_all_headers_read = False
        self._disagreement: Disagreement | None = None
        self._notes: tuple[str, ...] = ()

    @abstractmethod
    def _read_header(self, path: str) -> Header:
        """Read the header of one file."""

    def _most_tensors(self, path: str) -> int:
        return len(self._header(path))

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files, sorted, including missing files that the index names."""
        return self._paths

    @property
    def description(self) -> Description:
        """The format and any notes, such as a warning that the index is out of date."""
        return Description(self.format_name, notes=self._all_notes())

    def add_note(self, note: str) -> None:
        """Add a note to the description."""
        self._notes += (note,)

    def _all_notes(self) -> tuple[str, ...]:
        if self._index is None or self._disagreement is None:
            return self._notes
        return (*self._notes, self._disagreement.note(self._index.path))

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all tensors; the same tuple until the names change.

        Reads headers unless there is an index that agrees with the file sizes.
        """
        with self._lock:
            places = self._paths_of_names()
            if self._names is None:
                self._names = tuple(sorted(places))
            return self._names

    def read_all_headers(self) -> None:
        """Read the headers of all files, which override the index.

        Raises:
            CorruptCheckpointError: If a header is invalid.
            UnsupportedFormatError: If the headers list more tensors than the limit.
        """
        with self._lock:
            if self._were_all_headers_read:
                return
            self._were_all_headers_read = True
            existing = [path for path in self._paths if path in self._tree.files]
            if self._index is None:
                self._paths_of_names()
                return
            unread = [path for path in existing if path not in self._headers]
            if isinstance(self._tree, TreeThatReadsAhead):
                self._tree.expect(heads=unread)
            for path in unread:
                self._header(path)
            names_by_path = {path: set(self._headers[path]) for path in existing}
            self._path_of, self._disagreement = place_by_headers(self._index.weight_map, names_by_path)
            if len(self._path_of) > MAX_TENSORS:
                raise UnsupportedFormatError(
                    f"the weight files list {len(self._path_of):,} tensors; the limit is {MAX_TENSORS:,}",
                    subject=self.label,
                )
            self._names = None

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor, in reverse order of the names, so that a tied ``lm_head`` comes after the embedding."""
        with self._lock:
            places = dict(self._paths_of_names())
        counted: set[tuple[str, int, int]] = set()
        for name, path in sorted(places.items(), reverse=True):
            header = self._headers.get(path)
            if header is None or name not in header:
                reason = None if path in self._tree.files else f"{path}, which the index names, is missing"
                yield StoredTensor(name, name, reason=reason)
                continue
            try:
                spec = header[name]
            except CheckpointError as exc:
                yield StoredTensor(name, name, reason=exc.message)
                continue
            if isinstance(spec, str):
                yield StoredTensor(name, name, reason=f"it is {spec}")
            else:
                span = (spec.path, spec.start, spec.stop)
                yield StoredTensor(name, name, 0 if span in counted else spec.n_bytes, spec.shape)
                counted.add(span)

    def spec(self, name: str) -> TensorSpec:
        """Return a tensor's spec. Reads the header of its shard on first use."""
        path = self._paths_of_names().get(name)
        if path is None:
            raise TensorNotFoundError(f"there is no tensor {name!r} in {list_some(self._paths)}", subject=self.label)
        self._check_index(name, path)
        header = self._header(path)
        if name not in header and self._index is not None:
            self.read_all_headers()
            path = self._paths_of_names().get(name, path)
            header = self._header(path)
        spec = header.get(name)
        if isinstance(spec, str):
            raise UnsupportedFormatError(
                f"tensor {name!r} is {spec}, which is not supported", subject=self._byte_source(path).label
            )
        if spec is None:
            raise CorruptCheckpointError(
                f"the index says that {path} holds tensor {name!r}, but its header does not list it",
                subject=self._label_of_index(),
            )
        return spec

    @cached_property
    def _names_by_index(self) -> Mapping[str, set[str]]:
        names: dict[str, set[str]] = {path: set() for path in self._paths}
        for name, path in self._index.weight_map.items() if self._index is not None else ():
            names[path].add(name)
        return names

    def _paths_of_names(self) -> Mapping[str, str]:
        with self._lock:
            if self._path_of is None:
                if self._index is None:
                    self._path_of = self._listed()
                else:
                    self._path_of = self._index.weight_map
                    if self._sizes_contradict(self._index):
                        self.read_all_headers()
            return self._path_of

    def _sizes_contradict(self, index: ShardIndex) -> bool:
        if not self.sizes_tell or not all(path in self._tree.files for path in self._paths):
            return False
        return contradicts_sizes(
            index.total_size, self.n_bytes, n_tensors=len(index.weight_map), n_shards=len(self._paths)
        )

    def _listed(self) -> dict[str, str]:
        n_tensors = 0
        for path in self._paths if len(self._paths) > 1 else ():  # a single file has its own limit
            n_tensors += self._most_tensors(path)
            if n_tensors > MAX_TENSORS_UNINDEXED:
                raise UnsupportedFormatError(
                    f"the weight files up to {path} list up to {n_tensors:,} tensors without an index; the limit is "
                    f"{MAX_TENSORS_UNINDEXED:,}",
                    subject=self.label,
                )
        headers = {path: self._header(path) for path in self._paths}
        names_and_paths = [(name, path) for path, header in headers.items() for name in header]
        path_of = dict(names_and_paths)
        if len(path_of) < len(names_and_paths):
            twice = next(name for name, n in Counter(name for name, _ in names_and_paths).items() if n > 1)
            holders = [path for name, path in names_and_paths if name == twice]
            # Shards have no tensors in common, but slices have the same names.
            are_slices = 2 * (len(names_and_paths) - len(path_of)) >= len(path_of)
            raise CorruptCheckpointError(
                f"tensor {twice!r} is in {' and in '.join(holders)}, and no index says which one is valid"
                + ("; so are most tensors, as in the slices of several ranks" if are_slices else ""),
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

    def _header(self, path: str) -> Header:
        with self._lock:
            header = self._headers.get(path)
            if header is None:
                header = self._headers[path] = self._read_header(path)
                uses_index = self._index is not None and not self._were_all_headers_read
                if uses_index and self._names_by_index[path] != set(header):
                    self.read_all_headers()
            return header

    def _label_of_index(self) -> str:
        return self.label if self._index is None else f"{self.label}:{self._index.path}"


def list_some(names: Iterable[str], most: int = 3) -> str:
    """Format the first few names for a message."""
    all_names = list(names)
    return ", ".join(all_names[:most]) + (f" and {len(all_names) - most} more" if len(all_names) > most else "")


def check_complete(shards: Mapping[int, str], total: int, *, what: str, named: str) -> None:
    """Raise ``CorruptCheckpointError`` unless files 1 to ``total`` are all present."""
    missing = [number for number in range(1, total + 1) if number not in shards]
    if missing or len(shards) != total:
        raise CorruptCheckpointError(
            f"{len(shards)} of {total} {what}s {named} are present; "
            + (f"{what} {missing[0]} is the first one missing" if missing else "their numbers do not start from 1")
        )
