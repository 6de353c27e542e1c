"""The runner resumes, replaces lines on request, and says what changed."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import runner
from benchmarks.__main__ import BENCHMARKS
from benchmarks.folders import build_once
from benchmarks.runner import Benchmark, Case, UnavailableError, read_lines, run


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A benchmark whose cases count how often they were measured."""
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    measured = []

    def measure(name):
        if name == "absent":
            raise UnavailableError("no such package")
        measured.append(name)
        return {"name": name, "value": len(measured), "cpu_s": 0.1 * len(measured)}

    names = ("one", "absent", "two")
    cases = [Case((name,), lambda name=name: measure(name)) for name in names]
    return Benchmark("counts", "a count", ("name",), lambda: cases), measured


def test_cases_with_a_line_are_not_measured_again(counted, capsys):
    benchmark, measured = counted
    run(benchmark)
    run(benchmark)
    assert measured == ["one", "two"]
    assert [row["name"] for row in read_lines(benchmark.path)] == ["one", "two"]
    assert "absent: left out, no such package" in capsys.readouterr().out


def test_a_case_measured_again_replaces_its_line_and_tells_the_change(counted, capsys):
    benchmark, _ = counted
    run(benchmark)
    capsys.readouterr()
    run(benchmark, ["one"], again=True)
    assert capsys.readouterr().out == "one: value 1 -> 3\ncounts: 1 case in 0.0 minutes\n"
    assert [row["value"] for row in read_lines(benchmark.path)] == [3, 2]


def test_a_repetition_that_was_stopped_goes_on(counted):
    benchmark, measured = counted
    run(benchmark)
    cases = list(benchmark.cases())

    def stopped():
        yield cases[0]
        raise KeyboardInterrupt

    stopping = Benchmark(benchmark.name, benchmark.about, benchmark.key, stopped)
    with pytest.raises(KeyboardInterrupt):
        run(stopping, again=True)
    run(benchmark, again=True)
    assert measured == ["one", "two", "one", "two"]
    run(benchmark, again=True)
    assert measured[4:] == ["one", "two"]


def test_the_end_gets_all_lines(counted):
    benchmark, _ = counted
    ends = []
    with_end = Benchmark(benchmark.name, benchmark.about, benchmark.key, benchmark.cases, ends.append)
    run(with_end, ["two"])
    assert [[row["name"] for row in rows] for rows in ends] == [["two"]]


def test_make_evidence_runs_every_benchmark_once():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    lists = re.findall(r"^(?:ALONE|OF_\w+_MODELS) = (.*)$", makefile, re.M)
    assert len(lists) == 5
    names = [*" ".join(lists).split(), "space-visitors"]
    assert Counter(names) == Counter(benchmark.name for benchmark in BENCHMARKS)


def test_a_folder_is_built_once_and_complete(tmp_path):
    folder, n_built = tmp_path / "models" / "a", []

    def build(made):
        made.mkdir()
        n_built.append(made)
        assert not folder.exists()

    def fails(made):
        made.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(folder, fails)
    assert not folder.exists()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: build_once(folder, build), range(4))) == [folder] * 4
    assert len(n_built) == 1
    assert sorted(path.name for path in folder.parent.iterdir() if not path.name.startswith(".")) == ["a"]
