"""The result of checking a bill of materials, and the failures of a policy that follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass
from typing import Any

from mdir_hf.lineage.bom.read import BillOfMaterials, ListedModel, StatedBase, StatedDigest
from mdir_hf.lineage.policy import Condition, Failure
from mdir_hf.report import HomologyReport, Term

SCHEMA = "mdir-hf/bom-check/2"


class ModelState(Term):
    """State of a listed model."""

    UNCHANGED = "unchanged", "the model has not changed since the stated commit"
    CHANGED = "changed", "the model has changed since the stated commit"
    NO_COMMIT = "no_commit", "no commit is stated"
    COMMIT_GONE = "commit_gone", "the Hub does not have the stated commit"
    NOT_FOUND = "not_found", "not found on the Hub"
    NOT_READ = "not_read", "the Hub could not be read"
    NOT_MEASURED = "not_measured", "not looked up"


class DigestOutcome(Term):
    """Outcome of checking a stated digest."""

    MATCHES = "matches"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot_tell"
    NOT_READ = "not_read"


class ClaimOutcome(Term):
    """Outcome of checking a stated base."""

    CONFIRMED = "confirmed", "shared weight ancestry"
    CONFIRMED_IN_PART = "confirmed_in_part", "shared weight ancestry of a part only"
    CONTRADICTED = "contradicted", "the weights show another base"
    NOT_CONFIRMED = "not_confirmed", "the weights do not show it"
    INCONCLUSIVE = "inconclusive"
    OWN_BASE = "own_base", "the model is stated as its own base"
    NOT_FOUND = "not_found", "not found on the Hub"
    NOT_READ = "not_read", "the Hub could not be read"
    NOT_MEASURED = "not_measured", "not measured"


@dataclass(frozen=True, slots=True)
class DigestCheck:
    """A stated digest and the outcome of its check."""

    digest: StatedDigest
    outcome: DigestOutcome
    why: str


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A listed model and its state on the Hub.

    Attributes:
        repo: Current name of the repository on the Hub, or None.
        commit: Commit that is read for comparisons, or None.
        digests: A check of each stated digest; empty if the model could not be looked up.
    """

    listed: ListedModel
    state: ModelState
    why: str
    repo: str | None = None
    commit: str | None = None
    digests: tuple[DigestCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A stated base and the outcome of its check.

    Attributes:
        report: Comparison with the base as the reference, or None.
    """

    claim: StatedBase
    outcome: ClaimOutcome
    why: str
    report: HomologyReport | None = None


@dataclass(frozen=True, slots=True)
class BomCheck:
    """A bill of materials, with a check of each model and stated base.

    Attributes:
        bases: Bases that were looked up and state digests.
    """

    document: BillOfMaterials
    models: tuple[ModelCheck, ...] = ()
    claims: tuple[ClaimCheck, ...] = ()
    bases: tuple[ModelCheck, ...] = ()

    @property
    def outcomes(self) -> tuple[str, ...]:
        """States of models and outcomes of claims."""
        return (*(check.state.value for check in self.models), *(check.outcome.value for check in self.claims))

    def failures(self, required: Set[Condition] = frozenset()) -> tuple[Failure, ...]:
        """Return the statements that break a policy, in the order of the document.

        Without ``required``, these are the statements that are contradicted, or that the Hub's failure kept from being
        checked.
        """
        return tuple(dict.fromkeys(_failures(self, required)))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        claims = [
            {
                "model": check.claim.model.repo or check.claim.model.name,
                "base": check.claim.base.repo or check.claim.base.name,
                "part": check.claim.part,
                "stated_in": check.claim.stated_in,
                "outcome": check.outcome.value,
                "why": check.why,
                "report": None if check.report is None else check.report.to_dict(),
            }
            for check in self.claims
        ]
        return {
            "schema": SCHEMA,
            "spec_version": self.document.version,
            "tools": list(self.document.tools),
            "models": [_model_dict(check) for check in self.models],
            "bases": [_model_dict(check) for check in self.bases],
            "claims": claims,
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def result_without_hub(document: BillOfMaterials) -> BomCheck | None:
    """Return the result for a document that names no model on the Hub; None if a model has to be looked up."""
    models = {*document.models, *(claim.model for claim in document.claims), *(claim.base for claim in document.claims)}
    if any(model.repo is not None for model in models):
        return None
    claims = [
        ClaimCheck(claim, ClaimOutcome.NOT_FOUND, f"{claim.base}: {claim.base.why_no_repo}")
        for claim in document.claims
    ]
    return BomCheck(document, tuple(map(not_on_hub, document.models)), tuple(claims))


def not_on_hub(listed: ListedModel) -> ModelCheck:
    """Return the state of a model for which the document names no repository on the Hub."""
    return ModelCheck(listed, ModelState.NOT_FOUND, listed.why_no_repo)


def two_commits_text(listed: ListedModel) -> str:
    """Say that a model's version and package URL contradict each other."""
    return f"{listed}: its version and its package URL state different commits: {listed.version}"


def _model_dict(check: ModelCheck) -> dict[str, Any]:
    digests = [{**asdict(one.digest), "outcome": one.outcome.value, "why": one.why} for one in check.digests]
    listed = {name: getattr(check.listed, name) for name in ("name", "repo", "commit", "version")}
    return {**listed, "state": check.state.value, "why": check.why, "read_at": check.commit, "digests": digests}


_PINNED = (ModelState.UNCHANGED, ModelState.CHANGED)
_NOT_LOOKED_UP = (ModelState.NOT_FOUND, ModelState.NOT_READ, ModelState.NOT_MEASURED)


def _failures(check: BomCheck, required: Set[Condition]) -> Iterator[Failure]:
    if required and not check.models:
        yield Failure(min(required), "the bill lists no machine-learning model")
    for model in check.models:
        yield from _failures_of_model(model, required)
    for base in check.bases:
        yield from _failures_of_digests(base, required)
    if Condition.PINS in required:
        for claim in check.claims:
            if claim.claim.base.has_two_commits:
                yield Failure(Condition.PINS, two_commits_text(claim.claim.base))
    if Condition.DIGESTS in required:
        for digest in check.document.loose_digests:
            yield Failure(Condition.DIGESTS, f"{digest.file}: its digest is stated outside of any model")
    if Condition.BASES in required and not any(claim.claim.kind == "base" for claim in check.claims):
        yield Failure(Condition.BASES, "the bill states no base of a model")
    for claim in check.claims:
        is_unread = claim.outcome is ClaimOutcome.NOT_READ
        is_wrong = claim.outcome is ClaimOutcome.CONTRADICTED or Condition.BASES in required
        if is_unread or (is_wrong and claim.outcome is not ClaimOutcome.CONFIRMED):
            yield Failure(Condition.BASES, f"{claim.claim.model}: {_claim_line(claim)}", is_unread)


def _failures_of_model(check: ModelCheck, required: Set[Condition]) -> Iterator[Failure]:
    is_unread = check.state is ModelState.NOT_READ
    if is_unread or (Condition.PINS in required and check.state not in _PINNED):
        yield Failure(Condition.PINS, f"{check.listed}: {_state_text(check)}", is_unread)
    elif Condition.DIGESTS in required and check.state in (*_NOT_LOOKED_UP, ModelState.COMMIT_GONE):
        yield Failure(Condition.DIGESTS, f"{check.listed}: {_state_text(check)}")
    elif Condition.DIGESTS in required and check.state not in _PINNED and not check.digests:
        yield Failure(Condition.DIGESTS, f"{check.listed}: neither a digest nor a commit is stated")
    yield from _failures_of_digests(check, required)


def _failures_of_digests(check: ModelCheck, required: Set[Condition]) -> Iterator[Failure]:
    for digest in check.digests:
        is_unread = digest.outcome is DigestOutcome.NOT_READ
        is_wrong = digest.outcome is DigestOutcome.DIFFERS or Condition.DIGESTS in required
        if is_unread or (is_wrong and digest.outcome is not DigestOutcome.MATCHES):
            yield Failure(Condition.DIGESTS, f"{check.listed}: {digest.why}", is_unread)


def _lines(check: BomCheck) -> Iterator[str]:
    document = check.document
    by = f" by {', '.join(document.tools)}" if document.tools else ""
    n_models = len(document.models)
    yield f"CycloneDX {document.version}{by}: {n_models} model{'' if n_models == 1 else 's'}"
    of_model: dict[ListedModel, list[ClaimCheck]] = defaultdict(list)
    for claim in check.claims:
        of_model[claim.claim.model].append(claim)
    for model in check.models:
        yield f"  {model.listed}: {_state_text(model)}"
        yield from (f"    {digest.why}" for digest in model.digests if digest.outcome is not DigestOutcome.MATCHES)
        claims = of_model.pop(model.listed, [])
        yield from (f"    {_claim_line(claim)}" for claim in claims)
        if not claims:
            yield "    no base is stated; nothing to compare with"
    for base in check.bases:
        wrong = [digest.why for digest in base.digests if digest.outcome is not DigestOutcome.MATCHES]
        yield from (f"  {base.listed}, an ancestor: {why}" for why in wrong)
    for claims in of_model.values():
        yield from (f"  {claim.claim.model}, an ancestor: {_claim_line(claim)}" for claim in claims)
    if not document.models:
        yield "  no machine-learning model is listed"


def _state_text(check: ModelCheck) -> str:
    return f"{check.state.value.replace('_', ' ')} ({check.why})"


def _claim_line(check: ClaimCheck) -> str:
    claim, outcome = check.claim, check.outcome.value.replace("_", " ")
    part = "" if claim.part is None else f" of {claim.part}"
    return f"{claim.kind}{part} {claim.base} ({claim.stated_in}): {outcome}: {check.why}"
