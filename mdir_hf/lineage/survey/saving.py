"""Save a finished survey to a folder: JSON, Markdown and, with matplotlib, the matrix and the dendrogram."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.dataset import CARD, dataset_files, is_ours
from mdir_hf.lineage.survey.drawing import draw_survey, family_distances
from mdir_hf.lineage.survey.planning import writing_into
from mdir_hf.lineage.survey.results import SurveyReport
from mdir_hf.render.folder import write_file

_FIGURES = {
    "matrix.svg": "Matrix of all pairs, darker where more agrees",
    "dendrogram.svg": "Dendrogram of each group of relatives",
}


def save_survey(
    report: SurveyReport, folder: Path, *, fingerprints: Mapping[str, Fingerprint] | None = None
) -> tuple[Path, ...]:
    """Write ``survey.json``, ``survey.md``, and the matrix and the dendrogram as SVG and PNG, light and dark.

    The folder is also a dataset: ``README.md`` declares the columns of ``models.jsonl`` and ``pairs.jsonl``. An
    existing ``README.md`` from another source is not changed.

    Args:
        report: The survey.
        fingerprints: Stored rows by name. Groups whose rows are complete are drawn in the dendrogram.
        folder: Output folder, created if necessary; existing files are replaced atomically.

    Returns:
        The paths written. Without matplotlib there are no figures.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents = {"survey.json": (report.to_json() + "\n").encode(), **dataset_files(report)}
    if find_spec("matplotlib") is not None:
        from mdir_hf.render.figures import figure_bytes

        families = family_distances(report, fingerprints or {})
        for dark, suffix in ((False, ""), (True, "-dark")):
            for name, figure in draw_survey(report, families, dark=dark).items():
                contents |= {f"{name}{suffix}.{kind}": figure_bytes(figure, kind) for kind in ("svg", "png")}
    contents["survey.md"] = _markdown(report, contents).encode()
    if not is_ours(folder / CARD):
        del contents[CARD]
    with writing_into(folder):
        return tuple(write_file(folder / name, content) for name, content in contents.items())


def _markdown(report: SurveyReport, written: Collection[str]) -> str:
    # Names are user input; a code block prevents them from being read as markup.
    groups = "\n".join(", ".join(group) for group in report.groups() if len(group) > 1) or "none"
    alone = "\n".join(report.without_relatives())
    so_far = "" if report.is_complete else " so far"
    commands = "\n".join(f"mdir-hf compare {quote(a)} {quote(b)}" for a, b in report.layers_to_compare())
    parts = [
        "# Weight ancestry of many models",
        f"{report.progress_text}; alpha = {report.settings['alpha']:g} for all of "
        "them together. A group is joined by chains of pairs with shared weight ancestry. It does not say which model "
        "came first.",
        *(f"![{what}]({name})" for name, what in _FIGURES.items() if name in written),
        f"## Groups{so_far}",
        _block(groups),
        f"## No relative found{so_far}",
        _block(alone or "none"),
    ]
    if commands:
        parts += [
            "Their layers were not compared with any model of each family. `mdir-hf survey` with `--layers` goes on to "
            "them, or these commands do:",
            _block(commands),
        ]
    contradictions = report.contradictions()
    if contradictions:
        lines = [
            f"{middle}: related to {a} and to {b}; {a} ~ {b}: {report.not_found(a, b)}"
            for a, middle, b in contradictions
        ]
        parts += ["## Worth a look", _block("\n".join(lines))]
    if any(found.declared_bases is not None for found in report.models.values()):
        parts += ["## Declared and measured", _block("\n".join(_declared(report)))]
    failures = [f"{name}: {found.error}" for name, found in report.models.items() if found.error]
    failures += [f"{a}, {b}: {found.error}" for (a, b), found in report.pairs.items() if found.error]
    if failures:
        parts += ["## Could not be read or compared", _block("\n".join(failures))]
    return "\n\n".join(parts) + "\n"


def _declared(report: SurveyReport) -> list[str]:
    lines = []
    for name in report.readable():
        for base in report.models[name].declared_bases or ():
            if base in report.models:
                measured = "shared ancestry found" if report.is_related(name, base) else report.not_found(name, base)
            else:
                measured = "not in this survey"
            lines.append(f"{name} declares {base}: {measured}")
    lines += [f"{a} and {b}: shared ancestry found, declared by neither" for a, b in report.undeclared()]
    return lines or ["no card declares a base model, and no pair is related"]


def _block(text: str) -> str:
    return f"```\n{text.replace('```', '` ` `')}\n```"
