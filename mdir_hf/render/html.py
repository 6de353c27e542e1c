"""Render a section or a whole page as HTML. jinja2 escapes all text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mdir_hf.names import shown_name
from mdir_hf.render.description import describe
from mdir_hf.render.ledger import ledger_html
from mdir_hf.render.sections import NAME_LENGTH, FigureName, Section, SectionKind, Table, deciding_first, deciding_kind
from mdir_hf.report import HomologyReport

if TYPE_CHECKING:
    from jinja2 import Environment

# Forbids scripts and requests even if an injection survived the escaping.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

OPEN_ROWS = 4
"""Maximum number of rows that a table shows; further rows are folded."""

NOTEBOOK_LENGTH = 60_000
"""Maximum length of a report in a notebook, in characters."""

ROOM_OF_FIGURE, LONGEST_LEFT_OUT = 300, 400
"""Characters reserved for the markup around a figure, and for the line that names omitted figures."""

LONG_WORD = 24
"""Table cells with a word longer than this may break anywhere, so that the table fits on the page."""

LONGEST_NUMBER = 36
"""In a column of numbers, cells longer than this are treated as sentences and may wrap."""

_NUMBER = re.compile(r"-?\d[\d.,]*( \(\d+%\))?")


def html_page(report: HomologyReport, images: Mapping[str, str]) -> str:
    """Render a report as a page that uses no external resources.

    ``images`` maps figure names to markup with alt texts.
    """
    data = base64.b64encode(report.to_json().encode()).decode("ascii")
    return _filled("page.html.j2", report, images, title=report.sentence, policy=POLICY, data=data)


def notebook_html(report: HomologyReport, images: Mapping[str, str]) -> str:
    """Render a report for a notebook: the verdict, its limits, and folded figures, with the deciding figure first.

    Images that would exceed :data:`NOTEBOOK_LENGTH` are omitted.
    """
    room = NOTEBOOK_LENGTH - len(_filled("notebook.html.j2", report, {}, left_out=" " * LONGEST_LEFT_OUT))
    shown: dict[str, str] = {}
    in_order = [name.value for section in deciding_first(report, describe(report)) for name in section.figures]
    for name in filter(images.__contains__, in_order):
        image = images[name]
        if len(image) + ROOM_OF_FIGURE <= room:
            shown[name] = image
            room -= len(image) + ROOM_OF_FIGURE
    left_out = ", ".join(name for name in images if name not in shown)
    return _filled("notebook.html.j2", report, shown, left_out=left_out)


def _filled(template: str, report: HomologyReport, images: Mapping[str, str], **more: str) -> str:
    verdict, *others = describe(report)
    sections = deciding_first(report, others)
    filled: str = (
        _environment()
        .get_template(template)
        .render(
            report=report,
            verdict=verdict,
            sections=sections,
            with_figures=[s for s in sections if any(name.value in images for name in s.figures)],
            decided=[section for section in sections if section.kind is deciding_kind(report)],
            lists=[section for section in sections if section.bullets],
            images=_markup(images),
            names=[shown_name(model.repo, length=NAME_LENGTH) for model in (report.reference, report.candidate)],
            **more,
        )
    )
    return filled


def section_html(section: Section, images: Mapping[str, str], *, copyable: bool = False) -> str:
    """Render one section without its heading.

    If ``copyable``, listings get a button with class ``copy``.
    """
    macros = _environment().get_template("section.html.j2").make_module({"images": _markup(images)})
    return str(macros.body(section, copyable))  # type: ignore[attr-defined]


def _markup(images: Mapping[str, str]) -> dict[str, Markup]:
    return {str(FigureName(name)): Markup(image) for name, image in images.items()}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mdir_hf.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_control_characters,
    )
    environment.filters |= {"alignments": _alignments, "minus": _minus, "is_long": _is_long}
    environment.globals |= {"OPEN_ROWS": OPEN_ROWS, "LONGEST_NUMBER": LONGEST_NUMBER, "SectionKind": SectionKind}
    environment.globals |= {"ledger_html": ledger_html}
    return environment


def _without_control_characters(value: Any) -> Any:  # noqa: ANN401 - any value of a template
    """Replace control characters, which HTML forbids, with spaces."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(character if character >= " " or character in "\n\t" else " " for character in str(value))


def _alignments(table: Table) -> Sequence[str]:
    """Return the CSS class of each column: ``number`` if most of its cells are numbers."""
    columns = list(zip_longest(*table.rows, fillvalue=""))[1:]
    numeric = [sum(_NUMBER.fullmatch(cell) is not None for cell in column) > len(column) / 2 for column in columns]
    return ["", *("number" if is_numeric else "" for is_numeric in numeric)]


def _is_long(cell: str) -> bool:
    return max(map(len, cell.split()), default=0) > LONG_WORD


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}", 1) if re.match(r"-\d", text) else text
