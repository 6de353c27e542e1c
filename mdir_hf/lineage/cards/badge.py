"""``make_badge``: a report as a picture, a Markdown snippet and a shields endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.claim import Claim, claim_of_report
from mdir_hf.lineage.cards.svg import MESSAGE_COLORS, render_svg
from mdir_hf.report import HomologyReport

# What may stand in the target of a Markdown link; parentheses, angle brackets, quotes and spaces are percent-encoded.
_URL_CHARACTERS = "/:?#@!$&*+,;=~%-._"


@dataclass(frozen=True, slots=True)
class Badge:
    """A result of a comparison as a badge. Made by :func:`make_badge`.

    It says whether shared ancestry was found, with a bound on p or, where p bounds nothing, how much agrees. It
    states no direction.

    Attributes:
        claim: What it says, and what is needed to compute it again.
        svg: The picture: ASCII text, the same bytes for the same report, with nothing loaded from elsewhere.
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
        """The JSON of a shields.io endpoint badge.

        It holds only the fields of that schema: shields refuses any other. To be verified it must lie beside its
        ``report.json``.
        """
        return json.dumps(endpoint_of(self.claim), indent=2) + "\n"

    def markdown(self, image_url: str, report_url: str, bom_url: str | None = None) -> str:
        """Return one line of Markdown: the picture, linked to the report, and a link to a bill of materials.

        Args:
            image_url: Where the SVG lies: http(s), or a relative path.
            report_url: Where the report lies, likewise.
            bom_url: Where a bill of materials lies, likewise; None: no link.

        Raises:
            InputError: If a URL has another scheme, or is empty.
        """
        # The sentence is made of our own words and a number: nothing in it is markup.
        bom = "" if bom_url is None else f" [bill of materials]({_target(bom_url)})"
        return f"[![{self.claim.sentence}]({_target(image_url)})]({_target(report_url)}){bom}"


def make_badge(report: HomologyReport) -> Badge:
    """Make the badge of a report.

    Args:
        report: What ``checker.compare`` returned, or a report read back with ``HomologyReport.from_json``.

    Returns:
        The badge. A model that is not on the Hub is called "a local folder" in it, without its path.

    Raises:
        InputError: If the report does not hold what a report should.

    Cost: microseconds; nothing is read.
    """
    claim = claim_of_report(report)
    return Badge(claim, render_svg(claim))


def endpoint_of(claim: Claim) -> dict[str, object]:
    """Return the fields of the shields endpoint of a claim."""
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
    # A colon in the first segment of a path would be taken for a scheme by a browser, whatever urlsplit says of it.
    first_segment = url.split("/", 1)[0]
    if not url.strip() or (scheme not in ("http", "https") and ":" in first_segment):
        raise InputError(f"{url[:100]!r} cannot be linked; give an http(s) address or a relative path")
    encoded = url.encode("utf-8", "surrogateescape")
    return quote(encoded, safe=_URL_CHARACTERS)
