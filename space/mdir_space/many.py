"""Which of several models share weight ancestry: a survey that keeps nothing on the disk, and shows what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mdir_hf import (
    FamilyTree,
    Listeners,
    ModelResult,
    Progress,
    Reading,
    ResolvedModel,
    SurveyPlan,
    SurveyReport,
    draw_survey,
    figure_img,
    grow_tree,
    survey_arriving,
)
from mdir_space.access import Access
from mdir_space.ways import SurveyQuestion
from mdir_space.work import SoFar, Tell, paced, rights_of


@dataclass(frozen=True)
class Surveyed:
    """A survey, or as much of it as is done.

    Attributes:
        report: Models, pairs and groups.
        trees: The family tree of each group of relatives; empty until the end.
        pictures: The matrix and the dendrogram as elements of the page, by name; empty until the end.
        left_out: Which models of the list are not in it; empty where all are.
    """

    report: SurveyReport
    trees: tuple[FamilyTree, ...] = ()
    pictures: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain containers: the schema ``mdir-hf/survey/1``, with the trees of ``mdir-hf/tree/1``."""
        return {**self.report.to_dict(), "trees": [tree.to_dict() for tree in self.trees]}


@dataclass(frozen=True)
class SurveyJob:
    """The work on one :class:`~mdir_space.ways.SurveyQuestion`, in a process of its own.

    Attributes:
        access: The models, and how they may be read.
        question: What is asked of them; its names are models.
        left_out: As in the result.
        allow_local: Whether folders of this machine may be read.
        n_bytes: Most bytes that may be read in all; None: unbounded.
        cap_bytes: Most memory that the process may take on top of what it has when it starts; None: unbounded.
    """

    access: Access
    question: SurveyQuestion
    left_out: str = ""
    allow_local: bool = False
    n_bytes: int | None = None
    cap_bytes: int | None = None

    def do(self, tell: Tell) -> Surveyed:
        """Read one model after the other, compare it with those before it, and tell of it; then draw."""
        plan = SurveyPlan(
            names=tuple(dict.fromkeys(map(shown_as, self.access.models))),
            alpha=self.question.alpha,
            reading=Reading(**rights_of(self.access, allow_local=self.allow_local)),
            progress=False,
        )
        report, rows = survey_arriving(
            plan,
            max_bytes=self.n_bytes,
            listeners=Listeners(progress=False, on_progress=paced(tell)),
            on_model=lambda report: tell(SoFar(Surveyed(self._with_missing(report), left_out=self.left_out))),
        )
        tell(Progress("trees", sum(found.bytes_read for found in report.models.values())))
        groups = [group for group in report.groups() if len(group) > 1]
        trees = tuple(grow_tree({name: rows[name] for name in group}) for group in groups)
        light, dark = (draw_survey(report, rows, dark=is_dark) for is_dark in (False, True))
        # Not <picture>: a page of gradio may be dark on a light system, and the other way round.
        pictures = {
            name: f'<span class="when-light">{figure_img(light[name])}</span>'
            f'<span class="when-dark">{figure_img(dark[name])}</span>'
            for name in light
        }
        return Surveyed(self._with_missing(report), trees, pictures, self.left_out)

    def _with_missing(self, report: SurveyReport) -> SurveyReport:
        """Put the names beside it that are none of a model."""
        missing = self.access.left_out
        models = {name: ModelResult(name, None, why) for name, why in missing.items()}
        return replace(report, names=(*report.names, *missing), models={**report.models, **models})


def shown_as(model: ResolvedModel) -> str:
    """Return what a survey calls a model, which opens it again: its id where that is enough."""
    if model.pinned != f"hf://models/{model.repo}@{model.commit}":
        return model.pinned
    return model.repo if model.revision is None else f"{model.repo}@{model.revision}"
