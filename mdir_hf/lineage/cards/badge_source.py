"""Read the claim of a badge, report or endpoint from disk or the Hub. All of these files are untrusted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mdir_hf.budgets import REPORT_JSON, json_weight
from mdir_hf.errors import InputError, naming
from mdir_hf.lineage.cards.badge import endpoint_of
from mdir_hf.lineage.cards.claim import Claim, claim_of_dict, claim_of_report
from mdir_hf.lineage.cards.report_file import MOST_BYTES, REPORT_NAME, decoded, local_text
from mdir_hf.lineage.cards.svg import render_svg
from mdir_hf.model.hub.hub_file import read_hub_file
from mdir_hf.report import SCHEMA, HomologyReport

_MOST_SVG_CHARACTERS = 1 << 16
_REPORTS = SCHEMA.rpartition("/")[0]  # any version; the report reader checks which ones it supports


@dataclass(frozen=True, slots=True)
class BadgeSource:
    """A claim and its source.

    Attributes:
        name: File or URL.
        kind: badge, report or endpoint.
        claim: The claim.
        report: The whole report if available, else None.
        is_faithful: Whether the SVG, or the text of the endpoint, agrees with the claim.
    """

    name: str
    kind: str
    claim: Claim
    report: HomologyReport | None
    is_faithful: bool


def read_badge(
    source: str | os.PathLike[str],
    *,
    token: str | bool | None = None,
) -> BadgeSource:
    """Read a badge SVG, a report JSON, or an endpoint JSON with its ``report.json`` in the same folder.

    Args:
        source: A file, or a file URL on the Hub. No other server is contacted.
        token: Hub token.

    Raises:
        InputError: If the file is of another kind, too large or unreadable.
        HubError: If the Hub does not deliver the file.
    """
    name = os.fspath(source)
    text = _text(name, token)
    with naming(name):
        if text.lstrip().startswith("<"):
            claim = _claim_of_svg(text)
            return BadgeSource(name, "badge", claim, None, text.replace("\r\n", "\n") == render_svg(claim))
        body = _json_object(text, "is neither SVG nor JSON")
        if str(body.get("schema")).rpartition("/")[0] == _REPORTS:
            report = HomologyReport.from_json(text)
            return BadgeSource(name, "report", claim_of_report(report), report, True)
        if "schemaVersion" not in body:
            raise InputError("is neither a badge, nor a report of mdir-hf, nor the JSON of a badge endpoint")
    beside = _beside(name)
    with naming(beside):
        report = HomologyReport.from_json(_text(beside, token))
        claim = claim_of_report(report)
    return BadgeSource(name, "endpoint", claim, report, body == endpoint_of(claim))


def _text(name: str, token: str | bool | None) -> str:
    if "://" not in name:
        return local_text(name)
    content, _ = read_hub_file(name, max_bytes=MOST_BYTES, token=token)
    return decoded(content, name)


def _json_object(text: str, refusal: str) -> dict[str, Any]:
    excess = REPORT_JSON.excess(n_items=json_weight(text.encode("utf-8", "surrogatepass")), of="values")
    if excess is not None:
        raise InputError(excess)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(refusal) from exc
    if not isinstance(body, dict):
        raise InputError("is JSON, and not an object")
    return body


def _beside(name: str) -> str:
    """Return the path of an endpoint's report. It is a separate file because shields.io rejects additional fields."""
    if "://" in name:
        return f"{name.split('?')[0].rpartition('/')[0]}/{REPORT_NAME}"
    return str(Path(name).with_name(REPORT_NAME))


class _WithoutDoctype(ElementTree.TreeBuilder):
    """Reject document type declarations, so that no entities are expanded and no other files are read."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise InputError("declares a document type, which no badge does")


def _claim_of_svg(text: str) -> Claim:
    """Return the claim stored in the ``<metadata>`` of an SVG."""
    if len(text) > _MOST_SVG_CHARACTERS:
        raise InputError(f"has {len(text):,} characters, expected at most {_MOST_SVG_CHARACTERS:,} in a badge")
    try:
        root = ElementTree.fromstring(text, ElementTree.XMLParser(target=_WithoutDoctype()))
    except ElementTree.ParseError as exc:
        raise InputError(f"is not XML (line {exc.position[0]})") from exc
    data = "".join(element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "metadata")
    if not data:
        raise InputError("is a picture without the data of a badge of mdir-hf")
    return claim_of_dict(_json_object(data, "is a picture whose data is not JSON"))
