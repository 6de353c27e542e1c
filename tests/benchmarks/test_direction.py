"""The measurement of facts of direction: which way a fact points, and the page that is made of the results."""

from __future__ import annotations

import json

import pytest

from benchmarks.direction import DEMO, RESULTS, ancestors, points_at


def test_no_stored_fact_points_the_wrong_way():
    lines = json.loads(RESULTS.read_text(encoding="utf-8"))
    facts = [fact for line in lines for fact in line["facts"]]
    assert facts and all(fact["points"] != "wrong" for fact in facts)
    assert not any(line["facts"] for line in lines if line["history"] == "strangers")


def test_a_line_of_descent_is_followed_to_its_start():
    assert ancestors("rotated", DEMO) == {"fine-tune", "base"}
    assert ancestors("base", DEMO) == set()


@pytest.mark.parametrize(
    ("first", "earlier", "points"), [("a", "a", "right"), ("a", "b", "wrong"), ("a", None, "sibling")]
)
def test_a_fact_is_held_against_the_history(first, earlier, points):
    assert points_at(first, earlier) == points
