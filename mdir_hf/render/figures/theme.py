"""The colours, and the scale from evidence to shade, that all figures share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a figure, as ``#rrggbb``.

    Attributes:
        muted: Secondary text; contrast 4.5 : 1 with paper.
        hatch: Lines across cells that were not computed.
        observed: Measured values.
        null: Values expected by chance.
        ramp: Colours from no to overwhelming evidence, with monotonic luminance.
    """

    ink: str
    muted: str
    paper: str
    grid: str
    hatch: str
    observed: str
    null: str
    ramp: tuple[str, ...]


LIGHT = Theme(
    ink="#1b1f24",
    muted="#57606a",
    paper="#ffffff",
    grid="#c4ccd5",
    hatch="#a8b1bb",
    observed="#0072b2",
    null="#c04f00",
    ramp=("#f4f6f8", "#b5cde6", "#5b93c4", "#1f5c99", "#0b2545"),
)
DARK = Theme(
    ink="#e6edf3",
    muted="#9da7b1",
    paper="#111418",
    grid="#3d444d",
    hatch="#545d68",
    observed="#56b4e9",
    null="#f0883e",
    ramp=("#1c2128", "#1d4468", "#3f86bd", "#9cc9ee", "#f4f9fe"),
)

FULL_SHADE = 4.0
"""Value of log10(1 - log10 p) at the end of the ramp, beyond any correction for multiple tests."""

_EQUAL_LUMINANCE = math.sqrt(1.05 * 0.05) - 0.05
"""Luminance at which black and white have the same contrast."""

EVIDENCE_TICKS = (0, 1, 10, 100, 1000, 10_000)


def theme_of(*, dark: bool) -> Theme:
    """Return the dark or the light theme."""
    return DARK if dark else LIGHT


@lru_cache(maxsize=2)
def colour_map(theme: Theme) -> Colormap:
    """Return a theme's ramp as a colour map for values in [0, 1]."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("evidence", theme.ramp)


def evidence_shade(log10_p: float) -> float:
    """Return the position of p on the ramp, log10(1 - log10 p) / 4, in [0, 1]."""
    return min(1.0, math.log10(1.0 + max(0.0, -log10_p)) / FULL_SHADE)


@lru_cache(maxsize=4096)
def ink_on(theme: Theme, shade: float) -> str:
    """Return whichever of black and white has a contrast of at least 4.5 : 1 on a shade."""
    red, green, blue, _ = colour_map(theme)(shade)
    return "#000000" if _luminance(red, green, blue) > _EQUAL_LUMINANCE else "#ffffff"


def _luminance(*rgb: float) -> float:
    """Return the relative luminance (WCAG) of colour values in [0, 1]."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
