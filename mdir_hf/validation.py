"""Validate untrusted JSON against a type before anything is built from it."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from mdir_hf.budgets import Budget, json_weight
from mdir_hf.errors import CorruptCheckpointError, MdirError


@cache
def validator_of(kind: Any) -> Any:  # noqa: ANN401 - any type; pydantic is imported only when needed
    """Return a pydantic validator for a type, with the methods ``validate_json`` and ``validate_python``.

    Both raise ``ValidationError`` at the first invalid item, because a list of all errors could take gigabytes.
    """
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_giving_up_early(TypeAdapter(kind).core_schema))


def _giving_up_early(schema: Any) -> Any:  # noqa: ANN401 - nested containers
    if isinstance(schema, list):
        return [_giving_up_early(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: _giving_up_early(part) for name, part in schema.items()}
    return copied | {"fail_fast": True} if copied.get("type") in ("list", "tuple") else copied


T = TypeVar("T")

AS_WRITTEN = {"strict": True, "allow_inf_nan": False}
"""``__pydantic_config__`` for strict dataclasses, whose values are not converted between types."""


def read_json(
    data: bytes,
    kind: type[T],
    *,
    what: str,
    label: str | None,
    budget: Budget | None = None,
    error: type[MdirError] = CorruptCheckpointError,
) -> T:
    """Read JSON into an instance of ``kind``, ignoring unknown keys.

    Error messages call the data ``what`` and its file ``label``. If ``budget`` is None, the caller must check the size.

    Raises:
        MdirError: If the data is invalid. The error is an instance of ``error`` and names the invalid field.
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
