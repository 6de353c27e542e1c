"""Check a third party's bill of materials: compare files with their stated digests, and models with their bases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.progress import ByteCounter
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import (
    InputError,
    MdirError,
    MissingExtraError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    StoppedError,
    one_line,
)
from mdir_hf.lineage.bom.read import WEIGHT_SUFFIXES, BillOfMaterials, ListedModel, StatedBase
from mdir_hf.lineage.cards.branches import changed_files, hub_reference
from mdir_hf.lineage.cards.declared import declared_in
from mdir_hf.lineage.cards.verify_lineage import MEASURED
from mdir_hf.model.hub import Repository
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import REASON_TEXT, HomologyReport, Term, Verdict

SCHEMA = "mdir-hf/bom-check/1"
MOST_CLAIMS = 64
"""Maximum number of stated bases to compare per document."""
MOST_DECLARED = 4
"""Maximum number of bases of a model's card to compare if the document's base is not confirmed."""
MOST_MODELS = 256
"""Maximum number of models to look up per document."""


class ModelState(Term):
    """State of a listed model."""

    UNCHANGED = "unchanged", "the listed commit is the newest, or the model has not changed since"
    CHANGED = "changed", "the model has changed since the document was written"
    NO_COMMIT = "no_commit", "the document states neither a commit nor digests"
    NOT_FOUND = "not_found", "not found on the Hub"
    NOT_MEASURED = "not_measured", "could not be read"


class ClaimOutcome(Term):
    """Outcome of checking a stated base."""

    CONFIRMED = "confirmed", "shared weight ancestry"
    CONFIRMED_IN_PART = "confirmed_in_part", "shared weight ancestry of a part only"
    CONTRADICTED = "contradicted", "the weights show another base"
    NOT_CONFIRMED = "not_confirmed", "the weights do not show it"
    INCONCLUSIVE = "inconclusive"
    NOT_FOUND = "not_found", "not found on the Hub"
    NOT_MEASURED = "not_measured", "not measured"


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A listed model and its state on the Hub.

    Attributes:
        commit: Commit that is read for comparisons, or None.
    """

    listed: ListedModel
    state: ModelState
    why: str
    commit: str | None = None


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
    """A bill of materials, with a check of each model and stated base."""

    document: BillOfMaterials
    models: tuple[ModelCheck, ...]
    claims: tuple[ClaimCheck, ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """States of models and outcomes of claims, as named by ``--fail-on``."""
        return (*(check.state.value for check in self.models), *(check.outcome.value for check in self.claims))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        models = [
            {**asdict(check.listed), "state": check.state.value, "why": check.why, "read_at": check.commit}
            for check in self.models
        ]
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
            "models": models,
            "claims": claims,
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def check_bom(
    document: BillOfMaterials,
    *,
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    listeners: Listeners = Listeners(),
    max_bytes: int | None = None,
    on_step: Callable[[BomCheck], None] = lambda check: None,
) -> BomCheck:
    """Look up the models of a bill of materials, and compare each with its stated bases.

    Models are read at the stated commit, if any.

    Args:
        document: The document, from :func:`~mdir_hf.lineage.bom.read.read_bom`.
        reading: How repositories are opened; local folders are rejected.
        settings: Settings of every comparison.
        listeners: Listeners of every comparison.
        max_bytes: Limit on the total bytes read by all comparisons, or None.
        on_step: Called with each intermediate result.

    Raises:
        InputError: If an argument is invalid.
        StoppedError: If a listener raises.
    """
    reading = replace(reading, allow_local=False)
    check = BomCheck(document, (), ())
    places: dict[ListedModel, ModelCheck] = {}

    def place_of(listed: ListedModel) -> ModelCheck:
        if listed not in places:
            places[listed] = _look_up(listed, reading)
        return places[listed]

    for number, listed in enumerate(document.models):
        if number >= MOST_MODELS:
            model_check = ModelCheck(
                listed, ModelState.NOT_MEASURED, f"only the first {MOST_MODELS} models are looked up"
            )
        else:
            model_check = place_of(listed)
        check = replace(check, models=(*check.models, model_check))
        on_step(check)
    counter = ByteCounter(listeners)
    checks: dict[tuple[str, str], ClaimCheck] = {}

    def checked_claim(claim: StatedBase) -> ClaimCheck:
        if len(checks) >= MOST_CLAIMS:
            why = f"only the first {MOST_CLAIMS} stated bases are compared"
            return ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, why)
        caps = [cap for cap in (settings.max_bytes, counter.left_of(max_bytes)) if cap is not None]
        capped = replace(settings, max_bytes=min(caps, default=None))
        return _check(claim, place_of, capped, reading, counter.listeners, checks)

    for claim in document.claims:
        checked = checked_claim(claim)
        if checked.outcome is ClaimOutcome.NOT_CONFIRMED and checked.report is not None:
            for other in _other_claims(claim, document, place_of, reading):
                if checked_claim(other).outcome is ClaimOutcome.CONFIRMED:
                    why = f"{checked.why}; the weights show {other.base} ({other.stated_in})"
                    checked = replace(checked, outcome=ClaimOutcome.CONTRADICTED, why=why)
                    break
        check = replace(check, claims=(*check.claims, checked))
        on_step(check)
    return check


def _other_claims(
    claim: StatedBase, document: BillOfMaterials, place_of: Callable[[ListedModel], ModelCheck], reading: Reading
) -> Iterator[StatedBase]:
    """Yield other bases of a model: those that the document states, then those that the card declares."""
    for other in document.claims:
        if other.model == claim.model and other.part is None and other.base.repo not in (None, claim.base.repo):
            yield other
    commit = place_of(claim.model).commit
    if claim.model.repo is None or commit is None:
        return
    try:
        declared = declared_in(reading.open(hub_reference(claim.model.repo, commit)))
    except (StoppedError, InputError):
        raise
    except MdirError:
        return
    for base in declared.base_models[:MOST_DECLARED]:
        if base != claim.base.repo:
            listed = ListedModel(name=base, repo=base, commit=None)
            yield StatedBase(model=claim.model, base=listed, stated_in=f"declared in {declared.source}")


def _look_up(listed: ListedModel, reading: Reading) -> ModelCheck:
    if listed.repo is None:
        return ModelCheck(listed, ModelState.NOT_FOUND, "the document names no repository on the Hub")
    try:
        head = reading.open(hub_reference(listed.repo))
        pinned = _pinned(listed, head, reading)
    except RepositoryNotFoundError as exc:
        return ModelCheck(listed, ModelState.NOT_FOUND, one_line(exc))
    except (StoppedError, InputError):
        raise
    except MdirError as exc:
        return ModelCheck(listed, ModelState.NOT_MEASURED, one_line(exc))
    if pinned is None:
        gone = f"the Hub no longer has the listed commit {listed.commit}; {_short(head)} is read instead"
        return ModelCheck(listed, ModelState.CHANGED, gone, head.commit)
    n_missing = _missing_digests(listed, pinned)
    if n_missing:
        n_stated = len(listed.hashes)
        verb = "is" if n_missing == 1 else "are"
        why = f"{n_missing} of {n_stated} stated SHA-256 {verb} of no file at {_short(pinned)}"
        return ModelCheck(listed, ModelState.CHANGED, why, pinned.commit)
    if listed.commit is None and not listed.hashes:
        return ModelCheck(
            listed, ModelState.NO_COMMIT, f"no commit or digest is stated; read at {_short(head)}", head.commit
        )
    files = "its files have the stated SHA-256" if listed.hashes else "no SHA-256 is stated"
    if pinned.commit == head.commit:
        return ModelCheck(listed, ModelState.UNCHANGED, f"{_short(head)} is the newest commit; {files}", pinned.commit)
    changed_paths = changed_files(pinned, head)
    if changed_paths:
        names = ", ".join(changed_paths[:3]) + (", ..." if len(changed_paths) > 3 else "")
        why = f"the newest commit is {_short(head)}, changed: {names}; {files}"
        return ModelCheck(listed, ModelState.CHANGED, why, pinned.commit)
    why = f"the newest commit is {_short(head)}, with no change to the model; {files}"
    return ModelCheck(listed, ModelState.UNCHANGED, why, pinned.commit)


def _pinned(listed: ListedModel, head: Repository, reading: Reading) -> Repository | None:
    if listed.commit is None or (head.commit or "").startswith(listed.commit):
        return head
    assert listed.repo is not None
    try:
        return reading.open(hub_reference(listed.repo, listed.commit))
    except RevisionNotFoundError:
        return None


def _missing_digests(listed: ListedModel, repository: Repository) -> int:
    digests = {entry.sha256 for entry in repository.files.values()}
    weights = [entry for path, entry in repository.files.items() if path.lower().endswith(WEIGHT_SUFFIXES)]
    if any(entry.sha256 is None for entry in weights):
        return 0
    return sum(digest not in digests for digest in listed.hashes)


def _check(
    claim: StatedBase,
    place_of: Callable[[ListedModel], ModelCheck],
    settings: Settings,
    reading: Reading,
    listeners: Listeners,
    checks: dict[tuple[str, str], ClaimCheck],
) -> ClaimCheck:
    references: list[str] = []
    for listed in (claim.base, claim.model):
        place = place_of(listed)
        if place.commit is None or listed.repo is None:
            outcome = ClaimOutcome.NOT_FOUND if place.state is ModelState.NOT_FOUND else ClaimOutcome.NOT_MEASURED
            return ClaimCheck(claim, outcome, f"{listed}: {place.why}")
        references.append(hub_reference(listed.repo, place.commit))
    base, model = references
    if base == model:
        return ClaimCheck(claim, ClaimOutcome.NOT_CONFIRMED, "the document states the model as its own base")
    check = checks.get((base, model))
    if check is None:
        try:
            report = compare(
                NamedModel(base), NamedModel(model), reading=reading, settings=settings, listeners=listeners
            )
            check = _judged(claim, report)
        except MissingExtraError as exc:  # affects only this model
            check = ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, one_line(exc))
        except (InputError, StoppedError):
            raise
        except RepositoryNotFoundError as exc:
            check = ClaimCheck(claim, ClaimOutcome.NOT_FOUND, one_line(exc))
        except MdirError as exc:
            check = ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, one_line(exc))
        checks[base, model] = check
    outcome = check.outcome
    if claim.part is not None and outcome is ClaimOutcome.CONFIRMED_IN_PART:
        outcome = ClaimOutcome.CONFIRMED
    place = place_of(claim.base)
    note = f"; {claim.base}: {place.why}" if place.state is ModelState.CHANGED else ""
    return replace(check, claim=claim, outcome=outcome, why=check.why + note)


def _judged(claim: StatedBase, report: HomologyReport) -> ClaimCheck:
    if report.verdict is Verdict.HOMOLOGOUS:
        return ClaimCheck(claim, ClaimOutcome.CONFIRMED, f"{MEASURED[report.verdict]}, {report.strength}", report)
    parts = [pair.candidate for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS]
    if parts:
        why = f"the language models show no evidence of it; these parts share weights: {', '.join(parts)}"
        return ClaimCheck(claim, ClaimOutcome.CONFIRMED_IN_PART, why, report)
    reason = "" if report.reason is None else f", {REASON_TEXT[report.reason]}"
    outcome = ClaimOutcome.NOT_CONFIRMED if report.verdict is Verdict.NO_EVIDENCE else ClaimOutcome.INCONCLUSIVE
    return ClaimCheck(claim, outcome, f"{MEASURED[report.verdict]}{reason}", report)


def _short(repository: Repository) -> str:
    return (repository.commit or "")[:8]


def _lines(check: BomCheck) -> list[str]:
    document = check.document
    by = f" by {', '.join(document.tools)}" if document.tools else ""
    n_models = len(check.models)
    lines = [f"CycloneDX {document.version}{by}: {n_models} model{'' if n_models == 1 else 's'}"]
    shown_models: set[ListedModel] = set()
    for model in check.models:
        lines.append(f"  {model.listed}: {model.state.value.replace('_', ' ')} ({model.why})")
        shown_models.add(model.listed)
        claims = [claim for claim in check.claims if claim.claim.model == model.listed]
        lines += [f"    {_claim_line(claim)}" for claim in claims]
        if not claims:
            lines.append("    no base is stated; nothing to compare with")
    for claim in check.claims:
        if claim.claim.model not in shown_models:
            lines.append(f"  {claim.claim.model}, an ancestor: {_claim_line(claim)}")
    if not check.models:
        lines.append("  no machine-learning model is listed")
    return lines


def _claim_line(check: ClaimCheck) -> str:
    part = "" if check.claim.part is None else f" of {check.claim.part}"
    return (
        f"base{part} {check.claim.base} ({check.claim.stated_in}): {check.outcome.value.replace('_', ' ')}: {check.why}"
    )
