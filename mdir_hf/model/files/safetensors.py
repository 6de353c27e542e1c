"""Tensors of safetensors files, single or sharded, read by ranges."""

from __future__ import annotations

from functools import cached_property

from mdir_hf.budgets import MARKS_OF_A_TENSOR, SAFETENSORS_HEADER, json_values
from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.header import LENGTH_N_BYTES, parse_header, read_header_n_bytes
from mdir_hf.model.files.shards import ShardedTensors, ShardHeader

HEADER_GUESS_N_BYTES = 100_000
"""First read of a file: 97 % of the headers in the 1000 most used repositories are shorter (huggingface_hub)."""


UNNAMED_TENSORS = 100_000
"""Tensors that shards may list beyond twice the number in their index: as many as the longest header can list."""


class SafetensorsSource(ShardedTensors):
    """The tensors of one safetensors checkpoint, read lazily. Implements ``TensorSource`` and ``StoredTensors``.

    A header costs one read, or two if it is longer than the first read. For arguments see
    :class:`~mdir_hf.model.files.shards.ShardedTensors`.
    """

    format_name = "safetensors"
    sizes_tell = True

    _n_listed = 0

    @cached_property
    def _unparsed(self) -> dict[str, bytes]:
        """Headers read for counting, by file."""
        return {}

    def _most_tensors(self, path: str) -> int:
        content = self._unparsed[path] = self._header_bytes(path)
        if sum(map(len, self._unparsed.values())) > SAFETENSORS_HEADER.n_bytes:
            raise UnsupportedFormatError(
                f"the headers up to the one in {path} have more than {SAFETENSORS_HEADER.n_bytes:,} bytes, and no "
                "index says which of them are needed",
                subject=self.label,
            )
        return json_values(content) // MARKS_OF_A_TENSOR

    def _read_header(self, path: str) -> ShardHeader:
        content = self._unparsed.pop(path, None)
        if content is None:
            content = self._header_bytes(path)
        source = self._byte_source(path)
        if self._index is not None:
            # Shards list little besides the tensors in the index. Many shards with long headers would take minutes.
            self._n_listed += json_values(content) // MARKS_OF_A_TENSOR
            if self._n_listed > 2 * len(self._index.weight_map) + UNNAMED_TENSORS:
                raise UnsupportedFormatError(
                    f"the headers up to the one in {path} list many more tensors than the index names",
                    subject=self._label_of_index(),
                )
        header = parse_header(content, n_file_bytes=source.n_bytes, path=path, label=source.label)
        return ShardHeader(header.tensors)

    def _header_bytes(self, path: str) -> bytes:
        source = self._byte_source(path)
        prefix = source.read(0, min(source.n_bytes, LENGTH_N_BYTES + HEADER_GUESS_N_BYTES))
        n_bytes = read_header_n_bytes(prefix, n_file_bytes=source.n_bytes, label=source.label)
        stop = LENGTH_N_BYTES + n_bytes
        if stop > len(prefix):
            prefix += source.read(len(prefix), stop)
        return bytes(prefix[LENGTH_N_BYTES:stop])
