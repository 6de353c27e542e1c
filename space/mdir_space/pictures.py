"""Figures of a report as elements of the page, in both themes: the page shows the one that fits its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mdir_hf import HomologyReport, figure_img
from mdir_space.markup import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictures:
    """The figures of one report, rendered when asked for.

    Args:
        report: The report.
    """

    def __init__(self, report: HomologyReport) -> None:
        self._light: Mapping[str, Figure] = report.figures()
        self._dark: Mapping[str, Figure] = report.figures(dark=True)

    def __contains__(self, name: str) -> bool:
        return name in self._light

    def show(self, name: str, caption: str) -> str:
        """Return a figure with its caption, or nothing if the report has no data for it.

        Args:
            name: As in :meth:`mdir_hf.HomologyReport.figures`.
            caption: What to look for; text.
        """
        if name not in self._light:
            return ""
        # Not <picture>: a page of gradio may be dark on a light system, and the other way round.
        images = (
            f'<span class="when-{theme}">{figure_img(figures[name])}</span>'
            for theme, figures in (("light", self._light), ("dark", self._dark))
        )
        return f"<figure>{''.join(images)}<figcaption>{text(caption)}</figcaption></figure>"
