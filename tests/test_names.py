"""Names of models as one short line."""

import ast
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.names import shown_name, visible_text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("owner/name", "owner/name"),
        ("a\nb\r\n\tc", "a b c"),
        ("\x1b[31mred\x00\x9b2J", "\\u001b[31mred\\u0000\\u009b2J"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("x\u202egnp.exe\u2066y\u200b", "x\\u202egnp.exe\\u2066y\\u200b"),
        ("caf\udce9", "caf\\udce9"),
        ("  ", "(no name)"),
        ("", "(no name)"),
        ("模型/שלום", "模型/שלום"),
        ("<b>&", "<b>&"),
    ],
)
def test_a_name_becomes_one_line(name, shown):
    assert shown_name(name) == shown


@pytest.mark.parametrize("n_characters", [59, 60, 61, 80, 10_000])
def test_only_both_ends_of_an_endless_text_are_read(n_characters):
    looked_at = []

    class Text(str):
        """A text that records which parts of it are read."""

        __slots__ = ()

        def __getitem__(self, part):
            looked_at.append(part)
            return str.__getitem__(self, part)

    text = "a" + "-" * (n_characters - 2) + "z"
    assert visible_text(Text(text), length=3) == "a…z"
    assert looked_at == ([slice(None, 30), slice(-30, None)] if n_characters > 60 else [])


def test_line_breaks_stay_and_other_control_characters_do_not():
    text = "a\tb\n\n c \r\x1b[2J\x0b\u2028\u202e\U000e0001"
    assert visible_text(text, keeps_lines=True) == ("a\tb\n\n c \\u000d\\u001b[2J\\u000b\\u2028\\u202e\\udb40\\udc01")
    assert visible_text("a\tb\nc") == "a b c"
    assert visible_text("a\u00a0b\u3000c", keeps_lines=True) == "a\u00a0b\u3000c"


@given(st.text(alphabet=st.characters(), max_size=200), st.integers(3, 80))
def test_any_text_becomes_a_short_printable_line(name, length):
    shown = shown_name(name, length=length)

    assert 0 < len(shown) <= max(length, len("(no name)"))
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert shown == shown.strip()


# --- each class name is used once in the whole package


ROOT = Path(__file__).parent.parent


def test_a_class_name_stands_for_one_thing():
    homes = {}
    for path in sorted((ROOT / "mdir_hf").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
