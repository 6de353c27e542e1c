"""The bases of an atlas: the list from which it is built, and its table."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen
from pydantic import TypeAdapter, ValidationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pragma: no cover

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import InputError, one_line
from mdir_hf.validation import AS_WRITTEN, read_json

TABLE = "bases.jsonl"

Text = Annotated[str, MinLen(1)]


EntryState = Literal["held", "gated", "missing", "failed", "not tried"]


@dataclass(frozen=True, slots=True)
class AtlasBase:
    """A base model in the atlas.

    Attributes:
        year: Year in which the family was first published, or 0 if unknown.
        state: ``held``, ``gated``, ``missing`` (or private), ``failed``, or ``not tried``.
        architecture: ``model_type`` in the config.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    repo: Text
    family: str = ""
    parameters: str = ""
    licence: str = ""
    year: int = 0
    state: EntryState = "not tried"
    reason: str = ""
    commit: str | None = None
    architecture: str | None = None
    width: int | None = None
    layers: int | None = None


@dataclass(frozen=True, slots=True)
class _ListedFamily:
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    year: int
    licence: Text
    bases: dict[Text, Text]


def read_list(path: Path) -> tuple[AtlasBase, ...]:
    """Read a list of base models from a TOML file, or from the table of an atlas.

    Raises:
        InputError: If the list cannot be read, or a repository is listed twice.
    """
    if path.name == TABLE:
        return read_table(path.parent)
    try:
        listed_families = tomllib.loads(path.read_text(encoding="utf-8"))
        families = TypeAdapter(dict[str, _ListedFamily]).validate_python(listed_families)
    except OSError as exc:
        raise InputError(f"cannot read the list of base models: {exc.strerror}", subject=str(path)) from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as exc:
        raise InputError(f"this is not a list of base models: {one_line(exc)}", subject=str(path)) from exc
    bases = [
        AtlasBase(repo, name, parameters, family.licence, family.year)
        for name, family in families.items()
        for repo, parameters in family.bases.items()
    ]
    twice = [repo for repo, n in Counter(base.repo.lower() for base in bases).items() if n > 1]
    if twice:
        raise InputError(f"it lists {twice[0]} twice", subject=str(path))
    return tuple(bases)


def read_table(folder: Path) -> tuple[AtlasBase, ...]:
    """Read the table of the atlas in a folder; empty if there is none."""
    path = folder / TABLE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(path)) from exc
    read = partial(read_json, label=str(path), budget=REPORT_JSON, error=InputError)
    return tuple(read(line, AtlasBase, what=f"line {at}") for at, line in enumerate(lines, start=1))
