"""Write the files of a saved report, each atomically."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mdir_hf.errors import InputError, MissingExtraError
from mdir_hf.render.figures import draw_figures, figure_bytes
from mdir_hf.render.figures.rendering import svg_img
from mdir_hf.render.html import html_page
from mdir_hf.render.text import markdown_text
from mdir_hf.report import HomologyReport


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved files; ``without`` says why there are no figures, or is empty."""

    paths: tuple[Path, ...]
    without: str = ""


def save_report(report: HomologyReport, folder: Path) -> Saved:
    """Write report.json, report.md, report.html and the figures (SVG and PNG, light and dark), each atomically.

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Saved(tuple(write_file(folder / name, content) for name, content in contents.items()), without)
    except OSError as exc:
        raise InputError(f"cannot save into {folder}: {exc.strerror}") from exc


def _encoded(text: str) -> bytes:
    # Paths that are not UTF-8 arrive as lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")


def write_file(path: Path, content: bytes) -> Path:
    """Write a file to a temporary path, then move it into place."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
