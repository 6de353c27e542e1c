"""Fail tests with disagreeing cases, and print the numbers of cases at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracles.tally import TALLY, Tally

COUNTS = os.environ.get("MDIR_HF_ORACLES_COUNTS")
"""Path to which `make oracles` writes the numbers of cases, for benchmarks/results/pages/coverage.md."""


@pytest.fixture
def tally() -> Iterator[Tally]:
    before = {library: len(cases) for library, cases in TALLY.disagreements.items()}
    yield TALLY
    new = [case for library, all_cases in TALLY.disagreements.items() for case in all_cases[before.get(library, 0) :]]
    assert not new, f"{len(new)} cases disagree: " + "; ".join(new[:20])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.checked:
        terminalreporter.section("cases against the libraries")
        for line in TALLY.lines():
            terminalreporter.write_line(line)
    if COUNTS and TALLY.checked:
        numbers = {
            library: [n, len(TALLY.disagreements.get(library, ()))] for library, n in sorted(TALLY.checked.items())
        }
        Path(COUNTS).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
