"""The index of base models that the page searches: the owner's, or the small one that ships with the Space."""

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
    """The source of an entry of the shipped index.

    Attributes:
        read: What was read.
        repository: The repository of that name on the Hub. The two were not compared.
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
