"""Figures of a report as elements of the page, in both themes: the page shows the one that fits its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mdir_hf import FigureName, HomologyReport, figure_img
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
        # Not <picture>: a page of gradio may be dark on a light system, and the other way round.
        images = "".join(
            f'<span class="when-{theme}">{figure_img(figures[name])}</span>'
            for theme, figures in (("light", self._light), ("dark", self._dark))
        )
        return answering_figure(self._report, name, self._light[name], images)
