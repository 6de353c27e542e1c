"""Reports the progress of a comparison, and lets it be stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.progress_bar import ProgressBar
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.model.hub import IoLedger
from mdir_hf.report import HomologyReport, InputOutput


@dataclass(frozen=True, slots=True)
class Progress:
    """One sign of life of a comparison.

    Attributes:
        stage: ``opening``, ``vocabulary``, ``screen``, ``neurons`` (a few, by number), ``embedding``, ``unembedding``,
            ``layers`` (which descends from which) or ``modules`` (what was done to each matched pair).
        bytes_read: Bytes that this comparison has read so far, from the network and from caches on this disk.
        bytes_expected: Most bytes that the stages up to this one read in all; None where that is not known yet. A
            screen that settles stops long before.
        n_done: Parts of this stage that are done: maps of the layers, or matched pairs of layers.
        n_parts: How many there are at most; None where the stage has no parts.
    """

    stage: str
    bytes_read: int
    bytes_expected: int | None = None
    n_done: int = 0
    n_parts: int | None = None


class BytesTold:
    """Counts what comparisons read while they say so; of one that fails nothing else tells.

    Args:
        listeners: Who is told, too.

    Attributes:
        listeners: To be given to the comparisons.
        n_bytes: Bytes of all of them so far, those from caches on this disk among them.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._told = listeners.on_progress
        self._before = self._last = 0
        self.listeners = replace(listeners, on_progress=self._hear)

    @property
    def n_bytes(self) -> int:
        """Bytes of all of them so far."""
        return self._before + self._last

    def left_of(self, most: int | None) -> int | None:
        """Return what is left of a cap on all of them; None: no cap."""
        return None if most is None else max(0, most - self.n_bytes)

    def _hear(self, progress: Progress) -> None:
        if progress.bytes_read < self._last:  # another comparison
            self._before += self._last
        self._last = progress.bytes_read
        if self._told is not None:
            expected = None if progress.bytes_expected is None else self._before + progress.bytes_expected
            self._told(replace(progress, bytes_read=self.n_bytes, bytes_expected=expected))


class IoCount:
    """What a ledger counts from some moment on."""

    def __init__(self, ledger: IoLedger, *, from_start: bool = False) -> None:
        self.ledger = ledger
        self._read = 0 if from_start else ledger.bytes_read
        self._cached = 0 if from_start else ledger.bytes_from_cache
        self._requests = 0 if from_start else ledger.requests
        self._files = {} if from_start else dict(ledger.files)

    def result(self, bytes_of_weights: int) -> InputOutput:
        """The counts since then."""
        now = self.ledger
        touched = sorted(name for name, n_bytes in now.files.items() if n_bytes != self._files.get(name))
        return InputOutput(
            bytes_read=now.bytes_read - self._read,
            bytes_from_cache=now.bytes_from_cache - self._cached,
            bytes_of_weights=bytes_of_weights,
            requests=now.requests - self._requests,
            files=tuple(touched),
        )


class Watch:
    """Accompanies one comparison: counts bytes and seconds, tells its listeners, and stops it where one raises.

    Args:
        ledger: Counts what is read.
        listeners: Who is told.
        from_start: Whether what the ledger has counted so far belongs to this comparison.

    Attributes:
        io: What is read from now on.
        seconds: Wall-clock seconds of each step so far.
    """

    def __init__(self, ledger: IoLedger, listeners: Listeners, *, from_start: bool = False) -> None:
        self.io = IoCount(ledger, from_start=from_start)
        self.seconds: dict[str, float] = {}
        self._ledger = ledger
        self._listeners = listeners
        self._progress = Progress("opening", 0)
        self._bar = ProgressBar(is_wanted=listeners.progress)
        self._lock = threading.Lock()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Tell of bytes that arrive inside the block, and show the bar."""
        with self._bar, self._ledger.listening(self._arrived):
            yield

    def enter(self, stage: str, bytes_expected: int | None = None) -> None:
        """Say that a stage begins, which will read at most so many more bytes."""
        with self._lock:
            so_far = self._progress.bytes_read
            self._tell(Progress(stage, so_far, None if bytes_expected is None else so_far + bytes_expected))

    def part(self, stage: str, n_done: int, n_parts: int) -> None:
        """Say that so many parts of a stage are done."""
        with self._lock:
            self._tell(Progress(stage, self._progress.bytes_read, None, n_done, n_parts))

    def planned(self, plan: ReadPlan) -> None:
        """Tell of the plan."""
        if self._listeners.on_plan is not None:
            self._listeners.on_plan(plan)

    def found(self, report: Callable[[], HomologyReport]) -> None:
        """Tell of the report that there would be if no more were read, which is made only where somebody listens."""
        if self._listeners.on_found is not None:
            self._listeners.on_found(report())

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 4)

    def _arrived(self, n_bytes: int) -> None:
        with self._lock:
            self._tell(replace(self._progress, bytes_read=self._progress.bytes_read + n_bytes))

    def _tell(self, progress: Progress) -> None:
        self._progress = progress
        self._bar.tell(progress)
        if self._listeners.on_progress is None:
            return
        try:
            self._listeners.on_progress(progress)
        except MdirError:
            raise
        except Exception as exc:  # a reading thread would take some exceptions for failures of the network
            raise StoppedError(f"stopped during {progress.stage} by its listener: {exc}") from exc
