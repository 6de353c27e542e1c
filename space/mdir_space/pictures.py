"""Figures of a report as elements of the page, in both themes: the page shows the one that fits its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mdir_hf import HomologyReport
from mdir_hf.render.figures import figure_cells, figure_img, pair_tests
from mdir_hf.render.sections import FigureName
from mdir_space.answering import answering_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictures:
    """The figures of one report, rendered when asked for.

    Args:
        report: The report.
    """

    def __init__(self, report: HomologyReport) -> None:
        self._report = report
        self._light: Mapping[str, Figure] = report.figures()
        self._dark: Mapping[str, Figure] = report.figures(dark=True)

    def images(self, names: Iterable[FigureName]) -> dict[str, str]:
        """Return the elements of those figures that the report has the data for, by name."""
        return {name.value: self._image(name.value) for name in names if name.value in self._light}

    def _image(self, name: str) -> str:
        figure = self._light[name]
        cells = figure_cells(self._report, name, figure)
        return answering_figure(name, in_both_themes(figure, self._dark[name]), cells, parts=pair_tests(self._report))


def in_both_themes(light: Figure, dark: Figure) -> str:
    """Return a figure as elements of which the page shows the one for its theme."""
    # Not <picture>: a page of gradio may be dark on a light system, and the other way round.
    return "".join(
        f'<span class="when-{theme}">{figure_img(figure)}</span>'
        for theme, figure in (("light", light), ("dark", dark))
    )
