"""The index of base models that the page searches: the owner's own, or the small one that ships with the Space."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "index"
INDEX_VARIABLE = "MDIR_SPACE_INDEX"
"""Path of an index, or its address in a data set of the Hub, as ``mdir-hf identify --index`` takes it."""


@dataclass(frozen=True)
class ShippedBase:
    """Where an entry of the index that ships comes from.

    Attributes:
        read: What was read for it.
        repository: The repository of the Hub whose name it bears. Nobody has compared the two.
    """

    read: str
    repository: str


def index_place() -> str:
    """Return the path or address of the index; empty where there is none."""
    shipped = FOLDER / "bases.safetensors"
    return os.environ.get(INDEX_VARIABLE, "").strip() or (str(shipped) if shipped.is_file() else "")


@cache
def shipped_bases() -> dict[str, ShippedBase]:
    """Return what is known of the entries of the index that ships, by their names."""
    about = FOLDER / "bases.json"
    entries = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else []
    return {entry["base"]: ShippedBase(entry["read"], entry["repository"]) for entry in entries}
