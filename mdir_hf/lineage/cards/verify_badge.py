"""``mdir-hf verify --badge``: recompute a claim from its pinned commits, and compare the results.

:func:`mdir_hf.check_report` repeats a comparison on the sample of its report. A badge is compared on a sample drawn
afresh, which its author could not foresee, so the numbers agree up to the sampling.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mdir_hf._version import __version__
from mdir_hf.budgets import REPORT_JSON, json_weight
from mdir_hf.comparison.api import compare
from mdir_hf.comparison.check import FieldDifference
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, naming
from mdir_hf.lineage.cards.badge import endpoint_of, render_svg
from mdir_hf.lineage.cards.badge_folder import MOST_BYTES, REPORT_NAME, decoded, local_text
from mdir_hf.lineage.cards.branches import BranchHead, branch_head_of, hub_reference
from mdir_hf.lineage.cards.claim import A_FOLDER, Claim, PinnedModel, claim_of_dict, claim_of_report
from mdir_hf.lineage.policy import Condition, Failure
from mdir_hf.model.hub.hub_file import read_hub_file
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import SCHEMA as REPORT_SCHEMA
from mdir_hf.report import HomologyReport, Level

_MOST_SVG_CHARACTERS = 1 << 16
_REPORTS = REPORT_SCHEMA.rpartition("/")[0]  # any version; the report reader checks which ones it supports


@dataclass(frozen=True, slots=True)
class BadgeSource:
    """A claim and the file from which it was read.

    Attributes:
        kind: ``badge``, ``report`` or ``endpoint``.
        is_faithful: Whether the SVG or the endpoint's text agrees with the claim.
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
    """Read a badge SVG, a report JSON, or an endpoint JSON with ``report.json`` next to it.

    ``source`` is a local file, or the URL of a file on the Hub. No server other than the Hub is contacted.

    Raises:
        InputError: If the file is none of these, too large or unreadable.
        HubError: If the file cannot be read from the Hub.
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
    if "://" in name:
        return f"{name.split('?')[0].rpartition('/')[0]}/{REPORT_NAME}"
    return str(Path(name).with_name(REPORT_NAME))


class _WithoutDoctype(ElementTree.TreeBuilder):
    """XML parser target that rejects document types, and therefore entities."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise InputError("declares a document type, which no badge does")


def _claim_of_svg(text: str) -> Claim:
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


SCHEMA = "mdir-hf/badge-check/1"

LEAST_TOLERANCE, RELATIVE_TOLERANCE = 0.5, 1e-5
"""Values of log10 p agree if they differ by at most half a decade, or by at most 1e-5 of their value."""

TOLERANCE_OF_SAMPLES = 0.05
"""Relative tolerance for log10 p of two comparisons of a pair that use different samples of neurons."""


ATTEMPTS = 3
"""Maximum number of comparisons. Each draws its own layers and neurons, so models that share only some layers, or only
faint copies, may be settled by another step, with another p."""

_BY_CHANCE = {"settled_by", "log10_p", "tests"}


@dataclass(frozen=True, slots=True)
class BadgeCheck:
    """A claim and the recomputed result.

    Attributes:
        state: ``match``, ``stale`` (the same result, but a model has changed since) or ``different``.
        differences: Fields of the claim or report that differ.
    """

    state: str
    source: BadgeSource
    differences: tuple[FieldDifference, ...]
    branches: tuple[BranchHead, ...]
    report: HomologyReport

    def failures(self, required: Set[Condition] = frozenset()) -> tuple[Failure, ...]:
        """Return the statements that break a policy; without ``required``, only a different result does."""
        name = self.source.name
        if self.state == "different":
            return (Failure(Condition.BASES, f"{name}: the result differs"),)
        if Condition.PINS not in required:
            return ()
        heads = ((branch, branch.head is None) for branch in self.branches)
        return tuple(
            Failure(Condition.PINS, f"{name}: {branch.repo}: {branch}", is_unread)
            for branch, is_unread in heads
            if is_unread or branch.changed
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "schema": SCHEMA,
            "state": self.state,
            "source": self.source.name,
            "kind": self.source.kind,
            "is_faithful": self.source.is_faithful,
            "claim": self.source.claim.to_dict(),
            "tolerance": {"log10_p": LEAST_TOLERANCE, "relative": RELATIVE_TOLERANCE},
            "differences": [difference._asdict() for difference in self.differences],
            "heads": [asdict(branch) for branch in self.branches],
            "report": self.report.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def verify_badge(
    source: str | os.PathLike[str],
    *,
    level: Level | None = None,
    reading: Reading = Reading(),
    tokenizers: tuple[str | None, str | None] = (None, None),
    settings: Settings = Settings(),
    listeners: Listeners = Listeners(),
) -> BadgeCheck:
    """Compare the two models of a badge again, at the same commits and with the same seed, alpha and level.

    ``source`` is as in :func:`read_badge`. If ``level`` differs from the claim's, only verdicts are compared.
    ``tokenizers`` names a repository or folder with the vocabulary of each model. It is needed if a vocabulary came
    from a local folder, which the claim does not name. ``settings`` provides the device and limits.

    Raises:
        InputError: If the source contains no claim, or one of the claim's models is not on the Hub.
    """
    token, cache_dir = reading.token, reading.cache_dir
    source_read = read_badge(source, token=token)
    claim = source_read.claim
    sides = (claim.reference, claim.candidate)
    if any(model.repo is None for model in sides):
        raise InputError(
            "one of its models was a local folder, so the result cannot be reproduced; compare two models on the Hub",
            subject=source_read.name,
        )
    reference, candidate = (
        _opened_as(model, tokenizer, source_read.name) for model, tokenizer in zip(sides, tokenizers, strict=True)
    )
    level = level or Level(claim.level)
    stored = source_read.report
    settings = replace(
        settings,
        level=level,
        alpha=claim.alpha,
        seed=claim.seed,
        describes=stored is not None and bool(stored.matrices),
        describes_relatives=stored is not None and stored.projections is not None,
    )
    for _ in range(ATTEMPTS):
        report = compare(reference, candidate, reading=reading, settings=settings, listeners=listeners)
        differences = tuple(_differences(source_read, report))
        if not differences or not _BY_CHANCE.issuperset(difference.field for difference in differences):
            break
    branches = tuple(branch_head_of(model, token=token, cache_dir=cache_dir) for model in sides)
    is_stale = any(branch.changed for branch in branches)
    state = "different" if differences or not source_read.is_faithful else "stale" if is_stale else "match"
    return BadgeCheck(state, source_read, differences, branches, report)


def _opened_as(model: PinnedModel, tokenizer: str | None, source: str) -> NamedModel:
    if tokenizer is None and model.tokenizer == A_FOLDER:
        raise InputError(
            f"the vocabulary of {model.repo} was read from a local folder; name one with --reference-tokenizer or "
            "--candidate-tokenizer",
            subject=source,
        )
    if tokenizer is None and model.tokenizer is not None:
        tokenizer = f"hf://models/{model.tokenizer}"
    return NamedModel(
        hub_reference(model.repo or "", model.commit, model.file),
        subfolder=model.subfolder or "",
        variant=model.variant,
        tokenizer=tokenizer,
        bases=model.bases or (),
    )


def agree(claimed: float, measured: float, *, relative: float = RELATIVE_TOLERANCE) -> bool:
    """Return whether two values of log10 p differ only by rounding.

    The order of summation changes log10 p by 1e-15 of its value in float64 and 1e-7 in float32 (docs/LOG.md,
    2026-11-21). The tolerance is a hundred times larger.
    """
    return abs(claimed - measured) <= max(LEAST_TOLERANCE, relative * abs(claimed))


# Fields that must be equal in each part of the report; log10 p of each part is compared with the tolerance.
_OF_MODEL = ("architecture", "hidden_size", "layers", "vocabulary")
_OF_MATRIX = ("common_tokens", "rows_used", "transformation")
_OF_PART = {
    "reference": _OF_MODEL,
    "candidate": _OF_MODEL,
    "embedding": _OF_MATRIX,
    "unembedding": _OF_MATRIX,
    "layers": ("matches",),
}


def _differences(source: BadgeSource, measured: HomologyReport) -> Iterator[FieldDifference]:
    claim, now = source.claim, claim_of_report(measured)
    if claim.verdict is not now.verdict:
        yield FieldDifference("verdict", claim.verdict.value, now.verdict.value)
    if claim.level != now.level:
        return
    if claim.settled_by != now.settled_by:
        yield FieldDifference("settled_by", claim.settled_by, now.settled_by)
    if claim.log10_p is not None and now.log10_p is not None:
        # Each comparison draws its own neurons, so p differs in its last digits.
        if not agree(claim.log10_p, now.log10_p, relative=TOLERANCE_OF_SAMPLES):
            yield FieldDifference("log10_p", float(claim.log10_p), float(now.log10_p))
    elif claim.log10_p is not now.log10_p:
        yield FieldDifference("log10_p", claim.log10_p, now.log10_p)
    if source.report is None:
        return
    then: dict[str, Any] = source.report.to_dict()
    today: dict[str, Any] = measured.to_dict()
    for name in ("reason", "tests"):
        if then[name] != today[name]:
            yield FieldDifference(name, then[name], today[name])
    for layers in (then["layers"], today["layers"]):
        if layers is not None:  # p of a pair of layers may differ in its last digits
            layers["matches"] = [list(match[:2]) for match in layers["matches"]]
    for part, exact in _OF_PART.items():
        claimed_part, measured_part = then[part], today[part]
        if claimed_part is None or measured_part is None:
            if claimed_part is not measured_part:
                yield FieldDifference(
                    part, *("not run" if side is None else "run" for side in (claimed_part, measured_part))
                )
            continue
        for name in exact:
            if claimed_part[name] != measured_part[name]:
                yield FieldDifference(f"{part}.{name}", claimed_part[name], measured_part[name])
        if "log10_p" in claimed_part and not agree(claimed_part["log10_p"], measured_part["log10_p"]):
            yield FieldDifference(f"{part}.log10_p", claimed_part["log10_p"], measured_part["log10_p"])


_STATES = {
    "match": "MATCH: computed again from the pinned commits, the result is the same",
    "stale": "STALE: at the pinned commits the result is the same, but a model has changed since",
    "different": "DIFFERENT: computed again from the pinned commits, the result differs from the claim",
}


def _lines(check: BadgeCheck) -> list[str]:
    claim, now = check.source.claim, claim_of_report(check.report)
    rows = [
        ("claimed", f"{claim.sentence} (mdir-hf {claim.version})"),
        ("measured", f"{now.sentence} (level {now.level}, mdir-hf {__version__})"),
    ]
    for model, branch in zip((claim.reference, claim.candidate), check.branches, strict=True):
        read_as = f" ({model.read_as})" if model.read_as else ""
        rows.append(("model", f"{model}{read_as}; {branch}"))
    if not check.source.is_faithful:
        shown = "picture" if check.source.kind == "badge" else "text"
        rows.append(("differs", f"the {shown} does not show what its data gives ({claim.sentence})"))
    rows += [("differs", str(difference)) for difference in check.differences]
    if claim.level != now.level:
        text = f"the claim is of level {claim.level}; at level {now.level} only the verdicts can be compared"
        rows.append(("note", text))
    if check.differences and claim.version != __version__:
        rows.append(("note", f"it was computed by mdir-hf {claim.version}, which may compute it in another way"))
    return [_STATES[check.state], "", *(f"  {name:<12} {text}" for name, text in rows)]
