"""Settings and listeners of a comparison: frozen objects, validated when created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdir_hf.errors import InputError
from mdir_hf.report import HomologyReport, Level
from mdir_hf.thresholds import ALPHA

if TYPE_CHECKING:
    from mdir_hf.comparison.plan import ReadPlan
    from mdir_hf.comparison.progress import Progress

SEEDS = 2**63
"""Exclusive upper limit on seeds in numpy and torch."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a comparison.

    Attributes:
        level: How thoroughly to compare. ``auto`` compares neurons until the question is settled, and then stops.
            ``layers`` also compares sampled rows of every projection of every layer, and searches for moved rows.
            ``paper`` also runs the paper's algorithms on whole matrices, which takes minutes for models of 0.1B and
            hours for 8B.
        alpha: Significance level in (0, 1), fixed in advance.
        seed: Seed in [0, 2^63) for every random choice except the sample of neurons.
        sample_seed: Seed for the sample of neurons. A predictable sample is not evidence, so the verdict is at most
            ``inconclusive`` (``sample_chosen``). By default, the seed is drawn from system entropy after both models
            are open. To check a report, use :func:`mdir_hf.check_report`.
        device: torch device for matrix products. ``auto`` selects a CUDA device if there is one, else the CPU.
        max_bytes: Limit on the bytes that this comparison reads, or None for no limit.
        max_memory_bytes: Memory limit, by default the machine's memory. Steps that need more are left out.
        describes: Whether the embeddings are described even if neurons settle the question without them.
        describes_relatives: Whether reports on related models include the projection table at every level.

    Raises:
        InputError: If alpha or a seed is out of range, or if the level is unknown.
    """

    level: Level = Level.AUTO
    alpha: float = ALPHA
    seed: int = 0
    device: str = "cpu"
    max_bytes: int | None = None
    max_memory_bytes: int | None = None
    sample_seed: int | None = None
    describes: bool = False
    describes_relatives: bool = False

    def __post_init__(self) -> None:
        """Validate the fields, and convert the level's name to a :class:`Level`."""
        try:
            object.__setattr__(self, "level", Level(self.level))
        except ValueError as exc:
            raise InputError(f"level {str(self.level)!r} is not known; choose from {', '.join(Level)}") from exc
        if not 0.0 < self.alpha < 1.0:
            raise InputError(f"alpha must lie between 0 and 1, got {self.alpha}")
        for seed in (self.seed, self.sample_seed):
            if seed is not None and not 0 <= seed < SEEDS:
                raise InputError(f"a seed must be a whole number from 0 to 2^63 - 1, got {seed}")


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks for a running comparison.

    Attributes:
        progress: Whether to show a progress bar after one second if standard error is a terminal.
        on_plan: Called with the plan before weights are read.
        on_progress: Called whenever a stage begins or bytes arrive, from any thread, one call at a time. An exception
            stops the comparison: an ``MdirError`` is raised unchanged, any other exception as the cause of a
            ``StoppedError``.
        on_found: Called before each step, once anything was compared, with the report of the results so far. If the
            comparison is stopped, the last report is its result.
    """

    progress: bool = True
    on_plan: Callable[[ReadPlan], None] | None = None
    on_progress: Callable[[Progress], None] | None = None
    on_found: Callable[[HomologyReport], None] | None = None
