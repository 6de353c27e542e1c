"""Survey several models for shared weight ancestry, without storing files on disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mdir_hf import Listeners, MdirError, Reading, SurveyReport
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import SeveralModelsError
from mdir_hf.lineage.survey.drawing import FamilyDistances, draw_survey, family_distances, survey_cells
from mdir_hf.lineage.survey.folder import SurveyState
from mdir_hf.lineage.survey.reads import SurveyReads, plan_reads
from mdir_hf.lineage.survey.results import ModelResult
from mdir_hf.lineage.survey.run import SurveyPlan, run_survey
from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree
from mdir_hf.model.hub.repository import ResolvedModel
from mdir_hf.render.figures import CellGrid, figure_img
from mdir_space.jobs.access import MAX_CHOICES, Access
from mdir_space.jobs.job import Emit, Interim, Job, ReadOptions, throttled
from mdir_space.jobs.question import SurveyQuestion

DRAWING_SHARE = 0.2
"""Maximum share of time spent on drawing interim figures."""


@dataclass(frozen=True)
class SurveyPicture:
    """A figure of a survey.

    Attributes:
        light: Image for light pages, an HTML element.
        dark: Image for dark pages.
        cells: Texts of the cells.
    """

    light: str
    dark: str
    cells: tuple[CellGrid, ...]


@dataclass(frozen=True)
class SurveyResult:
    """A complete or interim survey.

    Attributes:
        trees: The family tree of each group of relatives; empty until the end.
        families: Distances between the relatives of each group; empty until the end.
        pictures: Figures by name: the matrix of compared pairs and, at the end, the dendrogram.
        left_out: A sentence on listed models that the survey leaves out, or empty.
        choices: For each ambiguous name, the names of the files that it may stand for.
        is_done: Whether the survey is complete.
    """

    report: SurveyReport
    trees: tuple[FamilyTree, ...] = ()
    families: FamilyDistances = field(default=(), compare=False)
    pictures: Mapping[str, SurveyPicture] = field(default_factory=dict)
    left_out: str = ""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_done: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists with the schema ``mdir-hf/survey/3``, and trees with ``mdir-hf/tree/1``."""
        return {**self.report.to_dict(), "trees": [tree.to_dict() for tree in self.trees]}


@dataclass(frozen=True, kw_only=True)
class SurveyJob(Job[SurveyResult]):
    """Surveys several models.

    Attributes:
        question: The question; all its names are models.
        left_out: A sentence on models that were left out, or empty.
        earlier: A survey of the same commits without layers, to be continued with layers; None to start anew.
    """

    question: SurveyQuestion
    left_out: str = ""
    earlier: SurveyResult | None = None

    def run(self, emit: Emit) -> SurveyResult:
        """Read the models one by one, comparing each with those before it; draw the trees at the end."""
        plan = _plan(self.access, self.question, self.read_options)
        growing = _GrowingPicture()
        earlier = self.earlier
        choices: dict[str, tuple[str, ...]] = {} if earlier is None else dict(earlier.choices)
        n_bytes = 0
        send_progress = throttled(emit)

        def keep_choices(name: str, exc: MdirError) -> None:
            if isinstance(exc, SeveralModelsError):
                choices[name] = tuple(f"{name}/{file}" for file in exc.files[:MAX_CHOICES])

        def send_report(report: SurveyReport) -> None:
            interim = SurveyResult(self._with_missing(report), pictures=growing.of(report), left_out=self.left_out)
            emit(Interim(replace(interim, choices=choices)))

        def count(progress: Progress) -> None:
            nonlocal n_bytes
            n_bytes = progress.bytes_read
            send_progress(progress)

        if earlier is None:
            state = SurveyState(plan.names, plan.settings)
        else:
            state = SurveyState.of(_of_names(earlier.report, plan.names))
        report = run_survey(
            plan,
            state,
            max_bytes=self.n_bytes,
            listeners=Listeners(progress=False, on_progress=count),
            on_change=send_report,
            on_failure=keep_choices,
        )
        rows = state.all_rows()
        emit(Progress("trees", n_bytes))
        groups = _families_of(report)
        known_trees = {} if earlier is None else dict(zip(_families_of(earlier.report), earlier.trees, strict=True))
        known_trees = {group: tree for group, tree in known_trees.items() if group in groups}
        families = [
            *(family for family in (() if earlier is None else earlier.families) if _is_within(family[0], known_trees)),
            *family_distances(report, rows.get),
        ]
        trees = tuple(
            known_trees.get(group) or grow_tree({name: rows[name] for name in group})
            for group in groups
            if group in known_trees or all(name in rows for name in group)
        )
        pictures = _drawn(report, families)
        report = self._with_missing(report)
        return SurveyResult(report, trees, families, pictures, self.left_out, choices, is_done=True)

    def _with_missing(self, report: SurveyReport) -> SurveyReport:
        """Add the names that could not be resolved."""
        missing = self.access.left_out
        models = {name: ModelResult(name, None, why) for name, why in missing.items()}
        return replace(report, names=(*report.names, *missing), models={**report.models, **models})


def _of_names(report: SurveyReport, names: tuple[str, ...]) -> SurveyReport:
    return replace(report, names=names, models={name: report.models[name] for name in names})


def _families_of(report: SurveyReport) -> list[tuple[str, ...]]:
    return [group for group in report.groups() if len(group) > 1]


def _is_within(names: tuple[str, ...], groups: Iterable[tuple[str, ...]]) -> bool:
    return any(set(names) <= set(group) for group in groups)


class _GrowingPicture:
    """The matrix of a running survey, redrawn when time permits."""

    def __init__(self) -> None:
        self._pictures: dict[str, SurveyPicture] = {}
        self._rests_until = 0.0

    def of(self, report: SurveyReport) -> dict[str, SurveyPicture]:
        """Return the current matrix, or the previous one if it is too early to redraw it."""
        began = time.monotonic()
        if report.pairs and began >= self._rests_until:
            self._pictures = _drawn(report)
            ends = time.monotonic()
            self._rests_until = ends + (ends - began) * (1.0 / DRAWING_SHARE - 1.0)
        return self._pictures


def _drawn(report: SurveyReport, families: FamilyDistances = ()) -> dict[str, SurveyPicture]:
    light, dark = (draw_survey(report, families, dark=is_dark) for is_dark in (False, True))
    cells = survey_cells(report, families, light)
    return {name: SurveyPicture(figure_img(light[name]), figure_img(dark[name]), cells[name]) for name in light}


@dataclass(frozen=True, kw_only=True)
class SurveyPlanJob(Job[SurveyReads]):
    """Plans a :class:`SurveyJob`; ``earlier`` is the survey that it continues."""

    question: SurveyQuestion
    earlier: SurveyResult | None = None

    def run(self, emit: Emit) -> SurveyReads:
        """Read headers and tokenizers of all models, but no weights."""
        reads = plan_reads(_plan(self.access, self.question, self.read_options))
        models = {} if self.earlier is None else self.earlier.report.models
        read_names = {name for name, result in models.items() if result.model is not None}
        return replace(
            reads,
            n_rows={name: 0 if name in read_names else n_rows for name, n_rows in reads.n_rows.items()},
            n_bytes={name: 0 if name in read_names else n_bytes for name, n_bytes in reads.n_bytes.items()},
        )


def _plan(access: Access, question: SurveyQuestion, options: ReadOptions) -> SurveyPlan:
    return SurveyPlan(
        names=tuple(dict.fromkeys(map(shown_as, access.models))),
        alpha=question.alpha,
        layers=question.layers,
        reading=Reading(**options),
        progress=False,
    )


def shown_as(model: ResolvedModel) -> str:
    """Return a model's name in a survey, which also opens the model: its id if sufficient."""
    if model.pinned != f"hf://models/{model.repo}@{model.commit}":
        return model.pinned
    return model.repo if model.revision is None else f"{model.repo}@{model.revision}"
