"""How far related models are apart, as a dendrogram of every group of a survey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mdir_hf.errors import InputError
from mdir_hf.figures.sheet import HEAD, POINTS, SMALL_SIZE, WIDTH, add_axes, drawing, fitted, new_sheet
from mdir_hf.figures.theme import Theme, theme_of
from mdir_hf.names import shown_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

ROW = 0.17
"""Inches of a model, so that its name can be read."""

MOST_ROWS = 300
"""Models that are drawn; a sheet of more is read by nobody."""

_NAMES = 2.3
_RIGHT = 0.25
_BELOW = 0.62
_GAP = 0.6


def draw_dendrogram(
    groups: Sequence[tuple[Sequence[str], npt.ArrayLike]], *, alone: int = 0, dark: bool = False
) -> Figure:
    """Draw every group of related models as a tree of average distances.

    Args:
        groups: Names of m models, two or more, and the ``(m, m)`` distances between them, at least 0.
        alone: How many models are related to none.
        dark: Light ink on dark paper.

    Returns:
        The figure; its label says how many groups there are and which two models are closest. Groups that go beyond
        ``MOST_ROWS`` models are left out, and counted in its subtitle.

    Raises:
        InputError: If there is no group, sizes do not fit, or matplotlib is not installed.
    """
    import numpy as np

    known = [(list(names), np.asarray(distances, dtype=np.float64)) for names, distances in groups]
    if not known or any(len(names) < 2 or distances.shape != (len(names),) * 2 for names, distances in known):
        raise InputError("a dendrogram needs groups of m >= 2 names, each with m x m distances")
    drawn, n_rows = [], 0
    for names, distances in known:
        if n_rows + len(names) <= MOST_ROWS:
            drawn.append((names, distances))
            n_rows += len(names)
    with drawing():
        return _draw(drawn, theme_of(dark=dark), n_left_out=len(known) - len(drawn), alone=alone)


def _draw(
    groups: Sequence[tuple[list[str], npt.NDArray[np.float64]]], theme: Theme, *, n_left_out: int, alone: int
) -> Figure:
    import numpy as np
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    n_models = sum(len(names) for names, _ in groups)
    positive = np.concatenate([distances[distances > 0.0] for _, distances in groups])
    # Equal copies are drawn at the left edge of a logarithmic axis.
    floor, top = (float(positive.min()) / 2, float(positive.max()) * 1.5) if len(positive) else (0.5, 2.0)
    height = ROW * (n_models + _GAP * (len(groups) - 1))
    width = max(WIDTH, _NAMES + 3.6)
    some = f"{n_models} models in {len(groups)} group{'' if len(groups) == 1 else 's'}"
    subtitle = "RMS difference of aligned rows over their RMS (logarithmic), by average linkage; no direction"
    more = [f"{alone} more related to none" if alone else "", f"{n_left_out} groups left out" if n_left_out else ""]
    figure = new_sheet(
        theme,
        HEAD + height + _BELOW,
        f"How far relatives are apart: {some}",
        "\n".join([subtitle, "; ".join(filter(None, more))]).strip(),
        width=width,
    )
    axes = add_axes(figure, theme, _NAMES, _BELOW, width - _NAMES - _RIGHT, height)
    axes.set_xscale("log")
    axes.set_xlim(floor, top)
    row, places, labels = 0.0, [], []
    for names, distances in groups:
        symmetric = np.maximum((distances + distances.T) / 2, 0.0)
        np.fill_diagonal(symmetric, 0.0)
        tree = dendrogram(linkage(squareform(symmetric, checks=False), "average"), no_plot=True)
        for across, along in zip(tree["icoord"], tree["dcoord"], strict=True):
            # scipy puts leaves at 5, 15, 25 …
            axes.plot(np.maximum(along, floor), row + (np.array(across) - 5.0) / 10.0, color=theme.observed, lw=1.1)
        places += [row + at for at in range(len(names))]
        labels += [names[at] for at in tree["leaves"] or []]
        row += len(names) + _GAP
    size = min(SMALL_SIZE, 0.72 * ROW * POINTS)
    shown = [fitted(shown_name(name), (_NAMES - 0.2) * POINTS, size) for name in labels]
    axes.set_yticks(places, shown, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(row - _GAP - 0.5, -0.5)
    ticks = _round_values(floor, top)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("difference", color=theme.ink, fontsize=SMALL_SIZE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.set_label(_said(groups, some))
    return figure


def _round_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or the powers alone where there is no room for more."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(exponents) <= 4 else (1,)
    return [value for exponent in exponents for f in factors if low <= (value := f * 10.0**exponent) <= high]


def _said(groups: Sequence[tuple[list[str], npt.NDArray[np.float64]]], some: str) -> str:
    import numpy as np

    names, distances = min(groups, key=lambda group: np.min(group[1][~np.eye(len(group[0]), dtype=bool)]))
    apart = np.where(np.eye(len(names), dtype=bool), np.inf, distances)
    i, j = np.unravel_index(int(apart.argmin()), apart.shape)
    return (
        f"Dendrogram of {some}. The closest are {shown_name(names[int(i)])} and {shown_name(names[int(j)])}, "
        f"{apart[i, j]:.2g} apart."
    )
