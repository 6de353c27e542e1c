"""Compare framed models with their victims several times, each time with a fresh sample."""

from __future__ import annotations

import json
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.real.framing.cases import Case as FramedModel
from benchmarks.real.framing.cases import built, cases, folder_of
from benchmarks.runner import Benchmark, Case
from mdir_hf import HomologyChecker
from mdir_hf.comparison.neuron_sample import draw_sample_seed, take_pair
from mdir_hf.comparison.neurons import count_neurons
from mdir_hf.comparison.reading import read_closely
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import SettledBy
from mdir_hf.thresholds import ALPHA

N_SAMPLES = 10


def judged(case: FramedModel) -> dict[str, Any]:
    """Return a line of the results: verdicts, and the largest counts of neurons over all samples."""
    record = json.loads((built(case) / "framed.json").read_text(encoding="utf-8"))
    began = time.process_time()
    checker = HomologyChecker.from_pretrained(str(folder_of(case.victim)), use_caches=False)
    reports = [checker.compare(str(built(case)), progress=False) for _ in range(N_SAMPLES)]
    cpu_s = round((time.process_time() - began) / N_SAMPLES, 2)
    return {
        "name": case.name,
        "victim": case.victim,
        "stranger": case.stranger,
        "done": case.done,
        "copied": case.copied,
        "related": case.is_related,
        **record,
        "verdicts": Counter(report.verdict.value for report in reports),
        "reasons": Counter(report.reason.value for report in reports if report.reason is not None),
        **counted(case),
        "cpu_s": cpu_s,
    }


def counted(case: FramedModel) -> dict[str, int]:
    """Count neurons by number in four layers of each model, every layer with every layer, for fresh samples."""
    folders = (folder_of(case.victim), built(case))
    models = [
        Model(open_repository(folder, RepositoryOptions(use_caches=False), ledger=IoLedger())) for folder in folders
    ]
    pairs = (take_pair([read_closely(model) for model in models], seed=draw_sample_seed()) for _ in range(N_SAMPLES))
    numbers = [count_neurons(*samples, SettledBy.NUMBER, alpha=ALPHA) for samples in pairs if samples is not None]
    known = [counts for counts in numbers if counts is not None]
    return {
        "tested": max((counts.tested for counts in known), default=0),
        "most_own": max((max(map(max, counts.own_number)) for counts in known), default=0),
        "most_certain": max((max(map(max, counts.certain)) for counts in known), default=0),
    }


FRAMING = Benchmark(
    "framing",
    "verdicts on strangers and copies that were prepared to look like relatives, ten samples each",
    ("name",),
    lambda: (Case((name,), partial(judged, case)) for name, case in cases().items()),
)
