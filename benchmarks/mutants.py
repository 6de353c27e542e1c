"""Break one thing in the package at a time, and list the breaks that the quick tests do not notice.

python -m benchmarks.mutants                        # every module of TESTS
python -m benchmarks.mutants comparison/decide      # these
python -m benchmarks.mutants method/polar --sample 40

A break changes or removes one comparison, number, sign, condition, call or error. The tests run once while the lines
that each enters are recorded. A break is then judged by the tests that enter its line, in a separate process with the
changed module in memory; no file is written. Modules of other packages are loaded once and inherited. Message texts are
not changed, and code that tests run in further processes is not covered.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.util import spec_from_loader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType

from benchmarks.breaks import Break, breaks

RESULTS = Path(__file__).parent / "results" / "mutants.jsonl"

TESTS = {
    "comparison/decide": "tests/comparison/test_decision.py tests/comparison/test_decision_edges.py",
    "comparison/neurons": "tests/comparison/test_neurons.py",
    "comparison/run": "tests/comparison/test_compare.py tests/comparison/test_body.py",
    "method/significance": "tests/method/test_significance.py",
    "method/power": "tests/method/test_power.py",
    "method/axes": "tests/method/test_axes.py",
    "method/paper": "tests/method/test_paper.py",
    "method/matching": "tests/method/test_matching.py tests/method/test_embedding.py",
    "method/planes": "tests/method/test_planes.py",
    "model/hub/ranges": "tests/model/hub/test_answers.py tests/model/hub/test_ranges.py",
    "model/hub/location": "tests/model/hub/test_answers.py tests/model/hub/test_ranges.py",
    "model/hub/connection": "tests/model/hub/test_answers.py tests/model/hub/test_ranges.py"
    " tests/model/hub/test_api.py tests/model/hub/test_malformed_answers.py",
    "model/hub/range_cache": "tests/model/hub/test_range_cache.py",
    "model/hub/retry": "tests/model/hub/test_retry.py tests/model/hub/test_deadlines.py",
    "model/hub/local": "tests/model/hub/test_repository.py"
    " tests/model/hub/test_hub_file.py"
    " tests/model/hub/test_local_files.py",
    "model/hub/model_info": "tests/model/hub/test_malformed_answers.py tests/model/hub/test_repository.py",
    "model/hub/pull_request": "tests/model/hub/test_pull_request.py",
    "names": "tests/test_names.py",
    "plain_yaml": "tests/test_plain_yaml.py tests/lineage/cards/test_front_matter.py",
    "lineage/survey/folder": "tests/lineage/survey/test_results.py tests/lineage/survey/test_run.py",
    "lineage/survey/results": "tests/lineage/survey/test_results.py tests/lineage/survey/test_run.py",
    "lineage/index/base_index": "tests/lineage/index/test_index.py",
    "lineage/index/identify": "tests/lineage/index/test_index.py tests/comparison/test_numbered_channels.py",
    "model/files/safetensors": "tests/model/files/test_header.py tests/model/files/test_header_against_safetensors.py",
}
"""Tests that should notice a break, by module of the package."""

NO_TEST, NOTICED, LATE, SURVIVED = "no test", "noticed", "late", "survived"
LEAST_SECONDS, TIMES_AS_LONG = 20.0, 10.0
MOST_SECONDS_OF_TEST = 2.0
"""Tests that take longer while traced are left out, because tests that run often should notice a break."""
MEMORY_BYTES = 8 << 30
"""Memory limit of a broken module; exceeding it counts as noticed."""


@dataclass(frozen=True)
class Traced:
    """Results of one unbroken test run.

    Attributes:
        lines: Lines of the module by test; a file's name stands for all its tests.
        seconds: Duration of each test.
        passed: Whether they passed.
        loaded: Names of all modules that the run loaded.
    """

    lines: dict[str, list[int]]
    seconds: dict[str, float]
    passed: bool
    loaded: list[str]

    def entering(self, line: int) -> set[str]:
        """Return tests, or test files, that entered a line; all of them if it runs on import."""
        quick = {test for test, seconds in self.seconds.items() if seconds <= MOST_SECONDS_OF_TEST}
        if line in self.lines.get("", ()):
            return quick
        return {test for test, lines in self.lines.items() if line in lines and (test in quick or "::" not in test)}


class _Changed(MetaPathFinder, SourceLoader):
    """Load one module from a text instead of its file."""

    def __init__(self, module: str, path: Path, text: str) -> None:
        self.module, self.path, self.text = module, str(path), text

    def find_spec(self, fullname, path=None, target=None):
        return spec_from_loader(fullname, self) if fullname == self.module else None

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return self.text.encode()

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec")  # never from a cache


class _Chosen:
    """A pytest plugin that runs only the chosen tests, and optionally records the lines that each enters."""

    def __init__(self, chosen: set[str] | None, seconds: Mapping[str, float], traced_path: str | None) -> None:
        self.chosen, self.known_seconds, self.traced_path = chosen, seconds, traced_path
        self.current, self.lines, self.seconds = "", defaultdict(set), {}

    def pytest_collection_modifyitems(self, items: list) -> None:
        if self.chosen is not None:
            items[:] = [item for item in items if {item.nodeid, item.nodeid.split("::")[0]} & self.chosen]
            items[:] = [item for item in items if self.known_seconds.get(item.nodeid, 0.0) <= MOST_SECONDS_OF_TEST]
            # The quickest of a file first; files stay together because of shared fixtures.
            items.sort(key=lambda item: (item.nodeid.split("::")[0], self.known_seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.current = nodeid.split("::")[0]  # lines entered by fixtures belong to all tests of the file

    def pytest_runtest_call(self, item) -> None:
        self.current = item.nodeid

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call":
            self.seconds[report.nodeid] = report.duration

    def pytest_runtest_teardown(self, item) -> None:
        self.current = item.nodeid.split("::")[0]

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename != self.traced_path:
            return None
        if event == "line":
            self.lines[self.current].add(frame.f_lineno)
        return self.trace


def _run(
    to: Connection, files: Sequence[str], scratch: str, change: _Changed, chosen: set[str] | None, seconds: dict
) -> None:
    """Run the tests in a separate process, with the module changed, or unchanged and traced."""
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    with suppress(ImportError):
        from hypothesis import Phase, settings

        # The first failure is enough; it is neither shrunk nor stored.
        settings.register_profile("breaks", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
    sys.meta_path.insert(0, change)
    plugin = _Chosen(chosen, seconds, None if chosen is not None else change.path)
    if plugin.traced_path is not None:
        threading.settrace(plugin.trace)
        sys.settrace(plugin.trace)
    options = ["-x", "-q", "--hypothesis-profile=breaks", "--assert=plain", "-m", "not slow", "-p", "no:cacheprovider"]
    options += [f"--basetemp={scratch}"]
    code = pytest.main([*options, *files], plugins=[plugin])
    sys.settrace(None)
    lines = {test: sorted(numbers) for test, numbers in plugin.lines.items()}
    to.send(Traced(lines, plugin.seconds, int(code) == 0, sorted(sys.modules)))
    to.close()
    os._exit(0)


class Judge:
    """Run the tests of one module against changes of it.

    Args:
        root: The folder that holds the package and its tests.
        path: The module, relative to the root.
        files: Test files, relative to the root.
    """

    def __init__(self, root: Path, path: str, files: Sequence[str]) -> None:
        self.root, self.path, self.files = root, root / path, list(files)
        self.module = path.removesuffix(".py").replace("/", ".")
        self.text = self.path.read_text(encoding="utf-8")
        traced = self._outcome(self.text, None, {}, 3600.0)
        if traced is None or not traced.passed:
            raise SystemExit(f"{path}: its tests fail without a break: {' '.join(self.files)}")
        self.traced = traced

    def warm(self) -> None:
        """Load the tests' imports and all foreign modules, for processes that are forked later."""
        own_modules = {file.stem for file in self.root.iterdir()} | {"conftest", "__main__"}
        for name in self.traced.loaded:
            if name.split(".")[0] not in own_modules:
                with suppress(Exception):
                    importlib.import_module(name)

    def judge(self, change: Break) -> str:
        """Return whether the tests notice a break."""
        entering = self.traced.entering(change.line)
        if not entering:
            return NO_TEST
        limit = LEAST_SECONDS + TIMES_AS_LONG * sum(self.traced.seconds.values())
        traced = self._outcome(change.applied_to(self.text), entering, self.traced.seconds, limit)
        return LATE if traced is None else SURVIVED if traced.passed else NOTICED

    def _outcome(self, text: str, chosen: set[str] | None, seconds: dict[str, float], limit: float) -> Traced | None:
        files = self.files if chosen is None else [f for f in self.files if any(t.split("::")[0] == f for t in chosen)]
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
            change = _Changed(self.module, self.path, text)
            child = context.Process(target=_run, args=(sender, files, f"{scratch}/tmp", change, chosen, seconds))
            child.start()
            sender.close()
            try:
                if not receiver.poll(limit):
                    return None
                return receiver.recv()
            except EOFError:  # it died, for example at the memory limit: noticed
                return Traced({}, {}, False, [])
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.join()


def judged(
    root: Path, path: str, files: Sequence[str], *, sample: int | None = None, lines: range | None = None
) -> dict[str, object]:
    """Return a row of results: the number of breaks in a module, and the survivors."""
    judge = Judge(root, path, files)
    judge.warm()
    every = [change for change in breaks(judge.text) if lines is None or change.line in lines]
    chosen = every if sample is None else sorted(random.Random(0).sample(every, min(sample, len(every))))
    left: dict[str, list[str]] = {NO_TEST: [], LATE: [], SURVIVED: []}
    for change in chosen:
        outcome = judge.judge(change)
        if outcome in left:
            left[outcome].append(f"{change.line}: {change.before} -> {change.after}")
            print(f"{outcome:9} {path}:{left[outcome][-1]}", flush=True)
    row = {"module": path, "of": len(every), "tried": len(chosen)}
    row["noticed"] = len(chosen) - len(left[NO_TEST]) - len(left[SURVIVED])
    print(f"{path}: {row['noticed']} of {row['tried']} noticed, {len(left[LATE])} by the time it took\n", flush=True)
    return row | {"survived": left[SURVIVED], "no_test": left[NO_TEST]}


def _write(rows: Iterable[dict[str, object]], results: Path) -> None:
    known = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    merged = {row["module"]: row for row in (*known, *rows)}
    results.write_text("".join(json.dumps(merged[name]) + "\n" for name in sorted(merged)), encoding="utf-8")


def main() -> None:
    """Judge modules and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="e.g. comparison/decide; all of TESTS by default")
    parser.add_argument("--sample", type=int, help="number of breaks of each module, drawn with a fixed seed")
    parser.add_argument("--lines", nargs=2, type=int, metavar=("FIRST", "LAST"), help="only breaks of these lines")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help=argparse.SUPPRESS)
    parser.add_argument("--tests", help="test files, instead of the files in TESTS")
    parser.add_argument("--write", action="store_true", help=f"write the results to {RESULTS.name}")
    arguments = parser.parse_args()
    os.chdir(arguments.root)
    for name in arguments.modules or TESTS:
        path = name if name.endswith(".py") else f"mdir_hf/{name}.py"
        lines = range(arguments.lines[0], arguments.lines[1] + 1) if arguments.lines else None
        row = judged(
            arguments.root, path, (arguments.tests or TESTS[name]).split(), sample=arguments.sample, lines=lines
        )
        if arguments.write:
            _write([row], RESULTS)


if __name__ == "__main__":
    main()
