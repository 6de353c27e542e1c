"""Damage surveys in many ways, and count wrong answers.

- *flips*: one random bit of the results file is flipped, and the folder is read. A line may be ignored or the file
  refused; no verdict and no p may change.
- *losses*: one or two files or lines are removed, changed or cut short at random, and the survey is run again. It must
  end with the verdicts of the undamaged survey.
- *starts*: the same command is started twice at once in a new folder. One process answers, and the other answers the
  same or names the first.

It surveys the models of ``tests/lineage/survey``: three families, two tokenizers. ``python -m tests.fuzz`` and
``python -m tests.faults`` add their counts to the same file.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path

from benchmarks.runner import Benchmark, Case, Row
from mdir_hf.errors import MdirError
from mdir_hf.lineage.survey import RESULTS as LINES
from mdir_hf.lineage.survey.folder import LOCK, read_survey
from mdir_hf.lineage.survey.results import SurveyReport
from mdir_hf.lineage.survey.run import SurveyPlan, open_folder, run_survey
from tests.population import write_population

N_TOKENS, N_FLIPS, N_LOSSES, N_STARTS = 512, 1500, 60, 10

Numbers = dict[tuple[str, str], tuple[str | None, float | None]]


class Survey:
    """The undamaged survey of the population, in a folder."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder = place, place / "whole"
        self.names = tuple(str(model) for model in write_population(place / "models").values())
        self.plan = SurveyPlan(self.names, n_tokens=N_TOKENS, progress=False)

    @cached_property
    def whole(self) -> Numbers:
        """Verdict and p of every pair."""
        return numbers(run_in(self.folder, self.plan))


def run_in(folder: Path, plan: SurveyPlan) -> SurveyReport:
    """Run or resume a survey in a folder."""
    with open_folder(plan, folder) as state:
        return run_survey(plan, state)


def numbers(report: SurveyReport) -> Numbers:
    """Return verdict and p of every pair."""
    return {
        pair: (None if result.verdict is None else str(result.verdict), result.log10_p)
        for pair, result in report.pairs.items()
    }


def flipped(survey: Survey) -> Counter[str]:
    """Flip one bit at a time in the results file, and read the folder."""
    outcomes: Counter[str] = Counter()
    generator = random.Random(0)
    whole, path = survey.whole, survey.folder / LINES
    content = path.read_bytes()
    try:
        for _ in range(N_FLIPS):
            at, bit = generator.randrange(len(content)), 1 << generator.randrange(8)
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            try:
                read = numbers(read_survey(survey.folder))
            except MdirError:
                outcomes["refused"] += 1
                continue
            if read.items() <= whole.items():
                outcomes["all pairs kept" if len(read) == len(whole) else "a pair ignored"] += 1
            else:
                outcomes["wrong"] += 1
    finally:
        path.write_bytes(content)
    return outcomes


def resumed(survey: Survey) -> Counter[str]:
    """Damage one or two files or lines, and run the survey again."""
    outcomes: Counter[str] = Counter()
    verdicts = {pair: verdict for pair, (verdict, _) in survey.whole.items()}
    for number in range(N_LOSSES):
        generator = random.Random(number)
        copy = survey.place / "copy"
        shutil.copytree(survey.folder, copy)
        for _ in range(generator.choice((1, 2))):
            damage(copy, generator)
        try:
            read = {pair: verdict for pair, (verdict, _) in numbers(run_in(copy, survey.plan)).items()}
            outcomes["complete" if read == verdicts else "wrong"] += 1
        except MdirError:
            outcomes["refused"] += 1
        shutil.rmtree(copy)
    return outcomes


def damage(folder: Path, generator: random.Random) -> None:
    """Remove, change or cut one file or one line of the results."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    if not files:
        return
    path = generator.choice(files)
    content = path.read_bytes()
    at = generator.randrange(max(1, len(content)))
    kind = generator.choice(("remove", "cut", "change", "line"))
    if kind == "remove":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[:at])
    elif kind == "change":
        path.write_bytes(content[:at] + bytes([generator.randrange(256)]) + content[at + 1 :])
    else:
        lines = content.splitlines(keepends=True)
        lost = at % max(1, len(lines))
        path.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))


def started_twice(survey: Survey) -> Counter[str]:
    """Start the same command twice at once in a new folder, and compare the answers."""
    outcomes: Counter[str] = Counter()
    for number in range(N_STARTS):
        command = [
            sys.executable,
            "-m",
            "mdir_hf",
            "survey",
            *survey.names,
            "--tokens",
            str(N_TOKENS),
            "--json",
            "--quiet",
        ]
        command += ["--output", str(survey.place / f"start-{number}")]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [run.communicate(timeout=600) for run in runs]
        answers = [json.loads(out) for run, (out, _) in zip(runs, said, strict=True) if run.returncode == 0]
        refusals = [err for run, (_, err) in zip(runs, said, strict=True) if run.returncode != 0]
        if not answers or not all("is writing there" in err for err in refusals):
            outcomes["wrong"] += 1
        elif len(answers) == 2:
            outcomes["the same answer" if verdicts_in(answers[0]) == verdicts_in(answers[1]) else "wrong"] += 1
        else:
            outcomes["one named the other"] += 1
    return outcomes


def verdicts_in(answer: dict[str, object]) -> object:
    """Return pairs with their verdicts and p."""
    return answer["pairs"]


def cases() -> Iterator[Case]:
    """Yield the three kinds of damage."""
    kinds = {
        "bits of a survey's results flipped": flipped,
        "surveys resumed after losses": resumed,
        "surveys started twice at once": started_twice,
    }
    for what, damaged in kinds.items():
        yield Case((what,), partial(count, what, damaged))


def count(what: str, damaged: Callable[[Survey], Counter[str]]) -> Row:
    """Survey the population, damage the survey in one way, and return a line of the results."""
    with tempfile.TemporaryDirectory() as place:
        outcomes = damaged(Survey(Path(place)))
    row = {"what": what, "tried": outcomes.total(), "outcomes": dict(outcomes), "wrong": outcomes["wrong"]}
    return {**row, "command": "python -m benchmarks reliability"}


RELIABILITY = Benchmark("reliability", "wrong answers of damaged surveys", ("what",), cases)
