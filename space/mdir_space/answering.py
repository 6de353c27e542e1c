"""Figures that answer: over a drawn figure lie cells that a pointer, a finger or keys ask; ``figures.js`` does it.

The picture under it is the one that reports have, so that what is downloaded is what is seen. Nothing is loaded for it.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from mdir_hf import CellGrid, HomologyReport, figure_cells, pair_tests
from mdir_space.markup import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = "Arrow keys move from cell to cell, plus and minus zoom."
OPENS = "Enter shows the parts of a pair."


def answering_figure(report: HomologyReport, name: str, figure: Figure, images: str) -> str:
    """Return a figure as an element that answers.

    Args:
        report: The report.
        name: Of the figure.
        figure: As drawn; the same in both themes but for its colours.
        images: Its elements, one for each theme.

    Returns:
        The images alone where the figure has no cells; else with cells over them, what they say below, and buttons.
    """
    grids = figure_cells(report, name, figure)
    tools = _tools(name, zooms=bool(grids))
    begins = f'<div class="answers" data-name="{text(name)}"><div class="view"><div class="sheet">{images}'
    if not grids:
        return f"{begins}</div></div>{tools}</div>"
    cells = "".join(_cells(report, grid) for grid in grids)
    said = '<p class="said" aria-live="polite">Point at a cell to read it.</p>'
    return f'{begins}{cells}</div></div>{said}{tools}<div class="of-pair" aria-live="polite"></div></div>'


def _cells(report: HomologyReport, grid: CellGrid) -> str:
    left, top, width, height = (f"{100.0 * share:.3f}%" for share in grid.box)
    opens = f" {OPENS}" if grid.are_pairs else ""
    return (
        f'<div class="cells" role="application" tabindex="0" aria-label="{text(grid.what)}, {len(grid.rows)} by '
        f'{len(grid.columns)} cells. {KEYS}{opens}" style="left:{left};top:{top};width:{width};height:{height}" '
        f'data-cells="{text(json.dumps(_data(report, grid), separators=(",", ":")))}"><div class="mark"></div></div>'
    )


def _data(report: HomologyReport, grid: CellGrid) -> dict[str, Any]:
    data: dict[str, Any] = {"sides": grid.sides, "rows": grid.rows, "columns": grid.columns}
    if grid.texts is not None:
        data["texts"] = grid.texts
    if grid.values is not None:
        data["value"] = grid.value
        if grid.value == "log10 p":
            data["values"] = [[round(float(value), 1) + 0.0 for value in row] for row in grid.values]
        else:  # between 0 and 1, in steps that nobody sees
            steps = (255.0 * grid.values.clip(0.0, 1.0) + 0.5).astype("uint8")
            data["steps"] = base64.b64encode(steps.tobytes()).decode("ascii")
    if grid.notes:
        data["notes"] = grid.notes
    if grid.are_pairs:
        data["pairs"] = {
            f"{pair.reference},{pair.candidate}": [(part, test, round(p)) for part, test, p in tests]
            for pair, tests in pair_tests(report).items()
        }
    return data


def _tools(name: str, *, zooms: bool) -> str:
    zoom = (
        '<button type="button" data-do="closer">Closer</button><button type="button" data-do="farther">Farther</button>'
        if zooms
        else ""
    )
    return (
        f'<p class="tools" role="group" aria-label="Figure {text(name.replace("_", " "))}">{zoom}'
        '<button type="button" data-do="svg">SVG</button><button type="button" data-do="png">PNG</button></p>'
    )
