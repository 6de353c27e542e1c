"""The map in CONTRIBUTING is the tree: every folder and file of the first two levels, and none that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^(  )?([\w.-]+/?(?:, [\w.-]+/?)*)(?:  +\S.*)?$")


def mapped():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("## Where things are", 1)[1].split("```", 2)[1]
    folder, found = "", set()
    for line in block.strip().splitlines():
        if line.startswith("   "):
            continue  # the words of the line above go on
        match = LINE.match(line)
        assert match, f"the map has a line that names nothing: {line!r}"
        indent, names = match[1], match[2].split(", ")
        for name in names:
            found.add(f"{folder}{name}" if indent else name)
        if not indent:
            folder = names[0] if len(names) == 1 and names[0].endswith("/") else ""
    return found


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = set()
    for path in filter(None, listed.stdout.splitlines()):
        first, *rest = path.split("/")
        found.add(f"{first}/" if rest else first)
        if rest:
            found.add(f"{first}/{rest[0]}/" if len(rest) > 1 else f"{first}/{rest[0]}")
    return found


def test_the_map_lists_every_folder_and_file_of_two_levels():
    there, said = tracked(), mapped()
    assert sorted(there - said) == [], "add them to the map in CONTRIBUTING.md"
    assert sorted(said - there) == [], "the map names what is not there"
