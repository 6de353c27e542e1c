"""A wrong item of a list is the last that is looked at: each further one would cost a kilobyte to describe."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter, ValidationError

from mdir_hf.validation import validator_of


@dataclass(frozen=True)
class Leaf:
    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
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
def test_a_list_is_given_up_at_its_first_wrong_item(name):
    body = GOOD | {name: WRONG[name]}
    with pytest.raises(ValidationError) as as_pydantic:
        TypeAdapter(Tree).validate_python(body)
    assert n_errors(body) <= 2 and (name == "sides" or as_pydantic.value.error_count() >= MANY)


def test_a_list_within_a_wrong_item_is_given_up_as_well():
    assert n_errors(GOOD | {"leaves": [{"size": 1, "names": [None] * MANY}] * MANY}) == 1


def test_valid_content_is_read_as_by_pydantic():
    assert validator_of(Tree).validate_python(GOOD) == TypeAdapter(Tree).validate_python(GOOD)
    assert validator_of(list[str]).validate_json(b'["a"]') == ["a"]
