"""A badge's claim: two pinned models, a verdict, and everything needed to reproduce it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from mdir_hf.errors import InputError
from mdir_hf.names import is_repo_id, quoted
from mdir_hf.report import READ_AS, HomologyReport, HowRead, Level, ModelSummary, SettledBy, Verdict
from mdir_hf.report.words import probability_text

SCHEMA = "mdir-hf/badge/3"
SHORT_DIGEST = 12
"""Number of hex digits shown; 48 bits are enough to distinguish reports."""

A_FOLDER = "a local folder"
"""Shown instead of a local path, which may contain private names."""

COMMIT = re.compile(r"[0-9a-f]{40}")

_LONGEST_PLACE = 300
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[!-~]{1,200}")  # git allows more, but only plain ASCII is accepted
_VERSION = re.compile(r"[\w.+!-]{1,64}", re.ASCII)
_LEAST_LOG10_P = -1e12


@dataclass(frozen=True, slots=True)
class PinnedModel(HowRead):
    """A model in a claim.

    Attributes:
        repo: Repo id; None for a local model, whose path is not published.
        tokenizer: :data:`A_FOLDER` if the tokenizer was read from a local folder.
    """

    repo: str | None
    revision: str | None
    commit: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict that states how the model was read."""
        body = {"repo": self.repo, "revision": self.revision, "commit": self.commit}
        return body | {name: value for name in READ_AS if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        return A_FOLDER if self.repo is None else f"{self.repo}@{self.commit}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A result reduced to what a badge shows, and everything needed to reproduce it.

    Attributes:
        log10_p: The report's ``log10_p``, at most 0, or None.
        settled_by: The step that settled a homologous verdict, or None.
        agreement: How much agrees, if the verdict is homologous and ``log10_p`` is None.
    """

    reference: PinnedModel
    candidate: PinnedModel
    verdict: Verdict
    log10_p: float | None
    alpha: float
    level: str
    seed: int
    version: str
    report_sha256: str
    settled_by: str | None = None
    agreement: str | None = None

    @property
    def label(self) -> str:
        """Left side of the badge."""
        return "shared weight ancestry" if self.verdict is Verdict.HOMOLOGOUS else "weight ancestry"

    @property
    def message(self) -> str:
        """Right side of the badge."""
        return {
            Verdict.HOMOLOGOUS: self._strength,
            Verdict.NO_EVIDENCE: "no evidence found",
            Verdict.INCONCLUSIVE: "inconclusive",
        }[self.verdict]

    @property
    def _strength(self) -> str:
        return self.agreement or "neurons match" if self.log10_p is None else probability_text(self.log10_p)

    @property
    def sentence(self) -> str:
        """Both sides of the badge as one line."""
        return f"{self.label.capitalize()}: {self.message}"

    @property
    def short_digest(self) -> str:
        """The part of the report's digest that is shown."""
        return self.report_sha256[:SHORT_DIGEST]

    @property
    def description(self) -> str:
        """Compared models, software version, and meaning of p."""
        return (
            f"{self.reference} and {self.candidate}. Report sha256 {self.short_digest}, mdir-hf {self.version}, "
            f"alpha {self.alpha:g}.{self._step} {self.what_p_says}"
        )

    @property
    def _step(self) -> str:
        return "" if self.settled_by is None else f" Settled by {SettledBy(self.settled_by).words}."

    @property
    def what_p_says(self) -> str:
        """Meaning of p for this pair."""
        if self.log10_p is None and self.verdict is Verdict.HOMOLOGOUS:
            return "No p is stated, because the partners of the neurons were searched for."
        return "p bounds the chance of such agreement between independently trained models; it has no direction."

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict that :func:`claim_of_dict` reads back."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "log10_p": self.log10_p,
            "alpha": self.alpha,
            "level": self.level,
            "seed": self.seed,
            "version": self.version,
            "reference": self.reference.to_dict(),
            "candidate": self.candidate.to_dict(),
            "report_sha256": self.report_sha256,
            "settled_by": self.settled_by,
            "agreement": self.agreement,
        }


def canonical_json(report: HomologyReport) -> bytes:
    """Return a report as the bytes that the digest is computed from: ASCII JSON with sorted keys and no spaces.

    Raises:
        InputError: If the report contains values that JSON cannot represent.
    """
    try:
        text = json.dumps(report.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"this report cannot be written as JSON: {exc}") from exc
    return text.encode("ascii")


def claim_of_report(report: HomologyReport) -> Claim:
    """Reduce a report to its claim, after checking that it is valid."""
    return _checked(
        Claim(
            reference=_pinned(report.reference),
            candidate=_pinned(report.candidate),
            verdict=report.verdict,
            log10_p=report.log10_p,
            alpha=report.alpha,
            level=report.level,
            seed=report.seed,
            version=report.version,
            report_sha256=hashlib.sha256(canonical_json(report)).hexdigest(),
            settled_by=None if report.settled_by is None else report.settled_by.value,
            agreement=None if report.p_is_bound else report.agreement,
        )
    )


def claim_of_dict(body: object) -> Claim:
    """Read back and validate the result of :meth:`Claim.to_dict`."""
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(body, dict) or schema != SCHEMA:
        raise InputError(f"expected the data of a badge of schema {SCHEMA}, got {quoted(schema, 60)}")
    try:
        fields = {name: value for name, value in body.items() if name != "schema"}
        fields["verdict"] = Verdict(fields["verdict"])
        for side in ("reference", "candidate"):
            model = PinnedModel(**fields[side])
            fields[side] = replace(model, bases=tuple(model.bases)) if isinstance(model.bases, list) else model
        return _checked(Claim(**fields))
    except (TypeError, ValueError, KeyError) as exc:
        if isinstance(exc, InputError):
            raise
        raise InputError(f"this badge of schema {SCHEMA} lacks or adds data: {quoted(str(exc), 60)}") from exc


def _pinned(model: ModelSummary) -> PinnedModel:
    if not is_repo_id(model.repo) or model.commit is None:
        return PinnedModel(None, None, None)
    revision = model.revision or None
    read_as = {name: getattr(model, name) for name in READ_AS}
    if model.tokenizer is not None and not _is_pinned_place(model.tokenizer):
        read_as["tokenizer"] = A_FOLDER
    return PinnedModel(model.repo, revision, model.commit, **read_as)


def _checked(claim: Claim) -> Claim:
    for model in (claim.reference, claim.candidate):
        if model.repo is None:
            _require("a model without a repo", model.commit, holds=model == PinnedModel(None, None, None))
        else:
            _require("the id of a repository", model.repo, holds=is_repo_id(model.repo))
            _require("a commit of 40 hex digits", model.commit, holds=_matches(COMMIT, model.commit))
            is_named = model.revision is None or _matches(_REVISION, model.revision)
            _require("a branch, tag or commit", model.revision, holds=is_named)
            for place in (model.subfolder, model.variant, model.file):
                _require("a folder, variant or file of a repository", place, holds=place is None or _is_place(place))
            is_known = model.tokenizer in (None, A_FOLDER) or _is_pinned_place(model.tokenizer)
            _require("a tokenizer at a commit", model.tokenizer, holds=is_known)
            are_pinned = model.bases is None or (
                isinstance(model.bases, tuple) and all(map(_is_pinned_place, model.bases))
            )
            _require("base models at commits", model.bases, holds=are_pinned)
    log10_p = claim.log10_p
    is_none = log10_p is None and claim.verdict is Verdict.HOMOLOGOUS
    is_bound = log10_p is not None and _is_number(log10_p) and _LEAST_LOG10_P < log10_p <= 0
    _require("log10_p at most 0", log10_p, holds=is_none or is_bound)
    _require("alpha between 0 and 1", claim.alpha, holds=_is_number(claim.alpha) and 0 < claim.alpha < 1)
    _require(f"a level out of {', '.join(Level)}", claim.level, holds=claim.level in tuple(Level))
    _require("a whole number as seed", claim.seed, holds=type(claim.seed) is int)
    _require("a version", claim.version, holds=_matches(_VERSION, claim.version))
    _require("a SHA-256", claim.report_sha256, holds=_matches(_SHA256, claim.report_sha256))
    is_settled = claim.verdict is Verdict.HOMOLOGOUS
    _require(
        "the step that settled the verdict homologous",
        claim.settled_by,
        holds=claim.settled_by in tuple(SettledBy) if is_settled else claim.settled_by is None,
    )
    has_agreement = claim.agreement is None or (log10_p is None and _is_place(claim.agreement))
    _require("a phrase on how much agrees", claim.agreement, holds=has_agreement)
    is_supported = claim.verdict is not Verdict.HOMOLOGOUS or log10_p is None or log10_p < 0
    _require("log10_p below 0 with the verdict homologous", claim.log10_p, holds=is_supported)
    return claim


def _is_place(text: object) -> bool:
    is_text = isinstance(text, str) and 0 < len(text) <= _LONGEST_PLACE and text.isprintable()
    return is_text and not {"", ".", ".."} & set(str(text).split("/"))


def _is_pinned_place(text: object) -> bool:
    repo, _, commit_and_folder = text.partition("@") if isinstance(text, str) else ("", "", "")
    commit, slash, folder = commit_and_folder.partition("/")
    return is_repo_id(repo) and _matches(COMMIT, commit) and (_is_place(folder) if slash else True)


def _require(expected: str, value: object, *, holds: bool) -> None:
    if not holds:
        raise InputError(f"this result cannot be stated: expected {expected}, got {quoted(value, 60)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
