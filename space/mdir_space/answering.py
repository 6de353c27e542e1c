"""Figures that answer: over a drawn figure lie cells that a pointer, a finger or keys ask; ``figures.js`` does it.

The picture under it is the one that reports have, so that what is downloaded is what is seen. Nothing is loaded for it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mdir_hf.render.figures import CellGrid
from mdir_space.markup import text

KEYS = "Arrow keys move from cell to cell, plus and minus zoom."
OPENS_PARTS = "Enter shows the parts of a pair."
OPENS_COMPARISON = "Enter opens the comparison of the two models."

Parts = Mapping[Any, Sequence[tuple[str, str, float]]]
"""As ``pair_tests`` gives them."""


def answering_figure(
    name: str,
    images: str,
    grids: Sequence[CellGrid] = (),
    *,
    parts: Parts | None = None,
    address: Callable[[str, str], str] | None = None,
) -> str:
    """Return a figure as an element that answers.

    Args:
        name: Of the figure.
        images: Its elements, one for each theme.
        grids: What its cells say.
        parts: What a cell opens that stands for a pair of layers.
        address: Gives the address that a cell about two models leads to.

    Returns:
        The images alone where the figure has no cells; else with cells over them, what they say below, and buttons.
    """
    tools = _tools(name, zooms=bool(grids))
    begins = f'<div class="answers" data-name="{text(name)}"><div class="view"><div class="sheet">{images}'
    if not grids:
        return f"{begins}</div></div>{tools}</div>"
    cells = "".join(_cells(grid, _data(grid, parts or {}, address)) for grid in grids)
    said = '<p class="said">Point at a cell to read it.</p>'
    return f'{begins}{cells}</div></div>{said}{tools}<div class="of-pair" aria-live="polite"></div></div>'


def _cells(grid: CellGrid, data: Mapping[str, Any]) -> str:
    left, top, width, height = (f"{100.0 * share:.3f}%" for share in grid.box)
    opens = f" {OPENS_PARTS}" if grid.are_pairs else f" {OPENS_COMPARISON}" if "links" in data else ""
    size = "" if grid.is_merged else f", {len(grid.rows)} by {len(grid.columns)} cells"
    return (
        f'<div class="cells" role="application" tabindex="0" aria-label="{text(grid.what)}{size}. {KEYS}{opens}" '
        f'style="left:{left};top:{top};width:{width};height:{height}" '
        f'data-cells="{text(json.dumps(data, separators=(",", ":")))}"><div class="mark"></div></div>'
    )


def _data(grid: CellGrid, parts: Parts, address: Callable[[str, str], str] | None) -> dict[str, Any]:
    data: dict[str, Any] = {"sides": grid.sides, "rows": grid.rows, "columns": grid.columns}
    if grid.texts is not None:
        data["texts"], data["said"] = _once([said for row in grid.texts for said in row])
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
            for pair, tests in parts.items()
        }
    if grid.widths:
        data["widths"] = [round(width, 5) for width in grid.widths]
    if grid.is_merged:
        data["merged"] = True
    if grid.models is not None and address is not None:
        models = [pair for row in grid.models for pair in row]
        data["links"], data["to"] = _once([address(*pair) if pair else "" for pair in models])
    return data


def _once(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return each text once, and of each cell which of them is its own."""
    places = {said: at for at, said in enumerate(dict.fromkeys(texts))}
    return list(places), [places[said] for said in texts]


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
