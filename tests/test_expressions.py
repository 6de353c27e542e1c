"""Run every regular expression of the package on strings that provoke backtracking; its work must grow linearly.

Files, names and server responses are untrusted, and an expression that backtracks blocks a whole process. The tests
count steps instead of measuring time: for four times the length, linear work grows 4 times and quadratic work 16 times.
"""

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import mdir_hf
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.model.roles.families.state_space import HEADS_FROM_SHAPE, SIGNS
from tests.backtracking import Counter

SHORT, LONG = 16, 64
MOST_GROWTH = 7.0

ATOMS = ("a", "1", "1.", "a.", "_", "-", "-1", ".", " ", "\\", '"', "<", "`", "ab|", "A=", "\t", "e1", "\r", "\n")
ENDS = ("", "\x00\n")

OWN_TEXT = {
    "mdir_hf.render.figures.rendering._PROLOG": "reads output of matplotlib",
}
"""Expressions that are never applied to untrusted text."""


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


@cache
def uses():
    """Which methods are called on an expression, by the last part of its name."""
    found = defaultdict(set)
    for path in Path(mdir_hf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found[node.value.id].add(node.attr)
    return found


def of_tables():
    """The expressions of the naming tables, as used by the package."""
    edges = (*tables.EMBEDDING_ROWS, *tables.UNEMBEDDING_ROWS, *tables.FINAL_NORM_ROWS)
    patterns = {rf"(?:.*\.)?(?:{row.pattern})" for row in edges} | {rf"(?:.*\.)?{sign}" for sign, _ in SIGNS}
    patterns |= {tables.NOT_WEIGHTS, *HEADS_FROM_SHAPE}
    patterns |= {p for row in LAYER_ROWS for p in (row.pattern, row.beside, row.unless_beside) if p}
    patterns |= {p for row in PRODUCT_ROWS for p in (row.left, row.right, row.gain) if p}
    return sorted(patterns)


def adversaries(source, n):
    """Long strings that the expression partly matches, with an end that it does not match."""
    words = {word.replace("\\", "") for word in re.findall(r"(?:[A-Za-z0-9_<\"/=:.-]|\\[._-]){2,}", source)}
    for atom in (*ATOMS, *sorted(words)[:12], *(f"{word}." for word in sorted(words)[:6])):
        for start in dict.fromkeys(("", *re.findall(r"[a-z]{5,}", source)[:1])):
            for end in ENDS:
                yield start + atom + "…" + repr(end), start + atom * (n // len(atom) + 1) + end


def too_slow(pattern, methods):
    """Return the first string for which the steps grow faster than its length, or None."""
    counter = Counter(pattern)
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    for method in methods:
        for (said, short), (_, long) in zip(adversaries(source, SHORT), adversaries(source, LONG), strict=True):
            grown = counter.run(method, long)
            if grown > 2 * len(long) and grown > MOST_GROWTH * counter.run(method, short):
                return f"{method} on {said}: {grown} steps"
    return None


EXPRESSIONS = compiled()
SEARCHING = ("fullmatch", "match", "search", "finditer", "split")


@pytest.mark.parametrize("name", sorted(EXPRESSIONS.keys() - OWN_TEXT.keys()))
def test_no_untrusted_text_makes_an_expression_backtrack(name):
    used = uses()[name.rpartition(".")[2]]
    methods = [method for method in SEARCHING if method in used or (method == "search" and "sub" in used)]
    assert too_slow(EXPRESSIONS[name], methods or ["fullmatch"]) is None


def test_no_name_makes_a_pattern_of_the_tables_backtrack():
    patterns = of_tables()
    slow = {pattern: too_slow(re.compile(pattern), ["fullmatch"]) for pattern in patterns}
    assert len(patterns) > 400
    assert {pattern: on for pattern, on in slow.items() if on is not None} == {}


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?:(?P<prefix>.*?)\.)?(?P<index>\d{1,6})\.(?P<rest>.+)", "fullmatch"),  # names of layers, once
        (r"\|?(?:reserved\w*?|unused)[_\- ]?\d+\|?[>\]]", "fullmatch"),  # it once froze a page
        (r"reserved\w*?\d+>", "search"),
        (r"\s+$", "search"),
        (r"(?:a|aa)+!x", "match"),
    ],
)
def test_an_expression_that_backtracks_is_found(pattern, method, monkeypatch):
    if "+!" in pattern:  # twice as many steps with each character
        monkeypatch.setattr("tests.test_expressions.SHORT", 6)
        monkeypatch.setattr("tests.test_expressions.LONG", 16)
    assert too_slow(re.compile(pattern), [method]) is not None


@pytest.mark.parametrize(
    "pattern", [r"(a+?)b|(?:ab?){2,3}c", r"(?<!x)\w+?(?=\d)\d*$", r"^[^a-c]{0,2}(?:-|\.\d)*\Z", r".*\bb"]
)
@pytest.mark.parametrize("text", ["aaab", "ababc", "xa12", "-.1.2-", "", "q\n", "a b"])
def test_the_counter_matches_like_re(pattern, text):
    counter = Counter(re.compile(pattern))
    counter.run("match", text)
    ours = next(counter._sequence(counter._tree, 0, 0), None)
    theirs = re.match(pattern, text)
    assert ours == (None if theirs is None else theirs.end())


def test_every_expression_is_listed():
    assert len(EXPRESSIONS) >= 30
    assert EXPRESSIONS.keys() >= OWN_TEXT.keys()
