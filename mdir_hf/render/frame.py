"""Convert the evidence of a report to a pandas table, with one row for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mdir_hf.errors import MissingExtraError
from mdir_hf.report.result import HomologyReport

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = {
    "part": "object",
    "test": "object",
    "reference_layer": "Int64",
    "candidate_layer": "Int64",
    "trace": "float64",
    "normalized_trace": "float64",
    "log10_p": "float64",
}
"""The columns and their dtypes; rows may have missing values."""

Row = tuple[str, str, int | None, int | None, float | None, float | None, float | None]


def frame_of(report: HomologyReport) -> DataFrame:
    """Return the evidence as a table with ``log10_p`` corrected as in the report.

    There is one row for each pair of layers whose neurons match (``neurons``, with the step as ``test``), each pair of
    matrices (with the transformation), each pair of layers that agrees (``layers``), and each projection to which
    Algorithm 3 was applied.
    ``frame.attrs`` contains report-wide values.

    Raises:
        MissingExtraError: If pandas is not installed.
    """
    try:
        import pandas
    except ImportError as exc:
        raise MissingExtraError("a table needs pandas: pip install pandas") from exc
    frame = pandas.DataFrame.from_records(list(_rows(report)), columns=list(COLUMNS)).astype(COLUMNS)
    frame.attrs = {
        "verdict": report.verdict.value,
        "reason": None if report.reason is None else report.reason.value,
        "log10_p": report.log10_p,
        "settled_by": None if report.settled_by is None else report.settled_by.value,
        "p_is_bound": report.p_is_bound,
        "alpha": report.alpha,
        "reference": report.reference.pinned,
        "candidate": report.candidate.pinned,
    }
    return frame


def _rows(report: HomologyReport) -> Iterator[Row]:
    if report.neurons is not None:
        for i, j in report.neurons.matches:
            yield "neurons", report.neurons.step.value, i, j, None, None, report.neurons.log10_p
    for name, matrix in report.matrices.items():
        yield name, matrix.transformation.value, None, None, matrix.trace, matrix.normalized_trace, matrix.log10_p
    if report.layers is not None:
        for pair in report.layers.matches:
            yield "layers", report.layers.method, pair.reference, pair.candidate, None, None, pair.log10_p
    for part in report.modules or ():
        place = (part.layer.reference, part.layer.candidate)
        yield part.role.value, "algorithm 3", *place, part.trace, part.normalized_trace, part.log10_p
