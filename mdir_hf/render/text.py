"""Render a report as terminal text or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from textwrap import fill

from mdir_hf.names import LONGEST_TEXT, visible_text, without_common_folder
from mdir_hf.render.description import describe, pair_name
from mdir_hf.render.model_words import ledger_lines
from mdir_hf.render.sections import Line, Section, Table, deciding_first
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.words import KEYWORD, n_bytes_text

LINE_WIDTH = 80
LABEL_WIDTH = 12

# Brackets make links and images. Parentheses alone are harmless. A colon matters only in a URL.
_MARKUP = re.compile(r"([\\`*_{}\[\]#|~$^]|:(?=//))")
# Some renderers parse HTML before backslashes, so these become entities.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}

LONGEST_TABLE = 40
"""Maximum number of rows in a table; report.json has all rows."""


def text_of(report: HomologyReport, *, width: int | None = None) -> str:
    """Render the short answer for a terminal: at most 12 lines at ``width`` or 80 columns, whichever is less."""
    filled = partial(_filled, width=LINE_WIDTH if width is None else min(width, LINE_WIDTH))
    folder, _ = without_common_folder([report.reference.repo, report.candidate.repo])
    lines = [Line("warning", report.warning)] if report.warning else []
    lines += ledger_lines(report)
    lines += [Line("folder", folder)] if folder else []
    lines.append(Line("read", f"{n_bytes_text(report.io.bytes_read)} of {n_bytes_text(report.io.bytes_of_weights)}"))
    headline = filled("", f"{KEYWORD[report.verdict]}: {report.sentence}")
    return "\n".join([headline, "", *(filled(f"  {label:<{LABEL_WIDTH}} ", text) for label, text in lines)])


def details_of(report: HomologyReport, *, width: int | None = None) -> str:
    """Render everything that was measured for a terminal, wrapped like :func:`text_of`."""
    filled = partial(_filled, width=LINE_WIDTH if width is None else min(width, LINE_WIDTH))
    brief = [
        filled(f"  {line.label:<{LABEL_WIDTH}} ", line.text) for section in describe(report) for line in section.brief
    ]
    sentences = [filled("  ", report.what_p_says), *(filled("  - ", caveat) for caveat in report.caveats)]
    headline = filled("", f"{KEYWORD[report.verdict]}: {report.sentence}")
    return "\n".join([headline, "", *brief, "", *sentences])


def _filled(label: str, text: str, width: int) -> str:
    return fill(
        visible_text(text, length=LONGEST_TEXT),
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,  # keep model names whole, so that they can be copied
    )


def markdown_text(report: HomologyReport, alt_texts: Mapping[str, str]) -> str:
    """Render a report as GitHub Markdown that links to figures in files next to it.

    Only figures that have ``alt_texts`` are included.
    """
    verdict, *sections = describe(report)
    parts = [
        f"# Weight ancestry of {plain(pair_name(report))}",
        f"{report.icon} **{plain(report.sentence)}**",
        *([plain(report.warning)] if report.warning else []),
        *(plain(paragraph) for paragraph in verdict.paragraphs),
        "\n".join(f"- {plain(fact.name)}: {plain(fact.value)}. {plain(fact.meaning)}" for fact in verdict.facts),
    ]
    for section in deciding_first(report, sections):
        if not section.is_detail:
            parts += _section(section, alt_texts)
    return "\n\n".join(parts) + f"\n\nMade by mdir-hf {plain(report.version)}. Everything is in report.json.\n"


def plain(text: str) -> str:
    """Return text on one line, escaped so that Markdown shows it literally and without links."""
    escaped = "".join(_ENTITIES.get(c, c) for c in _MARKUP.sub(r"\\\1", visible_text(text)))
    return re.sub(r"(?i)www\.", lambda match: match[0][:-1] + "&#46;", escaped)


def fenced(language: str, text: str) -> str:
    """Return a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _section(section: Section, alt_texts: Mapping[str, str]) -> Iterator[str]:
    yield f"## {section.title}"
    yield from (plain(paragraph) for paragraph in section.paragraphs)
    if section.facts:
        yield "\n".join(f"- {plain(fact.name)}: {plain(fact.value)}. {plain(fact.meaning)}" for fact in section.facts)
    if section.bullets:
        yield "\n".join(f"- {plain(bullet)}" for bullet in section.bullets)
    yield from (_table(table) for table in section.tables)
    yield from (f"![{plain(alt_texts[name])}]({name}.png)" for name in section.figures if name in alt_texts)
    yield from (fenced(listing.language, listing.text) for listing in section.code)


def _table(table: Table) -> str:
    rows = [table.columns, tuple("---" for _ in table.columns), *table.rows[:LONGEST_TABLE]]
    lines = ["| " + " | ".join(cell if cell == "---" else plain(cell) for cell in row) + " |" for row in rows]
    n_left = len(table.rows) - LONGEST_TABLE
    more = f"\n\n{n_left} more rows are in report.json." if n_left > 0 else ""
    return f"{plain(table.caption)}:\n\n" + "\n".join(lines) + more
