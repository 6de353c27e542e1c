"""Open a model, and an adapter's base, at pinned commits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.model.hub import IoLedger, Repository, parse_reference
from mdir_hf.model.hub.local import COMMIT
from mdir_hf.model.memory import LoadedRepository
from mdir_hf.model.open import Reading, expect_files
from mdir_hf.model.opened import Model
from mdir_hf.report import ModelSummary


@dataclass(frozen=True)
class Pin:
    """The files that a name referred to when a survey first opened it.

    Attributes:
        commit: Full SHA; None for a folder.
        bases: Commits of an adapter's base models, keyed by name.
        stamp: Names, sizes and times of a local model's files, or None.
    """

    reference: str
    commit: str | None = None
    bases: Mapping[str, str] = field(default_factory=dict)
    stamp: str | None = None

    @property
    def key(self) -> str:
        """Key that identifies the pinned files."""
        return json.dumps([self.reference, self.commit, sorted(self.bases.items()), self.stamp])

    def is_of(self, name: str) -> bool:
        """Return whether ``name`` may have referred to these files."""
        if self.commit is None:
            return self.reference == name
        try:
            return COMMIT.fullmatch(self.commit) is not None and self.reference == _at(name, self.commit)
        except InvalidReferenceError:
            return False


def pin_of(name: str, model: Model) -> Pin:
    """Return the pin of an opened model."""
    repository, *bases = [link.repository for link in model.weights.chain]
    commits = {base.repo: base.commit for base in bases if base.commit is not None}
    if repository.commit is None or repository.is_local:
        return Pin(name, None, commits, local_stamp(name))
    return Pin(_at(name, repository.commit), repository.commit, commits)


def local_stamp(name: str) -> str | None:
    """Return a digest of the names, sizes and times of a local model's files, or None if there are none."""
    try:
        place = parse_reference(name)
        if place.folder is None:
            return None
        path = place.folder / (place.file or "")
        files = [path] if path.is_file() else sorted(path.iterdir())
        stats = [(file.name, file.stat()) for file in files if file.is_file() and file.suffix != ".md"]
    except (InvalidReferenceError, OSError):
        return None
    described = json.dumps([(file_name, stat.st_size, stat.st_mtime_ns) for file_name, stat in stats])
    return hashlib.sha256(described.encode()).hexdigest()[:16] if stats else None


def pin_of_summary(name: str, model: ModelSummary) -> Pin:
    """Pin a model to the commits that a report names."""
    bases = [base.partition("@") for base in model.bases or ()]
    commits = {repo: commit_and_folder.partition("/")[0] for repo, at, commit_and_folder in bases if at}
    return Pin(name if model.commit is None else _at(name, model.commit), model.commit, commits)


def _at(name: str, commit: str) -> str:
    parsed = parse_reference(name, allow_local=False)
    place = "/".join(part for part in (parsed.repo_id, parsed.subfolder, parsed.file) if part)
    repo = parsed.repo_id or ""
    kind = f":{parsed.variant}" if parsed.variant else ""
    return f"hf://models/{repo}@{commit}{kind}{place.removeprefix(repo)}"


def open_model(name: str, reading: Reading, ledger: IoLedger, pin: Pin | None = None) -> Model:
    """Open a model at its pinned commit or, without a pin, at its current one."""
    pin = pin or Pin(name)

    def open_base(reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository:
        revision = pin.bases.get(reference, revision)
        return reading.open(reference, revision=revision, allow_local=allow_local, ledger=ledger)

    repository = reading.open(pin.reference, ledger=ledger)
    expect_files(repository)
    # A model in memory has its own base.
    return Model(repository, open_other=repository.open_base if isinstance(repository, LoadedRepository) else open_base)
