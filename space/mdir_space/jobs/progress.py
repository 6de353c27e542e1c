"""The progress of a whole job as a number that never decreases, even if a stage restarts."""

from __future__ import annotations

import math

from mdir_hf import ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.lineage.family import Family
from mdir_space.jobs.estimate import OPENING_S, SECONDS_OF_PAIR
from mdir_space.jobs.job import Event, Interim
from mdir_space.jobs.reconstruction import STAGE
from mdir_space.jobs.survey import SurveyResult

OPENED = 0.1
"""Share assigned to reading headers and vocabularies, which precedes the plan."""

MIN_SHARE_OF_NEAR = 0.3
"""Minimum share assigned to the first step, which reads few bytes but is enough for most relatives."""

PLANNED_AS = {
    "near": "near",
    "number": "number",
    "noise": "noise",
    "parts": "parts",
    "keys": "keys",
    "every": "every",
    "embeddings": "embeddings",
    "search": "searches",
    "layers": "layers",
    "paper": "paper",
}
"""Stages in the order in which they begin, with their names in a plan."""

DRAWN = 0.95
"""Progress of a survey when it starts to draw trees and figures."""


class TotalProgress:
    """The progress of a whole job, computed from its events.

    Attributes:
        share: The completed share, in [0, 1]. Stages are weighted according to the plan; stages that are not needed are
            skipped.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._plan: ReadPlan | None = None
        self._interim: object = None
        self._latest = Progress("opening", 0)
        self._bytes_before = 0

    def update(self, event: Event) -> None:
        """Update the share with an event."""
        if isinstance(event, ReadPlan):
            self._plan = event
        elif isinstance(event, Interim):
            self._interim = event.result
            if isinstance(event.result, Family):  # another comparison follows
                self._latest = Progress("opening", self._latest.bytes_read)
        elif isinstance(event, Progress):
            if event.stage != self._latest.stage:
                self._bytes_before = self._latest.bytes_read
            self._latest = event
        if isinstance(self._interim, SurveyResult):
            now = DRAWN if self._latest.stage == "trees" else DRAWN * _of_survey(self._interim)
        elif isinstance(self._interim, Family):
            now = _of_family(self._interim, self._of_comparison())
        else:
            now = self._of_comparison()
        self.share = max(self.share, min(1.0, now))

    def _of_comparison(self) -> float:
        stage = self._latest.stage
        if stage == STAGE:
            return self._of_stage()
        if self._plan is None or stage == "opening":
            return 0.0 if stage == "opening" else OPENED
        weights = stage_weights(self._plan)
        before = 0.0
        for name, weight in weights.items():
            if name == stage:
                return OPENED + (1.0 - OPENED) * (before + weight * self._of_stage())
            before += weight
        return OPENED

    def _of_stage(self) -> float:
        latest = self._latest
        if latest.n_parts:
            return min(1.0, latest.n_done / latest.n_parts)
        n_bytes = 0 if self._plan is None else dict(self._plan.steps).get(PLANNED_AS.get(latest.stage, ""), 0)
        return min(1.0, max(0.0, (latest.bytes_read - self._bytes_before) / n_bytes)) if n_bytes else 0.0


def stage_weights(plan: ReadPlan) -> dict[str, float]:
    """Return the share of each stage after the opening, in proportion to the planned bytes."""
    planned = dict(plan.steps)
    n_bytes = {stage: float(planned.get(name, 0)) for stage, name in PLANNED_AS.items()}
    rest = sum(n_bytes.values()) - n_bytes["near"]
    n_bytes["near"] = max(1.0, n_bytes["near"], MIN_SHARE_OF_NEAR / (1.0 - MIN_SHARE_OF_NEAR) * rest)
    total = sum(n_bytes.values())
    return {stage: bytes_of_stage / total for stage, bytes_of_stage in n_bytes.items()}


def _of_survey(surveyed: SurveyResult) -> float:
    report = surveyed.report
    n_models = len(report.names)
    pair_s = sum(SECONDS_OF_PAIR) / 2
    seconds_done = OPENING_S * len(report.models) + pair_s * len(report.pairs)
    return seconds_done / (OPENING_S * n_models + pair_s * math.comb(n_models, 2))


def _of_family(family: Family, of_next: float) -> float:
    """Return the completed share of the search, its comparisons and the declared bases, all weighted equally."""
    identification, declared = family.found, family.declared
    to_compare = [
        ancestor for ancestor in (() if identification is None else identification.ancestors) if ancestor.is_nominated
    ]
    n_compared = sum(ancestor.report is not None or ancestor.error is not None for ancestor in to_compare)
    n_done = (identification is not None) + n_compared
    n_declared = 1 if declared is None else len(declared.declared.base_models)
    n_done += 0 if declared is None else len(declared.bases)
    n_all = 1 + len(to_compare) + n_declared
    return min(n_all, n_done + of_next) / n_all
