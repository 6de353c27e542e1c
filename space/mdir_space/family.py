"""Who is the family of one model: what an index of base models finds, and what its own card declares, measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mdir_hf import (
    BaseIndex,
    HomologyChecker,
    Identification,
    Level,
    LineageCheck,
    Listeners,
    MdirError,
    NamedModel,
    Reading,
    ReadPlan,
    Settings,
    declared_lineage,
    identify,
    verify_lineage,
)
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import GatedRepositoryError, RepositoryNotFoundError, SeveralModelsError
from mdir_hf.lineage.index.planning import IdentificationPlan, plan_identification
from mdir_hf.lineage.survey.requests import PlannedRequests, planned_requests
from mdir_space.access import Access, sentence
from mdir_space.ways import FamilyQuestion
from mdir_space.work import SoFar, Tell, paced, rights_of

NO_INDEX = "no index of base models lies on this server, so no base was looked for"
MOST_PLANNED = 4
"""Declared base models that a plan opens; a merge may declare a dozen, and each takes seconds."""


@dataclass(frozen=True)
class Family:
    """What is known of one model's family.

    Attributes:
        found: What the index knows of it; None where it was not searched.
        not_searched: Why not, in a sentence; empty where it was, or was not asked for.
        declared: What its card declares, and what was measured; None where that was not looked at.
        not_declared: Why not, likewise.
    """

    found: Identification | None = None
    not_searched: str = ""
    declared: LineageCheck | None = None
    not_declared: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain containers: the schemas ``mdir-hf/identification/1`` and ``mdir-hf/lineage/1``, each or null."""
        return {
            "identification": None if self.found is None else self.found.to_dict(),
            "not_searched": self.not_searched or None,
            "lineage": None if self.declared is None else self.declared.to_dict(),
            "not_declared": self.not_declared or None,
        }


@dataclass(frozen=True)
class FamilyJob:
    """The work on one :class:`~mdir_space.ways.FamilyQuestion`, in a process of its own.

    Attributes:
        access: The model, and how it may be read; what it is compared with is read in the same way.
        question: What is asked of it.
        index: Path or address of the index; empty: there is none.
        index_token: Token to download it with; None: none.
        allow_local: Whether folders of this machine may be read.
        n_bytes: Most bytes that may be read in all; None: unbounded.
        memory_bytes: Most memory that the plan of each comparison may ask for; None: unbounded.
        cap_bytes: Most memory that the process may take on top of what it has when it starts; None: unbounded.
    """

    access: Access
    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)
    allow_local: bool = False
    n_bytes: int | None = None
    memory_bytes: int | None = None
    cap_bytes: int | None = None

    def do(self, tell: Tell) -> Family:
        """Search the index, then measure what the card declares; tell of each finding."""
        work = _FamilyWork(self, tell)
        family = Family()
        errors: list[MdirError] = []
        if self.question.searches:
            try:
                family = replace(family, found=work.search(family))
            except (GatedRepositoryError, RepositoryNotFoundError, SeveralModelsError):
                raise
            except MdirError as exc:
                errors.append(exc)
                family = replace(family, not_searched=sentence(exc))
        if self.question.verifies:
            try:
                family = replace(family, declared=work.verify(family))
            except MdirError as exc:
                errors.append(exc)
                family = replace(family, not_declared=sentence(exc))
        if errors and family.found is None and family.declared is None:
            raise errors[0]
        return family


class _FamilyWork:
    """The two halves of the work, under one cap on bytes."""

    def __init__(self, job: FamilyJob, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._model = NamedModel(job.access.models[0].pinned)
        self._reading = Reading(**rights_of(job.access, allow_local=job.allow_local))
        self._n_before = self._n_read = 0
        self._progressed = paced(tell)

    def search(self, family: Family) -> Identification:
        job = self._job
        if not job.index:
            raise MdirError(NO_INDEX)
        index = BaseIndex.open(job.index, token=job.index_token or False)
        return identify(
            self._model,
            index,
            settings=self._settings(),
            reading=self._reading,
            listeners=Listeners(progress=False, on_plan=self._tell, on_progress=self._hear),
            on_step=lambda found: self._tell(SoFar(replace(family, found=found))),
        )

    def verify(self, family: Family) -> LineageCheck:
        self._n_before = self._n_read
        settings = self._settings()
        return verify_lineage(
            self._model,
            reading=self._reading,
            settings=replace(settings, max_bytes=None),
            listeners=Listeners(progress=False, on_plan=self._tell, on_progress=self._hear),
            max_bytes=settings.max_bytes,
            on_step=lambda check: self._tell(SoFar(replace(family, declared=check))),
        )

    def _settings(self) -> Settings:
        job = self._job
        return Settings(
            level=Level(job.question.level),
            alpha=job.question.alpha,
            max_bytes=None if job.n_bytes is None else max(0, job.n_bytes - self._n_before),
            max_memory_bytes=job.memory_bytes,
        )

    def _hear(self, progress: Progress) -> None:
        self._n_read = self._n_before + progress.bytes_read
        expected = None if progress.bytes_expected is None else self._n_before + progress.bytes_expected
        self._progressed(Progress(progress.stage, self._n_read, expected))


@dataclass(frozen=True)
class FamilyPlan:
    """What finding the family of one model is going to read.

    Attributes:
        search: What the search of the index reads; None where there is none.
        declared: Base models that its card declares; empty where that is not asked for, or not known.
        comparisons: Of the first of those, what comparing the model with it reads.
        not_planned: Why there is no such plan, of the others of the first; and of the card, under an empty name.
        requests: What is asked of the Hub for all of these.
    """

    search: IdentificationPlan | None
    declared: tuple[str, ...]
    comparisons: Mapping[str, ReadPlan]
    not_planned: Mapping[str, str]
    requests: PlannedRequests


@dataclass(frozen=True)
class FamilyPlanJob:
    """The plan of a :class:`FamilyJob`, whose attributes these are."""

    access: Access
    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)
    allow_local: bool = False
    cap_bytes: int | None = None

    def do(self, tell: Tell) -> FamilyPlan:
        """Read headers and tokenizers of the model and of the bases that its card declares; no weights."""
        model, question = self.access.models[0].pinned, self.question
        rights = rights_of(self.access, allow_local=self.allow_local)
        search = None
        if question.searches and self.index:
            index = BaseIndex.open(self.index, token=self.index_token or False)
            search = plan_identification(NamedModel(model), index, alpha=question.alpha, reading=Reading(**rights))
        declared, comparisons, not_planned = self._declared(model) if question.verifies else ((), {}, {})
        opened = [model, *map(_on_the_hub, declared)]
        requests = planned_requests(Reading(**rights), for_rows=opened, for_cards=opened[:1])
        return FamilyPlan(search, declared, comparisons, not_planned, requests)

    def _declared(self, model: str) -> tuple[tuple[str, ...], dict[str, ReadPlan], dict[str, str]]:
        rights = rights_of(self.access, allow_local=self.allow_local)
        plans: dict[str, ReadPlan] = {}
        not_planned: dict[str, str] = {}
        try:
            lineage = declared_lineage(
                model, token=rights["token"], use_caches=rights["use_caches"], public_only=rights["public_only"]
            )
        except MdirError as exc:
            return (), plans, {"": sentence(exc)}
        by_construction = lineage.adapter_of if lineage.is_adapter else None
        declared = tuple(base for base in lineage.base_models if base != by_construction)
        if declared:
            checker = HomologyChecker.from_pretrained(model, alpha=self.question.alpha, **rights)
            for base in declared[:MOST_PLANNED]:
                try:
                    plans[base] = checker.plan(_on_the_hub(base), level=self.question.level)
                except MdirError as exc:
                    not_planned[base] = sentence(exc)
        return declared, plans, not_planned


def _on_the_hub(repo: str) -> str:
    """Name a repository on the Hub, never a folder of that name: cards are written by strangers."""
    return f"hf://models/{repo}"
