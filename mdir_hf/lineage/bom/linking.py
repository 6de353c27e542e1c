"""Read a bill of materials of this package for a model card to link to."""

from __future__ import annotations

import json
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.bom.read import bom_bytes, read_bom
from mdir_hf.lineage.cards.section import LinkedBom


def linked_bom(path: Path, repo: str) -> LinkedBom:
    """Read a bill of materials, from ``verify REPO --bom`` or ``family REPO --bom``, for a card to link to.

    Raises:
        InputError: If the file is unreadable, from another program, or about another model.
    """
    subject, content = str(path), bom_bytes(path)
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
