"""The tooltips of a figure's cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.module_strip import bands_of, strip_cells
from mdir_hf.render.sections import FigureName
from mdir_hf.report import LayerPair, ModuleRole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport

NAME_LENGTH = 40


@dataclass(frozen=True, slots=True, eq=False)
class CellGrid:
    """A grid of cells on a figure.

    Attributes:
        box: Left, top, width and height, as shares of the figure's.
        what: What the grid is, as a name.
        sides: What a row and a column is: text with ``{}`` for its label.
        rows: Labels of the rows, from the top.
        columns: Labels of the columns.
        value: What ``values`` are; empty where ``texts`` says all.
        values: ``(rows, columns)`` numbers, None where there are none.
        texts: ``(rows, columns)`` texts, None where there are none.
        notes: More on some cells, by (row, column).
        are_pairs: Whether a cell stands for a pair of layers.
        widths: Shares of the width that the columns take; empty where all are as wide.
        is_merged: Whether cells side by side with the same text are one.
        models: ``(rows, columns)``: the two models that a cell is about, None where it is about no pair; None where
            no cell is.
    """

    box: tuple[float, float, float, float]
    what: str
    sides: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    value: str = ""
    values: npt.NDArray[np.float32] | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    notes: tuple[tuple[int, int, str], ...] = ()
    are_pairs: bool = False
    widths: tuple[float, ...] = ()
    is_merged: bool = False
    models: tuple[tuple[tuple[str, str] | None, ...], ...] | None = None


def figure_cells(report: HomologyReport, name: str, figure: Figure) -> tuple[CellGrid, ...]:
    """Return the grids of a figure, in the order of its axes.

    Args:
        report: The report.
        name: Of the figure.
        figure: What ``report.figures()`` gave under that name.

    Returns:
        None for figures without cells (looks, null).
    """
    makers = {
        FigureName.EMBEDDING: _channels,
        FigureName.UNEMBEDDING: _channels,
        FigureName.EMBEDDING_MATCHED: _channels,
        FigureName.UNEMBEDDING_MATCHED: _channels,
        FigureName.LAYERS: _layers,
        FigureName.FLOW: _flow,
        FigureName.MODULES: _modules,
    }
    maker = makers.get(FigureName(name))
    return () if maker is None else tuple(maker(report, name, figure))


def pair_tests(report: HomologyReport) -> dict[LayerPair, tuple[tuple[str, str, float], ...]]:
    """Return of each analysed pair of layers its parts, each with its most significant test and log10 p."""
    cells, pairs = strip_cells(report)
    found: dict[LayerPair, tuple[tuple[str, str, float], ...]] = {}
    for pair in pairs:
        tests = [module for (_, place), module in cells.items() if place == pair]
        if tests:
            found[pair] = tuple((module.role.words, module.test.words, module.log10_p) for module in tests)
    return found


def _names(report: HomologyReport) -> tuple[str, str]:
    one, other = (shown_name(model.repo, length=NAME_LENGTH) for model in (report.reference, report.candidate))
    return one.replace("{", "(").replace("}", ")"), other.replace("{", "(").replace("}", ")")


def box_of(figure: Figure, axes: int) -> tuple[float, float, float, float]:
    """Where some axes lie: left, top, width and height, as shares of the figure's."""
    place = figure.axes[axes].get_position()
    return float(place.x0), float(1.0 - place.y1), float(place.width), float(place.height)


def _channels(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    matrix, _, order = name.partition("_")
    arrays = getattr(report.arrays, matrix)
    picture = arrays.matched if order else arrays.polar
    if picture is None:
        return
    sizes = (report.reference.hidden_size or picture.shape[0], report.candidate.hidden_size or picture.shape[1])
    edges = [_edges(size, n) for size, n in zip(sizes, picture.shape, strict=True)]
    notes: list[tuple[int, int, str]] = []
    if arrays.channels is not None and not order:
        for i, j in arrays.channels.T.tolist():
            row, column = (_block(place, size, n) for place, size, n in zip((i, j), sizes, picture.shape, strict=True))
            notes.append((row, column, f"channel {i} matches channel {j}"))
    unit = "places" if order else "channels"
    mine, other = _names(report)
    yield CellGrid(
        box=box_of(figure, 0),
        what=f"Polar factor of the {matrix}s",
        sides=(f"{unit} {{}} of {mine}", f"{unit} {{}} of {other}"),
        rows=tuple(edges[0]),
        columns=tuple(edges[1]),
        value="largest entry",
        values=picture,
        notes=tuple(notes),
    )


def _edges(size: int, n: int) -> list[str]:
    """The channels of each of n blocks, in words: ``4``, or ``4 to 6``."""
    starts = [k * size // n for k in range(n)] + [size]
    return [str(start) if stop - start == 1 else f"{start} to {stop - 1}" for start, stop in pairwise(starts)]


def _block(place: int, size: int, n: int) -> int:
    """The block that a channel is in: the last that begins at it or before."""
    return ((place + 1) * n - 1) // size


def _layers(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    import numpy as np

    layers = report.layers
    if layers is None or not layers.matrix:
        return
    mine, other = _names(report)
    yield CellGrid(
        box=box_of(figure, 0),
        what="Layer map",
        sides=(f"layer {{}} of {mine}", f"layer {{}} of {other}"),
        rows=tuple(map(str, layers.reference_layers)),
        columns=tuple(map(str, layers.candidate_layers)),
        value="log10 p",
        values=np.array(layers.matrix, dtype=np.float32),
        notes=tuple(
            (row, column, f"they match, log10 p {p + 0.0:,.0f} when corrected for all pairs")
            for i, j, p in layers.matches
            for row, column in [_place(layers.reference_layers, i, layers.candidate_layers, j)]
            if row >= 0
        ),
        are_pairs=True,
    )


def _place(rows: Sequence[int], i: int, columns: Sequence[int], j: int) -> tuple[int, int]:
    return (rows.index(i), columns.index(j)) if i in rows and j in columns else (-1, -1)


def _flow(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    layers = report.layers
    if layers is None:
        return
    mine, other = _names(report)
    ancestor = {match.candidate: match for match in layers.matches}
    left, top, width, height = box_of(figure, 0)
    n_rows = max(len(layers.reference_layers), len(layers.candidate_layers))
    share = len(layers.candidate_layers) / n_rows
    texts = tuple(
        (f"matches layer {found.reference} of {mine}, log10 p {found.log10_p:,.0f}" if found else "matches none",)
        for found in (ancestor.get(layer) for layer in layers.candidate_layers)
    )
    yield CellGrid(
        box=(left, top, width, height * share),
        what="Flow of layers",
        sides=(f"layer {{}} of {other}", ""),
        rows=tuple(map(str, layers.candidate_layers)),
        columns=("",),
        texts=texts,
    )


def _modules(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    cells, pairs = strip_cells(report)
    roles = [role for role in ModuleRole if any(key[0] is role for key in cells)]
    mine, other = _names(report)
    for axes, band in enumerate(bands_of(pairs)):
        rows = []
        for role in roles:
            found = [cells.get((role, pair)) for pair in band]
            rows.append(
                tuple(
                    f"{one.test.words}, log10 p {one.log10_p + 0.0:,.0f}"
                    + ("" if one.is_significant else ", not significant")
                    if one
                    else "not analysed"
                    for one in found
                )
            )
        yield CellGrid(
            box=box_of(figure, axes),
            what="Parts of matched layers",
            sides=("{}", f"layer {{}} of {mine} and {other}"),
            rows=tuple(role.words for role in roles),
            columns=tuple(f"{pair.reference} and {pair.candidate}" for pair in band),
            texts=tuple(rows),
        )
