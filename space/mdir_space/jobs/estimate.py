"""Estimate the duration of a comparison, and format sizes and durations."""

from __future__ import annotations

from mdir_hf import HomologyReport, ReadPlan

FIRST_GUESS_BYTES_PER_S = 15e6
"""Assumed speed of reads from the Hub before the first measurement."""

SECONDS_OF_STEP = 0.6
"""Processor time of one step of a comparison. The steps took 0.1 to 1.0 s for models of 135M."""

OPENING_S = 2.0
"""Time to read a model's headers and tokenizer from the Hub without a cache."""

SECONDS_OF_PAIR = (0.02, 0.1)
"""Seconds to compare the stored neurons of two models, idle and on a busy server (``benchmarks/survey_scale.py``)."""

FIRST_GUESS_OF_JOB_S = 10.0
"""Assumed time of a job before the first one has ended."""

WEIGHT_OF_NEW = 0.3
MIN_BYTES_TO_LEARN_FROM = 1 << 20


class Pace:
    """The speed of comparisons on this server, learned from completed comparisons.

    Attributes:
        bytes_per_s: Speed of reads.
        job_s: Time of a job, in seconds.
    """

    def __init__(self) -> None:
        self.bytes_per_s = FIRST_GUESS_BYTES_PER_S
        self.job_s = FIRST_GUESS_OF_JOB_S

    def learn_job(self, seconds: float) -> None:
        """Update the time of a job with one that has ended."""
        self.job_s += WEIGHT_OF_NEW * (seconds - self.job_s)

    def learn(self, report: HomologyReport) -> None:
        """Update the estimate with a completed comparison."""
        total_s = sum(report.seconds.values())
        seconds = max(0.1 * total_s, total_s - SECONDS_OF_STEP * len(report.seconds))
        if report.io.bytes_read >= MIN_BYTES_TO_LEARN_FROM and seconds > 0.0:
            bytes_per_s = report.io.bytes_read / seconds
            self.bytes_per_s += WEIGHT_OF_NEW * (bytes_per_s - self.bytes_per_s)

    def seconds(self, plan: ReadPlan) -> tuple[float, float]:
        """Return the duration of a comparison if its first step settles it, and if every step is needed."""
        least, most = bytes_of(plan)
        return self._seconds(least, 1), self._seconds(most, len(plan.steps))

    def seconds_of_survey(self, n_bytes: int, *, n_models: int, n_pairs: int) -> tuple[float, float]:
        """Return the duration of a survey on an idle and on a busy server."""
        reading = n_models * OPENING_S + n_bytes / self.bytes_per_s
        least, most = (reading + n_pairs * seconds for seconds in SECONDS_OF_PAIR)
        return least, most

    def _seconds(self, n_bytes: int, n_steps: int) -> float:
        return n_bytes / self.bytes_per_s + SECONDS_OF_STEP * n_steps


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
