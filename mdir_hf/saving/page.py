"""A saved report as one web page: no script, nothing fetched, light and dark, phone and paper."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from mdir_hf.names import shown_name
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.saving.document import NAME_LENGTH, Section, Table, key_facts, pair_name
from mdir_hf.saving.markup import Html, element, escaped, joined

# Nothing may run and nothing may be fetched, even if something slipped through the escaping.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

OPEN_ROWS = 20
"""Tables of more rows are folded away."""

NARROW_COLUMNS = 4
LONG_WORD = 24
"""Letters; cells with a longer word are broken anywhere rather than making the table wider than the page."""

_HALF = '<path d="M10 2a8 8 0 0 0 0 16z" fill="currentColor" stroke="none"/>'
_ICONS = {Verdict.HOMOLOGOUS: "currentColor", Verdict.NO_EVIDENCE: "none", Verdict.INCONCLUSIVE: "none"}

_NUMBER = re.compile(r"-?\d[\d.,]*( \(\d+%\))?")


def html_page(report: HomologyReport, document: tuple[Section, ...], images: Mapping[str, Html]) -> str:
    """Write the page.

    Args:
        report: The report.
        document: Its sections.
        images: Elements by figure, with their alt texts; a figure without is left out.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{report.headline}: {pair_name(report, length=40)}"),
        element("style", Html(files("mdir_hf.saving").joinpath("page.css").read_text(encoding="utf-8"))),
    )
    body = element(
        "body",
        _header(report),
        element("main", _verdict(report), _contents(document), *_sections(document, images)),
        _footer(report),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(report: HomologyReport) -> Html:
    reference, candidate = (
        element("bdi", shown_name(model.repo, length=NAME_LENGTH)) for model in (report.reference, report.candidate)
    )
    return element(
        "header",
        element("p", "Weight ancestry of", class_="kind"),
        element("p", reference, element("span", " and ", class_="and"), candidate, class_="pair"),
    )


def _verdict(report: HomologyReport) -> Html:
    icon = Html(
        '<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">'
        f'<circle cx="10" cy="10" r="8" fill="{_ICONS[report.verdict]}" stroke="currentColor" stroke-width="2"/>'
        f"{_HALF if report.verdict is Verdict.INCONCLUSIVE else ''}</svg>"
    )
    facts = [element("div", element("dt", name), element("dd", _shown(value))) for name, value in key_facts(report)]
    return element(
        "section",
        element("h1", icon, element("span", report.headline), id="verdict"),
        element("p", _power(report.log10_p), " ", report.means),
        element("dl", *facts),
        class_=f"verdict {report.verdict.value}",
        aria_labelledby="verdict",
    )


def _power(log10_p: float) -> Html:
    if log10_p > -1.0:
        return Html("<strong>p gives no evidence.</strong>")
    exponent = f"\N{MINUS SIGN}{math.floor(-log10_p)}"
    return Html(f"<strong>p is at most 10<sup>{exponent}</sup>.</strong>")


def _contents(document: tuple[Section, ...]) -> Html:
    links = [element("li", element("a", section.title, href=f"#{section.anchor}")) for section in document]
    return element("nav", element("ul", *links), aria_label="Sections")


def _sections(document: tuple[Section, ...], images: Mapping[str, Html]) -> Iterator[Html]:
    """Sections one after the other; those that are nothing but a list of sentences stand side by side."""
    lists = [section for section in document if section.bullets]
    yield element("div", *(_section(section, images) for section in lists), class_="lists")
    yield from (_section(section, images) for section in document if not section.bullets)


def _section(section: Section, images: Mapping[str, Html]) -> Html:
    figures = [
        element("figure", images[name], element("figcaption", caption))
        for name, caption in section.figures
        if name in images
    ]
    return element(
        "section",
        joined(
            element("h2", section.title, id=section.anchor),
            *(element("p", paragraph) for paragraph in section.paragraphs),
            element("ul", *(element("li", bullet) for bullet in section.bullets)) if section.bullets else "",
            *_shown_beside(section.tables, figures),
            *(element("pre", element("code", text), tabindex="0", class_=language) for language, text in section.code),
        ),
        aria_labelledby=section.anchor,
    )


def _shown_beside(tables: Sequence[Table], figures: Sequence[Html]) -> Iterator[Html]:
    """Tables and figures: a single figure stands beside narrow tables where the page is wide."""
    shown = [_table(table) for table in tables]
    if tables and len(figures) == 1 and all(len(table.columns) <= NARROW_COLUMNS for table in tables):
        yield element("div", element("div", *shown), *figures, class_="figures")
        return
    yield from shown
    if figures:
        yield element("div", *figures, class_="figures")


def _table(table: Table) -> Html:
    classes: list[dict[str, str]] = [{}, *(_alignment(column) for column in list(zip(*table.rows, strict=True))[1:])]
    names = zip(table.columns, classes, strict=True)
    header = element("tr", *(element("th", name, scope="col", **c) if name else element("td") for name, c in names))
    rows = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(_cell(cell, c) for cell, c in zip(row[1:], classes[1:], strict=True)),
        )
        for row in table.rows
    ]
    whole = element("table", element("caption", table.caption), element("thead", header), element("tbody", *rows))
    scrolling = element("div", whole, class_="scroll", role="region", aria_label=table.caption, tabindex="0")
    if len(rows) <= OPEN_ROWS:
        return scrolling
    return element("details", element("summary", f"{table.caption} ({len(rows)} rows)"), scrolling)


def _cell(text: str, alignment: dict[str, str]) -> Html:
    is_long = max(map(len, text.split()), default=0) > LONG_WORD
    return element("td", _shown(text), **({"class_": "long"} if is_long else alignment))


def _alignment(cells: Sequence[str]) -> dict[str, str]:
    """Right for a column mostly of numbers, so that their digits stand below each other."""
    n_numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in cells)
    return {"class_": "number"} if n_numbers > len(cells) / 2 else {}


def _shown(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}", 1) if re.match(r"-\d", text) else text


def _footer(report: HomologyReport) -> Html:
    data = base64.b64encode(report.to_json().encode()).decode("ascii")
    link = element("a", "report.json", href=f"data:application/json;base64,{data}", download="report.json")
    return element(
        "footer",
        element("p", "Made by mdir-hf ", escaped(report.version), ". All numbers, for programs: ", link, "."),
    )
