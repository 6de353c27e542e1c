"""The family of one model: the base models that an index finds, and those that its card declares, each compared."""

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
from mdir_space.jobs.access import sentence
from mdir_space.jobs.job import Emit, Interim, Job, throttled
from mdir_space.jobs.question import FamilyQuestion

NO_INDEX = "no index of base models lies on this server, so no base was looked for"
MAX_PLANNED = 4
"""Declared base models that a plan opens; a merge may declare a dozen, and each takes seconds."""


@dataclass(frozen=True)
class FamilyResult:
    """What is known of the family of one model.

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


@dataclass(frozen=True, kw_only=True)
class FamilyJob(Job[FamilyResult]):
    """Finds the family of one model. Other models are read in the same way as this one.

    Attributes:
        question: The question.
        index: Path or address of the index; empty: there is none.
        index_token: Token to download it with; None: none.
    """

    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)

    def run(self, emit: Emit) -> FamilyResult:
        """Search the index, then compare with the declared bases; send each finding."""
        work = _TwoHalves(self, emit)
        family = FamilyResult()
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


class _TwoHalves:
    """The search and the check of the card, under one limit on bytes."""

    def __init__(self, job: FamilyJob, emit: Emit) -> None:
        self._job, self._emit = job, emit
        self._model = NamedModel(job.access.models[0].pinned)
        self._reading = Reading(**job.read_options)
        self._n_before = self._n_read = 0
        self._send = throttled(emit)

    def search(self, family: FamilyResult) -> Identification:
        job = self._job
        if not job.index:
            raise MdirError(NO_INDEX)
        index = BaseIndex.open(job.index, token=job.index_token or False)
        return identify(
            self._model,
            index,
            settings=self._settings(),
            reading=self._reading,
            listeners=Listeners(progress=False, on_plan=self._emit, on_progress=self._on_progress),
            on_step=lambda found: self._emit(Interim(replace(family, found=found))),
        )

    def verify(self, family: FamilyResult) -> LineageCheck:
        self._n_before = self._n_read
        settings = self._settings()
        return verify_lineage(
            self._model,
            reading=self._reading,
            settings=replace(settings, max_bytes=None),
            listeners=Listeners(progress=False, on_plan=self._emit, on_progress=self._on_progress),
            max_bytes=settings.max_bytes,
            on_step=lambda check: self._emit(Interim(replace(family, declared=check))),
        )

    def _settings(self) -> Settings:
        job = self._job
        return Settings(
            level=Level(job.question.level),
            alpha=job.question.alpha,
            max_bytes=None if job.n_bytes is None else max(0, job.n_bytes - self._n_before),
            max_memory_bytes=job.memory_bytes,
        )

    def _on_progress(self, progress: Progress) -> None:
        self._n_read = self._n_before + progress.bytes_read
        expected = None if progress.bytes_expected is None else self._n_before + progress.bytes_expected
        self._send(Progress(progress.stage, self._n_read, expected))


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


@dataclass(frozen=True, kw_only=True)
class FamilyPlanJob(Job[FamilyPlan]):
    """Plans a :class:`FamilyJob`, and has its attributes."""

    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)

    def run(self, emit: Emit) -> FamilyPlan:
        """Read headers and tokenizers of the model and of the bases that its card declares; no weights."""
        model, question = self.access.models[0].pinned, self.question
        options = self.read_options
        search = None
        if question.searches and self.index:
            index = BaseIndex.open(self.index, token=self.index_token or False)
            search = plan_identification(NamedModel(model), index, alpha=question.alpha, reading=Reading(**options))
        declared, comparisons, not_planned = self._declared(model) if question.verifies else ((), {}, {})
        opened = [model, *map(_on_the_hub, declared)]
        requests = planned_requests(Reading(**options), for_rows=opened, for_cards=opened[:1])
        return FamilyPlan(search, declared, comparisons, not_planned, requests)

    def _declared(self, model: str) -> tuple[tuple[str, ...], dict[str, ReadPlan], dict[str, str]]:
        options = self.read_options
        plans: dict[str, ReadPlan] = {}
        not_planned: dict[str, str] = {}
        try:
            lineage = declared_lineage(
                model, token=options["token"], use_caches=options["use_caches"], public_only=options["public_only"]
            )
        except MdirError as exc:
            return (), plans, {"": sentence(exc)}
        by_construction = lineage.adapter_of if lineage.is_adapter else None
        declared = tuple(base for base in lineage.base_models if base != by_construction)
        if declared:
            checker = HomologyChecker.from_pretrained(model, alpha=self.question.alpha, **options)
            for base in declared[:MAX_PLANNED]:
                try:
                    plans[base] = checker.plan(_on_the_hub(base), level=self.question.level)
                except MdirError as exc:
                    not_planned[base] = sentence(exc)
        return declared, plans, not_planned


def _on_the_hub(repo: str) -> str:
    """Name a repository on the Hub, never a folder of that name: cards are written by strangers."""
    return f"hf://models/{repo}"
