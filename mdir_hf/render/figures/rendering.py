"""Render a figure as bytes or as an HTML element."""

from __future__ import annotations

import base64
import html
import re
from io import BytesIO
from typing import TYPE_CHECKING

from mdir_hf.errors import InputError
from mdir_hf.render.figures.sheet import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 160
CSS_PIXELS_PER_INCH = 96

SMALL_DPI, FEW_COLOURS, WEBP_QUALITY = 110, 24, 50
"""Settings for images in notebooks. A heat map of 576 channels takes 22 kB, instead of 220 kB as an SVG."""

# No date or version, so that the same report gives the same bytes.
_NO_METADATA = {
    "png": {"Software": None},
    "svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
}
_PROLOG = re.compile(rb"\A.*?<svg\b([^>]*)>", re.DOTALL)


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """Render a figure as ``svg`` or ``png``; the same report always gives the same bytes.

    SVGs have ``<title>`` and ``<desc>``, but no external references.

    Raises:
        InputError: If the format is unknown or matplotlib is not installed.
    """
    if file_format not in _NO_METADATA:
        raise InputError(f"figures are rendered as svg or png, not as {file_format!r}")
    buffer = BytesIO()
    with drawing():
        figure.savefig(
            buffer,
            format=file_format,
            dpi=PNG_DPI,
            metadata=_NO_METADATA[file_format],
            facecolor=figure.get_facecolor(),
        )
    rendered = buffer.getvalue()
    return _with_words(rendered, figure) if file_format == "svg" else rendered


def figure_img(figure: Figure, dark_figure: Figure | None = None) -> str:
    """Return a figure as a self-contained ``<img>``, with its label as alt text.

    If there is a ``dark_figure``, the ``<img>`` is inside a ``<picture>``.
    """
    dark_svg = None if dark_figure is None else figure_bytes(dark_figure, "svg")
    return svg_img(figure, figure_bytes(figure, "svg"), dark_svg)


def svg_img(figure: Figure, svg: bytes, dark_svg: bytes | None = None) -> str:
    """Return the element of :func:`figure_img` for SVGs that are already rendered."""
    img = _img(figure, _data_url(svg))
    if dark_svg is None:
        return img
    source = f'<source media="screen and (prefers-color-scheme: dark)" srcset="{_data_url(dark_svg)}">'
    return f"<picture>{source}{img}</picture>"


def small_img(figure: Figure) -> str:
    """Return a figure as an ``<img>`` of 10 to 30 kB for notebooks, which store all output."""
    from PIL import Image

    buffer = BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=SMALL_DPI, facecolor=figure.get_facecolor())
    picture = Image.open(buffer).convert("RGB")
    few_colours, lossy = BytesIO(), BytesIO()
    picture.quantize(FEW_COLOURS, dither=Image.Dither.NONE).save(few_colours, "PNG", optimize=True)
    picture.save(lossy, "WEBP", quality=WEBP_QUALITY, method=6)
    kind, content = min(("png", few_colours.getvalue()), ("webp", lossy.getvalue()), key=lambda image: len(image[1]))
    return _img(figure, _data_url(content, kind))


def _img(figure: Figure, url: str) -> str:
    width, height = (round(CSS_PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    return f'<img src="{url}" alt="{html.escape(str(figure.get_label()))}" width="{width}" height="{height}">'


def _data_url(content: bytes, kind: str = "svg+xml") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _with_words(svg: bytes, figure: Figure) -> bytes:
    """Add a title and a description to an SVG, and remove its reference to a DTD."""
    label = str(figure.get_label())
    title = str(figure.texts[0].get_text()) if figure.texts else label
    words = f'<title id="title">{_xml(title)}</title><desc id="desc">{_xml(label)}</desc>'

    def opening(match: re.Match[bytes]) -> bytes:
        tag = b'<svg%s role="img" aria-labelledby="title desc">' % match[1]
        return b'<?xml version="1.0" encoding="utf-8"?>\n' + tag + words.encode()

    return _PROLOG.sub(opening, svg, count=1)


def _xml(text: str) -> str:
    return html.escape("".join(c if c >= " " else " " for c in text), quote=False)
