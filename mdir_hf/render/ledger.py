"""Draw the ledger of a comparison: the shares of the bytes that match, match nothing, or were not compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mdir_hf.report.parts import PartCoverage
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy
from mdir_hf.report.words import LEAST_SHARE, percent_text

GROUPS = ((True, "match", "1"), (False, "no match", "0.45"), (None, "not compared", "0.12"))
"""Value of ``PartCoverage.is_match``, its name, and the opacity of its bar, which is readable in grey."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a model's bytes in the order of :data:`GROUPS`; they sum to 1. Equal files are not sampled."""

    model: str
    shares: tuple[float, ...]
    is_sampled: bool = True

    @property
    def words(self) -> str:
        """The shares of at least 0.1 % as text, such as ``77 % match, 23 % no match (by samples)``."""
        pairs = zip(self.shares, GROUPS, strict=True)
        texts = [f"{percent_text(share)} {name}" for share, (_, name, _) in pairs if share >= LEAST_SHARE]
        return f"{', '.join(texts)} ({'by samples' if self.is_sampled else 'by digests'})"


def ledger_of(report: HomologyReport) -> tuple[Shares, ...]:
    """Return the shares of both models, or nothing if sizes are unknown."""
    if report.coverage is None:
        return ()
    sides = (("reference", report.coverage.reference), ("candidate", report.coverage.candidate))
    is_sampled = report.settled_by is not SettledBy.IDENTICAL_FILES
    ledgers = [Shares(side, shares, is_sampled) for side, parts in sides if (shares := _shares(parts)) is not None]
    return tuple(ledgers) if len(ledgers) == len(sides) else ()


def _shares(parts: Sequence[PartCoverage]) -> tuple[float, ...] | None:
    total = sum(entry.bytes or 0 for entry in parts)
    if not total or any(entry.bytes is None for entry in parts):
        return None
    return tuple(sum(entry.bytes or 0 for entry in parts if entry.is_match is group) / total for group, _, _ in GROUPS)


def ledger_html(ledger: Sequence[Shares]) -> Markup:
    """Draw one bar for each model under a line of text, as an element with an accessible name; empty without models."""
    if not ledger:
        return Markup("")
    name = "Shares of the bytes. " + " ".join(f"{shares.model.capitalize()}: {shares.words}." for shares in ledger)
    return Markup('<div class="ledger" role="img" aria-label="{}">{}</div>').format(
        name, Markup("").join(map(_bar, ledger))
    )


def _bar(shares: Shares) -> Markup:
    start = 0.0
    bars = Markup("")
    for share, (_, _, opacity) in zip(shares.shares, GROUPS, strict=True):
        bars += Markup('<rect x="{:.2f}" width="{:.2f}" height="1" opacity="{}"/>').format(
            100 * start, 100 * share, opacity
        )
        start += share
    return Markup(
        '<div>{}: {}</div><svg viewBox="0 0 100 1" preserveAspectRatio="none" width="100%" height="18" '
        'fill="currentColor" aria-hidden="true">{}</svg>'
    ).format(shares.model, shares.words, bars)
