"""Pieces of HTML. Whatever comes from a report, a repository or a visitor is escaped here and nowhere else."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence

from mdir_hf import ModelSummary, shown_name

MINUS = "−"


def text(value: object) -> str:
    """Escape a text for HTML, attributes included."""
    return html.escape(str(value), quote=True)


def number(value: float | None, digits: int = 0, *, unit: str = "") -> str:
    """Return a number with a true minus, thousands apart and its unit; a dash for None."""
    if value is None:
        return '<span class="absent">not computed</span>'
    return f"{value:,.{digits}f}".replace("-", MINUS) + (f"&nbsp;{unit}" if unit else "")


def log10_p(value: float) -> str:
    """Return log10 p as a number, 0 as itself."""
    return "0" if value > -0.05 else number(value, 1 if value > -100.0 else 0)


def power_of_ten(exponent: float) -> str:
    """Return 10 to an exponent, as readers of papers write it."""
    return f"10<sup>{log10_p(exponent)}</sup>"


def alpha_text(alpha: float) -> str:
    """Return alpha as a power of ten where it is one."""
    exponent = math.log10(alpha)
    if abs(exponent - round(exponent)) > 1e-9:
        return f"{alpha:g}"
    return f"10<sup>{number(round(exponent))}</sup>"


def facts(rows: Iterable[tuple[str, str, str]], caption: str) -> str:
    """Return a table of quantity, value and what the quantity is.

    Args:
        rows: Name as text; value as HTML; explanation as text.
        caption: Says what the table is about; text.
    """
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th><td class="value">{value}</td><td>{text(explanation)}</td></tr>'
        for name, value, explanation in rows
    )
    return (
        f'<table class="facts"><caption>{text(caption)}</caption><thead><tr><th scope="col">Quantity</th>'
        f'<th scope="col">Value</th><th scope="col">What it is</th></tr></thead><tbody>{body}</tbody></table>'
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table; the first cell of a row names it. Columns and caption are text, cells are HTML."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{text(caption)}"><table class="plain">'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def code(content: str, label: str) -> str:
    """Return lines to be copied, with a button that copies them."""
    return (
        f'<div class="copyable"><div class="copyable-head"><span>{text(label)}</span>'
        f'<button type="button" class="copy" aria-label="Copy: {text(label)}">Copy</button></div>'
        f'<pre tabindex="0" role="region" aria-label="{text(label)}"><code>{text(content)}</code></pre></div>'
    )


def download(content: str, name: str, label: str, mime: str) -> str:
    """Return a link that saves a text as a file. The file is in the link: nothing is kept on the server."""
    encoded = base64.b64encode(content.encode()).decode("ascii")
    return f'<a class="download" download="{text(name)}" href="data:{text(mime)};base64,{encoded}">{text(label)}</a>'


def model_name(model: ModelSummary) -> str:
    """Return the name of a model, linked to its page at the commit that was read where it is on the Hub."""
    name = text(shown_name(model.repo))
    if model.commit is None:
        return f'<span class="model">{name}</span>'
    revision = f'<span class="revision">@{text(shown_name(model.revision, length=24))}</span>' if model.revision else ""
    return f'<span class="model">{name}{revision}</span>'


def prose(*paragraphs: str) -> str:
    """Return paragraphs of text."""
    return "".join(f"<p>{text(paragraph)}</p>" for paragraph in paragraphs)
