"""The plan's peak memory is not exceeded if every step runs, at the width of Qwen2.5-0.5B."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_a_comparison_of_all_steps_takes_no_more_memory_than_planned():
    command = [sys.executable, "-m", "tests.large.planned_memory", "Qwen2.5-0.5B", "new-neurons"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    run = json.loads(done.stdout)
    assert run["settled_by"] is None and {"keys", "noise", "search"} <= set(run["steps"])
    assert run["peak"] <= run["planned"]
