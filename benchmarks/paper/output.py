"""Store numbers and figures of the experiments, and draw matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from benchmarks.runner import RESULTS, Benchmark, Case, Row
from benchmarks.runner import table as table_with_rule
from mdir_hf.render.figures.rendering import figure_bytes
from mdir_hf.render.figures.sheet import HEAD, add_axes, drawing, new_sheet
from mdir_hf.render.figures.theme import colour_map, theme_of
from mdir_hf.report import LayersResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _BELOW, _GAP = 0.65, 0.6, 0.6


def experiment(name: str, about: str, measure: Callable[[], tuple[Row, Mapping[str, Figure]]]) -> Benchmark:
    """Return the benchmark of one experiment, whose numbers are one line in ``paper-NAME.jsonl``.

    Args:
        name: Name of the experiment.
        about: Description of the measurement, in one line.
        measure: Returns the numbers in plain containers, and figures, which are stored as ``paper-NAME-FIGURE.png``.
    """

    def measured() -> Row:
        data, figures = measure()
        for key, figure in figures.items():
            (RESULTS / f"paper-{name}-{key}.png").write_bytes(figure_bytes(figure, "png"))
        return {"experiment": name, **data}

    return Benchmark(f"paper-{name}", about, ("experiment",), lambda: [Case((name,), measured)])


table = partial(table_with_rule, rule="---")
"""Formats a Markdown table."""


def p_text(log10_p: float, log10_alpha: float = -10.0) -> str:
    """Format p as 10^-123, or NS if it is not significant at the level fixed in advance."""
    return f"10^{log10_p:.0f}" if log10_p < log10_alpha else f"NS (10^{log10_p:.1f})" if log10_p < -0.05 else "NS"


def layers_log10_p(layers: LayersResult) -> float:
    """Return the smallest log10 p of a matched layer; 0 if no layer matches."""
    return min((match.log10_p for match in layers.matches), default=0.0)


def draw_maps(
    title: str,
    subtitle: str,
    maps: Sequence[tuple[str, npt.NDArray[np.floating], float]],
    *,
    side: float = 2.2,
    axes_names: tuple[str, str] = ("", ""),
) -> Figure:
    """Draw matrices side by side, pale for 0 and dark for the maximum of each.

    Args:
        title: Message of the figure.
        subtitle: Description of the data.
        maps: Caption, non-negative matrix, and the value of the darkest shade.
        side: Inches of each map's longer side.
        axes_names: Names of columns and rows.
    """
    theme = theme_of(dark=False)
    with drawing():
        shapes = [(side * m.shape[1] / max(m.shape), side * m.shape[0] / max(m.shape)) for _, m, _ in maps]
        width = _LEFT + sum(w for w, _ in shapes) + _GAP * len(maps)
        height = max(h for _, h in shapes)
        figure = new_sheet(theme, HEAD + height + _BELOW, title, subtitle, width=max(5.0, width))
        left = _LEFT
        for (caption, matrix, darkest), (w, h) in zip(maps, shapes, strict=True):
            axes = add_axes(figure, theme, left, _BELOW + height - h, w, h)
            axes.imshow(
                np.clip(np.nan_to_num(matrix) / darkest, 0, 1),
                cmap=colour_map(theme),
                vmin=0,
                vmax=1,
                interpolation="none",
                aspect="auto",
            )
            axes.set_xlabel(f"{caption}\n{axes_names[0]}".strip(), fontsize=7, color=theme.ink)
            if left == _LEFT:
                axes.set_ylabel(axes_names[1], fontsize=7, color=theme.ink)
            axes.tick_params(labelsize=6)
            left += w + _GAP
        figure.set_label(f"{title}. {subtitle}")
    return figure


def log_shades(log10_p: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return log10(1 - log10 p), so that both -20 and -7000 are visible next to 0."""
    return np.log10(1 - np.minimum(log10_p, 0.0))


def rounded(value: float, digits: int = 4) -> float | None:
    """Round a number for JSON; return None if it is not finite."""
    return round(value, digits) if math.isfinite(value) else None
