"""Small objects in JSON, beside weights or in files that people pass on, checked against a dataclass."""

from __future__ import annotations

from typing import TypeVar

from mdir_hf.budgets import Budget, json_weight
from mdir_hf.errors import CorruptCheckpointError, MdirError
from mdir_hf.validation import validator_of

T = TypeVar("T")

AS_WRITTEN = {"strict": True, "allow_inf_nan": False}
"""``__pydantic_config__`` of such a dataclass: no value is taken for one of another type."""


def read_json(
    data: bytes,
    kind: type[T],
    *,
    what: str,
    label: str | None,
    budget: Budget | None = None,
    error: type[MdirError] = CorruptCheckpointError,
) -> T:
    """Read a JSON object; keys that its class does not have are ignored.

    Args:
        data: The bytes.
        kind: A dataclass, or a type of a mapping or list.
        what: What an error calls the object.
        label: What an error calls the file; None: the caller that catches it names it.
        budget: Most that it may hold; None: somebody else has looked.
        error: What is raised.

    Raises:
        MdirError: As ``error`` says, if it is not a JSON object, or a value is not of the type and within the limits of
            its field; names the field.
    """
    from pydantic import ValidationError

    excess = None if budget is None else budget.excess(n_bytes=len(data), n_items=json_weight(data), of="values")
    if excess is not None:
        raise error(f"{what} {excess}", subject=label)
    try:
        found: T = validator_of(kind).validate_json(data)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as exc:
        # Of the alternatives of a union, the one that got furthest is the one that was meant.
        wrong = max(exc.errors(include_url=False), key=lambda one: len(one["loc"]))
        said = wrong["msg"].replace("Input should", "it should")
        if not wrong["loc"]:
            raise error(f"{what} is not a JSON object: {said}", subject=label) from exc
        place = next((step for step in wrong["loc"] if isinstance(step, str)), f"item {wrong['loc'][0]}")
        if wrong["type"] == "missing":
            raise error(f"{what} cannot be right: it has no {place}", subject=label) from exc
        raise error(f"{what} cannot be right: its {place} is {wrong['input']!r:.80}; {said}", subject=label) from exc
    return found
