"""Compare p with values measured for unrelated and related real models, in words and on a drawn scale."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from mdir_hf.render.sections import Scale, Section, SectionKind, number
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Verdict

MEASURED = "real_pairs.json"
"""File with log10 p of the pairs in ``benchmarks/results/real-pairs.jsonl``; written by ``python -m
benchmarks.real.scale``."""

TITLE = "Beside pairs of real models"

WIDTH, HEIGHT = 640, 120
_LEFT, _RIGHT, _BASE = 12, 628, 58
_LARGEST = 5.0
"""Value of log10(1 - log10 p) at which the scale ends."""


@cache
def measured_pairs() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return log10 p of unrelated and of related pairs, each in ascending order."""
    measured = json.loads(files("mdir_hf.render").joinpath(MEASURED).read_text(encoding="utf-8"))
    return tuple(measured["strangers"]), tuple(measured["relatives"])


def scale_section(report: HomologyReport) -> Section:
    """Return the section that compares p with measured pairs; empty unless the report has a p that is a bound."""
    is_answered = report.verdict is not Verdict.INCONCLUSIVE and report.settled_by is not SettledBy.IDENTICAL_FILES
    if not is_answered or report.log10_p is None or not report.p_is_bound:
        return Section(SectionKind.SCALE, TITLE)
    strangers, relatives = measured_pairs()
    place = _words_of_place(report.log10_p, strangers, relatives)
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


def _words_of_place(log10_p: float, strangers: tuple[float, ...], relatives: tuple[float, ...]) -> str:
    if log10_p >= strangers[0]:
        return "among the unrelated ones"
    if log10_p < relatives[0]:
        return "below all of the related ones"
    if log10_p <= relatives[-1]:
        return "among the related ones"
    return "between the two, without any measured pair"


def _round(log10_p: float) -> str:
    """Format log10 p with at most one decimal, such as -0.7, -41 or -62,572."""
    return number(log10_p) if -10.0 < log10_p < -0.05 else f"{log10_p + 0.0:,.0f}".replace("-0", "0")


def scale_svg(scale: Scale) -> Markup:
    """Draw a scale as an ``<svg>`` with an accessible name, in the current text colour."""
    name = (
        f"A scale of log10 p. Short ticks near 0: {len(scale.strangers)} unrelated pairs. Tall ticks: "
        f"{len(scale.relatives)} related pairs. This pair: {scale.words}."
    )
    parts = [
        f'<path d="M{_LEFT} {_BASE}H{_RIGHT}"/>',
        *_ticks(scale.strangers, 7, "3"),
        *_ticks(scale.relatives, 16, "1.5"),
        *_alpha(scale.alpha),
        *_labels(),
        *_kinds(scale),
        *_here(scale.log10_p),
    ]
    return Markup(
        '<svg class="scale" viewBox="0 0 {} {}" role="img" aria-label="{}" width="{}" height="{}" '
        'stroke="currentColor" fill="currentColor" font-size="12" font-family="system-ui, sans-serif">{}</svg>'
    ).format(WIDTH, HEIGHT, name, WIDTH, HEIGHT, Markup("".join(parts)))


def place_of(log10_p: float) -> float:
    """Return the horizontal position of p on the scale, which is logarithmic in 1 - log10 p."""
    share = min(1.0, math.log10(1.0 + max(0.0, -log10_p)) / _LARGEST)
    return _LEFT + (_RIGHT - _LEFT) * share


def _ticks(values: tuple[float, ...], height: int, width: str) -> Iterator[str]:
    places = sorted({round(place_of(value), 1) for value in values})
    yield f'<path d="{"".join(f"M{place} {_BASE}v-{height}" for place in places)}" stroke-width="{width}"/>'


def _alpha(alpha: float) -> Iterator[str]:
    place = round(place_of(math.log10(alpha)), 1)
    yield f'<path d="M{place} 30V{_BASE + 5}" stroke-dasharray="3 2"/>'
    yield f'<text x="{place}" y="{_BASE + 40}" text-anchor="middle" stroke="none">alpha</text>'


def _labels() -> Iterator[str]:
    for exponent, text in ((None, "0"), (1, "−10"), (2, "−100"), (3, "−1,000"), (4, "−10,000"), (5, "−100,000")):
        place = round(place_of(0.0 if exponent is None else -(10.0**exponent)), 1)
        anchor = {None: "start", 5: "end"}.get(exponent, "middle")
        x = {None: 2, 5: WIDTH - 2}.get(exponent, place)
        yield f'<text x="{x}" y="{_BASE + 20}" text-anchor="{anchor}" stroke="none">{text}</text>'


def _kinds(scale: Scale) -> Iterator[str]:
    for x, anchor, text in (
        (2, "start", f"{len(scale.strangers)} unrelated pairs"),
        (WIDTH // 2, "middle", "log10 p"),
        (WIDTH - 2, "end", f"{len(scale.relatives)} related pairs, the tall ticks"),
    ):
        yield f'<text x="{x}" y="{_BASE + 57}" text-anchor="{anchor}" stroke="none">{text}</text>'


def _here(log10_p: float) -> Iterator[str]:
    place = round(place_of(log10_p), 1)
    yield f'<path d="M{place - 6} 24h12l-6 11z" stroke="none"/>'
    anchor, x = ("start", 2.0) if place < 60 else ("end", WIDTH - 2.0) if place > WIDTH - 60 else ("middle", place)
    yield f'<text x="{x}" y="17" text-anchor="{anchor}" font-weight="650" stroke="none">this pair</text>'
