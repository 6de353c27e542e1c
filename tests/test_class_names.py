"""A class name stands for one thing in the whole package."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_class_name_stands_for_one_thing():
    homes = {}
    for path in sorted((ROOT / "mdir_hf").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
