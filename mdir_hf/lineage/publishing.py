"""Publish a survey or an index as a pull request to a dataset on the Hub."""

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
"""Files of a survey that are published. The stored rows of weights are not."""


def publish(
    place: Path, dataset: str, *, name: str | None = None, token: str | bool | None = None
) -> tuple[PullRequest, tuple[str, ...]]:
    """Propose a survey or an index to an existing dataset.

    Args:
        place: Folder of a survey or an atlas, or the file of an index.
        dataset: ``owner/name``.
        name: Folder in the dataset for a survey, or file name for an index. Defaults to the name of ``place``. An atlas
            is stored at the root of the dataset.
        token: Token with permission to open discussions. None or True: the stored token.

    Returns:
        The pull request, and the paths in it.

    Raises:
        InputError: If there is no survey, atlas or index, or it cannot be read.
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
            read_survey([place / RESULTS])
            paths = [file for pattern in PUBLISHED for file in sorted(place.glob(pattern))]
            files = {f"{path}/{file.name}": file.read_bytes() for file in paths}
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(place)) from exc
    opened = open_pull_request(
        dataset,
        files,
        parent_commit=None,
        title=f"Add {name}",
        description=f"Adds {content}, made by mdir-hf. A small p says that weights are not independent. It does "
        "not say which model came first.",
        token=token,
        kind="dataset",
    )
    return opened, tuple(files)
