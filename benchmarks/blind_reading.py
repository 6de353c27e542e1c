"""Draw docstrings of this package and of well-known ones, shuffled and without their origin, for a blind rating.

    python -m benchmarks.blind_reading --seed 1 --folder ratings    # writes set-1.md and key-1.json
    python -m benchmarks.blind_reading --seed 1 --folder ratings --ratings ratings/ratings-1.json

A reader who has not seen the key rates every docstring of the set as native English or not, and writes a JSON object of
numbers and booleans. Ratings of one reader depend on how strict that reader is, so only the difference between the two
groups says something about this package.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import textwrap
from pathlib import Path
from typing import NamedTuple

OURS = "mdir_hf"
OTHERS = (
    "anyio",
    "attr",
    "click",
    "httpx",
    "hypothesis",
    "networkx",
    "packaging",
    "rich",
    "scipy.optimize",
    "starlette",
)
FEWEST_WORDS, MOST_WORDS = 6, 110


class Docstring(NamedTuple):
    """A docstring and its signature."""

    package: str
    place: str
    signature: str
    text: str


def docstrings(package: str) -> list[Docstring]:
    """All docstrings of a package's functions and classes that are neither very short nor very long."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    collected = []
    for path in sorted(root.rglob("*.py")):
        if {"tests", "testing", "_vendor"} & set(path.relative_to(root).parts):
            continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            text = ast.get_docstring(node) or ""
            if FEWEST_WORDS <= len(text.split()) <= MOST_WORDS:
                signature = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]))
                collected.append(Docstring(package, f"{path.relative_to(root)}:{node.lineno}", signature, text))
    return collected


def draw(seed: int, n: int) -> list[Docstring]:
    """Draw ``n`` docstrings of this package and ``n`` of the others, in random order."""
    rng = random.Random(seed)
    drawn = rng.sample(docstrings(OURS), n)
    for package in OTHERS:
        drawn += rng.sample(docstrings(package), -(-n // len(OTHERS)))
    drawn = drawn[: 2 * n]
    rng.shuffle(drawn)
    return drawn


def main() -> None:
    """Write a set and its key, or print how a set was rated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=20, help="docstrings of each of the two groups")
    parser.add_argument("--folder", type=Path, default=Path("ratings"))
    parser.add_argument("--ratings", type=Path, help="JSON object: number of a docstring, and whether it is native")
    arguments = parser.parse_args()
    key_path = arguments.folder / f"key-{arguments.seed}.json"
    if arguments.ratings is None:
        drawn = draw(arguments.seed, arguments.n)
        arguments.folder.mkdir(parents=True, exist_ok=True)
        shown = (f'## {at}\n\n```python\n{d.signature}\n    """{d.text}"""\n```\n' for at, d in enumerate(drawn, 1))
        (arguments.folder / f"set-{arguments.seed}.md").write_text("\n".join(shown), encoding="utf-8")
        key = {at: [docstring.package, docstring.place] for at, docstring in enumerate(drawn, 1)}
        key_path.write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
        return
    key, ratings = (json.loads(path.read_text(encoding="utf-8")) for path in (key_path, arguments.ratings))
    for is_ours in (True, False):
        rated = [bool(ratings[at]) for at, (package, _) in key.items() if (package == OURS) == is_ours]
        print(f"{sum(rated)} of {len(rated)} native: {OURS if is_ours else ', '.join(OTHERS)}")


if __name__ == "__main__":
    main()
