"""Ends a run at once where the disk cannot hold what tests write; opens only files of slow tests, the longest first."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

NEEDED_BYTES = 2 << 30
"""Disk that a run wants: the tests of ``make test`` hold 0.4 GB at most."""

NEEDED_BY_SLOW_BYTES = 10 << 30
"""The same of ``make test-slow``, whose two processes hold 9 GB at most: most of it checkpoints of published size."""

LONGEST = (
    *("trained/test_quantized.py", "faults/test_faults.py", "trained/test_verdicts.py"),
    *("trained/test_transformations.py", "comparison/test_hostile_files.py", "docs/test_notebooks.py"),
    *("large/test_deepseek_v3.py", "benchmarks/real/test_real_models.py"),
    *("trained/test_lineages.py", "trained/test_gguf.py"),
)
"""Files of slow tests of a minute and more. They begin first, so that no process waits for another at the end. Those
that train the same models lie apart, so that none waits for another's model."""


def pytest_sessionstart(session: pytest.Session) -> None:
    needed = NEEDED_BY_SLOW_BYTES if session.config.option.markexpr == "slow" else NEEDED_BYTES
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        pytest.exit(
            f"The tests need {needed >> 30} GiB of disk at {tempfile.gettempdir()}, where {free / 2**30:.1f} GiB are "
            "free: make room, or set TMPDIR to a folder of another disk.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m slow`` takes tests of one file in six, and importing the others takes each process many seconds."""
    if config.option.markexpr != "slow" or not collection_path.name.startswith("test_"):
        return None
    named = (collection_path, collection_path.with_name("conftest.py"))
    return None if any(file.is_file() and "mark.slow" in file.read_text("utf-8") for file in named) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "slow":
        place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture
def without_neuron_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the paper's method says by itself, as of models whose neurons somebody renumbered."""
    monkeypatch.setattr("mdir_hf.comparison.run.take_neurons", lambda *model, **options: None)
