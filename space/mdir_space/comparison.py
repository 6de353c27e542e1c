"""Two models: the comparison of a question, and its plan, each in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mdir_hf import HomologyChecker, HomologyReport, ReadPlan, compare
from mdir_space.access import Access
from mdir_space.question import Question
from mdir_space.work import SoFar, Tell, paced, rights_of


@dataclass(frozen=True)
class ComparisonJob:
    """A comparison of two models.

    Attributes:
        access: The two models, and how they may be read.
        question: Level and alpha.
        allow_local: Whether folders of this machine may be read.
        n_bytes: Most bytes that may be read; None: unbounded.
        memory_bytes: Most memory that its plan may ask for; None: unbounded.
        cap_bytes: As of every task.
    """

    access: Access
    question: Question
    allow_local: bool = False
    n_bytes: int | None = None
    memory_bytes: int | None = None
    cap_bytes: int | None = None

    def do(self, tell: Tell) -> HomologyReport:
        """Compare, and tell of the plan and of what was found so far."""
        report = compare(
            self.access.reference.pinned,
            self.access.candidate.pinned,
            level=self.question.level,
            alpha=self.question.alpha,
            **rights_of(self.access, allow_local=self.allow_local),
            max_bytes=self.n_bytes,
            max_memory_bytes=self.memory_bytes,
            progress=False,
            on_plan=tell,
            on_progress=paced(tell),
            on_found=lambda found: tell(SoFar(self._as_asked(found))),
        )
        return self._as_asked(report)

    def _as_asked(self, report: HomologyReport) -> HomologyReport:
        """Put the revisions that were asked for beside the commits that were compared."""
        access = self.access
        return replace(
            report,
            reference=replace(report.reference, revision=access.reference.revision),
            candidate=replace(report.candidate, revision=access.candidate.revision),
        )


@dataclass(frozen=True)
class PlanJob:
    """The plan of a comparison.

    Attributes:
        access: The two models, and how they may be read.
        question: Level and alpha.
        allow_local: Whether folders of this machine may be read.
        cap_bytes: As of every task.
    """

    access: Access
    question: Question
    allow_local: bool = False
    cap_bytes: int | None = None

    def do(self, tell: Tell) -> ReadPlan:
        """Make the plan; there is nothing to tell before it."""
        rights = rights_of(self.access, allow_local=self.allow_local)
        checker = HomologyChecker.from_pretrained(self.access.reference.pinned, alpha=self.question.alpha, **rights)
        return checker.plan(self.access.candidate.pinned, level=self.question.level)
