"""The family of one model: base models from an index and its card, each compared with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mdir_hf import (
    BaseIndex,
    HomologyChecker,
    Level,
    Listeners,
    MdirError,
    NamedModel,
    Reading,
    ReadPlan,
    Settings,
    declared_lineage,
)
from mdir_hf.errors import one_line
from mdir_hf.lineage.bom.documents import read_model_facts
from mdir_hf.lineage.family import Family, find_family
from mdir_hf.lineage.index.building import IdentificationPlan, plan_identification
from mdir_hf.lineage.survey.reads import PlannedRequests, planned_requests
from mdir_hf.report import ModelFacts
from mdir_space.jobs.access import sentence
from mdir_space.jobs.job import Emit, Interim, Job, throttled
from mdir_space.jobs.question import FamilyQuestion

NO_INDEX = "this server has no index of base models, so no base was searched"
MAX_PLANNED = 4
"""Number of declared base models that a plan opens. A merge may declare a dozen, and each takes seconds."""


@dataclass(frozen=True, kw_only=True)
class FamilyJob(Job[Family]):
    """Finds the family of one model.

    Attributes:
        index: Path or URL of the index; empty for no index.
        index_token: Token to download the index with, or None.
    """

    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)

    def run(self, emit: Emit) -> Family:
        """Search the index, compare declared bases and map layers, sending each interim result."""
        question = self.question
        index, why_not = self._index() if question.searches else (None, "")
        if why_not and not question.verifies:
            raise MdirError(why_not)
        family = find_family(
            NamedModel(self.access.models[0].pinned),
            index,
            verifies=question.verifies,
            settings=Settings(
                level=Level(question.level),
                alpha=question.alpha,
                max_bytes=self.n_bytes,
                max_memory_bytes=self.memory_bytes,
                describes=True,
                describes_relatives=question.searches and question.verifies,
            ),
            reading=Reading(**self.read_options),
            listeners=Listeners(progress=False, on_plan=emit, on_progress=throttled(emit)),
            on_step=lambda so_far: emit(Interim(replace(so_far, not_searched=so_far.not_searched or why_not))),
        )
        return replace(family, not_searched=family.not_searched or why_not, facts=self._facts())

    def _facts(self) -> ModelFacts | None:
        try:
            return read_model_facts(NamedModel(self.access.models[0].pinned), reading=Reading(**self.read_options))
        except MdirError:
            return None

    def _index(self) -> tuple[BaseIndex | None, str]:
        """Open the index, or return the reason why it is not available."""
        if not self.index:
            return None, NO_INDEX
        try:
            return BaseIndex.open(self.index, token=self.index_token or False), ""
        except MdirError as exc:
            return None, one_line(exc)


@dataclass(frozen=True)
class FamilyPlan:
    """The reads needed to find the family of one model.

    Attributes:
        search: Reads of the index search; None if there is no index.
        declared: Base models declared in the card; empty if not requested or unknown.
        comparisons: Plans of the comparisons with the first declared bases.
        not_planned: Reasons for missing plans, keyed by base; the empty key stands for the card.
        requests: Requests to the Hub for the whole job.
    """

    search: IdentificationPlan | None
    declared: tuple[str, ...]
    comparisons: Mapping[str, ReadPlan]
    not_planned: Mapping[str, str]
    requests: PlannedRequests


@dataclass(frozen=True, kw_only=True)
class FamilyPlanJob(Job[FamilyPlan]):
    """Plans a :class:`FamilyJob`, which has the same attributes."""

    question: FamilyQuestion
    index: str = ""
    index_token: str | None = field(default=None, repr=False)

    def run(self, emit: Emit) -> FamilyPlan:
        """Read headers and tokenizers of the model and its declared bases, but no weights."""
        model, question = self.access.models[0].pinned, self.question
        options = self.read_options
        search = None
        if question.searches and self.index:
            index = BaseIndex.open(self.index, token=self.index_token or False)
            search = plan_identification(NamedModel(model), index, alpha=question.alpha, reading=Reading(**options))
        declared, comparisons, not_planned = self._declared(model) if question.verifies else ((), {}, {})
        opened_names = [model, *map(_on_the_hub, declared)]
        requests = planned_requests(Reading(**options), for_rows=opened_names, for_cards=opened_names[:1])
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
    """Return the Hub URL of a repository, so that a card cannot name a local folder."""
    return f"hf://models/{repo}"
