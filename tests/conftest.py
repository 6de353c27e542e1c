"""Order, disk and processors of a run, and fixtures for the whole suite.

Failures and whole comparisons run first, the longest slow files before others.
"""

from __future__ import annotations

import gc
import json
import random
import re
import shutil
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.utils._detect_agent as detect_agent
import hypothesis
import numpy as np
import pytest
from huggingface_hub import constants
from xdist.scheduler import LoadFileScheduling

ALL = "slow or not slow"
"""The marks of a run of all tests (``make test ALL=1``)."""

NEEDED_BYTES = 2 << 30
"""Disk space for a run: the tests of ``make test`` use at most 0.4 GB."""

NEEDED_BY_SLOW_BYTES = 4 << 30
"""Disk for ``make test-slow`` and ``make test ALL=1``: at most 3.3 GB, mainly checkpoints of published size."""

FIRST = ("comparison/test_compare.py", "comparison/test_hidden.py", "cli/test_compare_command.py")
"""Files of whole comparisons, which run first, after the previous failures: most faults fail one of them."""

TOGETHER = ("tests/space/live",)
"""Folders whose files run in one process, because their tests share a server and a browser."""

LONGEST = (
    *("space/live/test_page.py", "space/live/test_accessibility.py", "space/live/test_families_and_surveys.py"),
    *("space/live/test_api.py", "space/live/test_figures.py", "space/live/test_visit.py"),
    *("space/live/test_signing_in.py", "space/live/test_mcp.py"),
    *("trained/test_quantized.py", "large/test_deepseek_v3.py", "trained/test_transformations.py"),
    *("model/roles/test_coverage.py", "comparison/test_hostile_files.py", "trained/test_verdicts.py"),
    *("faults/test_faults.py", "trained/test_lineages.py", "model/memory/test_models_in_memory.py"),
    "test_installed.py",
)
"""Files of slow tests that take a quarter of a minute of processor or more. They begin first, so that no process waits
for another at the end. Those that train the same models lie apart, so that none waits for another's model."""

ONLY_HERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
"""For Chromium: only this machine is reachable. A request handler would disable its cache."""

# A property is tried on 30 examples unless it states more; pyproject.toml names this profile. There is no deadline,
# because any example may take long on a busy machine.
hypothesis.settings.register_profile("quick", max_examples=30, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in an order drawn from this seed")


def pytest_sessionstart(session: pytest.Session) -> None:
    needed = NEEDED_BY_SLOW_BYTES if session.config.option.markexpr in ("slow", ALL) else NEEDED_BYTES
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        pytest.exit(
            f"The tests need {needed >> 30} GiB of disk at {tempfile.gettempdir()}, where {free / 2**30:.1f} GiB are "
            "free: make room, or set TMPDIR to a folder of another disk.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only files with requested tests: importing all of them takes each process many seconds."""
    if not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text("utf-8")
    if config.option.markexpr == "not slow":
        return True if re.search(r"^pytestmark = pytest\.mark\.slow$", text, re.MULTILINE) else None
    if config.option.markexpr == "slow":
        beside = collection_path.with_name("conftest.py")
        return None if "mark.slow" in text + (beside.read_text("utf-8") if beside.is_file() else "") else True
    return None


class _Package(pytest.Package):
    """A folder whose fixtures of scope ``package`` end with its last test, without an ``__init__.py``."""

    def setup(self) -> None:
        """Import nothing."""


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """End the servers of :data:`TOGETHER` with their folder: an idle gradio takes a fifteenth of a core."""
    is_together = path in [Path(__file__).parents[1] / folder for folder in TOGETHER]
    return _Package.from_parent(parent, path=path) if is_together else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    begin = {"slow": LONGEST, ALL: (*FIRST, *LONGEST)}.get(config.option.markexpr, FIRST)
    place = {Path(__file__).parent / name: number for number, name in enumerate(begin)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    if config.option.shuffle is not None:
        drawn = random.Random(config.option.shuffle)
        drawn.shuffle(items)
        files = {item.path: drawn.random() for item in items}  # a file stays together, so its fixtures are created once
        items.sort(key=lambda item: files[item.path])


def pytest_collection_finish() -> None:
    # Objects imported so far stay until the end, so the garbage collector need not scan a million of them again and
    # again.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Give each process whole files, and whole folders of :data:`TOGETHER`."""
    return _Folders(config, log) if config.option.dist == "loadfile" else None


class _Folders(LoadFileScheduling):
    """Keep a file in one process, and also a folder of :data:`TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(f"{folder}/")), super()._split_scope(nodeid))


_ENVIRONMENT = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"),
    *("MDIR_HF_CACHE", "MDIR_HF_CACHE_MAX_BYTES"),
)


@pytest.fixture
def hf_home(tmp_path, monkeypatch):
    """Redirect all files of the Hub client and of our cache to tmp_path."""
    home = tmp_path / "hf-home"
    for name in _ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    # The client read its environment at import.
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Otherwise the client's first call requests the list of coding agents from the real Hub.
    monkeypatch.setattr(detect_agent, "_registry", {"standardEnvVars": [], "harnesses": {}})
    return home


@pytest.fixture
def waits(monkeypatch):
    """Replace waits, our own and the Hub client's, by a record of their durations."""
    noted = []
    monkeypatch.setattr("mdir_hf.model.hub.retry.pause", lambda wait_s, cancelled=None: noted.append(wait_s))
    client_time = types.SimpleNamespace(**{**vars(time), "sleep": noted.append})
    monkeypatch.setattr("huggingface_hub.utils._http.time", client_time)
    monkeypatch.setattr("huggingface_hub.file_download.time", client_time)
    return noted


@pytest.fixture
def without_xet(monkeypatch):
    """Use the older of the client's two ways to fetch large files; the other is a separate program."""
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)


@pytest.fixture
def loopback_hub(hf_home, monkeypatch):
    """A running, empty Hub on this machine; HF_ENDPOINT points to it."""
    from tests.loopback.hub import FullHub  # with torch, which the process that hands out tests need not import

    with FullHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def model_folder(tmp_path):
    """A folder with a small config and a 300,000-byte weight file in which no two ranges are equal."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    weights = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def population(tmp_path):
    """Folders of six models of known ancestry, by name: three families, two tokenizers."""
    from tests.population import write_population  # with torch

    return {name: str(folder) for name, folder in write_population(tmp_path / "models").items()}


@pytest.fixture
def expected_groups(population):
    """The families of ``population``, as sets of folders."""
    from tests.population import FAMILIES

    return {frozenset(population[name] for name in members) for members in FAMILIES.values()}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The only browser of a test process: Playwright cannot start twice at a time."""
    # The first is the same browser without windows, which renders pages at half the cost.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    programs = map(shutil.which, names)
    program = next(filter(None, programs), None)
    if program is None:
        pytest.fail("Chromium is not installed: apt-get install chromium")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", ONLY_HERE])
        yield browser
        browser.close()
