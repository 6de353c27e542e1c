"""Figures whose cells show a text when selected by pointer, touch or keyboard (``figures.js``)."""

from __future__ import annotations

import base64
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from markupsafe import Markup

from mdir_hf import HomologyReport
from mdir_hf.render.figures import CellGrid, figure_cells, figure_img, small_img
from mdir_hf.render.sections import FigureName, deciding_figures
from mdir_space.html.templates import render

KEYS = "Arrow keys move from {} to {}."
ZOOM_KEYS = "Plus and minus zoom, 0 shows all."
OPENS_COMPARISON = "Enter opens the comparison of the two models."

MAX_DRAWN = 16
"""Number of public reports whose figures are cached, at about 2 MB per report."""


class ReportFigures:
    """The figures of one report, each rendered on first use. Thread-safe.

    Attributes:
        deciding: The figure of the deciding evidence, without cells; empty if there is none.
    """

    def __init__(self, report: HomologyReport) -> None:
        self._report = report
        self._light, self._dark = dict(report.figures()), dict(report.figures(dark=True))
        self._lock = threading.Lock()
        self._images: dict[str, Markup] = {}
        self.deciding = self._deciding()

    def images(self, names: Iterable[FigureName]) -> dict[str, str]:
        """Return the figures for which the report has data, as HTML keyed by name."""
        with self._lock:
            shown = {name.value: self._image(name.value) for name in names}
        return {name: image for name, image in shown.items() if image}

    def _deciding(self) -> Markup:
        name = next((name for name in deciding_figures(self._report) if name.value in self._light), None)
        if name is None:
            return Markup()
        light, dark = (Markup(small_img(drawn[name.value])) for drawn in (self._light, self._dark))
        return render("deciding_figure", light=light, dark=dark, words=name.words)

    def _image(self, name: str) -> Markup:
        if name in self._light:  # matplotlib's figures are large, so they are dropped once rendered
            light, dark = self._light.pop(name), self._dark.pop(name)
            cells = figure_cells(self._report, name, light)
            self._images[name] = interactive_figure(name, figure_img(light), figure_img(dark), cells)
        return self._images.get(name, Markup())


class DrawnFigures:
    """Cache of figures of recently shown reports; only for public reports, because visitors share it."""

    def __init__(self, most: int = MAX_DRAWN) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._figures: OrderedDict[int, tuple[HomologyReport, Future[ReportFigures]]] = OrderedDict()

    def has(self, report: object) -> bool:
        """Return whether the figures of a report are drawn."""
        with self._lock:
            _, figures = self._figures.get(id(report), (None, None))
        return figures is not None and figures.done()

    def of(self, report: HomologyReport) -> ReportFigures:
        """Return the figures of a report. Only the first call for the same object draws; others wait for it."""
        drawn: Future[ReportFigures] = Future()
        with self._lock:
            # Stored with the report, so that no other object gets its id.
            _, figures = self._figures.setdefault(id(report), (report, drawn))
            self._figures.move_to_end(id(report))
            while len(self._figures) > self._most:
                self._figures.popitem(last=False)
        if figures is drawn:
            try:
                drawn.set_result(ReportFigures(report))
            except BaseException as exc:
                with self._lock:
                    self._figures.pop(id(report), None)
                drawn.set_exception(exc)
        return figures.result()


PUBLIC_FIGURES = DrawnFigures()
"""Figures of stored and cached results."""


def interactive_figure(
    name: str,
    light: str,
    dark: str,
    grids: Sequence[CellGrid] = (),
    *,
    address: Callable[[str, str], str] | None = None,
) -> Markup:
    """Return a figure as HTML, with buttons to zoom and save it.

    ``light`` and ``dark`` are images for light and dark pages. ``grids`` contains the texts of cells.
    ``address`` returns the link from a cell for two models.
    """
    cells = [
        {
            "label": _label(grid, address is not None),
            "noun": grid.noun,
            "place": _place(grid),
            "data": _data(grid, address),
        }
        for grid in grids
    ]
    width = re.search(r'width="(\d+)"', light)
    return render(
        "figure",
        name=name,
        light=Markup(light),
        dark=Markup(dark),
        grids=cells,
        zooms=any(not grid.is_merged for grid in grids),
        width=width[1] if width else 0,
    )


def _label(grid: CellGrid, has_links: bool) -> str:
    opens = f" {OPENS_COMPARISON}" if grid.models and has_links else ""
    size = "" if grid.is_merged else f", {len(grid.rows)} by {len(grid.columns)} cells"
    keys = KEYS.format(grid.noun, grid.noun) + ("" if grid.is_merged else f" {ZOOM_KEYS}")
    return f"{grid.what}{size}. {keys}{opens}"


def _place(grid: CellGrid) -> str:
    left, top, width, height = (f"{100.0 * share:.3f}%" for share in grid.box)
    return f"left:{left};top:{top};width:{width};height:{height}"


def _data(grid: CellGrid, address: Callable[[str, str], str] | None) -> dict[str, Any]:
    data: dict[str, Any] = {"sides": grid.sides, "rows": grid.rows, "columns": grid.columns}
    if grid.texts is not None:
        data["texts"], data["said"] = _once([text for row in grid.texts for text in row])
    if grid.values is not None:
        data["value"] = grid.value
        if grid.value == "log10 p":
            data["values"] = [[round(float(value), 1) + 0.0 for value in row] for row in grid.values]
        else:  # between 0 and 1, in steps too small to see
            steps = (255.0 * grid.values.clip(0.0, 1.0) + 0.5).astype("uint8")
            data["steps"] = base64.b64encode(steps.tobytes()).decode("ascii")
    if grid.notes:
        data["notes"] = grid.notes
    if grid.widths:
        data["widths"] = [round(width, 5) for width in grid.widths]
    if grid.is_merged:
        data["merged"] = True
    if grid.ticks:
        data["ticks"] = [
            {"side": strip.side, "depth": round(100.0 * strip.depth, 3), "labels": strip.labels} for strip in grid.ticks
        ]
    if grid.models is not None and address is not None:
        models = [pair for row in grid.models for pair in row]
        data["links"], data["to"] = _once([address(*pair) if pair else "" for pair in models])
    return data


def _once(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the distinct texts, and the index of each cell's text."""
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    return list(places), [places[text] for text in texts]
