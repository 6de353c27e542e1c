"""One piece of work for a visitor, seen from the server: says how far it is, and ends when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar, cast

from mdir_hf import ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import GatedRepositoryError, RepositoryNotFoundError
from mdir_space.access import Access
from mdir_space.errand import Errand
from mdir_space.processes import Processes
from mdir_space.whole_progress import WholeProgress
from mdir_space.work import Event, SoFar, Task

R = TypeVar("R")


class Assignment(Generic[R]):
    """Work that is going to be done, is being done, or has been done.

    Args:
        access: What to read, and how.
        task_for: Makes the task for an access.
        processes: Where it is done.
        seconds: How long it may take; None: for ever.
        own_token: The visitor's token, for what turns out to need it: a public adapter may stand on a gated base.

    Attributes:
        access: How the models are read.
        plan: What it is going to read, once it has said so.
        progress: How far it is.
        whole: How far it is on the whole.
        so_far: What was found, in the form of the result; None as long as there is nothing.
    """

    def __init__(
        self,
        access: Access,
        task_for: Callable[[Access], Task[R]],
        processes: Processes,
        *,
        seconds: float | None = None,
        own_token: str | None = None,
    ) -> None:
        self.access = access
        self.plan: ReadPlan | None = None
        self.progress = Progress("opening", 0)
        self.whole = WholeProgress()
        self.so_far: R | None = None
        self._task_for = task_for
        self._errand = Errand(processes, self._hear)
        self._limit_s = seconds
        self._own_token = own_token

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return self._errand.seconds

    def stop(self) -> None:
        """End its process, whatever that is doing."""
        self._errand.stop()

    def run(self) -> R:
        """Do it; blocks.

        Raises:
            StoppedError: After :meth:`stop`.
            OutOfTimeError: If it took too long.
            OutOfMemoryError: If it took too much memory, or its process was ended from outside.
            MdirError: If it cannot be done.
        """
        self._errand.start()
        try:
            return self._errand.run(self._task_for(self.access), self._limit_s)
        except (GatedRepositoryError, RepositoryNotFoundError):
            if self.access.is_private or self._own_token is None:
                raise
            self.access = replace(self.access, token=self._own_token, is_private=True, is_shared=False)
            return self._errand.run(self._task_for(self.access), self._limit_s)

    def _hear(self, event: Event) -> None:
        self.whole.hear(event)
        if isinstance(event, ReadPlan):
            self.plan = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, SoFar):
            self.so_far = cast("R", event.result)
