"""What a comparison is doing, told while it does it; and the place where it can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.hub import IoLedger


@dataclass(frozen=True, slots=True)
class Progress:
    """One sign of life of a comparison.

    Attributes:
        stage: ``opening``, ``vocabulary``, ``screen``, ``embedding``, ``unembedding`` or ``layers``.
        bytes_read: Bytes that this comparison has read so far, from the network and from caches on this disk.
        bytes_expected: Most bytes that the stages up to this one read in all; None where that is not known yet. A
            screen that settles stops long before.
    """

    stage: str
    bytes_read: int
    bytes_expected: int | None = None


class Watch:
    """Tells a listener about a comparison, and stops the comparison where the listener raises.

    Args:
        listener: Called at the start of every stage and whenever bytes arrive, from any thread, one call at a time.
    """

    def __init__(self, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener = listener
        self._progress = Progress("opening", 0)

    def enter(self, stage: str, bytes_expected: int | None = None) -> None:
        """Say that a stage begins, which will read at most so many more bytes."""
        so_far = self._progress.bytes_read
        total = None if bytes_expected is None else so_far + bytes_expected
        self._tell(Progress(stage, so_far, total))

    @contextmanager
    def over(self, ledger: IoLedger) -> Iterator[None]:
        """Count what a ledger sees meanwhile."""
        before = ledger.on_bytes

        def arrived(n_bytes: int) -> None:
            now = self._progress
            self._tell(Progress(now.stage, now.bytes_read + n_bytes, now.bytes_expected))
            if before is not None:
                before(n_bytes)

        ledger.on_bytes = arrived
        try:
            yield
        finally:
            ledger.on_bytes = before

    def _tell(self, progress: Progress) -> None:
        self._progress = progress
        if self._listener is None:
            return
        try:
            self._listener(progress)
        except MdirError:
            raise
        except Exception as exc:  # a reading thread would take some exceptions for failures of the network
            raise StoppedError(f"stopped during {progress.stage} by its listener: {exc}") from exc
