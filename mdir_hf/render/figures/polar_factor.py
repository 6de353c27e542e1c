"""Draw the polar factor of two embeddings as a map of channels against channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.sheet import HEAD, SHORTEST, add_axes, fill_cells, label_sides, new_sheet, shade_bar
from mdir_hf.render.figures.theme import Theme
from mdir_hf.report import Transformation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, MatrixResult

SIDE = 3.3
"""Longer side of the map, in inches."""

_LEFT, _BELOW = 0.86, 0.72

_TITLES = {
    Transformation.IDENTITY: "{n} of {m} channels matched, in the same place",
    Transformation.PERMUTATION: "{n} of {m} channels matched, in another order",
    Transformation.SIGNED_PERMUTATION: "{n} of {m} channels matched, signs turned",
    Transformation.ROTATION: "Rotated: no channel keeps an axis of its own",
    Transformation.NONE: "No channel has a partner",
}


def draw_polar_factor(
    report: HomologyReport, name: str, picture: npt.NDArray[np.float32], theme: Theme, *, is_matched: bool
) -> Figure:
    """Draw the absolute polar factor, with one cell for the largest entry of each block of channels.

    The shade is the square root of the entry, so that 0.1 is visible next to 1.
    """
    import numpy as np

    rows, columns = (report.reference.hidden_size or picture.shape[0], report.candidate.hidden_size or picture.shape[1])
    matrix = report.embedding if name == "embedding" else report.unembedding
    title = _title(matrix, min(rows, columns), is_matched=is_matched)
    width, height = (max(SHORTEST, SIDE * side / max(rows, columns)) for side in (columns, rows))
    figure = new_sheet(
        theme, HEAD + height + _BELOW, title, _subtitle(name, (rows, columns), picture.shape, is_matched=is_matched)
    )
    axes = add_axes(figure, theme, _LEFT, _BELOW, width, height)
    fill_cells(axes, theme, np.sqrt(np.clip(picture, 0.0, 1.0)), (0, columns, rows, 0))
    if is_matched:
        axes.set_xticks([])  # positions are not channel numbers here
        axes.set_yticks([])
    label_sides(figure, axes, theme, "channel", report.reference.repo, report.candidate.repo)
    bar = (_LEFT + width + 0.15, _BELOW, 0.13, height)
    shade_bar(figure, theme, bar, ticks=[(math.sqrt(v), f"{v:g}") for v in _ticks(height)], label="|entry|")
    figure.set_label(_alt_text(report, name, matrix, is_matched=is_matched))
    return figure


def _ticks(height: float) -> tuple[float, ...]:
    return (0.0, 0.01, 0.1, 0.25, 0.5, 1.0) if height > 2.0 else (0.0, 0.25, 1.0)


def _title(matrix: MatrixResult | None, narrower: int, *, is_matched: bool) -> str:
    transformation = Transformation.NONE if matrix is None else matrix.transformation
    n = 0 if matrix is None else matrix.matched_channels or 0
    if is_matched:
        return f"The {n} matched channels on the diagonal"
    return _TITLES[transformation].format(n=n, m=narrower)


def _subtitle(name: str, sizes: tuple[int, int], cells: tuple[int, ...], *, is_matched: bool) -> str:
    block = [math.ceil(size / n) for size, n in zip(sizes, cells, strict=True)]
    what = f"|Polar factor| of the {name}s"
    cell = (
        "one cell for each pair of channels" if block == [1, 1] else f"a cell is the largest of {block[0]} × {block[1]}"
    )
    order = "" if not is_matched else "\nthe candidate's channels stand below their partners"
    last = ", those without one come last" if is_matched and sizes[0] != sizes[1] else ""
    return f"{what}; {cell}{order}{last}"


def _alt_text(report: HomologyReport, name: str, matrix: MatrixResult | None, *, is_matched: bool) -> str:
    pair = f"{shown_name(report.reference.repo)} and {shown_name(report.candidate.repo)}"
    transformation = Transformation.NONE if matrix is None else matrix.transformation
    if matrix is None or transformation is Transformation.NONE:
        finding = "no channel of one stands out as the partner of a channel of the other"
    elif transformation is Transformation.ROTATION:
        finding = "they differ by a rotation, so that no single channels match"
    else:
        n_all = min(report.reference.hidden_size or 0, report.candidate.hidden_size or 0)
        finding = (
            f"{matrix.matched_channels} of {n_all} channels match one to one, "
            f"{transformation.value.replace('_', ' ')} found"
        )
    order = ", with matched channels brought onto the diagonal" if is_matched else ""
    return f"Heat map of the polar factor of the {name}s of {pair}{order}: {finding}."
