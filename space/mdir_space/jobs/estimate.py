"""Estimate the duration of a comparison, and format sizes and durations."""

from __future__ import annotations

from mdir_hf import HomologyReport, ReadPlan

FIRST_GUESS_BYTES_PER_S = 15e6
"""Assumed speed of reads from the Hub before the first measurement."""

FLOPS_PER_S = 15e9
"""Speed of single-precision matrix products and singular values on two virtual cores."""

SVD_FLOPS = 30
"""Number of operations for the singular values of an n x n matrix, divided by n cubed."""

OPENING_S = 2.0
"""Time to read a model's headers and tokenizer from the Hub without a cache."""

SECONDS_OF_PAIR = (0.8, 8.0)
"""Seconds on one core to compare sampled rows of two relatives (first look only), and of two strangers of width 1,024
(all looks). Strangers of width 576, 2,048 and 4,096 took 2.4 to 4.1 s."""

WEIGHT_OF_NEW = 0.3
MIN_BYTES_TO_LEARN_FROM = 1 << 20


class Pace:
    """The speed of comparisons on this server, learned from completed comparisons.

    Attributes:
        bytes_per_s: Speed of reads.
    """

    def __init__(self) -> None:
        self.bytes_per_s = FIRST_GUESS_BYTES_PER_S

    def learn(self, report: HomologyReport) -> None:
        """Update the estimate with a completed comparison."""
        seconds = sum(report.seconds.values())
        if report.io.bytes_read >= MIN_BYTES_TO_LEARN_FROM and seconds > 0.0:
            bytes_per_s = report.io.bytes_read / seconds
            self.bytes_per_s += WEIGHT_OF_NEW * (bytes_per_s - self.bytes_per_s)

    def seconds(self, plan: ReadPlan) -> tuple[float, float]:
        """Return the duration of a comparison if its first look is enough, and if everything is read."""
        first, most = bytes_of(plan)
        rows, all_rows = plan.look_rows[0], plan.common_tokens if plan.level != "screen" else plan.look_rows[-1]
        return self._seconds(plan, first, rows), self._seconds(plan, most, all_rows)

    def seconds_of_survey(self, n_bytes: int, *, n_models: int, n_pairs: int) -> tuple[float, float]:
        """Return the duration of a survey if all models are relatives, and if none are."""
        reading = n_models * OPENING_S + n_bytes / self.bytes_per_s
        least, most = (reading + n_pairs * seconds for seconds in SECONDS_OF_PAIR)
        return least, most

    def _seconds(self, plan: ReadPlan, n_bytes: int, rows: int) -> float:
        n_reference, n_candidate = plan.reference.shape[1], plan.candidate.shape[1]
        rank = min(rows, n_reference, n_candidate)
        flops = 2.0 * rows * n_reference * n_candidate + SVD_FLOPS * rank * n_reference * n_candidate
        return n_bytes / self.bytes_per_s + flops / FLOPS_PER_S


def bytes_of(plan: ReadPlan) -> tuple[int, int]:
    """Return the minimum and maximum bytes that a comparison reads, including headers and tokenizers."""
    return plan.n_bytes


def duration_text(seconds: float) -> str:
    """Format a duration in round numbers, since it is an estimate."""
    if seconds < 5.0:
        return "a few seconds"
    if seconds < 100.0:
        return f"{5 * round(seconds / 5):.0f} seconds"
    return f"{round(seconds / 60):.0f} minutes"


def size_text(n_bytes: float) -> str:
    """Format a size with its unit and three significant digits."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000.0
    return f"{n_bytes:.3g} GB" if n_bytes < 999.5 else f"{n_bytes / 1000.0:.3g} TB"
