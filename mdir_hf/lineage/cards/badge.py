"""``make_badge``: turn a report into an SVG, a Markdown snippet and a shields.io endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.claim import Claim, claim_of_report
from mdir_hf.lineage.cards.svg import MESSAGE_COLORS, render_svg
from mdir_hf.report import HomologyReport

# Characters allowed in the target of a Markdown link; parentheses, angle brackets, quotes and spaces are
# percent-encoded.
_URL_CHARACTERS = "/:?#@!$&*+,;=~%-._"


@dataclass(frozen=True, slots=True)
class Badge:
    """The badge of a comparison, created by :func:`make_badge`.

    It states whether shared ancestry was found, with a bound on p or, if p is not a bound, the strength of the
    agreement. It states no direction.

    Attributes:
        claim: The result, and everything needed to reproduce it.
        svg: The SVG: ASCII text without external resources, identical for identical reports.
    """

    claim: Claim
    svg: str

    @property
    def label(self) -> str:
        """Left side: ``shared weight ancestry`` or ``weight ancestry``."""
        return self.claim.label

    @property
    def message(self) -> str:
        """Right side: ``p < 1e-30``, ``576 of 576 channels match``, ``no evidence found`` or ``inconclusive``."""
        return self.claim.message

    @property
    def endpoint_json(self) -> str:
        """JSON of a shields.io endpoint badge.

        It contains only the fields of that schema, because shields.io rejects others. Verification needs the
        ``report.json`` in the same folder.
        """
        return json.dumps(endpoint_of(self.claim), indent=2) + "\n"

    def markdown(self, image_url: str, report_url: str, bom_url: str | None = None) -> str:
        """Return a line of Markdown with the picture, linked to the report, and a link to a bill of materials.

        Args:
            image_url: URL of the SVG: http(s), or a relative path.
            report_url: URL of the report: http(s), or a relative path.
            bom_url: URL of a bill of materials: http(s), or a relative path. None: no link.

        Raises:
            InputError: If a URL is empty or has another scheme.
        """
        # The sentence consists of fixed words and a number, so it needs no escaping.
        bom = "" if bom_url is None else f" [bill of materials]({_target(bom_url)})"
        return f"[![{self.claim.sentence}]({_target(image_url)})]({_target(report_url)}){bom}"


def make_badge(report: HomologyReport) -> Badge:
    """Make the badge of a report.

    Args:
        report: A report from ``checker.compare`` or ``HomologyReport.from_json``.

    Returns:
        The badge. A model that is not on the Hub is shown as "a local folder", without its path.

    Raises:
        InputError: If the report is invalid.

    Cost: microseconds; no files are read.
    """
    claim = claim_of_report(report)
    return Badge(claim, render_svg(claim))


def endpoint_of(claim: Claim) -> dict[str, object]:
    """Return the fields of the shields.io endpoint of a claim."""
    return {
        "schemaVersion": 1,
        "label": claim.label,
        "message": claim.message,
        "color": MESSAGE_COLORS[claim.verdict].lstrip("#"),
    }


def _target(url: str) -> str:
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError as exc:
        raise InputError(f"{url!r} is not a URL: {exc}") from exc
    # Browsers take a colon in the first path segment for a scheme, even if urlsplit does not.
    first_segment = url.split("/", 1)[0]
    if not url.strip() or (scheme not in ("http", "https") and ":" in first_segment):
        raise InputError(f"{url[:100]!r} cannot be linked; give an http(s) address or a relative path")
    encoded = url.encode("utf-8", "surrogateescape")
    return quote(encoded, safe=_URL_CHARACTERS)
