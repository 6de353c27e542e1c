"""Every attack in docs/attacks.md has a defence and names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8").splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("| ")]
ATTACKS = [row for row in ROWS if row != ["attack", "defence", "tests"]]


def names_in(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: row[0][:40])
def test_each_attack_names_tests_that_exist(row):
    assert len(row) == 3 and all(row)
    assert re.sub(r"`[^`]+`", "", row[2]).strip(", ") == ""
    for test in re.findall(r"`([^`]+)`", row[2]):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert name.startswith(("test_", "Test")) and name in names_in(file), test


def test_the_list_is_read():
    assert len(ATTACKS) > 40
