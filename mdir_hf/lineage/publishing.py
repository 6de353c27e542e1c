"""Write a family to a folder, and propose a survey or an index for a dataset."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.verify_lineage import MEASURED
from mdir_hf.lineage.family import Family
from mdir_hf.lineage.index.atlas import CARD, INDEX
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.table import TABLE
from mdir_hf.lineage.survey import RESULTS
from mdir_hf.lineage.survey.folder import read_survey
from mdir_hf.model.hub.pull_request import ProposedCommit, PullRequest, open_pull_request
from mdir_hf.render.layer_words import layers_text
from mdir_hf.render.projection_words import drift_text
from mdir_hf.render.text import plain
from mdir_hf.report import HomologyReport
from mdir_hf.writing import write_together


def save_family(family: Family, folder: Path) -> tuple[Path, ...]:
    """Write ``family.json``, ``family.md`` and, if rows could be aligned and matplotlib is installed, ``family.svg``.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents = {"family.json": (family.to_json() + "\n").encode()}
    if family.apart is not None and find_spec("matplotlib") is not None:
        from mdir_hf.render.figures import draw_dendrogram, figure_bytes

        contents["family.svg"] = figure_bytes(draw_dendrogram([family.apart]), "svg")
    contents["family.md"] = family_section(family, has_picture="family.svg" in contents).encode()
    return write_together(folder, contents)


def _measured(report: HomologyReport) -> str:
    return f"{MEASURED[report.verdict]} ({report.strength})" if report.strength else MEASURED[report.verdict]


def family_section(family: Family, *, has_picture: bool = False) -> str:
    """Return a Markdown section that lists each relative's measurement, declaration and matching layers."""
    ancestors = {} if family.found is None else {ancestor.base.repo: ancestor for ancestor in family.found.found}
    checks = {} if family.declared is None else {check.base: check for check in family.declared.bases}
    drift = family.drift
    lines = ["## Weight ancestry", "", "| model | measured | declared | layers |", "|---|---|---|---|"]
    for name in dict.fromkeys((*family.relatives, *checks)):
        check, ancestor = checks.get(name), ancestors.get(name)
        if check is not None and check.report is not None:
            result_text = _measured(check.report)
        else:
            report = None if ancestor is None else ancestor.report
            result_text = check.not_compared_text if check is not None else ""
            result_text = result_text if report is None else _measured(report)
        layers = "; ".join(
            [
                *([layers_text(family.layers[name])] if name in family.layers else ()),
                *([drift_text(drift[name])] if name in drift else ()),
            ]
        )
        declared_text = "yes" if check is not None else "no" if family.declared is not None else ""
        lines.append("| " + " | ".join(map(plain, (name, result_text, declared_text, layers))) + " |")
    n_bases = 0 if family.found is None else family.found.n_bases
    lines += [
        "",
        *(["![Relatives, joined where their weights are nearest](family.svg)", ""] if has_picture else []),
        f"Searched among {n_bases} base models. Shared weights have no direction: they do not show which model came "
        "first.",
    ]
    return "\n".join(lines) + "\n"


PUBLISHED = ("README.md", "models.jsonl", "pairs.jsonl", RESULTS,
             "survey.json", "survey.md", "tree.json",
             "matrix*.svg", "matrix*.png", "dendrogram*.svg", "dendrogram*.png")  # fmt: skip
"""The files of a survey that are published. They do not include rows of weights."""


def publish(
    place: Path, dataset: str, *, name: str | None = None, token: str | bool | None = None
) -> tuple[PullRequest, tuple[str, ...]]:
    """Propose adding a survey or index to a dataset; return the pull request and its paths.

    ``place`` is the folder of a survey or atlas, or an index file. ``name`` is the folder or file to add to the
    dataset; it is ignored for an atlas. The token needs permission to open discussions.

    Raises:
        InputError: If the survey or index is missing or unreadable.
        CorruptCheckpointError: If the file is not an index.
        PullRequestError: If the Hub rejects the pull request.
        HubError: If the Hub cannot be reached.
    """
    name = name or place.resolve().name
    path = name.strip("/")
    if not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InputError(f"{path!r} is not a name in a data set; give one with --name")
    try:
        if (place / TABLE).is_file():
            content = f"an atlas of {len(BaseIndex.load(place / INDEX))} base models"
            files = {file: (place / file).read_bytes() for file in (CARD, TABLE, INDEX)}
        elif place.is_file():
            content = f"an index of {len(BaseIndex.load(place))} base models"
            files = {path: place.read_bytes()}
        else:
            content = "a survey of weight ancestry"
            read_survey(place)
            paths = [file for pattern in PUBLISHED for file in sorted(place.glob(pattern))]
            files = {f"{path}/{file.name}": file.read_bytes() for file in paths}
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(place)) from exc
    description = (
        f"Adds {content}, made by mdir-hf. A small p says that weights are not independent. It does not say which "
        "model came first."
    )
    commit = ProposedCommit(files, f"Add {name}", description)
    pull_request = open_pull_request(dataset, commit, token=token, kind="dataset")
    return pull_request, tuple(files)
