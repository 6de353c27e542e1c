"""The programs that write files: arguments and product of each, and the files that a fault may leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.survey import RESULTS
from mdir_hf.lineage.survey.folder import ROWS, read_survey
from tests.lineage.cards.reports import a_report
from tests.loopback.hub import FullHub
from tests.specimens import gaussian, write_model

MODELS = ("owner/base", "owner/tuned", "owner/permuted", "owner/stranger")
DATASET = "owner/results"
CACHE_BYTES = 600_000
"""Size limit of the range cache, too small for two models of 256 kB, so that pieces are evicted all the time."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        arguments: Returns the command line for a given folder.
        product: Returns the results of a successful run.
        is_sound: Tells whether the files after a fault are valid; the second argument is the product of a run without a
            fault.
        n_together: Number of concurrent runs. Only the first has the fault; they share the range cache.
    """

    arguments: Callable[[Path], list[str]]
    product: Callable[[Path], Any]
    is_sound: Callable[[Path, Any], bool] = lambda place, whole: True
    n_together: int = 1


@dataclass
class Machine:
    """A Hub with some models, and a process that runs programs.

    Attributes:
        place: Folder of all files.
        hub: The Hub.
        report: A report.
    """

    place: Path
    hub: FullHub
    nursery: subprocess.Popen[str]
    report: Path

    @cached_property
    def survey(self) -> Path:
        """The folder of a survey."""
        statuses, _, said = self.run(self.programs["survey"], self.place / "a-survey")
        assert statuses == [0], said
        return self.place / "a-survey" / "out"

    @property
    def programs(self) -> dict[str, Program]:
        """All programs, by name."""
        hub, report = self.hub, str(self.report)
        pair = [self.place / "models" / name.replace("/", "-") for name in ("owner/base", "owner/permuted")]
        return {
            "comparison": Program(
                lambda place: ["compare", *MODELS[:2], "--json", "--quiet"],
                lambda place: [_verdict(self.place / f"said-{number}.txt") for number in range(4)],
                n_together=4,
            ),
            "saved report": Program(
                lambda place: ["save", report, str(place / "out")],
                lambda place: files_of(place / "out"),
                lambda place, whole: files_of(place / "out").items() <= whole.items(),
            ),
            "survey": Program(
                lambda place: ["survey", *MODELS, "--tokens", "256", "--quiet", "--output", str(place / "out")],
                _survey,
                _is_sound_survey,
            ),
            "index": Program(
                lambda place: ["index", "build", *MODELS, "--output", str(place / "bases.index")],
                lambda place: files_of(place),
                lambda place, whole: _is_sound_index(place / "bases.index"),
            ),
            "aligned model": Program(
                lambda place: ["align", *map(str, pair), "--output", str(place / "out"), "--quiet"],
                _aligned,
                lambda place, whole: _aligned(place).items() <= whole.items(),
            ),
            "badge": Program(
                lambda place: ["card", report, "--output", str(place / "out")],
                lambda place: files_of(place / "out"),
                lambda place, whole: files_of(place / "out") in ({}, whole),
            ),
            "publication": Program(
                lambda place: [
                    "index",
                    "publish",
                    str(self.survey),
                    "--dataset",
                    DATASET,
                    "--name",
                    "it",
                    "--token",
                    hub.token,
                ],
                lambda place: _proposed(hub)[-1],
                lambda place, whole: all(files == whole for files in _proposed(hub)),
            ),
        }

    def run(
        self, program: Program, place: Path, *, at: int | None = None, fault: str = ""
    ) -> tuple[list[int], int, list[str]]:
        """Run a program and its concurrent runs; return the exit statuses, the points of the first, and all outputs."""
        place.mkdir(parents=True, exist_ok=True)
        heard = [self.place / f"said-{number}.txt" for number in range(program.n_together)]
        for request in self.hub.pull_requests(f"datasets/{DATASET}"):
            request.status = "closed"  # no second one is opened with the title of an open one
        jobs = [
            {
                "arguments": program.arguments(place),
                "environment": {
                    "HF_ENDPOINT": self.hub.endpoint,
                    "MDIR_HF_CACHE": str(place / ".cache"),
                    "MDIR_HF_CACHE_MAX_BYTES": str(CACHE_BYTES),
                },
                "at": at if number == 0 else None,
                "fault": fault if number == 0 else "",
                "said": str(said),
            }
            for number, said in enumerate(heard)
        ]
        assert self.nursery.stdin is not None and self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(jobs) + "\n")
        self.nursery.stdin.flush()
        statuses = json.loads(self.nursery.stdout.readline())
        self.hub.wait_until_left()  # the Hub handles requests sent just before a kill
        counted = heard[0].with_suffix(".points")
        n_points = int(counted.read_text()) if counted.exists() else 0
        return statuses, n_points, [said.read_text() for said in heard]


@contextmanager
def machine(place: Path) -> Iterator[Machine]:
    """Provide a Hub and a nursery while the block runs."""
    place.mkdir(parents=True, exist_ok=True)
    with FullHub() as hub:
        hub.limits.quotas["anonymous"]["api"] = sys.maxsize  # else the programs would wait for the next window
        rows = gaussian(2000, 64, 0)
        made = (rows, rows + 0.2 * gaussian(2000, 64, 1), rows.flip(1), gaussian(2000, 64, 2))
        for name, weights in zip(MODELS, made, strict=True):
            hub.add_repository(name, write_model(place / "models" / name.replace("/", "-"), weights))
        (place / "empty").mkdir()
        (place / "empty" / "README.md").write_text("# Results\n")
        hub.add_repository(DATASET, place / "empty", kind="dataset")
        report = place / "report.json"
        report.write_text(a_report().to_json() + "\n")
        nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery", str(place / "models"), str(report)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
            env={**os.environ, "HF_HOME": str(place / "hf-home"), "OMP_NUM_THREADS": "1"},
        )
        try:
            yield Machine(place, hub, nursery, report)
        finally:
            assert nursery.stdin is not None
            nursery.stdin.close()
            nursery.wait()
            assert nursery.stdout is not None
            nursery.stdout.close()


def files_of(folder: Path) -> Files:
    """Return the files below a folder, except hidden temporary files and cached rows of weights."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.parent.name != ROWS
    }


def _verdict(said: Path) -> dict[str, Any]:
    """Return the printed report without its costs, and without the seed of its neurons, which each run draws anew."""
    report = json.loads(said.read_text())
    return {key: value for key, value in report.items() if key not in ("io", "seconds", "sample_seed")}


def _aligned(place: Path) -> Files:
    """Return the files of an aligned model without the folder, and without p, whose sample each run draws anew."""
    found = files_of(place / "out")
    return {name: re.sub(rb'"(output|log10_p)": [^\n]*', rb'"\1"', content) for name, content in found.items()}


def _of_survey(place: Path) -> Files:
    """Return the files of a survey without its seeds, and without the bytes read, which depend on the cache."""
    found = files_of(place / "out")
    fields = rb'"(bytes_read|neuron_seed|sample_seed|inputs|rows|sum)": ?(\d+|null|"[0-9a-f]+")'
    return {name: re.sub(fields, rb'"\1": 0', content) for name, content in found.items()}


def _survey(place: Path) -> Files:
    """Return the files of a survey with sorted results, whose order is that in which the models were read."""
    found = _of_survey(place)
    lines = found.get(RESULTS, b"").splitlines(keepends=True)
    return {**found, RESULTS: b"".join(sorted(lines))}


def _is_sound_survey(place: Path, whole: Files) -> bool:
    found = _of_survey(place)
    results = found.pop(RESULTS, b"")
    lines = results.splitlines(keepends=True)
    if b"\n" in results:
        read_survey(place / "out")
    are_whole = set(lines[:-1]) <= set(whole[RESULTS].splitlines(keepends=True))
    return are_whole and found.items() <= whole.items()


def _is_sound_index(path: Path) -> bool:
    return not path.exists() or len(BaseIndex.load(path)) in range(1, len(MODELS) + 1)


def _proposed(hub: FullHub) -> list[Files]:
    address = f"datasets/{DATASET}"
    proposed = []
    for request in hub.pull_requests(address):
        repository = hub.find(address)
        assert repository is not None
        commit = repository.commits[request.commit]  # type: ignore[attr-defined]
        proposed.append({path: entry.place.read_bytes() for path, entry in commit.items()})
    return proposed


def spread(n_points: int, most: int) -> Sequence[int]:
    """Return at most this many points, spread over all points."""
    return sorted({1 + round(k * (n_points - 1) / max(1, most - 1)) for k in range(most)}) if n_points else []
