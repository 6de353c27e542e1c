"""Renders a report for a terminal: the verdict, the brief lines of each section, and the caveats."""

from __future__ import annotations

from functools import partial
from textwrap import fill

from mdir_hf.names import LONGEST_TEXT, visible_text
from mdir_hf.render.description import describe
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.words import HEADLINE, REASON_TEXT

LINE_WIDTH = 100
LABEL_WIDTH = 12


def text_of(report: HomologyReport, *, width: int | None = None) -> str:
    """Render a report for a terminal, in lines of at most ``width`` columns, and at most 100."""
    filled = partial(_filled, width=LINE_WIDTH if width is None else min(width, LINE_WIDTH))
    brief = [
        filled(f"  {line.label:<{LABEL_WIDTH}} ", line.text) for section in describe(report) for line in section.brief
    ]
    sentences = [filled("  ", report.what_p_says), *(filled("  - ", caveat) for caveat in report.caveats)]
    headline = HEADLINE[report.verdict] + (f": {REASON_TEXT[report.reason]}" if report.reason is not None else "")
    return "\n".join([filled("", headline), "", *brief, "", *sentences])


def _filled(label: str, text: str, width: int) -> str:
    """Wrap a text, indented to its label."""
    return fill(
        visible_text(text, length=LONGEST_TEXT),
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,  # keep model names whole, so that they can be copied
    )
