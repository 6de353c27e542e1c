"""Mutate parts of a module: strict tests detect the mutants, and shallow tests do not."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.breaks import breaks
from tests.benchmarks.evidence import WITH_THE_SCRIPTS

ROOT = Path(__file__).parents[2]


def changes(text):
    return {(one.before, one.after) for one in breaks(textwrap.dedent(text))}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", {("a < b", "(a <= b)")}),
        ("a is not None", {("a is not None", "(a is None)")}),
        ("a and b", {("a and b", "(a or b)")}),
        ("not a", {("not a", "(a)")}),
        ("x = y * z", {("y * z", "(y / z)")}),
        ("x += 2", {("x += 2", "x -= 2"), ("2", "(3)")}),
        ("LIMIT = 0.5", {("0.5", "(0.55)"), ("0.5", "(0.45)")}),
        ("IS_ON = True", {("True", "(False)")}),
        ("min(a, b)", {("min(a, b)", "(max(a, b))"), ("min(a, b)", "pass")}),
        ("if a:\n    x()", {("a", "(not a)"), ("x()", "pass")}),
        ("[a for a in b if a]", {("a", "(not a)")}),
        ("if a is b:\n    raise E(f'{a + 1}')", {("a is b", "(a is not b)"), ("raise E(f'{a + 1}')", "pass")}),
        ("while True:\n    break", {("break", "continue"), ("True", "(False)"), ("True", "(not True)")}),
    ],
)  # fmt: skip
def test_each_kind_of_break(text, expected):
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""3 < 4"""',
        "x: int | None",
        "def f(a: 'int | str') -> tuple[int, 2]:\n    'doc'",
        "if TYPE_CHECKING:\n    X = 3",
        "__slots__ = (1, 2)",
        "@decorated(1)\nclass A:\n    pass",
        "text = f'{a + 1:3}'",
    ],
)
def test_code_that_does_not_run_and_text_are_left_alone(text):
    assert changes(text) == set()


def test_a_break_changes_its_own_place_and_nothing_else():
    text = "name = 'ä€😀'; x = (a +\n    b)\ny = 1\n"
    (of_sum,) = [one for one in breaks(text) if "a" in one.before]
    assert of_sum.applied_to(text) == "name = 'ä€😀'; x = ((a - b))\ny = 1\n"
    assert (of_sum.line, of_sum.before) == (1, "a + b")


RULE = """
    LIMIT = 10


    def is_small(n):
        return n < LIMIT


    def is_known(n):
        if n in (1, 2):
            return True
        raise ValueError("unknown")


    def unused(n):
        return n + 1
"""


def survivors(folder, tests):
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['slow: no']\n")
    (folder / "toy").mkdir()
    (folder / "toy" / "__init__.py").touch()
    (folder / "toy" / "rule.py").write_text(textwrap.dedent(RULE))
    (folder / "tests").mkdir()
    (folder / "tests" / "test_rule.py").write_text(textwrap.dedent(tests))
    command = [sys.executable, "-m", "benchmarks.mutants", "toy/rule.py", "--tests", "tests/test_rule.py"]
    environment = {"PYTHONPATH": f"{ROOT}", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [*command, "--root", str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@WITH_THE_SCRIPTS
@pytest.mark.slow
def test_strict_tests_detect_every_break(tmp_path):
    said = survivors(
        tmp_path,
        """
        import pytest
        from toy.rule import LIMIT, is_known, is_small

        def test_limit():
            assert LIMIT == 10

        def test_small():
            assert is_small(LIMIT - 1) and not is_small(LIMIT)

        def test_known():
            assert is_known(1) and is_known(2)
            with pytest.raises(ValueError):
                is_known(3)
        """,
    )
    assert "no test   toy/rule.py:16: n + 1 -> (n - 1)" in said
    assert "no test   toy/rule.py:16: 1 -> (2)" in said
    assert "survived" not in said
    assert "7 of 9 noticed" in said


@pytest.mark.slow
def test_code_entered_only_by_shallow_tests_survives(tmp_path):
    said = survivors(
        tmp_path,
        """
        from toy.rule import is_known, is_small

        def test_small():
            assert is_small(3)

        def test_known():
            assert is_known(1)
        """,
    )
    assert "survived  toy/rule.py:6: n < LIMIT -> (n <= LIMIT)" in said
    assert "survived  toy/rule.py:2: 10 -> (11)" in said
    assert "survived  toy/rule.py:10: 2 -> (3)" in said
    assert "no test   toy/rule.py:12" in said
