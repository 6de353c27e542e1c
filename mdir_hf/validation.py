"""Untrusted JSON, checked against a type before anything is built from it."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def validator_of(kind: Any) -> Any:  # noqa: ANN401 - any type, and pydantic is imported when the first one is asked for
    """Return a validator of JSON, or plain containers, for a type.

    Lists fail at their first invalid item. Pydantic would go on and describe every error: a report of 3 MB took 1.1 GB,
    and an index of 60 MB more than 20 GB.

    Args:
        kind: A dataclass, a typed dictionary, or a type made of those, lists, mappings and plain values.

    Returns:
        An object with ``validate_json`` and ``validate_python``, which raise pydantic's ``ValidationError``.
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
