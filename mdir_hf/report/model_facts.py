"""Facts on a model in a bill of materials, in addition to its lineage."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One weight file.

    Attributes:
        path: Path in the repository.
        sha256: Digest of its content; None if it is not known without reading a large file.
    """

    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts on one model that a bill of materials names.

    Attributes:
        repo: Repo id on the Hub; None for a folder, whose path is not published.
        name: Name of the model: the repo id, or the name of the folder.
        commit: Commit that was read; None for a folder.
        files: Its weight files.
        licence: Licence that its card declares.
        date: Date of the commit according to the Hub.
    """

    repo: str | None
    name: str
    commit: str | None
    files: tuple[WeightFile, ...] = ()
    licence: str | None = None
    date: datetime | None = None
