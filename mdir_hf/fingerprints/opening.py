"""Opening a model, and the base under an adapter, always at the commit at which it was first seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mdir_hf.comparison.model import Model
from mdir_hf.hub import IoLedger, Repository, open_repository, parse_reference


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

    def to_dict(self) -> dict[str, Any]:
        """As plain containers."""
        return {"reference": self.reference, "commit": self.commit, "bases": dict(self.bases)}


def pin_of(name: str, model: Model) -> Pin:
    """Pin an opened model."""
    own, *bases = [layer.repository for layer in model.weights.layers]
    commits = {base.repo: base.commit for base in bases if base.commit is not None}
    if own.commit is None or own.is_local:
        return Pin(name, None, commits)
    parsed = parse_reference(name)
    place = "/".join(part for part in (parsed.repo_id, parsed.subfolder, parsed.file) if part)
    repo = parsed.repo_id or ""
    return Pin(f"hf://models/{repo}@{own.commit}{place.removeprefix(repo)}", own.commit, commits)


def open_model(name: str, options: Mapping[str, Any], ledger: IoLedger, pin: Pin | None = None) -> Model:
    """Open a model.

    Args:
        name: As it was asked for.
        options: How repositories are opened, as ``open_repository`` takes it.
        ledger: Counts what is read.
        pin: What the name stood for before; None: what it stands for now.

    Raises:
        MdirError: If it cannot be opened.
    """
    pin = pin or Pin(name)
    of_bases = {key: value for key, value in options.items() if key not in ("revision", "subfolder")}

    def open_base(reference: str, *, revision: str | None = None, **more: Any) -> Repository:  # noqa: ANN401
        wanted = pin.bases.get(reference, revision)
        return open_repository(reference, revision=wanted, ledger=ledger, **{**of_bases, **more})

    return Model(open_repository(pin.reference, ledger=ledger, **options), open_other=open_base)
