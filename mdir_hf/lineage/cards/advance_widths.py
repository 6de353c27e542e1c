"""Compute text widths in the typeface of badges from a table, without the font file.

The table contains the advance widths of DejaVu Sans, computed from the font file in matplotlib. Verdana, which most
machines use instead, has similar metrics. A test recomputes the table. The SVG states the width (``textLength``), so
other typefaces are fitted and never overflow.
"""

from __future__ import annotations

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
"""Advance widths of all printable ASCII characters, starting with the space, in units of 1/2048 em."""


def text_width(text: str, font_size: float) -> float:
    """Return the width of a line in the unit of ``font_size``; characters outside printable ASCII count as one em."""
    numbers = [ord(character) - ord(FIRST_CHARACTER) for character in text]
    units = sum(ADVANCES[n] if 0 <= n < len(ADVANCES) else UNITS_PER_EM for n in numbers)
    return units * font_size / UNITS_PER_EM
