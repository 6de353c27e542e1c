"""The page "From the paper to the code" has every numbered part of the paper, and every name on it exists."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "method" / "from-the-paper.md").read_text("utf-8")
IN_MODULE = re.compile(r"(?<!\.)`(\w+)(?: and `(\w+))?`? in `([\w/]+\.py)`")


@pytest.fixture(scope="module")
def paper() -> str:
    """The paper's source, beside the folder of real data."""
    folder = os.environ.get("MDIR_HF_REAL_DATA")
    source = Path(folder).parent / "paper" / "mdir.tex" if folder else None
    if source is None or not source.is_file():
        pytest.skip("the source of the paper is not beside the folder that MDIR_HF_REAL_DATA names")
    return source.read_text("utf-8")


def numbers_on_page(kind: str) -> set[int]:
    """The numbers of a kind that begin a row of the page, ranges such as "Figures 3 to 5" written out."""
    numbers: set[int] = set()
    for first, last in re.findall(rf"^\| \**{kind}s? (\d+)[ab]?(?: (?:to|and) (\d+)[ab]?)?", PAGE, re.MULTILINE):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@pytest.mark.parametrize(
    ("kind", "environment"),
    [
        ("Algorithm", "algorithm"),
        ("Figure", "figure"),
        ("Table", "table"),
        ("Definition", "defn"),
        ("Equation", "equation"),
    ],
)
def test_each_numbered_part_of_the_paper_has_a_row(paper: str, kind: str, environment: str) -> None:
    n_parts = len(re.findall(rf"\\begin\{{{environment}\*?\}}", paper))
    assert n_parts
    assert numbers_on_page(kind) == set(range(1, n_parts + 1))


def test_each_theorem_of_the_paper_has_a_row(paper: str) -> None:
    n_theorems = len(re.findall(r"\\begin\{thm\}", paper))
    assert len(re.findall(r"^\| Theorem, ", PAGE, re.MULTILINE)) == n_theorems > 0


def test_every_module_and_name_on_the_page_exists() -> None:
    paths = set(re.findall(r"`([\w/.-]+\.py)`", PAGE))
    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).is_file()]
    named = [(name, path) for *names, path in IN_MODULE.findall(PAGE) for name in names if name]
    assert len(named) > 10
    defined = r"^(?:class|def|    def) {0}\b|^{0}\b.* = "
    assert not [
        (name, path)
        for name, path in named
        if not re.search(defined.format(name), (ROOT / path).read_text("utf-8"), re.MULTILINE)
    ]
