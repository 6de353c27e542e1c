"""A saved report as Markdown: the short form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mdir_hf.names import visible_text
from mdir_hf.render.description import describe, pair_name
from mdir_hf.render.sections import Section, Table
from mdir_hf.report import HomologyReport

# Brackets make links and images, parentheses alone do nothing; a colon matters in an address only.
_MARKUP = re.compile(r"([\\`*_{}\[\]#|~$^]|:(?=//))")
# Some renderers look for HTML before they look for backslashes, so these become entities.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}

LONGEST_TABLE = 40
"""Rows; the rest is in report.json."""


def markdown_text(report: HomologyReport, alt_texts: Mapping[str, str]) -> str:
    """Write a report in GitHub's Markdown, with its figures as files beside it.

    Args:
        report: The report.
        alt_texts: By figure; a figure without is left out.
    """
    verdict, *sections = describe(report)
    parts = [
        f"# Weight ancestry of {plain(pair_name(report))}",
        f"{report.icon} **{plain(report.headline)}.**",
        *(plain(paragraph) for paragraph in verdict.paragraphs),
        "\n".join(f"- {plain(fact.name)}: {plain(fact.value)}" for fact in verdict.facts),
    ]
    for section in sections:
        if not section.is_detail:
            parts += _section(section, alt_texts)
    return "\n\n".join(parts) + f"\n\nMade by mdir-hf {plain(report.version)}. Everything is in report.json.\n"


def plain(text: str) -> str:
    """Text on one line in which nothing is markup, a link or an address."""
    escaped = "".join(_ENTITIES.get(c, c) for c in _MARKUP.sub(r"\\\1", visible_text(text)))
    return re.sub(r"(?i)www\.", lambda found: found[0][:-1] + "&#46;", escaped)


def fenced(language: str, text: str) -> str:
    """A listing; its fence is longer than any run of backticks in it."""
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
