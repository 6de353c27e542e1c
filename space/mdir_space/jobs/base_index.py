"""The index of base models that the page searches: the owner's index, or the small one shipped with the Space."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache

from mdir_hf.lineage.index.atlas import PLACE_VARIABLE, SHIPPED

INDEX_VARIABLE = "MDIR_SPACE_INDEX"
"""Environment variable with the path of an index, or its URL in a dataset on the Hub, as for ``mdir-hf family
--index``. If unset, ``MDIR_HF_ATLAS`` is used, and then the package's index."""


@dataclass(frozen=True)
class ShippedBase:
    """The source of an entry in the shipped index.

    Attributes:
        read: Description of the files that were read.
        repository: The repository with that name on the Hub, which was not compared with the files.
    """

    read: str
    repository: str


def index_place() -> str:
    """Return the path or URL of the index."""
    return next((place for name in (INDEX_VARIABLE, PLACE_VARIABLE) if (place := os.environ.get(name, "").strip())),
                str(SHIPPED))  # fmt: skip


@cache
def shipped_bases() -> dict[str, ShippedBase]:
    """Return the sources of the shipped index's entries, keyed by name."""
    entries = json.loads(SHIPPED.with_name("bases.json").read_text(encoding="utf-8"))
    return {entry["base"]: ShippedBase(entry["read"], entry["repository"]) for entry in entries}
