"""Draw traces relative to their thresholds, and p against the number of tokens read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mdir_hf.render.figures.layer_map import short_number
from mdir_hf.render.figures.sheet import (
    HEAD,
    POINTS,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    add_axes,
    evidence_ticks,
    new_sheet,
    spaced,
)
from mdir_hf.render.figures.theme import EVIDENCE_TICKS, Theme, evidence_shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, MatrixResult

_ROW = 0.29
"""Height of a bar and the gap below it, in inches."""

_BARS_WIDTH = 2.4
_MARGIN = 1.16
"""Length of the axis divided by the longest bar, which leaves space for its number."""

_MARKS = {"embedding": ("o", "-"), "unembedding": ("s", "--")}

MOST_NUMBERS = 10
"""Looks are labelled with -log10 p if there are at most this many."""


def draw_null(matrices: Mapping[str, MatrixResult], theme: Theme) -> Figure:
    """Draw the traces of matrices and their placebos, each as a multiple of its own threshold.

    Matrices that have no placebos are omitted.
    """
    rows: list[tuple[str, float | None, bool]] = []
    observed: dict[str, float | None] = {}
    placebos: list[float] = []
    for name, matrix in matrices.items():
        if matrix.placebo is None:
            continue
        ratio = _ratio(matrix.trace, matrix.threshold)
        observed[name] = ratio
        chance = {
            f"placebo: {what}": _ratio(placebo.trace, placebo.threshold) or 0.0
            for what, placebo in (
                ("tokens re-paired", matrix.placebo.re_paired),
                ("one model rotated", matrix.placebo.rotated),
            )
        }
        placebos += chance.values()
        rows += [(f"{name}s of the two models", ratio, True), *((text, share, False) for text, share in chance.items())]
    largest = max(placebos)
    seen = [ratio for ratio in observed.values() if ratio is not None]
    if not seen:
        title = "No trace was solved for: none could be significant"
    elif max(seen) < 1.0:
        title = "The observed trace is within chance"
    else:
        title = f"The observed trace is {max(seen):.1f} times the significant one"
    of_placebos = "the placebos stay below it" if largest < 1.0 else f"a placebo reaches {largest:.1f} times it"
    height = _ROW * len(rows) + 0.12
    figure = new_sheet(
        theme,
        HEAD + height + 0.55,
        title,
        "Trace of the best matching over the significant trace (0.1 %, dashed);\n"
        "a placebo is the same test on data without a relation",
    )
    axes = add_axes(figure, theme, WIDTH - _BARS_WIDTH - 0.3, 0.5, _BARS_WIDTH, height)
    _bars(axes, theme, rows)
    axes.set_xlabel("trace ÷ significant trace", color=theme.ink, fontsize=TEXT_SIZE)
    values = " and ".join(
        f"{ratio:.2f} times" + (f" ({name})" if len(observed) > 1 else "")
        for name, ratio in observed.items()
        if ratio is not None
    )
    figure.set_label(
        f"Bar chart: the observed trace is {values or 'not solved for, as none could be significant, against'} what "
        f"would be significant at 0.1 %; {of_placebos} (placebos: {', '.join(f'{share:.2f}' for share in placebos)})."
    )
    return figure


def _ratio(trace: float | None, threshold: float | None) -> float | None:
    return None if trace is None or not threshold else trace / threshold


def _bars(axes: Axes, theme: Theme, rows: Sequence[tuple[str, float | None, bool]]) -> None:
    axes.axvline(1.0, color=theme.ink, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
    largest = max(1.1, *(ratio or 0.0 for _, ratio, _ in rows))
    # A number is 30 points wide and 5 points from its bar. If the dashed line would cross it, it moves past the line.
    crossed = 35.0 / (_BARS_WIDTH * POINTS) * _MARGIN * largest
    for place, (_, ratio, is_observed) in enumerate(rows):
        text = "not solved for" if ratio is None else f"{ratio:.2f}"
        end = ratio or 0.0
        face, edge, hatch = (theme.observed, theme.observed, None) if is_observed else (theme.paper, theme.null, "////")
        axes.barh([place], [end], height=0.62, linewidth=1.0, zorder=2, facecolor=face, edgecolor=edge, hatch=hatch)
        clear = 1.0 if end < 1.0 < end + crossed else end
        axes.annotate(
            text,
            (clear, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=theme.ink,
            fontsize=SMALL_SIZE,
            fontweight="bold" if is_observed else "normal",
        )
    axes.set_xlim(0.0, _MARGIN * largest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [text for text, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def draw_looks(report: HomologyReport, matrices: Mapping[str, MatrixResult], theme: Theme) -> Figure:
    """Draw -log10 p of each look against its number of tokens."""
    series = {name: matrix.looks for name, matrix in matrices.items() if matrix.looks}
    best = {name: min(p for _, p in looks) for name, looks in series.items()}
    level = math.log10(report.alpha)
    n_looks = sum(len(looks) for looks in series.values())
    crossing = [n for looks in series.values() for n, p in looks if p < level]
    title = f"Significant with {min(crossing)} common tokens" if crossing else "Not significant at any look"
    figure = new_sheet(
        theme, HEAD + 2.4 + 0.55, title, "Evidence against common tokens read, corrected for all tests and looks"
    )
    axes = add_axes(figure, theme, 0.78, 0.55, WIDTH - 0.78 - 0.35, 2.5)
    numbers = sorted({max(1, n) for looks in series.values() for n, _ in looks})
    for name, looks in series.items():
        marker, line = _MARKS.get(name, ("^", ":"))
        places = [(math.log2(max(1, n)), evidence_shade(p)) for n, p in looks]
        axes.plot(
            *zip(*places, strict=True),
            color=theme.observed,
            marker=marker,
            linewidth=1.6,
            linestyle=line,
            label=name,
            zorder=3,
            markersize=8.5 if marker == "s" else 5.0,
            markerfacecolor="none" if marker == "s" else theme.observed,
        )
        if n_looks <= MOST_NUMBERS and len(series) == 1:
            for (x, y), (_, p) in zip(places, looks, strict=True):
                axes.annotate(
                    short_number(-p),
                    (x, y),
                    xytext=(0, 7),
                    textcoords="offset points",
                    ha="center",
                    color=theme.ink,
                    fontsize=SMALL_SIZE,
                )
    axes.axhline(evidence_shade(level), color=theme.null, linestyle=(0, (4, 2)), linewidth=1.2, zorder=2)
    first, last = math.log2(numbers[0]), math.log2(numbers[-1])
    axes.set_xlim(first - 0.1 * (last - first) - 0.3, last + 0.1 * (last - first) + 0.3)
    top = max(evidence_shade(level) + 0.08, *(evidence_shade(p) for p in best.values()))
    axes.set_ylim(-0.04, top + 0.12)
    axes.annotate(
        f"alpha = {report.alpha:g}",
        (0.0, evidence_shade(level)),
        xycoords=("axes fraction", "data"),
        xytext=(5, 4),
        textcoords="offset points",
        color=theme.ink,
        fontsize=SMALL_SIZE,
    )
    shown = _apart(numbers)
    axes.set_xticks([math.log2(n) for n in shown], [spaced(n) for n in shown])
    ticks = [tick for tick in evidence_ticks(EVIDENCE_TICKS) if tick[0] <= top + 0.12]
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.grid(axis="y", color=theme.grid, linewidth=0.5, zorder=1)
    axes.set_xlabel("common tokens read", color=theme.ink, fontsize=TEXT_SIZE)
    axes.set_ylabel("−log10 p", color=theme.ink, fontsize=TEXT_SIZE)
    if len(series) > 1:
        place = "lower right" if all(looks[-1][1] < level for looks in series.values()) else "upper right"
        axes.legend(loc=place, fontsize=SMALL_SIZE, frameon=False, labelcolor=theme.ink, handlelength=3.2)
    strongest = "; ".join(
        f"with {max(n for n, _ in series[name])} common tokens of the {name}s read, log10 p is {p + 0.0:.0f}"
        for name, p in best.items()
    )
    figure.set_label(f"Line chart: {strongest}, at a level of {report.alpha:g}. {title}.")
    return figure


def _apart(numbers: Sequence[int]) -> list[int]:
    """Select numbers whose labels do not touch on a logarithmic axis."""
    span = math.log2(numbers[-1]) - math.log2(numbers[0])
    shown: list[int] = []
    for n in reversed(numbers):
        if not shown or math.log2(shown[-1]) - math.log2(n) > max(0.45, 0.11 * span):
            shown.append(n)
    return shown[::-1]
