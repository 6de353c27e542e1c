"""A test run on a disk that is too small ends with one message instead of many failures."""

import shutil
from types import SimpleNamespace

import pytest

from tests.conftest import ALL, pytest_sessionstart


def start(marks):
    pytest_sessionstart(SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(markexpr=marks))))


def test_a_disk_too_small_for_the_slow_tests_ends_them_and_no_others(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 << 30))
    start("not slow")
    start("")
    for marks in ("slow", ALL):
        with pytest.raises(pytest.exit.Exception, match=r"need 4 GiB .* where 3\.0 GiB are free: make room"):
            start(marks)


def test_a_full_disk_ends_every_run(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 30))
    with pytest.raises(pytest.exit.Exception, match="need 2 GiB"):
        start("not slow")
