"""``make_badge``: turn a report into an SVG, a Markdown snippet and a shields.io endpoint.

The SVG is deterministic. All its text is escaped, and it contains no scripts, ids or external references. Its
``<metadata>`` contains the claim; verify_badge must render the same bytes from it, so a change to the output needs a
new schema. ``textLength`` keeps text in other typefaces from overflowing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.claim import Claim, claim_of_report
from mdir_hf.report import HomologyReport, Verdict

UNITS_PER_EM = 2048
FIRST_CHARACTER = " "
# fmt: off
ADVANCES = (
    651, 821, 942, 1716, 1303, 1946, 1597, 563, 799, 799, 1024, 1716, 651, 739, 651, 690,
    1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 690, 690, 1716, 1716, 1716, 1087,
    2048, 1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604, 604, 1343, 1141, 1767, 1532, 1612,
    1235, 1612, 1423, 1300, 1251, 1499, 1401, 2025, 1403, 1251, 1403, 799, 690, 799, 1716, 1024,
    1024, 1255, 1300, 1126, 1300, 1260, 721, 1300, 1298, 569, 569, 1186, 569, 1995, 1298, 1253,
    1300, 1300, 842, 1067, 803, 1298, 1212, 1675, 1212, 1212, 1075, 1303, 690, 1303, 1716,
)
# fmt: on
"""Advance widths of the printable ASCII characters in DejaVu Sans, starting with the space, in units of 1/2048 em."""

ADVANCES_OF_POWERS = {"≤": 1716, "⁻": 1081, **dict.fromkeys("⁰¹²³⁴⁵⁶⁷⁸⁹", 821)}
"""Advance widths of the other characters of a typeset probability."""


def text_width(text: str, font_size: float) -> float:
    """Return the width of a line of text, in the unit of ``font_size``."""
    return sum(map(_advance, text)) * font_size / UNITS_PER_EM


def _advance(character: str) -> int:
    number = ord(character) - ord(FIRST_CHARACTER)
    return ADVANCES[number] if 0 <= number < len(ADVANCES) else ADVANCES_OF_POWERS.get(character, UNITS_PER_EM)


# White text has a contrast of at least 4.5 : 1 on each colour, and the rim at least 3 : 1 on white and on dark pages.
LABEL_COLOR = "#3d444d"
MESSAGE_COLORS = {Verdict.HOMOLOGOUS: "#0b5fb0", Verdict.NO_EVIDENCE: "#57606a", Verdict.INCONCLUSIVE: "#7d4e00"}
RIM_COLOR = "#868e99"
FONT_FAMILY = "DejaVu Sans,Verdana,Geneva,sans-serif"

_FONT_SIZE = 11
_HEIGHT = 20
_PADDING = 6
_RADIUS = 3


def render_svg(claim: Claim) -> str:
    """Render a claim's badge as ASCII text with a final line feed."""
    left_text, right_text = text_width(claim.label, _FONT_SIZE), text_width(claim.message, _FONT_SIZE)
    # Whole pixels avoid a visible seam between the two sides.
    left, right = math.ceil(left_text) + 2 * _PADDING, math.ceil(right_text) + 2 * _PADDING
    width, r = left + right, _RADIUS
    label_side = f"M{left} 0H{r}A{r} {r} 0 0 0 0 {r}V{_HEIGHT - r}A{r} {r} 0 0 0 {r} {_HEIGHT}H{left}Z"
    message_side = (
        f"M{left} 0H{width - r}A{r} {r} 0 0 1 {width} {r}V{_HEIGHT - r}A{r} {r} 0 0 1 {width - r} {_HEIGHT}H{left}Z"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}"'
            f' viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{escape(claim.sentence)}">',
            f"<title>{escape(claim.sentence)}</title>",
            f"<desc>{escape(claim.description)}</desc>",
            f"<metadata>{escape(json.dumps(claim.to_dict(), separators=(',', ':')))}</metadata>",
            f'<path fill="{LABEL_COLOR}" d="{label_side}"/>',
            f'<path fill="{MESSAGE_COLORS[claim.verdict]}" d="{message_side}"/>',
            f'<rect x=".5" y=".5" width="{width - 1}" height="{_HEIGHT - 1}" rx="{r - 0.5}" fill="none"'
            f' stroke="{RIM_COLOR}"/>',
            f'<g fill="#fff" font-family="{FONT_FAMILY}" font-size="{_FONT_SIZE}" text-anchor="middle">',
            _text(claim.label, left / 2, left_text),
            _text(claim.message, left + right / 2, right_text),
            "</g>",
            "</svg>",
            "",
        ]
    )


def escape(text: str) -> str:
    """Escape text as ASCII XML, dropping characters that XML 1.0 forbids."""
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    code = ord(character)
    if character in "&<>\"'" or code > 0x7E:
        allowed = code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
        return f"&#{code};" if allowed and not 0x7F <= code <= 0x9F else ""
    return character if code >= 0x20 or character in "\t\n" else ""


def _text(text: str, middle: float, width: float) -> str:
    return f'<text x="{middle:g}" y="14" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


# Characters allowed in the target of a Markdown link; parentheses, angle brackets, quotes and spaces are
# percent-encoded.
_URL_CHARACTERS = "/:?#@!$&*+,;=~%-._"


@dataclass(frozen=True, slots=True)
class Badge:
    """The badge of a comparison, created by :func:`make_badge`.

    It shows the verdict and a bound on p or, if p is not a bound, the strength of the agreement.

    Attributes:
        claim: The result, and everything needed to reproduce it.
        svg: ASCII text without external resources, identical for identical reports.
    """

    claim: Claim
    svg: str

    @property
    def label(self) -> str:
        """Left side: ``shared weight ancestry`` or ``weight ancestry``."""
        return self.claim.label

    @property
    def message(self) -> str:
        """Right side, such as ``p ≤ 10⁻³⁰`` or ``all 64 tested neurons match``."""
        return self.claim.message

    @property
    def endpoint_json(self) -> str:
        """JSON for a shields.io endpoint badge, which can be verified next to its ``report.json``."""
        return json.dumps(endpoint_of(self.claim), indent=2) + "\n"

    def markdown(self, image_url: str, report_url: str) -> str:
        """Return a line of Markdown: the badge, linked to the report.

        URLs may be relative paths.

        Raises:
            InputError: If a URL is empty, or has a scheme other than http or https.
        """
        # The sentence consists of fixed words and a number, so it needs no escaping.
        return f"[![{self.claim.sentence}]({_target(image_url)})]({_target(report_url)})"


def make_badge(report: HomologyReport) -> Badge:
    """Make a badge for a report without reading any files.

    Args:
        report: The report. Its local models appear as "a local folder".

    Raises:
        InputError: If the report is invalid.
    """
    claim = claim_of_report(report)
    return Badge(claim, render_svg(claim))


def endpoint_of(claim: Claim) -> dict[str, object]:
    """Return the fields of a claim's shields.io endpoint."""
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
