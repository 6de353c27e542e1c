"""``mdir-hf verify``: compare a model with its declared base models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.progress import ByteCounter
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import CheckpointError, HubError, InputError, MdirError, StoppedError, one_line
from mdir_hf.lineage.cards.branches import are_same, hub_reference
from mdir_hf.lineage.cards.declared import DeclaredLineage, declared_in
from mdir_hf.lineage.cards.quantised import RelationOutcome, RelationTest, check_quantised
from mdir_hf.lineage.part_origins import origins_of_parts
from mdir_hf.lineage.policy import Condition, Failure, NotCompared, is_unread
from mdir_hf.model.files.adapters import AdaptedSource
from mdir_hf.model.hub import IoLedger, Repository
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.report import REASON_TEXT, HomologyReport, Verdict
from mdir_hf.report.words import unmatched_text

SCHEMA = "mdir-hf/lineage/1"
MOST_BASES = 32
"""Maximum number of declared bases to compare; the largest known merges have about a dozen."""

MOST_COMPARED_ANCESTORS = 3
"""Maximum number of a base's own ancestors to which a quantised model is compared."""

_MOST_ANCESTORS = 16  # maximum number of cards to read when looking for a cycle

MEASURED = {
    Verdict.HOMOLOGOUS: "shared weight ancestry",
    Verdict.NO_EVIDENCE: "no evidence of shared weight ancestry found",
    Verdict.INCONCLUSIVE: "inconclusive",
}


def no_match_text(report: HomologyReport) -> str:
    """Name the large parts of a related model that match nothing, with a semicolon before; empty if there are none."""
    if report.verdict is not Verdict.HOMOLOGOUS or report.coverage is None:
        return ""
    unmatched = unmatched_text(report.coverage.candidate)
    return f"; no match: {unmatched}" if unmatched else ""


@dataclass(frozen=True, slots=True)
class BaseCheck:
    """A declared base model and its comparison.

    Attributes:
        report: Comparison with the base as the reference, or None.
        why_not: Why there is no report, in a sentence.
        not_compared: The kind of reason, if there is no report.
        relation: Test of the declared relation; None if none is declared, or if it was not tested because the models
            do not share ancestry.
    """

    base: str
    report: HomologyReport | None
    why_not: str | None
    relation: RelationTest | None = None
    not_compared: NotCompared = NotCompared.NOT_MEASURED

    @property
    def outcome(self) -> str:
        """The verdict, or why there is none, a value of :class:`NotCompared`."""
        return str(self.not_compared if self.report is None else self.report.verdict)

    @property
    def is_under_adapter(self) -> bool:
        """Whether the model is an adapter whose config names this base, and whose tensors fit it."""
        return self.report is None and self.not_compared is NotCompared.BY_CONSTRUCTION

    @property
    def not_compared_text(self) -> str:
        """Why there is no report, after a word on what that means."""
        return f"{'an adapter' if self.is_under_adapter else 'not measured'}: {self.why_not}"

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcome, and the outcome of the declared relation if it was tested."""
        return (self.outcome,) if self.relation is None else (self.outcome, self.relation.outcome.value)


@dataclass(frozen=True, slots=True)
class LineageCheck:
    """The bases that a model declares, and a comparison with each.

    Attributes:
        bases: One entry per declared base, in order.
        cycle: A cycle of declarations that begins and ends with this model, or None.
    """

    declared: DeclaredLineage
    bases: tuple[BaseCheck, ...]
    cycle: tuple[str, ...] | None

    def failures(self, required: Set[Condition] = frozenset()) -> tuple[Failure, ...]:
        """Return the declarations that break a policy.

        Without ``required``, these are the declarations that are contradicted, or that the Hub's failure kept from
        being checked.
        """
        return tuple(_failures(self, required))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        bases = []
        for base in self.bases:
            report = None if base.report is None else base.report.to_dict()
            relation = base.relation and {"outcome": base.relation.outcome.value, "tested": base.relation.tested}
            bases.append(
                {
                    "base": base.base,
                    "outcome": base.outcome,
                    "why_not": base.why_not,
                    "relation": relation,
                    "report": report,
                }
            )
        cycle = None if self.cycle is None else list(self.cycle)
        return {"schema": SCHEMA, "declared": asdict(self.declared), "bases": bases, "cycle": cycle}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def verify_lineage(
    model: NamedModel,
    *,
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    listeners: Listeners = Listeners(),
    max_bytes: int | None = None,
    on_step: Callable[[LineageCheck], None] = lambda check: None,
) -> LineageCheck:
    """Compare a model with every base that its card declares.

    Args:
        model: The model. Its card is at the root of the repository, even if the model is in a subfolder.
        reading: How repositories are opened.
        settings: Settings of every comparison.
        listeners: Callbacks that receive progress.
        max_bytes: Limit on the total bytes read by all comparisons, or None.
        on_step: Called with each intermediate result.

    Raises:
        CardError: If the card cannot be read.
        InputError: If an argument is invalid.
        HubError: If the model's own repository cannot be read.
    """
    repository = reading.open(model.repo_or_folder, revision=model.revision)
    declared = declared_in(repository)
    check = LineageCheck(declared, (), None)
    on_step(check)
    counter = ByteCounter(listeners)

    def measure(base: str) -> HomologyReport:
        caps = [cap for cap in (settings.max_bytes, counter.left_of(max_bytes)) if cap is not None]
        capped = replace(settings, max_bytes=min(caps, default=None))
        base_model = NamedModel(hub_reference(base))
        return compare(base_model, model, reading=reading, settings=capped, listeners=counter.listeners)

    opened_bases: dict[str, Repository] = {}

    def opened_base(base: str) -> Repository:
        if base not in opened_bases:
            opened_bases[base] = reading.open(hub_reference(base))
        return opened_bases[base]

    def is_own_adapter(base: str) -> bool:
        if not declared.is_adapter or declared.adapter_of is None or not _is_same(base, declared.adapter_of):
            return False
        tensors = model.open(reading, IoLedger(max_bytes=counter.left_of(max_bytes))).tensors
        if isinstance(tensors, AdaptedSource):
            tensors.check_fits()
        return True

    def is_own(base: str) -> bool:
        return _is_same(base, declared.repo) or are_same(opened_base(base), repository)

    def declarations(base: str) -> DeclaredLineage:
        return declared_in(opened_base(base))

    def tested(base_check: BaseCheck) -> BaseCheck:
        named = declared.adapter_of if declared.is_adapter and declared.relation == "adapter" else None
        if named is not None and not _is_same(base_check.base, named):
            with suppress(HubError, CheckpointError):
                if not are_same(opened_base(base_check.base), opened_base(named)):
                    relation = RelationTest(RelationOutcome.CONTRADICTED, f"the adapter's config names {named}")
                    return replace(base_check, relation=relation)
        if declared.relation is None or base_check.outcome != Verdict.HOMOLOGOUS.value:
            return base_check
        if declared.relation != "quantized":
            return replace(base_check, relation=_UNTESTED[declared.relation])
        ledger = IoLedger(max_bytes=counter.left_of(max_bytes))

        def opened(name: str) -> Model:
            return NamedModel(hub_reference(name)).open(reading, ledger)

        try:
            ancestors = {}
            for name in _ancestors(base_check.base, declarations, declared.repo):
                with suppress(HubError, CheckpointError):
                    ancestors[name] = opened(name)
            relation = check_quantised(model.open(reading, ledger), base_check.base, opened(base_check.base), ancestors)
        except StoppedError:
            raise
        except MdirError as exc:
            relation = RelationTest(RelationOutcome.CANNOT_TELL, one_line(exc))
        return replace(base_check, relation=relation)

    for number, base in enumerate(declared.base_models):
        base_check = _check(declared, base, number, measure, is_own, is_own_adapter)
        check = replace(check, bases=(*check.bases, tested(base_check)))
        on_step(check)
    return replace(check, cycle=_cycle(declared, declarations))


def _check(
    declared: DeclaredLineage,
    base: str,
    number: int,
    measure: Callable[[str], HomologyReport],
    is_own: Callable[[str], bool],
    is_own_adapter: Callable[[str], bool],
) -> BaseCheck:
    if number >= MOST_BASES:
        return BaseCheck(base, None, f"only the first {MOST_BASES} declared base models are compared")
    try:
        if is_own_adapter(base):
            why = "its config names this base, and its tensors fit it"
            return BaseCheck(base, None, why, not_compared=NotCompared.BY_CONSTRUCTION)
        if is_own(base):
            why = "it declares itself as its own base model"
            return BaseCheck(base, None, why, not_compared=NotCompared.OWN_BASE)
        return BaseCheck(base, measure(base), None)
    except (InputError, StoppedError):
        raise
    except MdirError as exc:
        not_compared = NotCompared.NOT_READ if is_unread(exc) else NotCompared.NOT_MEASURED
        folder = _folder_of(base, beside=Path(declared.repo))
        hint = f"; {folder} may be this base: `mdir-hf compare {folder} {declared.repo}`" if folder else ""
        return BaseCheck(base, None, f"{one_line(exc)}{hint}", not_compared=not_compared)


def _folder_of(base: str, *, beside: Path) -> Path | None:
    """Return a folder beside a local model, or beside its owner's folder, that has the name of a base."""
    if not beside.is_dir():
        return None
    parent = Path(os.path.normpath(beside)).parent
    places = (parent / base, parent / base.rpartition("/")[2], parent.parent / base)
    return next((place for place in places if place.is_dir() and place != beside), None)


def _cycle(declared: DeclaredLineage, declarations: Callable[[str], DeclaredLineage]) -> tuple[str, ...] | None:
    chains: list[tuple[str, ...]] = [
        (declared.repo, base) for base in declared.base_models if not _is_same(base, declared.repo)
    ]
    seen_repos = {declared.repo.lower()}
    n_asked = 0
    while chains and n_asked < _MOST_ANCESTORS:
        chain = chains.pop(0)
        if chain[-1].lower() in seen_repos:
            continue
        seen_repos.add(chain[-1].lower())
        n_asked += 1
        try:
            bases = declarations(chain[-1]).base_models
        except MdirError:
            continue  # the comparison has already reported why it cannot be read
        for base in bases:
            if _is_same(base, declared.repo):
                return (*chain, declared.repo)
            chains.append((*chain, base))
    return None


_UNTESTED = {
    "finetune": RelationTest(
        RelationOutcome.CANNOT_TELL, "weights show that the models share ancestry, and not which was trained from which"
    ),
    "adapter": RelationTest(
        RelationOutcome.CANNOT_TELL, "only shared weights were tested: an adapter's config names the base it changes"
    ),
    "merge": RelationTest(
        RelationOutcome.CANNOT_TELL, "only shared weights were tested: --mergekit tests a recipe, and shares of parents"
    ),
}


def _ancestors(base: str, declarations: Callable[[str], DeclaredLineage], model: str) -> list[str]:
    """Return the bases that a base's card declares, and their bases, up to a limit."""
    found: list[str] = []
    pending = [base]
    while pending and len(found) < MOST_COMPARED_ANCESTORS:
        try:
            declared = declarations(pending.pop(0))
        except MdirError:
            continue
        for name in declared.base_models:
            if not any(_is_same(name, known) for known in (*found, base, model)):
                found.append(name)
                pending.append(name)
    return found[:MOST_COMPARED_ANCESTORS]


def _is_same(repo: str, other_repo: str) -> bool:
    return repo.lower() == other_repo.lower()


def _failures(check: LineageCheck, required: Set[Condition]) -> Iterator[Failure]:
    repo, declared = check.declared.repo, check.declared
    if Condition.BASES in required:
        if not check.bases:
            yield Failure(Condition.BASES, f"{repo}: it declares no base model")
        for text in declared.ignored:
            if text.startswith("base_model:"):
                yield Failure(Condition.BASES, f"{repo}: {text} does not name a repository")
    for base in check.bases:
        is_confirmed = base.is_under_adapter or base.outcome == Verdict.HOMOLOGOUS.value
        unread = base.report is None and base.not_compared is NotCompared.NOT_READ
        if unread or (Condition.BASES in required and not is_confirmed):
            yield Failure(Condition.BASES, f"{repo}: base {base.base} ({declared.source}): {_measured(base)}", unread)
        outcome = None if base.relation is None else base.relation.outcome
        needs_test = Condition.RELATIONS in required and declared.relation == "quantized"
        if outcome is RelationOutcome.CONTRADICTED or (needs_test and outcome is not RelationOutcome.CONFIRMED):
            tested = "" if base.relation is None else f": {base.relation.outcome.words}: {base.relation.tested}"
            why = tested or f": not tested, because the base is not confirmed: {_measured(base)}"
            yield Failure(Condition.RELATIONS, f"{repo}: {declared.relation} of {base.base}{why}")


def _lines(check: LineageCheck) -> list[str]:
    declared = check.declared
    commit = f" [{declared.commit[:8]}]" if declared.commit else ""
    lines = [f"{declared.repo}{commit}"]
    for base_check in check.bases:
        relation = f"{declared.relation} of {base_check.base}" if declared.relation else f"base model {base_check.base}"
        lines.append(f"  declared: {relation} ({declared.source}); {_measured(base_check)}")
        if base_check.relation is not None:
            lines.append(f"    {declared.relation}: {base_check.relation.outcome.words}: {base_check.relation.tested}")
        if base_check.report is not None:
            lines += [f"    direction: {fact.evidence}" for fact in base_check.report.direction]
    origins = origins_of_parts(
        {base_check.base: base_check.report for base_check in check.bases if base_check.report is not None}
    )
    lines += [f"  part: {origin}" for origin in origins]
    if not check.bases:
        lines.append("  declared: no base model; nothing to compare with")
    if check.cycle is not None:
        lines.append(f"  the declarations lead in a circle: {' -> '.join(check.cycle)}")
    if declared.new_version is not None:
        lines.append(f"  the card names a newer version: {declared.new_version}")
    lines += [f"  ignored (not a repository id or a known relation): {text}" for text in declared.ignored]
    return lines


def _measured(base_check: BaseCheck) -> str:
    report = base_check.report
    if report is None:
        return base_check.not_compared_text
    text = f"measured: {MEASURED[report.verdict]}"
    if report.reason is not None:
        text += f", {REASON_TEXT[report.reason]}"
    return f"{text}, {report.strength}{no_match_text(report)}" if report.strength else text
