"""Compare two drawn models in a process of its own; print the planned and the measured peak memory, in bytes.

``python -m tests.large.planned_memory SIZE KIND``: the size is a name in ``benchmarks.cost_growth.SIZES``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.cost_growth import SIZES, DrawnModel
from mdir_hf.comparison.plan import plan_comparison
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.model.hub import IoLedger


class HiddenWithNewNeurons(DrawnModel):
    """Copied attention in another basis and order, and the MLPs of a stranger: all searches run, and none succeeds."""

    def _weight(self, name: str, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        if ".mlp." in name:
            return DrawnModel(self.size, "stranger", self.ledger)._weight(name, rows)
        return super()._weight(name, rows)


def main(size_name: str, kind: str) -> None:
    """Compare the base of a size with a candidate, a kind of ``benchmarks.cost_growth`` or ``new-neurons``."""
    torch.set_num_threads(1)
    size = next(size for size in SIZES if size.name == size_name)
    ledger = IoLedger()
    base = DrawnModel(size, "base", ledger)
    is_mixed = kind == "new-neurons"
    candidate = HiddenWithNewNeurons(size, "hidden", ledger) if is_mixed else DrawnModel(size, kind, ledger)
    plan = plan_comparison(base, candidate, Settings())
    report = compare_models(base, candidate, Settings(), Watch(ledger, Listeners(progress=False)))
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
    steps = list(report.seconds)
    row = {"planned": plan.peak_memory_bytes, "peak": peak, "settled_by": report.settled_by, "steps": steps}
    sys.stdout.write(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
