"""Ends a run of the tests at once where the disk cannot hold what they write."""

from __future__ import annotations

import shutil
import tempfile

import pytest

NEEDED_BYTES = 2 << 30
"""Disk that a run wants: the tests of ``make test`` hold 0.4 GB at most."""

NEEDED_BY_SLOW_BYTES = 10 << 30
"""The same of ``make test-slow``, whose two processes hold 9 GB at most: most of it checkpoints of published size."""


def pytest_sessionstart(session: pytest.Session) -> None:
    needed = NEEDED_BY_SLOW_BYTES if session.config.option.markexpr == "slow" else NEEDED_BYTES
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        pytest.exit(
            f"The tests need {needed >> 30} GiB of disk at {tempfile.gettempdir()}, where {free / 2**30:.1f} GiB are "
            "free: make room, or set TMPDIR to a folder of another disk.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
