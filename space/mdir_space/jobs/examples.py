"""Stored results, which open at once: reports on real models, and on models made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from mdir_hf import HomologyReport
from mdir_hf.report import MatrixArrays, ReportArrays

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples"
INDEX = "index.json"


@dataclass(frozen=True)
class Example:
    """A stored result.

    Attributes:
        name: Stem of its files, ``<name>.json`` and ``<name>.npz``.
        title: A few words on the relation of the candidate to the reference.
        question: A visitor's question, for the few results that are shown first; otherwise empty.
        note: Description of the models.
        models: Names of the models in the report.
    """

    name: str
    title: str
    note: str
    models: tuple[str, str]
    question: str = ""
    folder: Path = FOLDER

    @property
    def words(self) -> str:
        """The label of the result's button."""
        return self.question or self.title

    @cached_property
    def report(self) -> HomologyReport:
        """The report, including the arrays for figures."""
        import numpy as np

        report = HomologyReport.from_json((self.folder / f"{self.name}.json").read_text(encoding="utf-8"))
        with np.load(self.folder / f"{self.name}.npz", allow_pickle=False) as stored:
            arrays = {
                name: stored[name] / np.float32(255) if stored[name].dtype == np.uint8 else stored[name]
                for name in stored.files
            }
        of_matrix = {
            matrix: MatrixArrays(arrays.get(matrix), arrays.get(f"{matrix}_matched"), arrays.get(f"{matrix}_channels"))
            for matrix in ("embedding", "unembedding")
        }
        return replace(report, arrays=ReportArrays(of_matrix["embedding"], of_matrix["unembedding"]))


@cache
def stored_examples(folder: Path = FOLDER) -> tuple[Example, ...]:
    """Return the examples in the order of the page."""
    index = folder / INDEX
    if not index.is_file():
        return ()
    entries = json.loads(index.read_text(encoding="utf-8"))
    return tuple(
        Example(entry["name"], entry["title"], entry["note"], tuple(entry["models"]), entry.get("question", ""), folder)
        for entry in entries
    )


def example_of(names: Iterable[str]) -> Example | None:
    """Return the stored result about two models in either order, or None."""
    wanted_names = sorted(names)
    return next((example for example in stored_examples() if sorted(example.models) == wanted_names), None)


def example_with(names: Iterable[str]) -> tuple[str, Example] | None:
    """Return the first name that belongs to a stored result, with that result, or None."""
    of = {model: example for example in reversed(stored_examples()) for model in example.models}
    return next(((name, of[name]) for name in names if name in of), None)
