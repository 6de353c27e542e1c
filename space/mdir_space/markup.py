"""Pieces of HTML. Whatever comes from a report, a repository or a visitor is escaped here and nowhere else."""

from __future__ import annotations

import base64
import html
import json
import math
import os
from collections.abc import Iterable
from urllib.parse import quote

from mdir_hf import HomologyReport
from mdir_hf.lineage.survey.results import PairResult
from mdir_hf.names import shown_name, visible_text
from mdir_hf.report import ModelSummary

HUB = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
"""Where names of models lead."""


def text(value: object) -> str:
    """Escape a text for HTML, attributes included, and write out what is invisible in it."""
    return html.escape(visible_text(str(value), keeps_lines=True), quote=True)


def log10_text(log10_p: float) -> str:
    """Write log10 of a p, rounded up: never more evidence than there is."""
    return f"{min(0, math.ceil(log10_p)):,}".replace("-", "\N{MINUS SIGN}")


def strength_text(found: HomologyReport | PairResult) -> str:
    """Write what a verdict rests on: log10 of p where that bounds a chance, else how much agrees."""
    return f"log10 p {log10_text(found.log10_p or 0.0)}" if found.p_is_bound else found.agreement


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


def model_name(model: ModelSummary, hub: str = "") -> str:
    """Return the name of a model, linked to its page at the commit that was read.

    Args:
        model: One side of a report.
        hub: Address of the Hub that it is on; empty where its name is to lead nowhere.
    """
    name = text(shown_name(model.repo))
    if model.commit is None:
        return f'<span class="model">{name}</span>'
    revision = f'<span class="revision">@{text(shown_name(model.revision, length=24))}</span>' if model.revision else ""
    if hub:
        address = f"{hub}/{quote(model.repo, safe='/')}/tree/{quote(model.commit, safe='')}"
        name = f'<a href="{text(address)}" target="_blank" rel="noopener">{name}</a>'
    return f'<span class="model">{name}{revision}</span>'


def prose(*paragraphs: str) -> str:
    """Return paragraphs of text."""
    return "".join(f"<p>{text(paragraph)}</p>" for paragraph in paragraphs)


def choices(asked: str, names: Iterable[str]) -> str:
    """Return names as buttons, each of which takes the place in the fields of one that may mean any of them."""
    items = "".join(
        f'<li><button type="button" class="choice" data-in-place-of="{text(asked)}">{text(name)}</button></li>'
        for name in names
    )
    return f'<p>Take one of them into the field:</p><ul class="choices">{items}</ul>' if items else ""


def not_meant(sentences: Iterable[str]) -> str:
    """Return what an answer does not mean, under its heading."""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<div class="meaning"><div><h3>What it does not mean</h3><ul>{items}</ul></div></div>'


def address_mark(query: str, names: tuple[str, ...], tab: str = "") -> str:
    """Return a mark from which the page's script takes what belongs to what is shown.

    Args:
        query: The address.
        names: What the fields name.
        tab: The tab that opens; empty where there are none.
    """
    return (
        f'<span hidden id="address" data-query="{text(query)}" data-names="{text(json.dumps(names))}" '
        f'data-tab="{text(tab)}"></span>'
    )


def link_row(link: str, label: str) -> str:
    """Return a link in a field, with a button that copies it.

    Args:
        link: The address.
        label: What it leads to.
    """
    return (
        f'<div class="share"><label for="share-link">{text(label)}</label><div class="share-row">'
        f'<input id="share-link" type="text" readonly value="{text(link)}">'
        '<button type="button" class="copy" data-from="share-link" aria-label="Copy the link">Copy</button></div></div>'
    )
