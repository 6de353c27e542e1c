"""Jobs that compare two models and that plan such a comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mdir_hf import HomologyChecker, HomologyReport, ReadPlan, compare
from mdir_space.jobs.job import Emit, Interim, Job, throttled
from mdir_space.jobs.question import PairQuestion


@dataclass(frozen=True, kw_only=True)
class ComparisonJob(Job[HomologyReport]):
    """Compares two models."""

    question: PairQuestion

    def run(self, emit: Emit) -> HomologyReport:
        """Compare; send the plan and interim results."""
        report = compare(
            self.access.reference.pinned,
            self.access.candidate.pinned,
            level=self.question.level,
            alpha=self.question.alpha,
            **self.read_options,
            max_bytes=self.n_bytes,
            max_memory_bytes=self.memory_bytes,
            progress=False,
            on_plan=emit,
            on_progress=throttled(emit),
            on_found=lambda report_so_far: emit(Interim(self._with_revisions(report_so_far))),
        )
        return self._with_revisions(report)

    def _with_revisions(self, report: HomologyReport) -> HomologyReport:
        """Add the requested revisions to the compared commits."""
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
        """Read headers and vocabularies; no weights."""
        checker = HomologyChecker.from_pretrained(
            self.access.reference.pinned, alpha=self.question.alpha, **self.read_options
        )
        return checker.plan(self.access.candidate.pinned, level=self.question.level)
