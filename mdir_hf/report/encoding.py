"""Encode a report as JSON, and decode JSON with validation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any, get_type_hints

from mdir_hf.budgets import REPORT_JSON, json_weight
from mdir_hf.errors import InputError
from mdir_hf.report.models import READ_AS, ModelSummary
from mdir_hf.report.parts import ReportRecord
from mdir_hf.report.result import HomologyReport, ReportArrays
from mdir_hf.report.terms import Verdict
from mdir_hf.validation import validator_of

SCHEMA = "mdir-hf/report/5"
DERIVED = ("p_is_bound", "agreement")
"""Properties of a report that are fields in its JSON. Parsing only checks them."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def plain_of(report: HomologyReport) -> dict[str, object]:
    """Return the report as plain dicts and lists, without its arrays."""
    body: dict[str, Any] = asdict(replace(report, arrays=ReportArrays()))
    del body["arrays"]
    for side in ("reference", "candidate"):
        body[side] = {name: value for name, value in body[side].items() if value is not None or name not in READ_AS}
    for result in [] if body["projections"] is None else body["projections"]["results"]:
        if result["experts"] is None:
            del result["experts"], result["unread_experts"]
    return {"schema": SCHEMA, **body, **{name: getattr(report, name) for name in DERIVED}}


def json_of(report: HomologyReport, *, indent: int | None = 2) -> str:
    """Return the report as one JSON object."""
    return json.dumps(plain_of(report), indent=indent, allow_nan=False)


def report_of(text: str) -> HomologyReport:
    """Parse a report in this schema.

    Raises:
        InputError: If the text is not a report, or a field does not match the schema.
    """
    from pydantic import ValidationError

    data = text.encode("utf-8", "surrogatepass")
    excess = REPORT_JSON.excess(n_bytes=len(data), n_items=json_weight(data), of="values")
    if excess is not None:
        raise InputError(f"this is not a report of mdir-hf: it {excess}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"this is not a report of mdir-hf: not JSON ({exc})") from exc
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(body, dict) or schema != SCHEMA:
        raise InputError(
            f"expected a report of schema {SCHEMA}, got {schema!r:.80}; read it with a version that knows it"
        )
    fields = {name: value for name, value in body.items() if name != "schema" and name not in DERIVED}
    try:
        report = HomologyReport(**validator_of(_body()).validate_python(fields))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InputError(f"this report of schema {SCHEMA} is not valid: {where}: {first['msg']}"[:400]) from exc
    except (OverflowError, RecursionError) as exc:
        raise InputError(f"this report of schema {SCHEMA} has a number that is out of range ({exc})") from exc
    # Validation accepts "3" for 3, so compare the parsed report with the input.
    is_below = report.log10_p is None or report.log10_p < math.log10(report.alpha)
    if is_below is not (report.verdict is Verdict.HOMOLOGOUS):
        raise InputError(
            f"this report of schema {SCHEMA} contradicts itself: log10 p is {report.log10_p}, alpha {report.alpha:g}, "
            f"and the verdict {report.verdict}; p is below alpha, or null, if and only if the verdict is homologous"
        )
    difference = next(differences(body, json.loads(json_of(report))), None)
    if difference is not None:
        raise InputError(f"this report of schema {SCHEMA} is not valid: report.{difference[0]} has the wrong type")
    return report


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report, as in ``report.schema.json``."""
    from pydantic import TypeAdapter

    body: dict[str, Any] = TypeAdapter(_body()).json_schema()
    summary = body["$defs"][ModelSummary.__name__]
    summary["required"] = [name for name in summary["required"] if name not in READ_AS]
    return {
        "$schema": DIALECT,
        "title": "HomologyReport",
        "description": "The result of comparing two language models for shared weight ancestry.",
        **{key: value for key, value in body.items() if key not in ("title", "properties", "required")},
        "properties": {
            "schema": {"const": SCHEMA},
            **body["properties"],
            "p_is_bound": {"title": "P Is Bound", "type": "boolean"},
            "agreement": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Agreement"},
        },
        "required": ["schema", *body["required"], *DERIVED],
    }


@cache
def _body() -> Any:  # noqa: ANN401 - a class
    from typing_extensions import TypedDict

    hints = get_type_hints(HomologyReport, localns={"Figure": object}, include_extras=True)
    of_json = {field.name: hints[field.name] for field in fields(HomologyReport) if field.name != "arrays"}
    body = TypedDict("HomologyReport", of_json)  # type: ignore[misc]
    body.__pydantic_config__ = ReportRecord.__pydantic_config__  # type: ignore[attr-defined]
    return body


def differences(
    first: Any,  # noqa: ANN401 - parsed JSON
    second: Any,  # noqa: ANN401 - parsed JSON
    where: str = "",
    *,
    tolerance: float = 0.0,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths at which two JSON values differ, with both values; a missing field equals None.

    ``tolerance`` is both relative and absolute, and applies to numbers unless both are whole.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for name in dict.fromkeys((*first, *second)):
            path = f"{where}.{name}" if where else name
            yield from differences(first.get(name), second.get(name), path, tolerance=tolerance)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for at, (first_item, second_item) in enumerate(zip(first, second, strict=True)):
            yield from differences(first_item, second_item, f"{where}[{at}]", tolerance=tolerance)
    elif not _are_equal(first, second, tolerance):
        yield where, first, second


def _are_equal(first: Any, second: Any, tolerance: float) -> bool:  # noqa: ANN401 - parsed JSON
    if isinstance(first, bool) is not isinstance(second, bool):
        return False
    if {type(first), type(second)} in ({float}, {float, int}):
        return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
    return bool(first == second)
