"""What a comparison is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.progress import Watch


@dataclass(frozen=True, slots=True)
class Settings:
    """What a comparison is asked to do; see :class:`~mdir_hf.checker.HomologyChecker`.

    Attributes:
        level: auto, screen, embedding or body.
        alpha: Level of significance, fixed before looking.
        seed: Seed of every random choice.
        device: torch device of the matrix products.
        max_memory_bytes: Refuse what would need more; None: what the machine has.
        progress: Whether to show a bar of bytes on a terminal.
        on_plan: Called with the plan before weights are read.
        watch: Tells how far it is.
    """

    level: str
    alpha: float
    seed: int
    device: str
    max_memory_bytes: int | None
    progress: bool
    on_plan: Callable[[ReadPlan], None] | None = None
    watch: Watch = field(default_factory=Watch)
