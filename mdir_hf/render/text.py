"""A report as a terminal shows it: the verdict, what each section says in brief, the caveats."""

from __future__ import annotations

from textwrap import fill

from mdir_hf.names import LONGEST_TEXT, visible_text
from mdir_hf.render.description import describe
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.words import HEADLINE, REASON_TEXT

LINE_WIDTH = 100
LABEL_WIDTH = 12


def text_of(report: HomologyReport) -> str:
    """Write a report for a terminal: lines of at most 100 characters, names of models kept whole."""
    brief = [
        _filled(f"  {line.label:<{LABEL_WIDTH}} ", line.text) for section in describe(report) for line in section.brief
    ]
    sentences = [_filled("  ", report.what_p_says), *(_filled("  - ", caveat) for caveat in report.caveats)]
    headline = HEADLINE[report.verdict] + (f": {REASON_TEXT[report.reason]}" if report.reason is not None else "")
    return "\n".join([headline, "", *brief, "", *sentences])


def _filled(label: str, text: str) -> str:
    """Set a text into lines that hang under its label."""
    return fill(
        visible_text(text, length=LONGEST_TEXT),
        LINE_WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,  # names of models stay whole: they are copied
    )
