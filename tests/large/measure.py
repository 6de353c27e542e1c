"""Run ``mdir-hf compare`` as a user would, and measure the bytes read and the memory used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Not ru_maxrss: a child inherits the peak of the process that started it.
RUNNER = """
import pathlib, re, sys, time
from mdir_hf.cli import main
status = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]
sys.stderr.write(f"\\nprocessor {time.process_time()}\\npeak {peak}\\n")
raise SystemExit(status)
"""


@dataclass(frozen=True)
class Run:
    """One run: the report, peak resident memory in bytes, and processor time in seconds, including imports."""

    report: dict[str, Any]
    peak_memory_bytes: int
    cpu_s: float

    @property
    def share_read(self) -> float:
        """Bytes read, including tokenizers, over the bytes of the two checkpoints."""
        return float(self.report["io"]["bytes_read"] / self.report["io"]["bytes_of_weights"])


def run_compare(
    reference: str, candidate: str, *options: str, endpoint: str, home: Path, timeout_s: float = 900.0
) -> Run:
    """Compare two repositories of a loopback Hub in a separate process with empty caches."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "MDIR_HF_"))}
    environment = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    result = subprocess.run(
        [sys.executable, "-c", RUNNER, "compare", reference, candidate, "--json", *options],
        env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise RuntimeError(f"mdir-hf compare ended with {result.returncode}: {result.stderr[-2000:]}")
    before, peak = result.stderr.rsplit("peak ", 1)
    return Run(json.loads(result.stdout), 1024 * int(peak), float(before.rsplit("processor ", 1)[1]))
