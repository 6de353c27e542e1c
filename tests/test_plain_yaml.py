"""YAML from strangers: exact limits and error messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter, ValidationError

from mdir_hf import plain_yaml
from mdir_hf.plain_yaml import read_yaml
from mdir_hf.validation import validator_of


def complaint(text, **options):
    with pytest.raises(ValueError) as caught:
        read_yaml(text, **options)
    return str(caught.value)


def test_a_document_within_all_bounds_is_read():
    assert read_yaml("a: [1, -2.5, yes, null, 'x']\nb: {c: 2024-01-02}")["a"] == [1, -2.5, True, None, "x"]
    assert read_yaml("") is None and read_yaml("# only a remark") is None


def test_the_number_of_characters_has_an_exact_limit(monkeypatch):
    monkeypatch.setattr(plain_yaml, "MOST_CHARACTERS", 1200)
    assert read_yaml("x" * 1200) == "x" * 1200
    assert complaint("x" * 1201) == "has 1,201 characters, expected at most 1,200"


def test_the_number_of_marks_has_an_exact_limit(monkeypatch):
    monkeypatch.setattr(plain_yaml, "MOST_MARKS", 4)
    assert read_yaml("[a, b, c, d]") == ["a", "b", "c", "d"]
    said = complaint("[a, b, c, d, e]")
    assert said == "has 5 commas, dashes, colons and brackets, expected at most 4"


@pytest.mark.parametrize("sign", ["", "-"])
def test_the_number_of_digits_has_an_exact_limit(sign):
    digits = "9" * (1000 - len(sign))
    assert read_yaml(f"a: {sign}{digits}") == {"a": int(sign + digits)}
    assert complaint(f"a: {sign}{digits}9") == "holds a number of 1,001 characters"
    assert complaint(f"- 1.{'0' * 1000}") == "holds a number of 1,002 characters"


def test_values_are_counted_with_their_aliases_written_out(monkeypatch):
    # The root, two keys, a list of two, and the same list again: 1 + 2 + 3 + 3.
    text = "a: &a [x, y]\nb: *a"
    monkeypatch.setattr(plain_yaml, "_MOST_NODES", 9)
    assert read_yaml(text) == {"a": ["x", "y"], "b": ["x", "y"]}
    monkeypatch.setattr(plain_yaml, "_MOST_NODES", 8)
    assert complaint(text) == "has more than 8 values once its aliases are expanded"


def test_a_node_with_two_names_does_not_contain_itself():
    assert read_yaml("a: &a {k: v}\nb: [*a, *a]\nc: *a") == {"a": {"k": "v"}, "b": [{"k": "v"}] * 2, "c": {"k": "v"}}
    assert complaint("a: &a [b, *a]") == "contains itself"
    assert complaint("&a {k: {l: *a}}") == "contains itself"


def test_a_complaint_of_the_parser_names_the_line():
    said = "cannot be read in line {}: found character '@' that cannot start any token"
    assert complaint("a: b\nc: @x") == said.format(2)
    assert complaint("a: b\nc: @x", first_line=5) == said.format(6)


# --- reading a list ends at its first wrong item, because describing each further one would cost a kilobyte


@dataclass(frozen=True)
class Leaf:
    """A record inside another."""

    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    """A record with each kind of container."""

    leaves: tuple[Leaf, ...]
    rows: list[list[int]]
    sides: tuple[Leaf, Leaf]
    by_name: dict[str, list[Leaf]]


GOOD = {
    "leaves": [{"size": 1, "names": ["a", "b"]}, {"size": 2}],
    "rows": [[1, 2], [3]],
    "sides": [{"size": 3}, {"size": 4}],
    "by_name": {"x": [{"size": 5}]},
}
MANY = 1000
WRONG = {
    "leaves": [{}] * MANY,
    "rows": [[None] * MANY] * MANY,
    "sides": [{}] * MANY,
    "by_name": {"x": [{"size": None}] * MANY},
}


def n_errors(body):
    with pytest.raises(ValidationError) as caught:
        validator_of(Tree).validate_python(body)
    return caught.value.error_count()


@pytest.mark.parametrize("name", WRONG)
def test_reading_a_list_ends_at_its_first_wrong_item(name):
    body = GOOD | {name: WRONG[name]}
    with pytest.raises(ValidationError) as as_pydantic:
        TypeAdapter(Tree).validate_python(body)
    assert n_errors(body) <= 2 and (name == "sides" or as_pydantic.value.error_count() >= MANY)


def test_reading_a_list_inside_a_wrong_item_ends_as_well():
    assert n_errors(GOOD | {"leaves": [{"size": 1, "names": [None] * MANY}] * MANY}) == 1


def test_valid_content_is_read_as_by_pydantic():
    assert validator_of(Tree).validate_python(GOOD) == TypeAdapter(Tree).validate_python(GOOD)
    assert validator_of(list[str]).validate_json(b'["a"]') == ["a"]
