"""Describe a figure's cells for tooltips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from mdir_hf.names import shown_name
from mdir_hf.render.figures.layer_drift import drift_bands
from mdir_hf.render.figures.sheet import POINTS, TEXT_SIZE, text_width
from mdir_hf.render.projection_words import outcome_words
from mdir_hf.render.sections import FigureName
from mdir_hf.report import ProjectionResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, LayersResult, NeuronNumbers

NAME_LENGTH = 40

TICK_POINTS = 5.0
"""Distance between an axis and its labels, in points."""


@dataclass(frozen=True, slots=True)
class TickStrip:
    """Labels of one axis of a grid, which a page redraws when zooming in.

    ``depth`` is their extent, as a fraction of the figure's width or height.
    """

    side: Literal["left", "right", "bottom"]
    depth: float
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CellGrid:
    """A grid of cells on a figure.

    Attributes:
        box: Left, top, width and height, as fractions of the figure's size.
        sides: Templates that name a row and a column, with ``{}`` for the label.
        noun: Word for one cell, such as ``layer``.
        rows: Row labels, from the top.
        value: Name of the quantity in ``values``; empty if there are none.
        values: ``(rows, columns)`` numbers, or None.
        texts: ``(rows, columns)`` texts, or None.
        notes: Additional text for some cells, as (row, column, text).
        widths: Column widths as fractions; empty if all are equal.
        is_merged: Whether adjacent cells with the same text are merged.
        models: ``(rows, columns)`` pairs of models, one for each cell, or None.
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
    widths: tuple[float, ...] = ()
    is_merged: bool = False
    models: tuple[tuple[tuple[str, str] | None, ...], ...] | None = None
    noun: str = "cell"
    ticks: tuple[TickStrip, ...] = ()


def figure_cells(report: HomologyReport, name: str, figure: Figure) -> tuple[CellGrid, ...]:
    """Return the grids of the named figure, in the order of its axes."""
    makers = {
        FigureName.EMBEDDING: _channels,
        FigureName.UNEMBEDDING: _channels,
        FigureName.EMBEDDING_MATCHED: _channels,
        FigureName.UNEMBEDDING_MATCHED: _channels,
        FigureName.NEURONS: _neurons,
        FigureName.LAYERS: _layers,
        FigureName.FLOW: _flow,
        FigureName.DRIFT: _drift,
    }
    maker = makers.get(FigureName(name))
    return () if maker is None else tuple(maker(report, name, figure))


def _names(report: HomologyReport) -> tuple[str, str]:
    models = (report.reference, report.candidate)
    reference, candidate = (shown_name(model.repo, length=NAME_LENGTH) for model in models)
    return reference.replace("{", "(").replace("}", ")"), candidate.replace("{", "(").replace("}", ")")


def box_of(figure: Figure, axes: int) -> tuple[float, float, float, float]:
    """Return left, top, width and height of one of the figure's axes, as fractions of its size."""
    place = figure.axes[axes].get_position()
    return float(place.x0), float(1.0 - place.y1), float(place.width), float(place.height)


def strips_of(figure: Figure, axes: int, rows: Sequence[str], columns: Sequence[str]) -> tuple[TickStrip, TickStrip]:
    """Return the label strips on the left and at the bottom of a map."""
    texts = [label.get_text() for label in figure.axes[axes].get_xticklabels()]
    lines = max((text.count("\n") + 1 for text in texts), default=1)
    height = POINTS * float(figure.get_size_inches()[1])
    bottom = TickStrip("bottom", (TICK_POINTS + 1.3 * TEXT_SIZE * lines) / height, tuple(columns))
    return left_strip(figure, axes, rows), bottom


def left_strip(figure: Figure, axes: int, rows: Sequence[str]) -> TickStrip:
    """Return the label strip on the left of a map."""
    texts = [label.get_text() for label in figure.axes[axes].get_yticklabels()]
    widest = max((text_width(text, TEXT_SIZE) for text in texts), default=0.0)
    return TickStrip("left", (TICK_POINTS + widest) / (POINTS * float(figure.get_size_inches()[0])), tuple(rows))


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
    unit = "place" if order else "channel"
    reference, candidate = _names(report)
    yield CellGrid(
        box=box_of(figure, 0),
        what=f"Polar factor of the {matrix}s",
        sides=(f"{unit} {{}} of {reference}", f"{unit} {{}} of {candidate}"),
        rows=tuple(edges[0]),
        columns=tuple(edges[1]),
        value="largest entry",
        values=picture,
        notes=tuple(notes),
        ticks=() if order else strips_of(figure, 0, *(tuple(map(_first, side)) for side in edges)),
    )


def _first(block: str) -> str:
    return block.partition(" ")[0]


def _edges(size: int, n: int) -> list[str]:
    """Return the channel range of each of n blocks, such as ``4`` or ``4 to 6``."""
    starts = [k * size // n for k in range(n)] + [size]
    return [str(start) if stop - start == 1 else f"{start} to {stop - 1}" for start, stop in pairwise(starts)]


def _block(place: int, size: int, n: int) -> int:
    return ((place + 1) * n - 1) // size


def _neurons(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    neurons = report.neurons
    if neurons is None:
        return
    reference, candidate = _names(report)
    yield CellGrid(
        box=box_of(figure, 0),
        what="Copied neurons",
        sides=(f"layer {{}} of {reference}", f"layer {{}} of {candidate}"),
        rows=tuple(map(str, neurons.reference_layers)),
        columns=tuple(map(str, neurons.candidate_layers)),
        texts=tuple(tuple(f"{n} of {neurons.tested} neurons are copies" for n in row) for row in neurons.certain),
        notes=tuple(
            (neurons.reference_layers.index(i), neurons.candidate_layers.index(j), "the two layers match")
            for i, j in neurons.matches
        ),
        ticks=strips_of(figure, 0, *_numbers(neurons)),
    )


def _numbers(compared: NeuronNumbers | LayersResult) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(map(str, compared.reference_layers)), tuple(map(str, compared.candidate_layers))


def _layers(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    import numpy as np

    layers = report.layers
    if layers is None or not layers.matrix:
        return
    reference, candidate = _names(report)
    yield CellGrid(
        box=box_of(figure, 0),
        what="Layer map",
        sides=(f"layer {{}} of {reference}", f"layer {{}} of {candidate}"),
        rows=tuple(map(str, layers.reference_layers)),
        columns=tuple(map(str, layers.candidate_layers)),
        value="log10 p",
        values=np.array(layers.matrix, dtype=np.float32),
        notes=tuple(
            (row, column, f"they match, log10 p {p + 0.0:,.0f}")
            for i, j, p in layers.matches
            for row, column in [_place(layers.reference_layers, i, layers.candidate_layers, j)]
            if row >= 0
        ),
        ticks=strips_of(figure, 0, *_numbers(layers)),
    )


def _place(rows: Sequence[int], i: int, columns: Sequence[int], j: int) -> tuple[int, int]:
    return (rows.index(i), columns.index(j)) if i in rows and j in columns else (-1, -1)


def _flow(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    layers = report.layers
    if layers is None:
        return
    reference, candidate = _names(report)
    matches = {match.candidate: match for match in layers.matches}
    left, top, width, height = box_of(figure, 0)
    n_rows = max(len(layers.reference_layers), len(layers.candidate_layers))
    share = len(layers.candidate_layers) / n_rows
    texts = tuple(
        (f"matches layer {match.reference} of {reference}, log10 p {match.log10_p:,.0f}" if match else "matches none",)
        for match in (matches.get(layer) for layer in layers.candidate_layers)
    )
    references, candidates = _numbers(layers)
    on_the_left = left_strip(figure, 0, references[: len(candidates)])
    yield CellGrid(
        box=(left, top, width, height * share),
        what="Flow of layers",
        noun="layer",
        ticks=(on_the_left, TickStrip("right", on_the_left.depth, candidates)),
        sides=(f"layer {{}} of {candidate}", ""),
        rows=tuple(map(str, layers.candidate_layers)),
        columns=("",),
        texts=texts,
    )


def _drift(report: HomologyReport, name: str, figure: Figure) -> Iterator[CellGrid]:
    table = report.projections
    if table is None:
        return
    layers = sorted({result.layer.candidate for result in table.results})
    _, candidate = _names(report)
    left, right = layers[0] - 0.7, layers[-1] + 0.7
    edges = [left, *(place + 0.5 for place in layers[:-1]), right]
    for axes, (role, band) in enumerate(drift_bands(table).items()):
        texts = {result.layer.candidate: _cosines_text(result) for result in band}
        yield CellGrid(
            box=box_of(figure, axes),
            what="Drift",
            sides=("{}", f"layer {{}} of {candidate}"),
            rows=(role.words,),
            columns=tuple(map(str, layers)),
            texts=(tuple(texts.get(layer, "not compared") for layer in layers),),
            widths=tuple((b - a) / (right - left) for a, b in pairwise(edges)),
        )


def _cosines_text(result: ProjectionResult) -> str:
    """Describe one projection, such as ``kept, mean cosine 0.981, deciles 0.970 to 0.990``."""
    spread = f", deciles {result.deciles[0]:.3f} to {result.deciles[-1]:.3f}" if result.deciles else ""
    return f"{outcome_words(result)}, mean cosine {result.cosine:.3f}{spread}"
