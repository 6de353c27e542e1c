"""Write the files of a saved report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mdir_hf.errors import MissingExtraError
from mdir_hf.render.figures import draw_figures, figure_bytes
from mdir_hf.render.figures.rendering import svg_img
from mdir_hf.render.html import html_page
from mdir_hf.render.text import markdown_text
from mdir_hf.report import HomologyReport
from mdir_hf.writing import write_together


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved files; ``without`` says why there are no figures, or is empty."""

    paths: tuple[Path, ...]
    without: str = ""


def save_report(report: HomologyReport, folder: Path) -> Saved:
    """Write report.json, report.md, report.html and the figures (SVG and PNG, light and dark), all of them or none.

    If matplotlib is not installed, only the figures are omitted.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents: dict[str, bytes] = {"report.json": (report.to_json() + "\n").encode()}
    without = ""
    try:
        light, dark = draw_figures(report), draw_figures(report, dark=True)
    except MissingExtraError as exc:
        light, dark, without = {}, {}, exc.message
    for suffix, figures in (("", light), ("-dark", dark)):
        for name, figure in figures.items():
            for file_format in ("svg", "png"):
                contents[f"{name}{suffix}.{file_format}"] = figure_bytes(figure, file_format)
    images = {
        name: svg_img(figure, contents[f"{name}.svg"], contents[f"{name}-dark.svg"]) for name, figure in light.items()
    }
    alt_texts = {name: str(figure.get_label()) for name, figure in light.items()}
    contents["report.md"] = _encoded(markdown_text(report, alt_texts))
    contents["report.html"] = _encoded(html_page(report, images))
    return Saved(write_together(folder, contents), without)


def _encoded(text: str) -> bytes:
    # Paths that are not UTF-8 arrive as lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")
