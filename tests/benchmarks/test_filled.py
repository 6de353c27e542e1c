"""Measured numbers in README and docs come from the results, and none is typed by hand."""

from __future__ import annotations

import pytest

from benchmarks.evidence.filled import ROOT, fill, measured_values, pages, typed_by_hand
from benchmarks.evidence.tables import read_results

PAGES = [str(path.relative_to(ROOT)) for path in pages()]


@pytest.fixture(scope="module")
def values():
    return measured_values(read_results())


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_those_of_the_results(page, values):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == fill(text, values), "run `python -m benchmarks evidence`"


@pytest.mark.parametrize("page", PAGES)
def test_no_measured_number_was_typed_by_hand(page):
    assert list(typed_by_hand(ROOT / page, (ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("text", ["It takes 3.5 s.", "12 of 13 pairs", "1,300 MB of it", "12 of the 13"])
def test_a_number_typed_by_hand_is_noticed(text):
    assert list(typed_by_hand(ROOT / "README.md", text))
    assert list(typed_by_hand(ROOT / "README.md", f"`{text}` <!--=x-->{text}<!--/-->")) == []


def test_a_value_that_is_not_measured_is_refused():
    with pytest.raises(KeyError):
        fill("<!--=no.such-->1<!--/-->", {})
