"""Render a claim as a static SVG: deterministic, and legible on light and dark pages.

All text is escaped. The SVG has no scripts, style sheets, ids or external references, so it is safe in an ``<img>`` or
inline. Its ``<metadata>`` contains the claim, from which :mod:`mdir_hf.lineage.cards.verify_badge` renders it again.
Changing these bytes means changing the schema of the claim.
"""

from __future__ import annotations

import json
import math

from mdir_hf.lineage.cards.advance_widths import text_width
from mdir_hf.lineage.cards.claim import Claim
from mdir_hf.report import Verdict

# White text has a contrast of at least 4.5 : 1 on each, and the rim at least 3 : 1 on white and on dark pages.
LABEL_COLOR = "#3d444d"
MESSAGE_COLORS = {Verdict.HOMOLOGOUS: "#0b5fb0", Verdict.NO_EVIDENCE: "#57606a", Verdict.INCONCLUSIVE: "#7d4e00"}
RIM_COLOR = "#868e99"
FONT_FAMILY = "DejaVu Sans,Verdana,Geneva,sans-serif"

_FONT_SIZE = 11
_HEIGHT = 20
_PADDING = 6
_RADIUS = 3


def render_svg(claim: Claim) -> str:
    """Render the badge of a claim as ASCII text with a final line feed."""
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
    """Escape text for XML content and attributes, in ASCII, dropping characters that XML 1.0 forbids."""
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    code = ord(character)
    if character in "&<>\"'" or code > 0x7E:
        allowed = code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
        return f"&#{code};" if allowed and not 0x7F <= code <= 0x9F else ""
    return character if code >= 0x20 or character in "\t\n" else ""


def _text(text: str, middle: float, width: float) -> str:
    return f'<text x="{middle:g}" y="14" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
