"""Opening a model, and the base under an adapter, always at the commit at which it was first seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mdir_hf.comparison.model import Model
from mdir_hf.comparison.opening import Reading, expect_files
from mdir_hf.hub import IoLedger, Repository, parse_reference


@dataclass(frozen=True)
class Pin:
    """The files that a name stood for when a survey first opened it.

    Attributes:
        reference: What opens them again.
        commit: Full sha of their commit; None for a folder.
        bases: Commits of the base models under it if it is an adapter, by the name that it has for them.
    """

    reference: str
    commit: str | None = None
    bases: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for the same weights."""
        return json.dumps([self.reference, self.commit, sorted(self.bases.items())])


def pin_of(name: str, model: Model) -> Pin:
    """Pin an opened model."""
    own, *bases = [files.repository for files in model.weights.files]
    commits = {base.repo: base.commit for base in bases if base.commit is not None}
    if own.commit is None or own.is_local:
        return Pin(name, None, commits)
    parsed = parse_reference(name)
    place = "/".join(part for part in (parsed.repo_id, parsed.subfolder, parsed.file) if part)
    repo = parsed.repo_id or ""
    kind = f":{parsed.variant}" if parsed.variant else ""
    return Pin(f"hf://models/{repo}@{own.commit}{kind}{place.removeprefix(repo)}", own.commit, commits)


def open_model(name: str, reading: Reading, ledger: IoLedger, pin: Pin | None = None) -> Model:
    """Open a model.

    Args:
        name: As it was asked for.
        reading: How repositories are opened.
        ledger: Counts what is read.
        pin: What the name stood for before; None: what it stands for now.

    Raises:
        MdirError: If it cannot be opened.
    """
    pin = pin or Pin(name)

    def open_base(reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository:
        revision = pin.bases.get(reference, revision)
        return reading.open(reference, revision=revision, allow_local=allow_local, ledger=ledger)

    repository = reading.open(pin.reference, ledger=ledger)
    expect_files(repository)
    return Model(repository, open_other=open_base)
