"""Places a p among the measured ones of real models: unrelated pairs and relatives."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from mdir_hf.render.sections import Scale, Section, SectionKind, number
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Verdict

MEASURED = "real_pairs.json"
"""log10 p of the pairs in ``benchmarks/results/real-pairs.jsonl``; written by ``python -m benchmarks.real.scale``."""

TITLE = "Beside pairs of real models"


@cache
def measured_pairs() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return log10 p of unrelated pairs and of relatives, the strongest evidence first."""
    measured = json.loads(files("mdir_hf.render").joinpath(MEASURED).read_text(encoding="utf-8"))
    return tuple(measured["strangers"]), tuple(measured["relatives"])


def scale_section(report: HomologyReport) -> Section:
    """Return the section on the position of this p; empty if p is no bound, or inconclusive."""
    is_answered = report.verdict is not Verdict.INCONCLUSIVE and report.settled_by is not SettledBy.IDENTICAL_FILES
    if not is_answered or report.log10_p is None or not report.p_is_bound:
        return Section(SectionKind.SCALE, TITLE)
    strangers, relatives = measured_pairs()
    place = _place(report.log10_p, strangers, relatives)
    words = f"log10 p {_round(report.log10_p)}, {place}"
    text = (
        f"In the stored evidence of this project, {len(strangers)} pairs of unrelated real models had log10 p from "
        f"{_round(strangers[0])} to {_round(strangers[-1])}. {len(relatives)} related pairs of real models (copies, "
        "edited, disguised, quantised or trained further, and models that other people derived) had "
        f"{_round(relatives[0])} to {_round(relatives[-1])}. This pair has {_round(report.log10_p)}: "
        f"{place}. The size of p grows with the number of compared weights; it does not measure how much is shared."
    )
    return Section(
        SectionKind.SCALE,
        TITLE,
        paragraphs=(text,),
        scale=Scale(strangers, relatives, report.log10_p, report.alpha, words),
    )


def _place(log10_p: float, strangers: tuple[float, ...], relatives: tuple[float, ...]) -> str:
    if log10_p >= strangers[0]:
        return "among the unrelated ones"
    if log10_p <= relatives[-1]:
        return "among the related ones"
    return "between the two, without any measured pair"


def _round(log10_p: float) -> str:
    """Format with at most one decimal: -0.7, -41, -62,572."""
    return number(log10_p) if -10.0 < log10_p < -0.05 else f"{log10_p + 0.0:,.0f}".replace("-0", "0")
