"""Ends a run of the tests at once where the disk cannot hold what they write."""

from __future__ import annotations

import shutil
import tempfile

import pytest

NEEDED_BYTES = {"not slow": 2 << 30}
"""Disk that the tests of ``make test`` want, by the marks they are chosen with: they hold 0.4 GB at most."""

NEEDED_WITH_SLOW_BYTES = 10 << 30
"""All others: two processes hold 9 GB at most, most of it checkpoints of published size."""


def pytest_sessionstart(session: pytest.Session) -> None:
    needed = NEEDED_BYTES.get(session.config.option.markexpr, NEEDED_WITH_SLOW_BYTES)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        pytest.exit(
            f"The tests need {needed >> 30} GiB of disk at {tempfile.gettempdir()}, where {free / 2**30:.1f} GiB are "
            "free: make room, or set TMPDIR to a folder of another disk.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
