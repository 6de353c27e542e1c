"""Plans the byte ranges for some rows of a matrix. Pure.

A request costs a fixed time whatever it brings, so neighbouring rows share one, and a small gap between two wanted
rows is cheaper read over than asked around.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mdir_hf.model.files.sources import Span

IntArray = npt.NDArray[np.int64]

REMOTE_MAX_GAP_BYTES = 128 << 10
"""Gap worth reading over where a read is an HTTP request.

With 8 requests in flight over a connection of 100 ms round trip, one more request costs about 12 ms; at 10 MB/s that
is the time of 125 kB. A slower line would want less, a busier server more: callers can set it.
"""

MAX_SPAN_BYTES = 8 << 20
"""Longest single read: several in flight stay within some tens of MB, and a request stays long against its latency."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One contiguous read, and where its rows go.

    Attributes:
        start: First byte, absolute in the file.
        stop: Past the last byte.
        slots: Places in the request that this read fills, shape ``(k,)``.
        offsets: For each slot, which row of the read goes there, counted from the read's first row, shape ``(k,)``.
    """

    start: int
    stop: int
    slots: IntArray
    offsets: IntArray

    @property
    def span(self) -> Span:
        """The byte range, as a byte source takes it."""
        return self.start, self.stop


def coalesce(
    rows: IntArray,
    row_n_bytes: int,
    start: int,
    *,
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES,
    max_span_bytes: int = MAX_SPAN_BYTES,
) -> list[RowSpan]:
    """Plan the reads that bring ``rows``, in the order of the file.

    Args:
        rows: Row indices, shape ``(k,)``, int64, >= 0, in any order; a repeated row is read once.
        row_n_bytes: Stored size of one row, > 0.
        start: Absolute offset of row 0.
        max_gap_bytes: Unwanted bytes between two wanted rows that are read over; 0 reads nothing unwanted.
        max_span_bytes: Longest read. One row is never cut, however long.

    Returns:
        Disjoint spans in file order. Every slot ``0..k-1`` stands in exactly one of them.
        Cost: O(k log k) time, O(k) memory.
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
