"""Check a third party's bill of materials: compare files with their stated digests, and models with their bases."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.progress import ByteCounter
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import (
    InputError,
    MdirError,
    MissingExtraError,
    OfflineError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    ServerError,
    StoppedError,
    one_line,
)
from mdir_hf.lineage.bom.read import WEIGHT_SUFFIXES, BillOfMaterials, ListedModel, StatedBase, StatedDigest
from mdir_hf.lineage.bom.result import (
    BomCheck,
    ClaimCheck,
    ClaimOutcome,
    DigestCheck,
    DigestOutcome,
    ModelCheck,
    ModelState,
    not_on_hub,
    two_commits_text,
)
from mdir_hf.lineage.cards.branches import changed_files, hub_reference
from mdir_hf.lineage.cards.declared import declared_in
from mdir_hf.lineage.cards.verify_lineage import MEASURED, no_match_text
from mdir_hf.lineage.policy import is_unread
from mdir_hf.model.hub import Repository
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import REASON_TEXT, HomologyReport, Verdict

MOST_CLAIMS = 64
"""Maximum number of pairs of models to compare per document."""
MOST_DECLARED = 4
"""Maximum number of bases of a model's card to compare if the document's base is not confirmed."""
MOST_LOOKUPS = 256
"""Maximum number of look-ups per document. Each is one repository at one commit, or one small file that is hashed."""
MOST_FAILURES = 3
"""Number of look-ups in a row that the Hub may fail before the others are left out."""

_MOST_HASHED_BYTES = 16 << 20
"""Maximum size of a file to hash if the Hub lists no digest. Such files are in git, which limits them to 10 MB."""
_SHA256_NAMES = ("SHA-256", "SHA256")


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

    Models are read at the stated commit, if any. The time is linear in the length of the document, and the numbers of
    requests and comparisons are limited.

    Args:
        document: The document, from :func:`~mdir_hf.lineage.bom.read.read_bom`.
        reading: How repositories are opened; local folders are rejected.
        settings: Settings of every comparison.
        listeners: Listeners of every comparison.
        max_bytes: Limit on the total bytes read by all comparisons, or None.
        on_step: Called with each intermediate result.

    Returns:
        The result; :meth:`~mdir_hf.lineage.bom.result.BomCheck.failures` applies a policy to it.

    Raises:
        InputError: If an argument is invalid.
        StoppedError: If a listener raises.
    """
    reading = replace(reading, allow_local=False)
    lookups = _Lookups(document, reading)
    checker = _ClaimChecker(document, lookups, reading, settings, listeners, max_bytes)
    models: list[ModelCheck] = []
    claims: list[ClaimCheck] = []

    def result() -> BomCheck:
        return BomCheck(document, tuple(models), tuple(claims), tuple(lookups.bases_with_digests))

    n_steps = -1
    for listed in document.models:
        models.append(lookups.place_of(listed))
        if lookups.n_made != n_steps:  # the number of steps is limited, and a result takes time linear in the document
            n_steps = lookups.n_made
            on_step(result())
    for claim in document.claims:
        claims.append(checker.check(claim))
        if lookups.n_made + checker.n_compared != n_steps:
            n_steps = lookups.n_made + checker.n_compared
            on_step(result())
    return result()


class _TooManyError(MdirError):
    """The document needs more look-ups than the limit."""


class _Lookups:
    """Looks up repositories and files on the Hub: each once, and a limited number."""

    def __init__(self, document: BillOfMaterials, reading: Reading) -> None:
        self._reading = reading
        self._listed = frozenset(document.models)
        self._places: dict[ListedModel, ModelCheck] = {}
        self._opened: dict[tuple[str, str | None], Repository | MdirError] = {}
        self._hashed: dict[tuple[str, str], str | MdirError] = {}
        self._n_failed = 0
        self.n_made = 0
        self.bases_with_digests: list[ModelCheck] = []

    def open(self, repo: str, revision: str | None = None) -> Repository:
        """Open a repository, or raise the error of the first attempt again."""
        key = (repo, revision)
        if key not in self._opened:
            self._expect_one_more()
            try:
                self._opened[key] = self._reading.open(hub_reference(repo, revision))
                self._n_failed = 0
            except (StoppedError, InputError):
                raise
            except MdirError as exc:
                self._opened[key] = exc
                has_failed = isinstance(exc, (OfflineError, RateLimitedError, ServerError))
                self._n_failed = self._n_failed + 1 if has_failed else 0
        answer = self._opened[key]
        if isinstance(answer, MdirError):
            raise answer
        return answer

    def sha256(self, repository: Repository, path: str) -> str:
        """Return the SHA-256 of a small file whose digest the Hub does not list."""
        key = (repository.label, path)
        if key not in self._hashed:
            self._expect_one_more()
            try:
                content = repository.read(path, max_bytes=_MOST_HASHED_BYTES)
                self._hashed[key] = hashlib.sha256(content).hexdigest()
            except StoppedError:
                raise
            except MdirError as exc:
                self._hashed[key] = exc
        answer = self._hashed[key]
        if isinstance(answer, MdirError):
            raise answer
        return answer

    def _expect_one_more(self) -> None:
        if self._n_failed >= MOST_FAILURES:
            raise ServerError(f"not asked, because the Hub failed {MOST_FAILURES} times in a row")
        if self.n_made >= MOST_LOOKUPS:
            raise _TooManyError(f"not looked up: only the first {MOST_LOOKUPS} look-ups of a bill are made")
        self.n_made += 1

    def place_of(self, listed: ListedModel) -> ModelCheck:
        """Look up a listed model."""
        if listed not in self._places:
            place = self._places[listed] = _look_up(listed, self)
            if place.digests and listed not in self._listed:
                self.bases_with_digests.append(place)
        return self._places[listed]


def _look_up(listed: ListedModel, lookups: _Lookups) -> ModelCheck:
    if listed.repo is None:
        return not_on_hub(listed)
    try:
        head = lookups.open(listed.repo)
        is_head = listed.commit is None or (head.commit or "").startswith(listed.commit)
        opened = head if is_head else lookups.open(listed.repo, listed.commit)
    except RepositoryNotFoundError as exc:
        return ModelCheck(listed, ModelState.NOT_FOUND, one_line(exc))
    except RevisionNotFoundError as exc:
        gone = one_line(exc) if listed.commit is None else f"the Hub does not have the stated commit {listed.commit}"
        return ModelCheck(listed, ModelState.COMMIT_GONE, gone)
    except (StoppedError, InputError):
        raise
    except MdirError as exc:
        state = ModelState.NOT_READ if is_unread(exc) else ModelState.NOT_MEASURED
        return ModelCheck(listed, state, one_line(exc))
    state, why = _state(listed, opened, head)
    weight_files = _weight_files(opened)
    digests = tuple(_check_digest(digest, opened, weight_files, lookups) for digest in listed.digests)
    n_equal = sum(check.outcome is DigestOutcome.MATCHES for check in digests)
    n_stated = len(digests)
    has_digests = f"{n_equal} of {n_stated} stated digests match" if n_stated else "no digest is stated"
    return ModelCheck(listed, state, f"{why}; {has_digests}", opened.present_name, opened.commit, digests)


def _state(listed: ListedModel, opened: Repository, head: Repository) -> tuple[ModelState, str]:
    if listed.commit is None:
        stated = "none is stated" if listed.version is None else f"the version is not one commit: {listed.version}"
        return ModelState.NO_COMMIT, f"{stated}; read at {_short(head)}"
    if not (opened.commit or "").startswith(listed.commit):
        return ModelState.NO_COMMIT, f"{listed.commit} is a branch or tag, and not a commit; read at {_short(opened)}"
    if opened.commit == head.commit:
        return ModelState.UNCHANGED, f"{_short(head)} is the newest commit"
    changed_paths = changed_files(opened, head)
    if not changed_paths:
        return ModelState.UNCHANGED, f"the newest commit is {_short(head)}, with no change to the model"
    names = ", ".join(changed_paths[:3]) + (", ..." if len(changed_paths) > 3 else "")
    return ModelState.CHANGED, f"the newest commit is {_short(head)}, changed: {names}"


def _weight_files(repository: Repository) -> list[str]:
    for suffix in WEIGHT_SUFFIXES:
        paths = [path for path in repository.files if path.lower().endswith(suffix)]
        if paths:
            return paths
    return []


def _check_digest(
    digest: StatedDigest, repository: Repository, weight_files: Sequence[str], lookups: _Lookups
) -> DigestCheck:
    named = "the model" if digest.file is None else digest.file
    if digest.algorithm.upper() not in _SHA256_NAMES:
        why = f"{named}: its {digest.algorithm or 'digest'} cannot be checked; the Hub lists SHA-256"
        return DigestCheck(digest, DigestOutcome.CANNOT_TELL, why)
    path = digest.file
    if path is None:
        if len(weight_files) != 1:
            why = f"a SHA-256 is stated without a file, and the model has {len(weight_files)} weight files"
            return DigestCheck(digest, DigestOutcome.CANNOT_TELL, why)
        (path,) = weight_files
    entry = repository.files.get(path)
    if entry is None:
        why = f"{path}: there is no such file at {_short(repository)}"
        return DigestCheck(digest, DigestOutcome.DIFFERS, why)
    try:
        sha256 = entry.sha256 or lookups.sha256(repository, path)
    except StoppedError:
        raise
    except MdirError as exc:
        outcome = DigestOutcome.NOT_READ if is_unread(exc) else DigestOutcome.CANNOT_TELL
        return DigestCheck(digest, outcome, f"{path}: its SHA-256 was not computed: {one_line(exc)}")
    if sha256 == digest.content:
        return DigestCheck(digest, DigestOutcome.MATCHES, f"{path}: has the stated SHA-256")
    why = f"{path}: has the SHA-256 {sha256[:12]}…, and not the stated {digest.content[:12] or 'empty text'}…"
    return DigestCheck(digest, DigestOutcome.DIFFERS, why)


class _ClaimChecker:
    """Compares models with their stated bases: each pair once, and a limited number."""

    def __init__(
        self,
        document: BillOfMaterials,
        lookups: _Lookups,
        reading: Reading,
        settings: Settings,
        listeners: Listeners,
        max_bytes: int | None,
    ) -> None:
        self._lookups = lookups
        self._reading = reading
        self._settings = settings
        self._counter = ByteCounter(listeners)
        self._max_bytes = max_bytes
        self._checks: dict[tuple[str, str], ClaimCheck] = {}
        self._claims_of: Mapping[ListedModel, list[StatedBase]] = defaultdict(list)
        for claim in document.claims:
            self._claims_of[claim.model].append(claim)

    @property
    def n_compared(self) -> int:
        """Number of compared pairs."""
        return len(self._checks)

    def check(self, claim: StatedBase) -> ClaimCheck:
        """Check a claim; if the weights do not show the base, look for one that they show."""
        check = self._compare(claim)
        if check.outcome is not ClaimOutcome.NOT_CONFIRMED or check.report is None or claim.kind != "base":
            return check
        for other in self._other_claims(claim):
            if self.n_compared >= MOST_CLAIMS:
                break
            if self._compare(other).outcome is ClaimOutcome.CONFIRMED:
                why = f"{check.why}; the weights show {other.base} ({other.stated_in})"
                return replace(check, outcome=ClaimOutcome.CONTRADICTED, why=why)
        return check

    def _other_claims(self, claim: StatedBase) -> Iterator[StatedBase]:
        """Yield other bases of a model: those that the document states, then those that the card declares."""
        for other in self._claims_of[claim.model]:
            if other.kind == "base" and other.part is None and other.base.repo not in (None, claim.base.repo):
                yield other
        commit = self._lookups.place_of(claim.model).commit
        if claim.model.repo is None or commit is None:
            return
        try:
            declared = declared_in(self._lookups.open(claim.model.repo, commit))
        except (StoppedError, InputError):
            raise
        except MdirError:
            return
        for base in declared.base_models[:MOST_DECLARED]:
            if base != claim.base.repo:
                listed = ListedModel(name=base, repo=base, commit=None)
                yield StatedBase(model=claim.model, base=listed, stated_in=f"declared in {declared.source}")

    def _compare(self, claim: StatedBase) -> ClaimCheck:
        if claim.base.repo is not None and claim.base.repo.lower() == (claim.model.repo or "").lower():
            return ClaimCheck(claim, ClaimOutcome.OWN_BASE, _OWN_BASE)
        base, model = self._lookups.place_of(claim.base), self._lookups.place_of(claim.model)
        for place in (base, model):
            if place.commit is None:
                outcome = _UNREAD_OUTCOMES.get(place.state, ClaimOutcome.NOT_MEASURED)
                return ClaimCheck(claim, outcome, f"{place.listed}: {place.why}")
        for listed in (claim.base, claim.model):
            if listed.has_two_commits:
                return ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, two_commits_text(listed))
        assert base.repo is not None and model.repo is not None
        if base.repo.lower() == model.repo.lower():
            return ClaimCheck(claim, ClaimOutcome.OWN_BASE, f"{_OWN_BASE}: on the Hub, both are {model.repo}")
        pair = (hub_reference(base.repo, base.commit), hub_reference(model.repo, model.commit))
        if pair not in self._checks:
            if self.n_compared >= MOST_CLAIMS:
                why = f"only the first {MOST_CLAIMS} pairs of a bill are compared"
                return ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, why)
            self._checks[pair] = self._measured(claim, *pair)
        check = self._checks[pair]
        outcome = check.outcome
        if claim.part is not None and outcome is ClaimOutcome.CONFIRMED_IN_PART:
            outcome = ClaimOutcome.CONFIRMED
        note = f"; {claim.base}: {base.why}" if base.state is ModelState.CHANGED else ""
        return replace(check, claim=claim, outcome=outcome, why=check.why + note)

    def _measured(self, claim: StatedBase, base: str, model: str) -> ClaimCheck:
        caps = [self._settings.max_bytes, self._counter.left_of(self._max_bytes)]
        capped = replace(self._settings, max_bytes=min((cap for cap in caps if cap is not None), default=None))
        try:
            report = compare(
                NamedModel(base),
                NamedModel(model),
                reading=self._reading,
                settings=capped,
                listeners=self._counter.listeners,
            )
        except MissingExtraError as exc:  # affects only this model
            return ClaimCheck(claim, ClaimOutcome.NOT_MEASURED, one_line(exc))
        except (InputError, StoppedError):
            raise
        except RepositoryNotFoundError as exc:
            return ClaimCheck(claim, ClaimOutcome.NOT_FOUND, one_line(exc))
        except MdirError as exc:
            outcome = ClaimOutcome.NOT_READ if is_unread(exc) else ClaimOutcome.NOT_MEASURED
            return ClaimCheck(claim, outcome, one_line(exc))
        return _judged(claim, report)


_OWN_BASE = "the model is stated as its own base"
_UNREAD_OUTCOMES = {
    ModelState.NOT_FOUND: ClaimOutcome.NOT_FOUND,
    ModelState.COMMIT_GONE: ClaimOutcome.NOT_FOUND,
    ModelState.NOT_READ: ClaimOutcome.NOT_READ,
}


def _judged(claim: StatedBase, report: HomologyReport) -> ClaimCheck:
    if report.verdict is Verdict.HOMOLOGOUS:
        why = f"{MEASURED[report.verdict]}, {report.strength}{no_match_text(report)}"
        return ClaimCheck(claim, ClaimOutcome.CONFIRMED, why, report)
    parts = [pair.candidate for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS]
    if parts:
        why = f"the language models show no evidence of it; these parts share weights: {', '.join(parts)}"
        return ClaimCheck(claim, ClaimOutcome.CONFIRMED_IN_PART, why, report)
    reason = "" if report.reason is None else f", {REASON_TEXT[report.reason]}"
    outcome = ClaimOutcome.NOT_CONFIRMED if report.verdict is Verdict.NO_EVIDENCE else ClaimOutcome.INCONCLUSIVE
    return ClaimCheck(claim, outcome, f"{MEASURED[report.verdict]}{reason}", report)


def _short(repository: Repository) -> str:
    return (repository.commit or "")[:8]
