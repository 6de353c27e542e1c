"""Run the cases of benchmarks, resume them, store a line of JSON for each, and say what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdir_hf.report.words import counted

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
COSTS = frozenset({"cpu_s", "wall_s", "bytes_read", "n_bytes_read", "reads", "share"})
"""Fields that vary between runs, and are not reported as changes."""


class UnavailableError(Exception):
    """Something that a case needs, such as a package, cannot be fetched."""


@dataclass(frozen=True)
class Case:
    """One line of a result file.

    Attributes:
        key: Values of the benchmark's key fields.
        measure: Returns the line.
    """

    key: tuple[Any, ...]
    measure: Callable[[], Row]


@dataclass(frozen=True)
class Benchmark:
    """Cases whose lines are stored in ``benchmarks/results/NAME.jsonl``.

    Attributes:
        name: Name of the result file.
        about: Description of the measurement, in one line.
        key: Fields that identify a line.
        cases: Yields the cases.
        finish: Called with all lines at the end, for example to draw a figure.
    """

    name: str
    about: str
    key: tuple[str, ...]
    cases: Callable[[], Iterable[Case]]
    finish: Callable[[list[Row]], None] | None = None

    @property
    def path(self) -> Path:
        """The result file."""
        return RESULTS / f"{self.name}.jsonl"


def run(benchmark: Benchmark, words: Sequence[str] = (), *, again: bool = False) -> None:
    """Measure the cases without a stored line, and store and print each line.

    Args:
        benchmark: The benchmark.
        words: Measure only cases whose key contains one of these words; all cases if empty.
        again: Also measure cases that have a line. A run that was stopped is continued: cases that it has measured are
            listed in a file beside the results, which the end of a run removes.
    """
    stored = {tuple(row[field] for field in benchmark.key): row for row in read_lines(benchmark.path)}
    progress = benchmark.path.with_suffix(".again")
    finished = {tuple(key) for key in read_lines(progress)} if again else stored.keys()
    n_measured, started = 0, time.perf_counter()
    for case in benchmark.cases():
        name = " | ".join(map(str, case.key))
        if case.key in finished or (words and not any(word in name for word in words)):
            continue
        try:
            row: Row = json.loads(json.dumps(case.measure()))
        except UnavailableError as exc:
            print(f"{name}: left out, {exc}", flush=True)
            continue
        print(f"{name}: {'; '.join(changes(stored.get(case.key), row)) or 'as stored'}", flush=True)
        stored[case.key] = row
        n_measured += 1
        benchmark.path.write_text("".join(json.dumps(each) + "\n" for each in stored.values()), encoding="utf-8")
        if again:
            with progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(case.key) + "\n")
    progress.unlink(missing_ok=True)
    if benchmark.finish is not None:
        benchmark.finish(list(stored.values()))
    if n_measured:
        minutes = (time.perf_counter() - started) / 60
        print(f"{benchmark.name}: {counted(n_measured, 'case')} in {minutes:.1f} minutes", flush=True)


def changes(before: Row | None, after: Row) -> Iterator[str]:
    """Describe the fields that differ from the stored line, or the short fields of a new line."""
    for field, value in after.items():
        if before is None and not isinstance(value, dict | list):
            yield f"{field} {value}"
        elif before is not None and field not in COSTS and before.get(field) != value:
            yield f"{field} {_short(before.get(field))} -> {_short(value)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_lines(path: Path) -> list[Any]:
    """Return the values of a JSONL file, or none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table(header: str | Sequence[str], rows: Iterable[Sequence[str]], *, rule: str = " --- ") -> str:
    """Format a Markdown table.

    Args:
        header: Names of the columns, as a sequence or separated by " | ".
        rows: Cells of each row.
        rule: Cell of the line below the header.
    """
    names = header.split(" | ") if isinstance(header, str) else header
    lines = [f"| {' | '.join(cells)} |" for cells in (names, *rows)]
    return "\n".join([lines[0], "|" + f"{rule}|" * len(names), *lines[1:]])
