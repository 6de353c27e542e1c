"""From a badge, a report or an endpoint, here or on the Hub, to the claim that it makes. Any of it may be hostile."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat

from mdir_hf.cards.badge import endpoint_of
from mdir_hf.cards.claim import Claim, claim_of_dict, claim_of_report
from mdir_hf.cards.report_file import MOST_BYTES, REPORT_NAME, decoded, local_text
from mdir_hf.cards.svg import render_svg
from mdir_hf.errors import InputError
from mdir_hf.hub.hub_file import read_hub_file
from mdir_hf.report import SCHEMA, HomologyReport

_MOST_SVG_CHARACTERS = 1 << 16


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
    cache_dir: str | os.PathLike[str] | None = None,
) -> BadgeSource:
    """Read a badge SVG, a report JSON, or an endpoint JSON with its ``report.json`` beside it.

    Args:
        source: A file, or the address of one on the Hub; nothing else is asked.
        token: As the Hub client takes it.
        cache_dir: The Hub's cache.

    Raises:
        InputError: If it is none of these, too large, or cannot be read.
        HubError: If the Hub does not give the file.
    """
    name = os.fspath(source)
    text = _text(name, token, cache_dir)
    if text.lstrip().startswith("<"):
        claim = _claim_of_svg(text, name)
        return BadgeSource(name, "badge", claim, None, text.replace("\r\n", "\n") == render_svg(claim))
    body = _json(text, name)
    if body.get("schema") == SCHEMA:
        report = HomologyReport.from_json(text)
        return BadgeSource(name, "report", claim_of_report(report), report, True)
    if "schemaVersion" in body:
        report = HomologyReport.from_json(_text(_beside(name), token, cache_dir))
        claim = claim_of_report(report)
        return BadgeSource(name, "endpoint", claim, report, body == endpoint_of(claim))
    raise InputError("is neither a badge, nor a report of mdir-hf, nor the JSON of a badge endpoint", subject=name)


def _text(name: str, token: str | bool | None, cache_dir: str | os.PathLike[str] | None) -> str:
    if "://" not in name:
        return local_text(name)
    cache = None if cache_dir is None else os.fspath(cache_dir)
    content, _ = read_hub_file(name, max_bytes=MOST_BYTES, token=token, cache_dir=cache)
    return decoded(content, name)


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError("is neither SVG nor JSON", subject=name) from exc
    if not isinstance(body, dict):
        raise InputError("is JSON, and not an object", subject=name)
    return body


def _beside(name: str) -> str:
    """The report that belongs to an endpoint: shields refuses endpoints that hold more than their own fields."""
    if "://" in name:
        return f"{name.split('?')[0].rpartition('/')[0]}/{REPORT_NAME}"
    return str(Path(name).with_name(REPORT_NAME))


def _claim_of_svg(text: str, name: str) -> Claim:
    """Return what the ``<metadata>`` of a picture holds; no entity is defined, no other file asked for."""
    if len(text) > _MOST_SVG_CHARACTERS:
        raise InputError(
            f"has {len(text):,} characters, expected at most {_MOST_SVG_CHARACTERS:,} in a badge", subject=name
        )
    inside, pieces = False, list[str]()

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal inside
        inside = tag == "metadata"

    def end(tag: str) -> None:
        nonlocal inside
        inside = False

    def data(piece: str) -> None:
        if inside:
            pieces.append(piece)

    def refuse(*_: object) -> None:
        raise InputError("declares a document type, which no badge does", subject=name)

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = data, refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as exc:
        raise InputError(f"is not XML (line {exc.lineno})", subject=name) from exc
    except UnicodeEncodeError as exc:
        raise InputError("is not a text in UTF-8", subject=name) from exc
    if not pieces:
        raise InputError("is a picture without the data of a badge of mdir-hf", subject=name)
    try:
        return claim_of_dict(_json("".join(pieces), name))
    except InputError as exc:
        raise exc.about(name) from exc.__cause__
