"""Publishes a survey or an index as a pull request to a data set on the Hub."""

from __future__ import annotations

from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.index.atlas import CARD, INDEX, TABLE
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.survey.results import RESULTS, read_survey
from mdir_hf.model.hub.pull_request import PullRequest, open_pull_request

PUBLISHED = ("README.md", "models.jsonl", "pairs.jsonl", RESULTS,
             "survey.json", "survey.md", "tree.json", "sample.json",
             "matrix*.svg", "matrix*.png", "dendrogram*.svg", "dendrogram*.png")  # fmt: skip
"""The files of a survey that are proposed. The rows of weights that it keeps are not among them."""


def publish(
    place: Path, dataset: str, *, name: str | None = None, token: str | bool | None = None
) -> tuple[PullRequest, tuple[str, ...]]:
    """Propose a survey or an index to a data set that exists.

    Args:
        place: The folder of a survey or of an atlas, or the file of an index.
        dataset: ``owner/name``.
        name: Folder in the data set for a survey, file name there for an index; that of ``place`` by default. An atlas
            is the data set.
        token: A token that may write discussions; None or True: the stored one.

    Returns:
        The pull request, and the paths in it.

    Raises:
        InputError: If there is no survey, atlas or index, or it cannot be read.
        CorruptCheckpointError: If the file is not an index.
        PullRequestError: If the Hub does not take it.
        HubError: If the Hub cannot be asked.
    """
    name = name or place.resolve().name
    path = name.strip("/")
    if not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InputError(f"{path!r} is not a name in a data set; give one with --name")
    try:
        if (place / TABLE).is_file():
            what = f"an atlas of {len(BaseIndex.load(place / INDEX))} base models"
            files = {file: (place / file).read_bytes() for file in (CARD, TABLE, INDEX)}
        elif place.is_file():
            what = f"an index of {len(BaseIndex.load(place))} base models"
            files = {path: place.read_bytes()}
        else:
            what = "a survey of weight ancestry"
            read_survey([place / RESULTS])
            found = [file for pattern in PUBLISHED for file in sorted(place.glob(pattern))]
            files = {f"{path}/{file.name}": file.read_bytes() for file in found}
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(place)) from exc
    opened = open_pull_request(
        dataset,
        files,
        parent_commit=None,
        title=f"Add {name}",
        description=f"Adds {what}, made by mdir-hf. A small p says that weights are not independent. It does "
        "not say which model came first.",
        token=token,
        kind="dataset",
    )
    return opened, tuple(files)
