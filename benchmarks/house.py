"""Measure the complexity of the package for its readers: ``python -m benchmarks.house``.

The script uses no timing and no network. It prints modules; small modules with one importer; words in docstrings;
functions that are hard to call; and the types of the package that pass through a comparison of two folders until the
first bound on p.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = "mdir_hf"
SMALL_N_LINES = 60
MOST_PARAMETERS = 7
CLASHING_NAMES = ("api", "files", "source")
FIRST_BOUND = "log_p_matching"


@dataclass(frozen=True)
class Module:
    """A source file.

    Attributes:
        name: Dotted name.
        path: Path of the file.
        tree: Syntax tree.
        n_lines: Number of lines.
    """

    name: str
    path: Path
    tree: ast.Module
    n_lines: int


def modules() -> list[Module]:
    """Return the modules of the package, sorted by name."""
    records = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        records.append(Module(name, path, ast.parse(text), len(text.splitlines())))
    return records


def importers(sources: list[Module]) -> dict[str, set[str]]:
    """Return which modules import each module, in functions as well."""
    names = {module.name for module in sources}
    importers_of: dict[str, set[str]] = {name: set() for name in names}
    for module in sources:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    target = whole if whole in names else node.module
                    if target in names and target != module.name:
                        importers_of[target].add(module.name)
    return importers_of


def foldable(sources: list[Module]) -> list[Module]:
    """Return the modules under 60 lines that only one other module imports."""
    importers_of = importers(sources)
    return [
        module
        for module in sources
        if module.path.name != "__init__.py" and module.n_lines < SMALL_N_LINES and len(importers_of[module.name]) == 1
    ]


def clashing(sources: list[Module]) -> list[str]:
    """Return the modules named ``api``, ``files`` or ``source`` whose name another module has."""
    counts = Counter(module.path.stem for module in sources)
    return [module.name for module in sources if module.path.stem in CLASHING_NAMES and counts[module.path.stem] > 1]


def docstring_words(sources: list[Module]) -> int:
    """Return the number of words in docstrings of modules, classes and functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for m in sources for node in ast.walk(m.tree) if isinstance(node, documented))
    return sum(len(text.split()) for text in texts if text)


def functions(sources: list[Module]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its module, methods and nested functions included."""
    for module in sources:
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield module.name, node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Return the parameters of a function without ``self`` and ``cls``."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument for argument in named if argument.arg not in ("self", "cls")]


def positional_booleans(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters annotated as ``bool`` that a caller may pass by position."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return [each.arg for each in positional if each.annotation is not None and ast.unparse(each.annotation) == "bool"]


def types_on_the_way(level: str) -> list[str]:
    """Return the package's types that are passed to functions or returned until the first bound on p.

    Args:
        level: Level of the comparison.
    """
    import torch

    from mdir_hf import HomologyChecker
    from tests.specimens import gaussian, mlp_tensors, write_model

    met: set[str] = set()
    is_done = False

    def note(value: object) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] == PACKAGE:
            met.add(f"{kind.__module__}.{kind.__qualname__}")

    def watch(frame: FrameType, event: str, value: object) -> None:
        nonlocal is_done
        if is_done or not frame.f_globals.get("__name__", "").startswith(PACKAGE):
            return
        if event == "call":
            if frame.f_code.co_name == FIRST_BOUND:
                is_done = True
                return
            for argument in list(frame.f_locals.values()):
                note(argument)
        elif event == "return":
            note(value)

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        layers = mlp_tensors(96, 256, 5)
        base = write_model(Path(place) / "base", gaussian(1500, 96, 0), further=layers)
        copy = write_model(Path(place) / "copy", gaussian(1500, 96, 0) + 0.3 * gaussian(1500, 96, 1), further=layers)
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            HomologyChecker.from_pretrained(base).compare(copy, level=level, progress=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert is_done, f"no call of {FIRST_BOUND}"
    return sorted(met)


def main() -> None:
    """Count and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--names", action="store_true", help="also print the names of counted items")
    is_named = parser.parse_args().names
    sources = modules()
    many = [f"{name}.{f.name}" for name, f in functions(sources) if len(parameters(f)) > MOST_PARAMETERS]
    booleans = [f"{name}.{f.name}({', '.join(b)})" for name, f in functions(sources) if (b := positional_booleans(f))]
    rows: list[tuple[str, int, list[str]]] = [
        ("modules", len(sources), []),
        ("modules under 60 lines with one importer", len(foldable(sources)), [m.name for m in foldable(sources)]),
        ("modules named api, files or source twice", len(clashing(sources)), clashing(sources)),
        ("modules over 400 lines", len(long := [m.name for m in sources if m.n_lines > 400]), long),
        ("words in docstrings", docstring_words(sources), []),
        (f"functions with more than {MOST_PARAMETERS} parameters", len(many), many),
        ("functions with a positional boolean", len(booleans), booleans),
        ("types until the first bound on p", len(types := types_on_the_way("auto")), types),
    ]
    for title, count, names in rows:
        print(f"{count:8,}  {title}")
        for name in names if is_named else ():
            print(f"          - {name}")


if __name__ == "__main__":
    main()
