"""No pattern that meets a repository's text takes more than linear time: each is run on strings made to cost."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("mdir_hf.vocabulary", "mdir_hf.checkpoint")
LENGTH = 200_000
"""In quadratic time a string of this length takes a minute and more, in linear time a few milliseconds."""

MOST_SECONDS = 20
PUMPS = ("0", "a", " ", "_", "a.", "1-", "\\", '"', '\\"', "a b", '"a",', '[["', "-00001-of-")
# One that once froze a page.
QUADRATIC = re.compile(r"[<\[]\|?(?:reserved\w*?|unused)[_\- ]?\d+\|?[>\]]")


def patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """Every compiled pattern of some rooms, by module and name."""
    found: dict[str, re.Pattern[str] | re.Pattern[bytes]] = {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, f"{room}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern):
                    found[f"{module.name}.{name}"] = value
    return found


def costly_texts(pattern: str) -> list[str]:
    """What a pattern is made of, over and over, with an end that it does not have."""
    words = {word for word in re.findall(r"[A-Za-z]{2,}|[^A-Za-z\s]", pattern) if word.isprintable()}
    starts = ["", *(f"<{word}" for word in words if len(word) > 1)][:3]
    pumps = dict.fromkeys((*words, *(f"-{word}-" for word in words), *(f".{word}." for word in words), *PUMPS))
    return [start + pump * (LENGTH // len(pump)) + "\n" for start in starts for pump in pumps]


def run(pattern: re.Pattern[str] | re.Pattern[bytes]) -> None:
    """Run a pattern on its strings; the system ends the process where one takes too long."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    for text in costly_texts(source):
        used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (used + MOST_SECONDS, hard))
        text_or_bytes = text if isinstance(pattern.pattern, str) else text.encode()
        pattern.fullmatch(text_or_bytes)  # type: ignore[arg-type]
        pattern.match(text_or_bytes)  # type: ignore[arg-type]


def run_apart(what: str) -> subprocess.CompletedProcess[str]:
    """Run patterns in a process of their own."""
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", f"from tests.fuzz.test_patterns import *\n{what}"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits by the system")
def test_every_pattern_takes_linear_time():
    assert len(patterns()) > 10
    ran = run_apart("for name, pattern in patterns().items():\n    sys.stderr.write(name + '\\n')\n    run(pattern)")
    assert ran.returncode == 0, f"does not end: {ran.stderr.splitlines()[-1:]}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits by the system")
def test_a_pattern_that_takes_quadratic_time_is_found():
    assert run_apart("run(QUADRATIC)").returncode == -signal.SIGXCPU
