"""Makes the link from a model card to a bill of materials of this package."""

from __future__ import annotations

import json
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.bom.read import read_bom
from mdir_hf.lineage.cards.section import LinkedBom


def linked_bom(path: Path, repo: str) -> LinkedBom:
    """Read a bill of materials that the card of a repository is to link.

    Args:
        path: The output of ``verify REPO --bom`` or ``family REPO --bom``.
        repo: ``owner/name``, with or without a branch.

    Raises:
        InputError: If it cannot be read, was written by another program, or is about another model.
    """
    subject = str(path)
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=subject) from exc
    document = read_bom(content, subject=subject)
    if not any(tool.split(" ")[0] == "mdir-hf" for tool in document.tools):
        raise InputError(
            "was not written by mdir-hf, and a card may only name checked bases; write one with "
            f"`mdir-hf verify {repo} --bom FILE`",
            subject=subject,
        )
    name = repo.removeprefix("hf://models/").partition("@")[0].lower()
    models = [model.repo or model.name for model in document.models]
    if name not in (model.lower() for model in models):
        raise InputError(f"is about {', '.join(models) or 'no model'}, not about {repo}", subject=subject)
    component = json.loads(content)["components"][0]
    notes = str(component.get("pedigree", {}).get("notes") or "No base is declared, and none was found.")
    return LinkedBom(content, f"Bases compared by their weights: {notes.rstrip('.').replace('. ', '; ')}.")
