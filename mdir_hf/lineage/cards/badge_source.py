"""Reads the claim of a badge, a report or an endpoint, local or on the Hub. Any of these files may be hostile."""

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
_REPORTS = SCHEMA.rpartition("/")[0]  # of any version; the reader of reports says which ones it knows


@dataclass(frozen=True, slots=True)
class BadgeSource:
    """A claim and where it was found.

    Attributes:
        name: The file or address.
        kind: badge, report or endpoint.
        claim: The claim.
        report: The whole report where there is one.
        is_faithful: Whether what is shown (the picture, or the texts of the endpoint) is what the claim gives.
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
    """Read a badge SVG, a report JSON, or an endpoint JSON with its ``report.json`` beside it.

    Args:
        source: A file, or the address of one on the Hub; no other server is asked.
        token: As the Hub client takes it.

    Raises:
        InputError: If it is something else, too large, or cannot be read.
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
    """Name the report of an endpoint: shields refuses endpoints with fields of others, so it is a file beside."""
    if "://" in name:
        return f"{name.split('?')[0].rpartition('/')[0]}/{REPORT_NAME}"
    return str(Path(name).with_name(REPORT_NAME))


class _WithoutDoctype(ElementTree.TreeBuilder):
    """Refuses a document type at its first word: no entity is defined, no other file asked for."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise InputError("declares a document type, which no badge does")


def _claim_of_svg(text: str) -> Claim:
    """Return what the ``<metadata>`` of a picture holds."""
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
