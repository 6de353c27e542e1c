"""Draw a survey's groups as a dendrogram of distances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mdir_hf.errors import InputError
from mdir_hf.names import shown_name, without_folders
from mdir_hf.render.figures.cells import CellGrid, box_of
from mdir_hf.render.figures.sheet import HEAD, POINTS, SMALL_SIZE, WIDTH, add_axes, drawing, fitted, new_sheet
from mdir_hf.render.figures.theme import Theme, theme_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

ROW = 0.17
"""Height per model in inches, enough for a legible name."""

MOST_ROWS = 300
"""Maximum number of models drawn, so that the sheet stays readable."""

MOST_NAMED = 8
"""Maximum number of models named on a branch; further models are only counted."""

ROUNDING = 1e-6
"""Distances below this value are rounding errors and are set to 0."""

_LABELS = 0.1
"""Minimum distance of leaf names from the left edge, in inches."""

_NAMES = 2.3
_RIGHT = 0.25
_BELOW = 0.62
_GAP = 0.6


def draw_dendrogram(
    groups: Sequence[tuple[Sequence[str], npt.ArrayLike]], *, alone: int = 0, by_layers: int = 0, dark: bool = False
) -> Figure:
    """Draw each group of related models as a tree of average distances.

    Each group contains the names of m >= 2 models and their ``(m, m)`` non-negative distances. The subtitle states how
    many models have no relatives (``alone``) or are related only through neurons or layers (``by_layers``). At most
    ``MOST_ROWS`` models are drawn.

    Raises:
        InputError: If there are no groups, if sizes do not match, or if matplotlib is not installed.
    """
    families = _grown(groups)
    with drawing():
        return _draw(
            families, theme_of(dark=dark), n_left_out=len(groups) - len(families), alone=alone, by_layers=by_layers
        )


def dendrogram_cells(groups: Sequence[tuple[Sequence[str], npt.ArrayLike]], figure: Figure) -> tuple[CellGrid, ...]:
    """Return the texts of a dendrogram's leaves and branches, as one grid per group from top to bottom.

    Rows are leaves, and columns end at joins. ``models`` contains the closest pair across each join.

    Raises:
        InputError: If the groups cannot be drawn.
    """
    families = _grown(groups)
    left, top, width, height = box_of(figure, 0)
    paper = float(figure.get_size_inches()[0])
    begins, ends = _LABELS / paper, left + width
    n_rows = families[-1].row + len(families[-1].names)
    floor, most = _range(families)
    grids = []
    for family in families:
        joins = sorted({max(floor, join) for join in family.joins})
        places = [left + width * math.log(join / floor) / math.log(most / floor) for join in joins]
        edges = [begins, *places, ends]
        rows = [tuple(family.branches_of(leaf, joins, floor)) for leaf in range(len(family.names))]
        grids.append(
            CellGrid(
                box=(begins, top + height * family.row / n_rows, ends - begins, height * len(rows) / n_rows),
                what=f"Tree of {len(rows)} models",
                sides=("", ""),
                rows=tuple(map(shown_name, family.names)),
                columns=("", *(f"{join:.2g}" for join in joins)),
                texts=tuple(tuple(text for text, _ in row) for row in rows),
                widths=tuple((stop - start) / (ends - begins) for start, stop in pairwise(edges)),
                is_merged=True,
                noun="branch",
                models=tuple(tuple(models for _, models in row) for row in rows),
            )
        )
    return tuple(grids)


@dataclass(frozen=True)
class _Family:
    """One group in the figure, with its ``(m, m)`` distances and scipy's ``linkage`` and ``dendrogram``."""

    names: tuple[str, ...]
    distances: npt.NDArray[np.float64]
    links: npt.NDArray[np.float64]
    row: float
    lines: dict[str, Any]

    @property
    def joins(self) -> tuple[float, ...]:
        """The distances at which branches join."""
        return tuple(float(join) for join in self.links[:, 2])

    def branches_of(self, leaf: int, joins: Sequence[float], floor: float) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield text and models for a leaf, then for its branch at each distance in ``joins``."""
        import numpy as np

        apart = self.distances + np.diag(np.full(len(self.names), np.inf))
        nearest = int(apart[leaf].argmin())
        name, neighbour = self.names[leaf], self.names[nearest]
        text = f"{shown_name(name)}: nearest to it is {shown_name(neighbour)}, {_measured(apart[leaf, nearest])}"
        models = (name, neighbour)
        yield text, models
        joined = [
            (sorted(left), sorted(right), at) for left, right, at in self._joined() if leaf in left or leaf in right
        ]
        for join in joins:
            for left, right, at in joined:
                if max(floor, at) == join:
                    i, j = np.unravel_index(int(self.distances[np.ix_(left, right)].argmin()), (len(left), len(right)))
                    members = [shown_name(self.names[place]) for place in sorted(left + right)]
                    text = f"{_listed(members)}: joined at {_measured(at)}, by average linkage"
                    models = (self.names[left[int(i)]], self.names[right[int(j)]])
            yield text, models

    def _joined(self) -> Iterator[tuple[set[int], set[int], float]]:
        order = [int(leaf) for leaf in self.lines["leaves"]]
        sides = [{order.index(leaf)} for leaf in range(len(order))]
        for left, right, at, _ in self.links:
            yield sides[int(left)], sides[int(right)], float(at)
            sides.append(sides[int(left)] | sides[int(right)])


def _measured(distance: float) -> str:
    return f"an RMS difference of {distance:.2g} times the RMS of their rows"


def _listed(names: Sequence[str]) -> str:
    shown_names = list(names[:MOST_NAMED])
    if len(names) > len(shown_names):
        shown_names.append(f"{len(names) - len(shown_names)} more")
    return f"{', '.join(shown_names[:-1])} and {shown_names[-1]}"


def _grown(groups: Sequence[tuple[Sequence[str], npt.ArrayLike]]) -> list[_Family]:
    import numpy as np
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    arrays = [(list(names), np.asarray(distances, dtype=np.float64)) for names, distances in groups]
    if not arrays or any(len(names) < 2 or distances.shape != (len(names),) * 2 for names, distances in arrays):
        raise InputError("a dendrogram needs groups of m >= 2 names, each with m x m distances")
    families: list[_Family] = []
    row, n_rows = 0.0, 0
    for names, distances in arrays:
        if n_rows + len(names) > MOST_ROWS:
            continue
        n_rows += len(names)
        symmetric = np.maximum((distances + distances.T) / 2, 0.0)
        symmetric[symmetric < ROUNDING] = 0.0
        np.fill_diagonal(symmetric, 0.0)
        links = linkage(squareform(symmetric, checks=False), "average")
        lines: dict[str, Any] = dict(dendrogram(links, no_plot=True))
        order = [int(leaf) for leaf in lines["leaves"]]
        ordered_names = tuple(names[leaf] for leaf in order)
        families.append(_Family(ordered_names, symmetric[np.ix_(order, order)], links, row, lines))
        row += len(names) + _GAP
    return families


def _range(families: Sequence[_Family]) -> tuple[float, float]:
    """Return the ends of the logarithmic axis; exact copies join at the left end."""
    import numpy as np

    positive = np.concatenate([family.distances[family.distances > 0.0] for family in families])
    return (float(positive.min()) / 2, float(positive.max()) * 1.5) if len(positive) else (0.5, 2.0)


def _draw(families: Sequence[_Family], theme: Theme, *, n_left_out: int, alone: int, by_layers: int) -> Figure:
    import numpy as np

    n_models = sum(len(family.names) for family in families)
    floor, top = _range(families)
    height = ROW * (n_models + _GAP * (len(families) - 1))
    width = max(WIDTH, _NAMES + 3.6)
    groups_text = f"{n_models} models in {len(families)} group{'' if len(families) == 1 else 's'}"
    subtitle = "RMS difference of aligned rows over their RMS (logarithmic), by average linkage; no direction"
    lone = f"{alone} more without a relative" if alone else ""
    elsewhere = f"{by_layers} more related by neurons or layers only" if by_layers else ""
    subtitle_parts = [elsewhere, lone, f"{n_left_out} groups left out" if n_left_out else ""]
    figure = new_sheet(
        theme,
        HEAD + height + _BELOW,
        f"How far relatives are apart: {groups_text}",
        "\n".join([subtitle, "; ".join(filter(None, subtitle_parts))]).strip(),
        width=width,
    )
    axes = add_axes(figure, theme, _NAMES, _BELOW, width - _NAMES - _RIGHT, height)
    axes.set_xscale("log")
    axes.set_xlim(floor, top)
    places: list[float] = []
    labels: list[str] = []
    for family in families:
        for across, along in zip(family.lines["icoord"], family.lines["dcoord"], strict=True):
            # scipy puts leaves at 5, 15, 25 …
            places_of = family.row + (np.array(across) - 5.0) / 10.0
            axes.plot(np.maximum(along, floor), places_of, color=theme.observed, lw=1.1, clip_on=False)
        places += [family.row + at for at in range(len(family.names))]
        labels += family.names
    size = min(SMALL_SIZE, 0.72 * ROW * POINTS)
    tick_labels = [fitted(shown_name(name), (_NAMES - 0.2) * POINTS, size) for name in without_folders(labels)]
    axes.set_yticks(places, tick_labels, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(families[-1].row + len(families[-1].names) - 0.5, -0.5)
    ticks = _ticks(families, floor, top)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("difference", color=theme.ink, fontsize=SMALL_SIZE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.set_label(_description(families, groups_text))
    return figure


def _ticks(families: Sequence[_Family], floor: float, top: float) -> dict[float, str]:
    """Return the label of each tick; if there are exact copies, the left end is labelled 0."""
    joins = [join for family in families for join in family.joins]
    zero = {floor: "0"} if min(joins) <= 0.0 else {}
    first = 2.0 * floor if zero else floor  # twice the left end is the smallest distance above 0
    rounds = (_round_values(first, top) or [max(joins)]) if max(joins) > 0.0 else []
    return zero | {value: f"{value:.2g}" for value in rounds}


def _round_values(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten or, in a wide range, only powers of ten."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(exponents) <= 4 else (1,)
    return [value for exponent in exponents for f in factors if low <= (value := f * 10.0**exponent) <= high]


def _description(families: Sequence[_Family], some: str) -> str:
    import numpy as np

    def apart(family: _Family) -> npt.NDArray[np.float64]:
        return family.distances + np.diag(np.full(len(family.names), np.inf))

    family = min(families, key=lambda family: float(apart(family).min()))
    closest = apart(family)
    i, j = np.unravel_index(int(closest.argmin()), closest.shape)
    return (
        f"Dendrogram of {some}. The closest are {shown_name(family.names[int(i)])} and "
        f"{shown_name(family.names[int(j)])}, {closest[i, j]:.2g} apart."
    )
