"""Encode a report as JSON, and decode JSON with validation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any, get_type_hints

from mdir_hf.budgets import REPORT_JSON, json_weight
from mdir_hf.errors import InputError
from mdir_hf.report.models import READ_AS, ModelSummary
from mdir_hf.report.optional_parts import DirectionFact
from mdir_hf.report.parts import ReportRecord
from mdir_hf.report.result import HomologyReport, ReportArrays
from mdir_hf.report.terms import Verdict
from mdir_hf.validation import validator_of

_PARTS = {"screen": "embedding", "embedding": "embedding", "unembedding": "unembedding", "body": "layers"}
"""Part of a report that contains the p of each settling step."""


def upgraded(body: Any) -> Any:  # noqa: ANN401 - parsed JSON from an untrusted source
    """Upgrade a report of schema 1, 2 or 3 to schema 4; return anything else unchanged."""
    while isinstance(body, dict) and (step := _STEPS.get(str(body.get("schema")))):
        body = step(body)
    return body


def _second(body: dict[str, Any]) -> dict[str, Any]:
    defaults = {"log10_p_not_accepted": None, "excludes": None}
    new: dict[str, Any] = {**body, "schema": "mdir-hf/report/2", **defaults, **_headline(body)}
    layers = body.get("layers")
    if isinstance(layers, dict) and isinstance(layers.get("matrix"), list):
        matrix = layers["matrix"]
        n_columns = len(matrix[0]) if matrix and isinstance(matrix[0], list) else 0
        new["layers"] = {
            "fitted_on": None if layers.get("outer") == "identity" else "embeddings",
            "reference_layers": list(range(len(matrix))),
            "candidate_layers": list(range(n_columns)),
            **layers,
        }
    return new


def _headline(body: dict[str, Any]) -> dict[str, Any]:
    """Replace the headline p of schema 1, the smallest p, with the p of the verdict."""
    log10_p, alpha = body.get("log10_p"), body.get("alpha")
    if not isinstance(log10_p, float) or not isinstance(alpha, float) or not 0.0 < alpha < 1.0:
        return {}
    if body.get("verdict") != "homologous":
        return {"log10_p": 0.0, "log10_p_not_accepted": log10_p} if log10_p < math.log10(alpha) else {}
    part = body.get(_PARTS.get(str(body.get("settled_by")), ""))
    rests_on = part.get("log10_p") if isinstance(part, dict) else None
    if not isinstance(rests_on, float) or not log10_p < rests_on < math.log10(alpha):
        return {}
    return {"log10_p": rests_on}


def _third(body: dict[str, Any]) -> dict[str, Any]:
    """Rename fields to current terms, and add the fields of schema 3."""
    new = {"neurons": None, **body, "schema": "mdir-hf/report/3"}
    for key in ("level", "settled_by"):
        if new.get(key) == "body":
            new[key] = "layers"
    for key, renamed in _RENAMED_IN_3.items():
        part = new.get(key)
        if isinstance(part, dict):
            new[key] = {**_ADDED_IN_3[key], **{renamed.get(name, name): value for name, value in part.items()}}
            if key != "layers" and isinstance(part.get("numbering"), dict):
                new[key]["numbering"] = {"certain_share": 0.0, **part["numbering"]}
    if isinstance(new.get("seconds"), dict):
        new["seconds"] = {"layers" if name == "body" else name: value for name, value in new["seconds"].items()}
    return new


_RENAMED_IN_3 = {
    "embedding": {"stray_channels": "off_match_channels"},
    "unembedding": {"stray_channels": "off_match_channels"},
    "layers": {"outer": "residual_map", "stray_share": "off_match_share"},
}

_OF_MATRIX = {
    "settled_by": None,
    "widths": [0, 0],
    "channels": 0,
    "in_order_tested": True,
    "rows_are_equal": False,
    "channel_numbers_mean_something": False,
}
_ADDED_IN_3: dict[str, dict[str, Any]] = {
    "embedding": _OF_MATRIX,
    "unembedding": _OF_MATRIX,
    "layers": {"is_supported": True},
}


def _fourth(body: dict[str, Any]) -> dict[str, Any]:
    """Set a p that is not a bound to null, and add the fields of schema 4."""
    defaults = {"sample_seed": None, "parts": None, "coverage": None}
    new: dict[str, Any] = {**defaults, **body, "schema": "mdir-hf/report/4"}
    if new.get("assumption") == "calibration" and new.get("verdict") == "homologous":
        new["log10_p"] = None
    for key in ("embedding", "unembedding"):
        if isinstance(new.get(key), dict):
            new[key] = {"cosine": None, **new[key]}
    if isinstance(new.get("neurons"), dict):
        new["neurons"] = {"own_number_by_down": None, "idle": [], "is_searched": False, **new["neurons"]}
    return new


_STEPS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "mdir-hf/report/1": _second,
    "mdir-hf/report/2": _third,
    "mdir-hf/report/3": _fourth,
}


SCHEMA = "mdir-hf/report/4"
DERIVED = ("p_is_bound", "agreement")
"""Properties of a report that are fields in its JSON. Parsing only checks them."""
OPTIONAL = ("direction", "projections")
"""Fields that are missing from earlier reports in this schema."""
OF_DIRECTION = {"from": "earlier", "to": "later"}
"""JSON names that differ from the attributes of a :class:`DirectionFact`."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def plain_of(report: HomologyReport) -> dict[str, object]:
    """Return the report as plain dicts and lists, without its arrays."""
    body: dict[str, Any] = asdict(replace(report, arrays=ReportArrays()))
    del body["arrays"]
    body["direction"] = [fact.to_dict() for fact in report.direction]
    for side in ("reference", "candidate"):
        body[side] = {name: value for name, value in body[side].items() if value is not None or name not in READ_AS}
    for name in ("embedding", "unembedding"):  # so that digests of older reports stay valid
        if body[name] is not None and body[name]["printed"] is None:
            del body[name]["printed"]
    if body["neurons"] is not None and body["neurons"]["nominated"] is None:
        del body["neurons"]["nominated"]
    for result in [] if body["projections"] is None else body["projections"]["results"]:
        if result["experts"] is None:
            del result["experts"], result["unread_experts"]
    return {"schema": SCHEMA, **body, **{name: getattr(report, name) for name in DERIVED}}


def json_of(report: HomologyReport, *, indent: int | None = 2) -> str:
    """Return the report as one JSON object."""
    return json.dumps(plain_of(report), indent=indent, allow_nan=False)


def report_of(text: str) -> HomologyReport:
    """Parse a report in this schema or an older one.

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
    body = upgraded(body)
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise InputError(
            f"expected a report of schema {SCHEMA}, got {schema!r:.80}; read it with a version that knows it"
        )
    body = {"direction": [], "projections": None, **body}
    fields = {name: value for name, value in body.items() if name != "schema" and name not in DERIVED}
    fields["direction"] = _renamed(fields["direction"], OF_DIRECTION)
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
    if schema != SCHEMA:
        body = {**body, **{name: getattr(report, name) for name in DERIVED}}
    differing_path = next(_differences(body, json.loads(json_of(report))), None)
    if differing_path is not None:
        raise InputError(f"this report of schema {SCHEMA} is not valid: {differing_path} has the wrong type")
    return report


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report, as in ``report.schema.json``."""
    from pydantic import TypeAdapter

    body: dict[str, Any] = TypeAdapter(_body()).json_schema()
    summary = body["$defs"][ModelSummary.__name__]
    summary["required"] = [name for name in summary["required"] if name not in READ_AS]
    fact = body["$defs"][DirectionFact.__name__]
    in_json = {name: key for key, name in OF_DIRECTION.items()}
    fact["properties"] = {
        in_json.get(name, name): {**about, "title": in_json.get(name, name).title()}
        for name, about in fact["properties"].items()
    }
    fact["required"] = [in_json.get(name, name) for name in fact["required"]]
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
        "required": ["schema", *(name for name in body["required"] if name not in OPTIONAL), *DERIVED],
    }


@cache
def _body() -> Any:  # noqa: ANN401 - a class
    from typing_extensions import TypedDict

    hints = get_type_hints(HomologyReport, localns={"Figure": object}, include_extras=True)
    of_json = {field.name: hints[field.name] for field in fields(HomologyReport) if field.name != "arrays"}
    body = TypedDict("HomologyReport", of_json)  # type: ignore[misc]
    body.__pydantic_config__ = ReportRecord.__pydantic_config__  # type: ignore[attr-defined]
    return body


def _renamed(records: Any, names: dict[str, str]) -> Any:  # noqa: ANN401 - parsed JSON
    if not isinstance(records, list):
        return records
    return [
        {names.get(k, k): v for k, v in record.items()} if isinstance(record, dict) else record for record in records
    ]


def _differences(original: Any, decoded: Any, where: str = "report") -> Iterator[str]:  # noqa: ANN401 - parsed JSON
    """Yield the paths at which two JSON values differ; a missing field equals None."""
    if isinstance(original, dict) and isinstance(decoded, dict):
        for name in original.keys() | decoded.keys():
            yield from _differences(original.get(name), decoded.get(name), f"{where}.{name}")
    elif isinstance(original, list) and isinstance(decoded, list) and len(original) == len(decoded):
        for at, (original_item, decoded_item) in enumerate(zip(original, decoded, strict=True)):
            yield from _differences(original_item, decoded_item, f"{where}[{at}]")
    elif original != decoded or isinstance(original, bool) is not isinstance(decoded, bool):
        yield where
