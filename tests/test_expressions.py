"""Every regular expression of the package, on strings made to make it backtrack: its work grows no faster than they do.

Files, names and answers of servers are anyone's, and an expression that backtracks holds a whole process. Growth is
measured over a sixteenfold length: linear work grows 16 times, quadratic 256 times; the limit lies between, and what
takes next to nothing at the longest is let through, whatever its noise.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

import mdir_hf
from mdir_hf.anatomy import tables
from mdir_hf.anatomy.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.anatomy.families.recurrent import HEADS_FROM_SHAPE, SIGNS

SHORT, LONG = 256, 4096
MOST_GROWTH, NEXT_TO_NOTHING = 90.0, 0.02  # seconds: far below what anyone would wait

ATOMS = ("a", "1", "1.", "a.", "_", "-", "-1", ".", " ", "\\", '"', "<", "`", "ab|", "A=", "\t", "e1", "\r", "\n")
ENDS = ("", "\n", "!", "\x00", "z\n")

OWN_TEXT = {
    "mdir_hf.figures.rendering._PROLOG": "reads what matplotlib has drawn here",
}
"""Expressions that no text of others meets."""


def compiled():
    """Module-level expressions by their full name."""
    found = {}
    for module in pkgutil.walk_packages(mdir_hf.__path__, "mdir_hf."):
        if module.name.endswith("__main__"):
            continue
        members = vars(importlib.import_module(module.name))
        for name, value in members.items():
            if isinstance(value, re.Pattern):
                found.setdefault(value, f"{module.name}.{name}")
    return {name: pattern for pattern, name in found.items()}


def uses():
    """Which methods are called on an expression, by the last part of its name."""
    found = defaultdict(set)
    for path in Path(mdir_hf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found[node.value.id].add(node.attr)
    return found


def of_tables():
    """The expressions of the naming tables, as they are used."""
    edges = (*tables.EMBEDDING_ROWS, *tables.UNEMBEDDING_ROWS, *tables.FINAL_NORM_ROWS)
    patterns = {rf"(?:.*\.)?(?:{row.pattern})" for row in edges} | {rf"(?:.*\.)?{sign}" for sign, _ in SIGNS}
    patterns |= {tables.NOT_WEIGHTS, *HEADS_FROM_SHAPE}
    patterns |= {p for row in LAYER_ROWS for p in (row.pattern, row.beside, row.unless_beside) if p}
    patterns |= {p for row in PRODUCT_ROWS for p in (row.left, row.right, row.gain) if p}
    return sorted(patterns)


def adversaries(pattern, n):
    """Long strings of what the expression looks for, and an end that it does not."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    words = {word.replace("\\", "") for word in re.findall(r"(?:[A-Za-z0-9_<\"/=:.-]|\\[._-]){2,}", source)}
    for atom in (*ATOMS, *sorted(words)[:12], *(f"{word}." for word in sorted(words)[:6])):
        for end in ENDS:
            text = atom * (n // len(atom) + 1) + end
            yield atom + "…" + repr(end), text if isinstance(pattern.pattern, str) else text.encode("latin-1")


def seconds(function, text):
    start = time.thread_time()
    found = function(text)
    if not (found is None or isinstance(found, re.Match)):  # an iterator, or the parts
        sum(1 for _ in found)
    return time.thread_time() - start


def fastest(function, text):
    return min(seconds(function, text) for _ in range(3))


def too_slow(pattern, methods):
    """The first string on which the work grows faster than the string, None without one."""
    for method in methods:
        run = getattr(pattern, method)
        for (said, short), (_, long) in zip(adversaries(pattern, SHORT), adversaries(pattern, LONG), strict=True):
            if seconds(run, long) < NEXT_TO_NOTHING:
                continue
            grown, before = fastest(run, long), fastest(run, short)
            if grown > NEXT_TO_NOTHING and grown > MOST_GROWTH * before:
                return f"{method} on {said}: {grown / before:.0f} times as long"
    return None


EXPRESSIONS = compiled()
SEARCHING = ("fullmatch", "match", "search", "finditer", "split")
USES = uses()


@pytest.mark.parametrize("name", sorted(EXPRESSIONS.keys() - OWN_TEXT.keys()))
def test_no_text_of_others_makes_an_expression_backtrack(name):
    used = USES[name.rpartition(".")[2]]
    methods = [method for method in SEARCHING if method in used or (method == "search" and "sub" in used)]
    assert too_slow(EXPRESSIONS[name], methods or ["fullmatch"]) is None


@pytest.mark.parametrize("pattern", of_tables())
def test_no_name_makes_a_pattern_of_the_tables_backtrack(pattern):
    assert too_slow(re.compile(pattern), ["fullmatch"]) is None


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?:(?P<prefix>.*?)\.)?(?P<index>\d{1,6})\.(?P<rest>.+)", "fullmatch"),  # names of layers, once
        (r"reserved\w*?\d+>", "search"),
        (r"(a|aa)+!x", "match"),
    ],
)
def test_an_expression_that_backtracks_is_found(pattern, method, monkeypatch):
    monkeypatch.setattr("tests.test_expressions.LONG", 8192 if "+!" not in pattern else 26)
    monkeypatch.setattr("tests.test_expressions.SHORT", 512 if "+!" not in pattern else 13)
    assert too_slow(re.compile(pattern), [method]) is not None


def test_every_expression_is_listed():
    assert len(EXPRESSIONS) >= 30
    assert EXPRESSIONS.keys() >= OWN_TEXT.keys()
