"""Run ``mdir-hf demo``: the whole workflow, on models that are built locally and served over loopback HTTP."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.demo.lineage import Lineage, Member, build_lineage
from mdir_hf.demo.loopback import LoopbackHub
from mdir_hf.report import HomologyReport, Verdict, n_bytes_text

if TYPE_CHECKING:
    from mdir_hf.comparison.api import HomologyChecker

REFERENCE = "demo/base"
EXPECTED = {"related": "homologous", "stranger": "no_evidence"}


def run_demo(folder: Path) -> int:
    """Build the lineage, compare every member with the base, and print the results.

    Return 0 if all verdicts are as expected, otherwise 1. Models, reports and figures are saved in ``folder``.

    Raises:
        InputError: If a dependency is not installed, or the folder cannot be used.
    """
    started = time.perf_counter()
    surprises = []

    def judge(member: Member) -> None:
        if member.relation == "reference":
            return
        # Imported late: the Hub client reads its environment on import.
        from mdir_hf.comparison.api import HomologyChecker

        checker = HomologyChecker.from_pretrained(REFERENCE, cache_dir=folder / "hf-home" / "hub", describes=True)
        report = _compare(checker, member, folder)
        _clear_progress()
        sys.stdout.write(_row(member, report) + "\n")
        sys.stdout.flush()
        if report.verdict.value != EXPECTED[member.relation]:
            surprises.append(member.repo)

    sys.stdout.write(
        "Builds the models, or reuses models of an earlier run, and serves them as the Hub does. "
        f"Each is compared with {REFERENCE}.\n"
        f"\n{'candidate':<22}{'verdict':<14}{'p':>14}  {'settled by':<12}{'read':>10}{'of':>10}  requests\n"
    )
    sys.stdout.flush()
    with served_lineage(folder, judge) as (lineage, _):
        pass
    sys.stdout.write("\nWhat each model is:\n")
    for member in lineage.members:
        sys.stdout.write(f"  {member.repo:<20} {member.description} ({member.relation}: {member.reason})\n")
    reports = (folder / "reports").resolve()
    sys.stdout.write(
        f"\nReports and figures: {reports}/<name>/report.html, report.md, report.json, embedding.png\n"
        f"Total: {time.perf_counter() - started:.0f} s.\n"
    )
    if surprises:
        sys.stdout.write(f"Unexpected verdicts: {', '.join(surprises)}\n")
    return 1 if surprises else 0


@contextmanager
def served_lineage(folder: Path, on_member: Callable[[Member], None] | None = None) -> Iterator[tuple[Lineage, str]]:
    """Build the lineage, and serve it instead of the Hub inside the block.

    Yield the lineage and the server's URL. ``on_member`` receives each member once it is served.

    Raises:
        InputError: If a dependency is not installed, or the folder cannot be used.
    """
    home = str(folder.resolve() / "hf-home")
    with LoopbackHub() as hub, _environment({"HF_ENDPOINT": hub.endpoint, "HF_HOME": home}):

        def serve(member: Member) -> None:
            hub.add_repository(member.repo, member.folder)
            if on_member is not None:
                on_member(member)

        lineage = build_lineage(folder / "models", progress=_progress, on_member=serve)
        _clear_progress()
        for member in lineage.members:
            hub.add_repository(member.repo, member.folder)  # the final folder
        yield lineage, hub.endpoint


def _compare(checker: HomologyChecker, member: Member, folder: Path) -> HomologyReport:
    from mdir_hf.render.folder import save_report

    report = checker.compare(member.repo, progress=False)
    save_report(report, folder / "reports" / member.repo.rpartition("/")[2])
    return report


def _row(member: Member, report: HomologyReport) -> str:
    is_related = report.verdict is Verdict.HOMOLOGOUS
    p = (report.strength if report.p_is_bound else "no bound") if is_related else "-"
    return (
        f"{member.repo:<22}{report.verdict.value:<14}{p:>14}  {report.settled_by or '-':<12}"
        f"{n_bytes_text(report.io.bytes_read):>10}{n_bytes_text(report.io.bytes_of_weights):>10}"
        f"  {report.io.requests:>8}"
    )


def _progress(doing: str, share: float) -> None:
    sys.stderr.write(f"\r\033[K{100 * share:3.0f} %  {doing}" if sys.stderr.isatty() else "")
    sys.stderr.flush()


def _clear_progress() -> None:
    sys.stderr.write("\r\033[K" if sys.stderr.isatty() else "")
    sys.stderr.flush()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
