"""Tensors of safetensors files, single or sharded, read by ranges."""

from __future__ import annotations

from .header import LENGTH_N_BYTES, parse_header, read_header_n_bytes
from .shards import ShardedTensors, ShardHeader

HEADER_GUESS_N_BYTES = 100_000
"""First read of a file: 97 % of the headers of the 1000 most used repositories are shorter (huggingface_hub)."""


class SafetensorsSource(ShardedTensors):
    """The tensors of one safetensors checkpoint, read lazily. Implements ``TensorSource`` and ``StoredTensors``.

    A header costs one read, or two where it is longer than the guess. Arguments are those of
    :class:`~mdir_hf.checkpoint.shards.ShardedTensors`.
    """

    format_name = "safetensors"

    def _read_header(self, path: str) -> ShardHeader:
        source = self._byte_source(path)
        prefix = source.read(0, min(source.n_bytes, LENGTH_N_BYTES + HEADER_GUESS_N_BYTES))
        n_bytes = read_header_n_bytes(prefix, n_file_bytes=source.n_bytes, label=source.label)
        stop = LENGTH_N_BYTES + n_bytes
        if stop > len(prefix):
            prefix += source.read(len(prefix), stop)
        header = parse_header(prefix[LENGTH_N_BYTES:stop], n_file_bytes=source.n_bytes, path=path, label=source.label)
        return ShardHeader(header.tensors)
