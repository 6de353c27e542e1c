"""Small objects in JSON beside weights, checked against a dataclass. Whoever uploads a model writes them."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from ..errors import CorruptCheckpointError

T = TypeVar("T")

AS_WRITTEN = {"strict": True, "allow_inf_nan": False}
"""``__pydantic_config__`` of such a dataclass: no value is taken for one of another type."""


def read_json(data: bytes, kind: type[T], *, what: str, label: str) -> T:
    """Read a JSON object; keys that its class does not have are ignored.

    Args:
        data: The bytes.
        kind: A dataclass, or a type of a mapping.
        what: What an error calls the object.
        label: What an error calls the file.

    Raises:
        CorruptCheckpointError: If it is no JSON object, or a value is not of the type and within the limits of its
            field; names the field.
    """
    from pydantic import ValidationError

    try:
        found: T = _adapter(kind).validate_json(data)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as exc:
        # Of the alternatives of a union, the one that got furthest is the one that was meant.
        error = max(exc.errors(include_url=False), key=lambda error: len(error["loc"]))
        said = error["msg"].replace("Input should", "it should")
        if not error["loc"]:
            raise CorruptCheckpointError(f"{what} is no JSON object: {said}", subject=label) from exc
        raise CorruptCheckpointError(
            f"{what} cannot be right: its {error['loc'][0]} is {error['input']!r:.80}; {said}", subject=label
        ) from exc
    return found


@cache
def _adapter(kind: Any) -> Any:  # noqa: ANN401 - pydantic is imported when the first object is read, not before
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
