"""SECURITY.md names a test for each defence, docs/attacks.md one for each case, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows():
    """The rows of the table: attempt, asset, attacker, defence, tests."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = text.split("## What an adversary may try", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "attempt",
        "asset",
        "attacker",
        "defence",
        "tests that hold it",
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_each_defence_names_tests_that_exist(row):
    assert len(row) == 5 and all(row)
    check_tests_of(row[4])


def test_each_case_that_was_tried_names_tests_that_exist():
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    cases = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    assert len(cases) > 40
    for case, *tests in cases:
        if not case.strip().startswith("**"):
            check_tests_of(tests[0])


def check_tests_of(cell):
    """Hold that a cell names tests, nothing else, and that they exist."""
    named = re.findall(r"`([^`]+)`", cell)
    assert named and re.sub(r"`[^`]+`", "", cell).strip(", ") == ""
    for test in named:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert name.startswith(("test_", "Test")) and name in names_in(file), test
