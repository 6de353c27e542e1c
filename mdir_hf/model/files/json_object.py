"""Reads small JSON objects into dataclasses, with strict checks."""

from __future__ import annotations

from typing import TypeVar

from mdir_hf.budgets import Budget, json_weight
from mdir_hf.errors import CorruptCheckpointError, MdirError
from mdir_hf.validation import validator_of

T = TypeVar("T")

AS_WRITTEN = {"strict": True, "allow_inf_nan": False}
"""``__pydantic_config__`` for strict dataclasses: values are not converted between types."""


def read_json(
    data: bytes,
    kind: type[T],
    *,
    what: str,
    label: str | None,
    budget: Budget | None = None,
    error: type[MdirError] = CorruptCheckpointError,
) -> T:
    """Read a JSON object; unknown keys are ignored.

    Args:
        data: The bytes.
        kind: A dataclass, or a type of mapping or list.
        what: The object's name in error messages.
        label: The file's name in error messages; None if the caller adds it.
        budget: Size limit; None if the caller has checked the size.
        error: Class of error to raise.

    Raises:
        MdirError: An ``error`` that names the field, if the data is not a JSON object, or a value has the wrong type or
            is out of range.
    """
    from pydantic import ValidationError

    excess = None if budget is None else budget.excess(n_bytes=len(data), n_items=json_weight(data), of="values")
    if excess is not None:
        raise error(f"{what} {excess}", subject=label)
    try:
        parsed: T = validator_of(kind).validate_json(data)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as exc:
        # For a union, report the alternative that matched furthest.
        wrong = max(exc.errors(include_url=False), key=lambda error: len(error["loc"]))
        reason = wrong["msg"].replace("Input should", "it should")
        if not wrong["loc"]:
            raise error(f"{what} is not a JSON object: {reason}", subject=label) from exc
        place = next((step for step in wrong["loc"] if isinstance(step, str)), f"item {wrong['loc'][0]}")
        if wrong["type"] == "missing":
            raise error(f"{what} is invalid: it has no {place}", subject=label) from exc
        raise error(f"{what} is invalid: its {place} is {wrong['input']!r:.80}; {reason}", subject=label) from exc
    return parsed
