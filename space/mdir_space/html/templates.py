"""Render the jinja2 templates in this folder, which escape all text and make invisible characters visible."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mdir_hf.names import shown_name, visible_text
from mdir_hf.render.html import section_html
from mdir_hf.render.sections import Section
from mdir_hf.report import ModelSummary

HUB = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
"""Base URL of the links to models."""


def render(template: str, **values: object) -> Markup:
    """Render a template, named without ``.html.j2``. All values except ``Markup`` are escaped."""
    return Markup(_environment().get_template(f"{template}.html.j2").render(**values).strip())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content.encode()).decode("ascii"),
        "compact_json": lambda value: json.dumps(value, separators=(",", ":")),
        "json": json.dumps,
        "name": shown_name,
    }
    environment.globals |= {"section_html": _section, "address_on_hub": _address_on_hub}
    return environment


def _visible(value: Any) -> Any:  # noqa: ANN401 - a value in a template
    return visible_text(value, keeps_lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def _section(section: Section, images: Mapping[str, str] | None = None, *, copyable: bool = False) -> Markup:
    return Markup(section_html(section, images or {}, copyable=copyable))


def _address_on_hub(model: ModelSummary, hub: str) -> str:
    return f"{hub}/{quote(model.repo, safe='/')}/tree/{quote(model.commit or '', safe='')}"


def address_mark(query: str, names: tuple[str, ...], tab: str = "") -> Markup:
    """Return a hidden element that tells the page's script which result is shown.

    ``query`` is the query of the result's URL, ``names`` the content of the fields, and ``tab`` the tab to open, if
    any.
    """
    return render("address_mark", query=query, names=names, tab=tab)
