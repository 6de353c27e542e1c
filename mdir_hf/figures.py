"""Matplotlib figures of a report: object API, no pyplot, repeatable byte for byte, never by colour alone.

Every figure's ``Figure.get_label()`` is its alt text: a sentence that states the finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mdir_hf.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, MatrixReport

LIGHT = {"ink": "#1a1a1a", "paper": "#ffffff", "grid": "#d0d0d0"}
DARK = {"ink": "#e8e8e8", "paper": "#111418", "grid": "#3a3f46"}
OBSERVED, NULL = "#0072B2", "#D55E00"  # Okabe-Ito blue and vermilion


def draw_figures(report: HomologyReport, *, dark: bool = False) -> Mapping[str, Figure]:
    """Draw every figure that the report holds the data for.

    Args:
        report: A report; one read back from JSON has no matrices, so no heat map.
        dark: Light ink on dark paper.

    Returns:
        Figures by name: ``embedding`` (heat map of the polar factor), ``null`` (observed trace against placebo and
        threshold), ``looks`` (p against tokens read), ``layers`` (every layer against every layer).

    Raises:
        InputError: If matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401 - only to fail early with a sentence
    except ImportError as exc:
        raise InputError("figures need matplotlib: pip install 'mdir-hf[plot]'") from exc
    theme = DARK if dark else LIGHT
    figures: dict[str, Figure] = {}
    for name in ("embedding", "unembedding"):
        if name in report.arrays:
            figures[name] = _heat_map(report, name, report.arrays[name], theme)
    matrix = report.embedding
    if matrix is not None and matrix.placebo is not None and matrix.trace is not None and matrix.threshold:
        figures["null"] = _null(matrix, theme)
    if matrix is not None and matrix.looks:
        figures["looks"] = _looks(report, matrix, theme)
    if report.layers is not None:
        figures["layers"] = _layer_map(report, report.layers, theme)
    return figures


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """Render a figure as ``png`` or ``svg``, the same bytes every time for the same report."""
    import matplotlib

    buffer = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mdir-hf", "svg.fonttype": "path"}):
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(buffer, format=file_format, dpi=160, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def _new_figure(theme: Mapping[str, str], width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=theme["paper"], layout="constrained")


def _style(axes: object, theme: Mapping[str, str], *, title: str) -> None:
    axes.set_facecolor(theme["paper"])  # type: ignore[attr-defined]
    axes.set_title(title, color=theme["ink"], fontsize=10, loc="left")  # type: ignore[attr-defined]
    axes.tick_params(colors=theme["ink"], labelsize=8)  # type: ignore[attr-defined]
    for label in (axes.xaxis.label, axes.yaxis.label):  # type: ignore[attr-defined]
        label.set_color(theme["ink"])
        label.set_fontsize(9)
    for spine in axes.spines.values():  # type: ignore[attr-defined]
        spine.set_color(theme["grid"])


def _heat_map(report: HomologyReport, name: str, picture: npt.NDArray[np.float32], theme: Mapping[str, str]) -> Figure:
    figure = _new_figure(theme, 5.2, 4.8)
    axes = figure.subplots()
    widths = (report.reference.hidden_size or picture.shape[0], report.candidate.hidden_size or picture.shape[1])
    image = axes.imshow(
        picture,
        cmap="cividis",
        vmin=0.0,
        vmax=float(picture.max()) or 1.0,
        interpolation="nearest",
        extent=(0, widths[1], widths[0], 0),
        aspect="auto",
    )
    axes.set_xlabel(f"channel of {report.candidate.repo}")
    axes.set_ylabel(f"channel of {report.reference.repo}")
    matrix = report.embedding if name == "embedding" else report.unembedding
    found = "no common structure" if matrix is None or matrix.transformation == "none" else matrix.transformation
    _style(axes, theme, title=f"{name}: |polar factor|, block maxima; {found.replace('_', ' ')}")
    bar = figure.colorbar(image, ax=axes, shrink=0.85)
    bar.ax.tick_params(colors=theme["ink"], labelsize=8)
    figure.set_label(
        f"Heat map of the polar factor of the {name}s of {report.reference.repo} and {report.candidate.repo}: "
        f"{found.replace('_', ' ')} found, log10 p {report.log10_p:.0f}."
    )
    return figure


def _null(matrix: MatrixReport, theme: Mapping[str, str]) -> Figure:
    assert matrix.placebo is not None and matrix.trace is not None and matrix.threshold  # the caller has looked
    figure = _new_figure(theme, 6.0, 2.4)
    axes = figure.subplots()
    # Placebos run on fewer rows and channels: each trace is shown as a multiple of its own threshold.
    shares = {
        "placebo: rotated": matrix.placebo.rotated.trace / matrix.placebo.rotated.threshold,
        "placebo: re-paired tokens": matrix.placebo.re_paired.trace / matrix.placebo.re_paired.threshold,
        "these two models": matrix.trace / matrix.threshold,
    }
    axes.barh(list(shares), list(shares.values()), color=[NULL, NULL, OBSERVED], height=0.6)
    axes.axvline(1.0, color=theme["ink"], linewidth=1.2, linestyle="--")
    for y, share in enumerate(shares.values()):
        clear_of_line = share if share > 1.0 else max(share, 1.02)
        axes.text(clear_of_line, y, f" {share:.2f}", va="center", color=theme["ink"], fontsize=8)
    axes.set_xlabel("trace over the trace that is significant at 0.1 % (dashed line)")
    axes.set_xlim(0, max(1.3, *shares.values()) * 1.15)
    _style(axes, theme, title="Observed against what chance gives")
    rotated, re_paired, observed = shares.values()
    figure.set_label(
        f"Bar chart: the observed trace is {observed:.2f} times what would be significant at 0.1 %; "
        f"the placebos are {rotated:.2f} and {re_paired:.2f} times."
    )
    return figure


def _looks(report: HomologyReport, matrix: MatrixReport, theme: Mapping[str, str]) -> Figure:
    from math import log10

    figure = _new_figure(theme, 6.0, 3.0)
    axes = figure.subplots()
    rows, evidence = zip(*((n, max(-p, 0.1)) for n, p in matrix.looks), strict=True)
    axes.plot(rows, evidence, color=OBSERVED, marker="o", markersize=4, linewidth=1.5)
    axes.axhline(-log10(report.alpha), color=NULL, linestyle="--", linewidth=1.2)
    axes.text(
        rows[0], -log10(report.alpha) * 1.15, f"significant (alpha {report.alpha:g})", color=theme["ink"], fontsize=8
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("common tokens read")
    axes.set_ylabel("-log10 p (0.1: none)")
    axes.grid(color=theme["grid"], linewidth=0.5)
    _style(axes, theme, title="Evidence against tokens read")
    figure.set_label(
        f"Line chart: with {rows[-1]} common tokens read, log10 p is {min(p for _, p in matrix.looks):.0f} "
        f"at a level of {report.alpha:g}."
    )
    return figure


def _layer_map(report: HomologyReport, layers: Mapping[str, Any], theme: Mapping[str, str]) -> Figure:
    import numpy as np

    evidence = -np.array(layers["matrix"], dtype=float)
    figure = _new_figure(theme, 5.6, 4.6)
    axes = figure.subplots()
    # Evidence spans from nothing to tens of thousands: its logarithm shows weak ancestors beside strong ones.
    image = axes.imshow(np.log10(1.0 + evidence), cmap="cividis", vmin=0.0, interpolation="nearest", aspect="auto")
    matches = layers["matches"]
    axes.plot([j for _, j, _ in matches], [i for i, *_ in matches], "x", color=NULL, markersize=5)
    axes.set_xlabel(f"layer of {report.candidate.repo}")
    axes.set_ylabel(f"layer of {report.reference.repo}")
    _style(axes, theme, title=f"Layer map ({layers['role']}): {layers['pattern']}; x: ancestor")
    bar = figure.colorbar(image, ax=axes, shrink=0.85, label="log10(1 - log10 p)")
    bar.ax.tick_params(colors=theme["ink"], labelsize=8)
    bar.ax.yaxis.label.set_color(theme["ink"])
    figure.set_label(
        f"Layer map: {len(matches)} of {evidence.shape[1]} layers of {report.candidate.repo} have an ancestor among "
        f"the {evidence.shape[0]} layers of {report.reference.repo}; pattern: {layers['pattern']}."
    )
    return figure
