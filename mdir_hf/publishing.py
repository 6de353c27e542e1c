"""A survey with its trees, or an index of base models, as a pull request to a data set on the Hub."""

from __future__ import annotations

from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.hub.pull_request import PullRequest, open_pull_request
from mdir_hf.index.base_index import BaseIndex
from mdir_hf.survey.results import RESULTS, read_survey

PUBLISHED = ("survey.json", "survey.md", "tree.json", "sample.json", RESULTS)
FIGURES = ("matrix*.svg", "matrix*.png", "dendrogram*.svg", "dendrogram*.png")
"""The files of a survey that are proposed. The rows of weights that it keeps are not among them."""


def published_files(place: Path, *, name: str | None = None) -> dict[str, bytes]:
    """Collect what a pull request would add.

    Args:
        place: The folder of a survey, or the file of an index.
        name: Folder in the data set for a survey, file name there for an index; that of ``place`` by default.

    Returns:
        Contents by path.

    Raises:
        InputError: If there is neither a survey nor an index, or it cannot be read.
        CorruptCheckpointError: If the file is no index.
    """
    name = (name or place.resolve().name).strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise InputError(f"{name!r} is no name in a data set; give one with --name")
    try:
        if place.is_file():
            BaseIndex.load(place)
            return {name: place.read_bytes()}
        read_survey([place / RESULTS])
        found = [place / file for file in PUBLISHED] + [path for glob in FIGURES for path in sorted(place.glob(glob))]
        return {f"{name}/{path.name}": path.read_bytes() for path in found if path.is_file()}
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(place)) from exc


def publish(
    place: Path, dataset: str, *, name: str | None = None, token: str | bool | None = None
) -> tuple[PullRequest, tuple[str, ...]]:
    """Propose a survey or an index to a data set that exists.

    Args:
        place: The folder of a survey, or the file of an index.
        dataset: ``owner/name``.
        name: See :func:`published_files`.
        token: A token that may write discussions; None or True: the stored one.

    Returns:
        The pull request, and the paths in it.

    Raises:
        InputError: If there is nothing to propose.
        PullRequestError: If the Hub does not take it.
        HubError: If the Hub cannot be asked.
    """
    files = published_files(place, name=name)
    what = f"an index of {len(BaseIndex.load(place))} base models" if place.is_file() else "a survey of weight ancestry"
    opened = open_pull_request(
        dataset,
        files,
        parent_commit=None,
        title=f"Add {name or place.resolve().name}",
        description=f"Adds {what}, made by mdir-hf. A small p says that weights are not independent. It does "
        "not say which model came first.",
        token=token,
        kind="dataset",
    )
    return opened, tuple(files)
