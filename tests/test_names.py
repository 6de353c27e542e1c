"""Names of models as one short line."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.names import shown_name


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


def test_a_long_name_keeps_both_ends():
    shown = shown_name("owner/" + "x" * 10_000 + "-v2", length=20)

    assert shown == "owner/xxx…xxxxxxx-v2" and len(shown) == 20


@given(st.text(alphabet=st.characters(), max_size=200), st.integers(3, 80))
def test_any_text_becomes_a_short_printable_line(name, length):
    shown = shown_name(name, length=length)

    assert 0 < len(shown) <= max(length, len("(no name)"))
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert shown == shown.strip()
