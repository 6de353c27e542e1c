"""A finished survey in a folder: JSON, Markdown and, where matplotlib is there, the matrix."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.saving.folder import write_file
from mdir_hf.survey.results import SurveyReport


def save_survey(report: SurveyReport, folder: Path) -> tuple[Path, ...]:
    """Write ``survey.json``, ``survey.md`` and the matrix as SVG and PNG, light and dark.

    Args:
        report: The survey.
        folder: Made if it does not exist; files of the same names are replaced, each whole or not at all.

    Returns:
        The paths written. Without matplotlib the matrix is left out.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents = {"survey.json": (report.to_json() + "\n").encode(), "survey.md": _markdown(report).encode()}
    if find_spec("matplotlib") is not None and len(report.readable()) > 1:
        contents |= _matrix(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(write_file(folder / name, content) for name, content in contents.items())
    except OSError as exc:
        raise InputError(f"cannot save into {folder}: {exc.strerror}") from exc


def _matrix(report: SurveyReport) -> dict[str, bytes]:
    from mdir_hf.figures import draw_survey_matrix, figure_bytes

    names = report.readable()
    pairs = {frozenset(pair): found for pair, found in report.pairs.items()}
    verdicts: list[list[str | None]] = []
    log10_p: list[list[float]] = []
    for first in names:
        row = [pairs.get(frozenset((first, second))) if first != second else None for second in names]
        verdicts.append([None if found is None else found.verdict for found in row])
        log10_p.append([0.0 if found is None or found.log10_p is None else found.log10_p for found in row])
    groups = [[name for name in group if name in names] for group in report.groups()]
    groups = [group for group in groups if group]
    contents = {}
    for suffix, dark in (("", False), ("-dark", True)):
        figure = draw_survey_matrix(names, log10_p, verdicts, groups=groups, dark=dark)
        for kind in ("svg", "png"):
            contents[f"matrix{suffix}.{kind}"] = figure_bytes(figure, kind)
    return contents


def _markdown(report: SurveyReport) -> str:
    # Names are the users' words: in a code block nothing in them is markup.
    groups = "\n".join(", ".join(group) for group in report.groups() if len(group) > 1) or "none"
    alone = "\n".join(group[0] for group in report.groups() if len(group) == 1) or "none"
    parts = [
        "# Weight ancestry of many models",
        f"{len(report.readable())} models, {len(report.pairs)} pairs, alpha = {report.settings['alpha']:g} for all of "
        "them together. A group is joined by chains of pairs with shared weight ancestry; p says neither who came "
        "first nor that the others are unrelated.",
        "## Groups",
        _block(groups),
        "## No relation found",
        _block(alone),
    ]
    contradictions = report.contradictions()
    if contradictions:
        lines = [f"{middle}: related to {a} and to {b}, which show no relation" for a, middle, b in contradictions]
        parts += ["## Worth a look", _block("\n".join(lines))]
    failures = [f"{name}: {found.error}" for name, found in report.models.items() if found.error]
    failures += [f"{a}, {b}: {found.error}" for (a, b), found in report.pairs.items() if found.error]
    if failures:
        parts += ["## Could not be read or compared", _block("\n".join(failures))]
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```\n{text.replace('```', '` ` `')}\n```"
