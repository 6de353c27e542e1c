"""What a suite would read and how long it would take, from headers alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.leafbench.suites import LabelledPair
from mdir_hf import HomologyChecker
from mdir_hf.comparison.plan import ReadPlan, make_plan
from mdir_hf.errors import MdirError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.fingerprints.pairs import compare_fingerprints
from mdir_hf.model.open import Reading
from mdir_hf.report import Level, ModelSummary, n_bytes_text

READERS = 8
PROBE_WIDTH, PROBE_ROWS = 512, 2048


@dataclass(frozen=True)
class SuitePlan:
    """What a run would take.

    Attributes:
        n_models: Models that can be opened.
        failures: Those that cannot, with the reason.
        n_pairs: Pairs of models that can.
        least_bytes: Bytes of weights at least: rows of the sample, or the first look of every pair.
        most_bytes: At most, embeddings only; layers, which ``auto`` and ``body`` may read on top, are not counted.
        bytes_of_weights: Stored size of all models that can be opened.
        peak_memory_bytes: Estimate for the pair that needs most.
        compute_s: Processor seconds of the comparisons, scaled from one measured here; rough.
        download_s: Seconds that ``most_bytes`` take at the given rate.
    """

    n_models: int
    failures: Mapping[str, str]
    n_pairs: int
    least_bytes: int
    most_bytes: int
    bytes_of_weights: int
    peak_memory_bytes: int
    compute_s: float
    download_s: float

    def __str__(self) -> str:
        least, most, stored, memory = (
            n_bytes_text(n) for n in (self.least_bytes, self.most_bytes, self.bytes_of_weights, self.peak_memory_bytes)
        )
        lines = [
            f"{self.n_models} models can be opened, {len(self.failures)} cannot; {self.n_pairs} pairs",
            f"reads {least} to {most} of {stored} of weights; peak memory about {memory}",
            f"about {_hours(self.download_s)} for the bytes, {_hours(self.compute_s)} of one core for the comparisons",
        ]
        return "\n".join([*lines, *(f"cannot open {name}: {why}" for name, why in self.failures.items())])


def plan_suite(
    pairs: Sequence[LabelledPair], *, level: str, n_tokens: int, bytes_per_s: float, reading: Reading
) -> SuitePlan:
    """Open every model and add up.

    Args:
        pairs: What is to be compared.
        level: ``screen`` reads a sample of each model once; other levels compare pair by pair.
        n_tokens: Rows of that sample.
        bytes_per_s: Rate of the network.
        reading: How repositories are opened.

    Returns:
        The plan. Cost: config, tokenizer, index and one header of each model.
    """
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.reference, pair.candidate)))

    def open_one(name: str) -> ReadPlan | str:
        try:
            return HomologyChecker.from_pretrained(name, reading=reading).plan(name, level=level)
        except MdirError as exc:
            return " ".join(str(exc).split())

    with ThreadPoolExecutor(READERS) as pool:
        found = dict(zip(names, pool.map(open_one, names), strict=True))
    plans = {name: plan for name, plan in found.items() if isinstance(plan, ReadPlan)}
    both = [(plans[p.reference], plans[p.candidate]) for p in pairs if p.reference in plans and p.candidate in plans]
    of_pairs = [
        make_plan(
            a.reference,
            b.reference,
            common_tokens=min(a.common_tokens, b.common_tokens),
            bytes_of_weights=a.bytes_of_weights + b.bytes_of_weights,
            level=Level(level),
        )
        for a, b in both
    ]
    if level == "screen":
        sampled = [min(n_tokens, plan.common_tokens) * _row_n_bytes(plan) for plan in plans.values()]
        least = most = sum(sampled)
    else:
        least = sum(plan.screen_bytes[0] for plan in of_pairs)
        most = sum(plan.full_bytes for plan in of_pairs)
    work = sum(_work(a.reference.shape[1], b.reference.shape[1]) for a, b in both)
    return SuitePlan(
        n_models=len(plans),
        failures={name: why for name, why in found.items() if isinstance(why, str)},
        n_pairs=len(both),
        least_bytes=least,
        most_bytes=most,
        # Each plan is of a model against itself, and counts it twice.
        bytes_of_weights=sum(plan.bytes_of_weights // 2 for plan in plans.values()),
        peak_memory_bytes=max((plan.peak_memory_bytes for plan in of_pairs), default=0),
        compute_s=work / _work(PROBE_WIDTH, PROBE_WIDTH) * _probe_s() if work else 0.0,
        download_s=most / bytes_per_s,
    )


def _row_n_bytes(plan: ReadPlan) -> int:
    return plan.reference.n_bytes // plan.reference.shape[0]


def _work(width: int, other: int) -> float:
    """Proportional to the operations of a screen that nothing settles: r n² for the products, n³ for the factor."""
    n = float(max(width, other))
    return PROBE_ROWS * n * n + n**3


def _probe_s() -> float:
    """Processor seconds of one screen of two strangers, measured on this machine."""
    rows = [torch.randn(PROBE_ROWS, PROBE_WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    tokens = tuple(str(number).encode() for number in range(PROBE_ROWS))
    sides = [
        Fingerprint(ModelSummary(f"probe/{at}", None, None, "llama", PROBE_WIDTH, 0, PROBE_ROWS), tokens, embedding, 0)
        for at, embedding in enumerate(rows)
    ]
    started = time.process_time()
    compare_fingerprints(*sides)
    return time.process_time() - started


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
