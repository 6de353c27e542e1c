"""Jobs that compare two models, or plan a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mdir_hf import HomologyChecker, HomologyReport, ReadPlan, compare
from mdir_space.jobs.job import Emit, Interim, Job, throttled
from mdir_space.jobs.question import PairQuestion


def compared(
    job: Job[Any], question: PairQuestion, emit: Emit, on_found: Callable[[HomologyReport], None] | None = None
) -> HomologyReport:
    """Compare the models of a job within its limits, sending the plan and progress."""
    return compare(
        job.access.reference.pinned,
        job.access.candidate.pinned,
        level=question.level,
        alpha=question.alpha,
        describes=True,
        **job.read_options,
        max_bytes=job.n_bytes,
        max_memory_bytes=job.memory_bytes,
        progress=False,
        on_plan=emit,
        on_progress=throttled(emit),
        on_found=on_found,
    )


@dataclass(frozen=True, kw_only=True)
class ComparisonJob(Job[HomologyReport]):
    """Compares two models."""

    question: PairQuestion

    def run(self, emit: Emit) -> HomologyReport:
        """Compare the models, sending the plan, progress and interim results."""

        def send(report_so_far: HomologyReport) -> None:
            emit(Interim(self._with_revisions(report_so_far)))

        return self._with_revisions(compared(self, self.question, emit, send))

    def _with_revisions(self, report: HomologyReport) -> HomologyReport:
        return replace(
            report,
            reference=replace(report.reference, revision=self.access.reference.revision),
            candidate=replace(report.candidate, revision=self.access.candidate.revision),
        )


@dataclass(frozen=True, kw_only=True)
class ComparisonPlanJob(Job[ReadPlan]):
    """Plans the comparison of two models."""

    question: PairQuestion

    def run(self, emit: Emit) -> ReadPlan:
        """Read headers and vocabularies, but no weights."""
        checker = HomologyChecker.from_pretrained(
            self.access.reference.pinned, alpha=self.question.alpha, **self.read_options
        )
        return checker.plan(self.access.candidate.pinned, level=self.question.level)
