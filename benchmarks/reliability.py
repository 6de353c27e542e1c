"""Damage surveys in many ways, and count wrong answers.

python -m benchmarks.reliability [--flips 1500] [--losses 60] [--starts 10] [--results FILE]

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

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from mdir_hf.errors import MdirError
from mdir_hf.lineage.survey import RESULTS as LINES
from mdir_hf.lineage.survey.folder import LOCK, read_survey
from mdir_hf.lineage.survey.results import SurveyReport
from mdir_hf.lineage.survey.run import SurveyPlan, open_folder, run_survey
from tests.counted import store_counts
from tests.lineage.survey.conftest import write_population

RESULTS = Path(__file__).parent / "results" / "reliability.jsonl"
N_TOKENS = 512

Numbers = dict[tuple[str, str], tuple[str | None, float | None]]


def main() -> None:
    """Run all parts, and print and store their counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1500)
    parser.add_argument("--losses", type=int, default=60)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = tuple(str(model) for model in write_population(place / "models").values())
        plan = SurveyPlan(names, n_tokens=N_TOKENS, progress=False)
        whole = numbers(run_in(place / "whole", plan))
        counts = {
            "bits of a survey's results flipped": flipped(place / "whole", whole, arguments.flips),
            "surveys resumed after losses": resumed(place / "whole", plan, whole, arguments.losses),
            "surveys started twice at once": started_twice(place, names, arguments.starts),
        }
    rows = [
        {
            "what": what,
            "tried": outcomes.total(),
            "outcomes": dict(outcomes),
            "wrong": outcomes["wrong"],
            "command": "python -m benchmarks.reliability",
        }
        for what, outcomes in counts.items()
    ]
    for row in rows:
        print(json.dumps(row))
    store_counts(arguments.results, rows)


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


def flipped(folder: Path, whole: Numbers, n_flips: int) -> Counter[str]:
    """Flip one bit at a time in the results file, and read the folder."""
    outcomes: Counter[str] = Counter()
    generator = random.Random(0)
    path = folder / LINES
    content = path.read_bytes()
    try:
        for _ in range(n_flips):
            at, bit = generator.randrange(len(content)), 1 << generator.randrange(8)
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            try:
                read = numbers(read_survey(folder))
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


def resumed(folder: Path, plan: SurveyPlan, whole: Numbers, n_losses: int) -> Counter[str]:
    """Damage one or two files or lines, and run the survey again."""
    outcomes: Counter[str] = Counter()
    verdicts = {pair: verdict for pair, (verdict, _) in whole.items()}
    for number in range(n_losses):
        generator = random.Random(number)
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        for _ in range(generator.choice((1, 2))):
            damage(copy, generator)
        try:
            read = {pair: verdict for pair, (verdict, _) in numbers(run_in(copy, plan)).items()}
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


def started_twice(place: Path, names: tuple[str, ...], n_starts: int) -> Counter[str]:
    """Start the same command twice at once in a new folder, and compare the answers."""
    outcomes: Counter[str] = Counter()
    for number in range(n_starts):
        command = [sys.executable, "-m", "mdir_hf", "survey", *names, "--tokens", str(N_TOKENS), "--json", "--quiet"]
        command += ["--output", str(place / f"start-{number}")]
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


if __name__ == "__main__":
    main()
