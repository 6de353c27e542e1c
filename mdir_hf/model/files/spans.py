"""Plans byte ranges for reading rows of a matrix. Pure functions.

A request has a fixed cost, so neighbouring rows share one, and small gaps between rows are read and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mdir_hf.model.files.sources import Span

IntArray = npt.NDArray[np.int64]

REMOTE_MAX_GAP_BYTES = 128 << 10
"""Largest gap worth reading if a read is an HTTP request.

With 8 requests in flight over a connection with 100 ms round trip, one more request costs about 12 ms, the time of
125 kB at 10 MB/s. Callers can set less for slower connections, or more for busier servers.
"""

MAX_SPAN_BYTES = 8 << 20
"""Longest single read: several in flight take some tens of MB, and a request still takes long against its latency."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One contiguous read, and the places of its rows.

    Attributes:
        start: Absolute offset of the first byte.
        stop: Absolute offset past the last byte.
        slots: Indices into the requested rows that this read fills, ``(k,)``.
        offsets: Row of the read for each slot, counted from the read's first row, ``(k,)``.
    """

    start: int
    stop: int
    slots: IntArray
    offsets: IntArray

    @property
    def span(self) -> Span:
        """The byte range ``(start, stop)``."""
        return self.start, self.stop


def coalesce(
    rows: IntArray,
    row_n_bytes: int,
    start: int,
    *,
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES,
    max_span_bytes: int = MAX_SPAN_BYTES,
) -> list[RowSpan]:
    """Plan the reads for ``rows``, in the order of the file. Takes O(k log k) time and O(k) memory.

    Args:
        rows: Row numbers, ``(k,)``, int64, >= 0, in any order; a repeated row is read once.
        row_n_bytes: Stored size of a row, > 0.
        start: Absolute offset of row 0.
        max_gap_bytes: Largest gap between two rows that is read and dropped.
        max_span_bytes: Longest read; a single longer row is not cut.

    Returns:
        Disjoint spans in file order. Each slot ``0..k-1`` is in exactly one of them.
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    if ordered.size == 0:
        return []
    rows_per_span = max(1, max_span_bytes // row_n_bytes)
    gap_bytes = (np.diff(ordered) - 1) * row_n_bytes
    run_starts = np.concatenate(([0], np.flatnonzero(gap_bytes > max_gap_bytes) + 1, [ordered.size]))
    spans: list[RowSpan] = []
    for run_start, run_stop in zip(run_starts[:-1].tolist(), run_starts[1:].tolist(), strict=True):
        at = run_start
        while at < run_stop:
            first = int(ordered[at])
            cut = at + int(np.searchsorted(ordered[at:run_stop], first + rows_per_span))
            offsets = ordered[at:cut] - first
            last = first + int(offsets[-1])
            spans.append(
                RowSpan(
                    start=start + first * row_n_bytes,
                    stop=start + (last + 1) * row_n_bytes,
                    slots=order[at:cut].astype(np.int64, copy=False),
                    offsets=offsets,
                )
            )
            at = cut
    return spans


def cut_span(start: int, stop: int, step_n_bytes: int) -> list[Span]:
    """Cut ``[start, stop)`` into consecutive spans of ``step_n_bytes``; the last may be shorter."""
    return [(at, min(at + step_n_bytes, stop)) for at in range(start, stop, step_n_bytes)]
