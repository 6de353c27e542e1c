"""Draw the ledger of a comparison: the shares of the bytes that match, match nothing, or were not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mdir_hf.report.parts import PartCoverage
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.words import LEAST_SHARE, percent_text

WIDTH, BAR_HEIGHT, ROW_HEIGHT = 600, 18, 46
GROUPS = ((True, "match", "1"), (False, "no match", "0.45"), (None, "not compared", "0.12"))
"""Value of ``PartCoverage.is_match``, its name, and the opacity of its bar, which is readable in grey."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a model's bytes in the order of :data:`GROUPS`; they sum to 1."""

    model: str
    shares: tuple[float, ...]

    @property
    def words(self) -> str:
        """The shares of at least 0.1 % as text, such as ``77 % match, 23 % no match (by samples)``."""
        pairs = zip(self.shares, GROUPS, strict=True)
        texts = [f"{percent_text(share)} {name}" for share, (_, name, _) in pairs if share >= LEAST_SHARE]
        return f"{', '.join(texts)} (by samples)"


def ledger_of(report: HomologyReport) -> tuple[Shares, ...]:
    """Return the shares of both models, or nothing if sizes are unknown."""
    if report.coverage is None:
        return ()
    sides = (("reference", report.coverage.reference), ("candidate", report.coverage.candidate))
    ledgers = [Shares(side, shares) for side, parts in sides if (shares := _shares(parts)) is not None]
    return tuple(ledgers) if len(ledgers) == len(sides) else ()


def _shares(parts: Sequence[PartCoverage]) -> tuple[float, ...] | None:
    total = sum(entry.bytes or 0 for entry in parts)
    if not total or any(entry.bytes is None for entry in parts):
        return None
    return tuple(sum(entry.bytes or 0 for entry in parts if entry.is_match is group) / total for group, _, _ in GROUPS)


def ledger_svg(ledger: Sequence[Shares]) -> Markup:
    """Draw one bar for each model as an ``<svg>`` with an accessible name, in the current text colour."""
    name = "Shares of the bytes. " + " ".join(f"{shares.model.capitalize()}: {shares.words}." for shares in ledger)
    height = ROW_HEIGHT * len(ledger)
    parts = "".join(text for row, shares in enumerate(ledger) for text in _bar(shares, ROW_HEIGHT * row))
    return Markup(
        '<svg class="ledger" viewBox="0 0 {} {}" role="img" aria-label="{}" width="{}" height="{}" '
        'fill="currentColor" font-size="12" font-family="system-ui, sans-serif">{}</svg>'
    ).format(WIDTH, height, name, WIDTH, height, Markup(parts))


def _bar(shares: Shares, top: int) -> Iterator[str]:
    yield f'<text x="0" y="{top + 13}">{shares.model}: {shares.words}</text>'
    left = 0.0
    for share, (_, _, opacity) in zip(shares.shares, GROUPS, strict=True):
        width = round(WIDTH * share, 1)
        yield f'<rect x="{left:.1f}" y="{top + 19}" width="{width}" height="{BAR_HEIGHT}" opacity="{opacity}"/>'
        left += width
