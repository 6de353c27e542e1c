"""Report the progress of a comparison to listeners, which can stop it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from tqdm import tqdm

from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.model.hub import IoLedger
from mdir_hf.report import HomologyReport, InputOutput, n_bytes_text

DELAY_S = 1.0
"""Seconds until the progress bar appears."""

_BETWEEN_DRAWINGS_S = 0.25

LOOKED_FOR = {
    "opening": "opening the models",
    "near": "comparing neurons of layers at the same place",
    "number": "comparing neurons by number",
    "parts": "comparing experts and other stacks",
    "keys": "comparing heads, and searching for neurons",
    "every": "comparing neurons of every layer",
    "embeddings": "looking at the embeddings",
    "noise": "comparing neurons under noise",
    "search": "searching for neurons",
    "layers": "comparing every projection of every layer",
    "paper": "running the paper's algorithms",
    "index": "looking for bases in the index",
    "rows": "reading a sample of rows",
    "pairs": "looking for related pairs",
    "trees": "growing family trees",
    "cards": "looking for declared bases",
}
"""Description of each stage, for the terminal."""

_PARTS = {"layers": "layers", "rows": "models", "pairs": "pairs", "trees": "trees", "cards": "cards"}


@contextmanager
def progress_bar(*, is_wanted: bool) -> Iterator[Callable[[Progress], None]]:
    """Show the latest progress on a terminal while the block runs.

    Yields a cheap, thread-safe function that updates it.
    """
    latest: Progress | None = None
    ended = threading.Event()

    def tell(progress: Progress) -> None:
        nonlocal latest
        latest = progress

    def show() -> None:
        if ended.wait(DELAY_S):
            return
        bar: tqdm[NoReturn] = tqdm(file=sys.stderr, leave=False, dynamic_ncols=True, bar_format="{desc}")
        with bar:
            bar.start_t -= DELAY_S
            while True:
                if latest is not None:
                    _draw(bar, latest)
                if ended.wait(_BETWEEN_DRAWINGS_S):
                    return

    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_wanted or not is_terminal or are_progress_bars_disabled():
        yield tell
        return
    thread = threading.Thread(target=show, name="mdir-hf-progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


def _draw(bar: tqdm[NoReturn], progress: Progress) -> None:
    has_parts = progress.n_parts is not None
    bar.n, bar.total = (
        (progress.n_done, progress.n_parts) if has_parts else (progress.bytes_read, progress.bytes_expected)
    )
    words = [LOOKED_FOR.get(progress.stage, progress.stage)]
    words += [f"{progress.n_done} of {progress.n_parts} {_PARTS.get(progress.stage, 'parts')}"] if has_parts else []
    words += [f"{n_bytes_text(progress.bytes_read)} read"] if progress.bytes_read else []
    bar.bar_format = "{desc} |{bar:20}| {elapsed}" if bar.total else "{desc} {elapsed}"
    bar.set_description_str(", ".join(words))


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress update of a comparison.

    Attributes:
        stage: ``opening``, or a step of the comparison: ``near``, ``number``, ``parts``, ``keys``, ``every``,
            ``embeddings``, ``noise``, ``search``, ``layers`` or ``paper``.
        bytes_read: Bytes read so far, from the network and caches.
        bytes_expected: Upper bound on bytes read by the end of this stage; None if unknown.
        n_done: Completed parts of this stage, such as layers.
        n_parts: Upper bound on the number of parts, or None.
    """

    stage: str
    bytes_read: int
    bytes_expected: int | None = None
    n_done: int = 0
    n_parts: int | None = None


class ByteCounter:
    """Counter of the bytes read by several comparisons, including failed ones.

    Attributes:
        listeners: Listeners to pass to the comparisons; they forward every call to the original listeners.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._on_progress = listeners.on_progress
        self._before = self._last = 0
        self.listeners = replace(listeners, on_progress=self._hear)

    @property
    def n_bytes(self) -> int:
        """Total bytes so far, including bytes from local caches."""
        return self._before + self._last

    def left_of(self, most: int | None) -> int | None:
        """Return how many bytes remain of the limit ``most``, or None if there is no limit."""
        return None if most is None else max(0, most - self.n_bytes)

    def _hear(self, progress: Progress) -> None:
        if progress.bytes_read < self._last:  # a new comparison has started
            self._before += self._last
        self._last = progress.bytes_read
        if self._on_progress is not None:
            expected = None if progress.bytes_expected is None else self._before + progress.bytes_expected
            self._on_progress(replace(progress, bytes_read=self.n_bytes, bytes_expected=expected))


class Watch:
    """Tracks bytes and time of one comparison, and notifies listeners, which can stop it by raising an error.

    Counting begins at construction or, with ``from_start``, with the ledger's first byte.
    """

    def __init__(self, ledger: IoLedger, listeners: Listeners, *, from_start: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._ledger = ledger
        self._read = 0 if from_start else ledger.bytes_read
        self._cached = 0 if from_start else ledger.bytes_from_cache
        self._requests = 0 if from_start else ledger.requests
        self._files = {} if from_start else dict(ledger.files)
        self._planned: tuple[int, int] | None = None
        self._listeners = listeners
        self._progress = Progress("opening", 0)
        self._show: Callable[[Progress], None] = lambda progress: None
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Bytes so far, from network and caches."""
        return self._ledger.bytes_read - self._read + self._ledger.bytes_from_cache - self._cached

    def io(self, bytes_of_weights: int) -> InputOutput:
        """Return the bytes, requests and files counted so far."""
        now = self._ledger
        touched = sorted(name for name, n_bytes in now.files.items() if n_bytes != self._files.get(name))
        return InputOutput(
            bytes_read=now.bytes_read - self._read,
            bytes_from_cache=now.bytes_from_cache - self._cached,
            bytes_of_weights=bytes_of_weights,
            requests=now.requests - self._requests,
            files=tuple(touched),
            bytes_planned=self._planned,
        )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Report bytes as they arrive, and show the progress bar."""
        with progress_bar(is_wanted=self._listeners.progress) as self._show, self._ledger.listening(self._arrived):
            yield

    def enter(self, stage: str, bytes_expected: int | None = None) -> None:
        """Start a stage that will read at most ``bytes_expected`` more bytes."""
        with self._lock:
            so_far = self._progress.bytes_read
            self._tell(Progress(stage, so_far, None if bytes_expected is None else so_far + bytes_expected))

    def part(self, stage: str, n_done: int, n_parts: int) -> None:
        """Report completed parts of a stage."""
        with self._lock:
            self._tell(Progress(stage, self._progress.bytes_read, None, n_done, n_parts))

    def planned(self, plan: ReadPlan) -> None:
        """Store the planned number of bytes and notify listeners of the plan."""
        self._planned = plan.n_bytes
        if self._listeners.on_plan is not None:
            self._listeners.on_plan(plan)

    def found(self, report: Callable[[], HomologyReport]) -> None:
        """Send an interim report to a listener, if there is one."""
        if self._listeners.on_found is not None:
            self._listeners.on_found(report())

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the duration of the ``with`` block to the seconds of a step."""
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
        self._show(progress)
        if self._listeners.on_progress is None:
            return
        try:
            self._listeners.on_progress(progress)
        except MdirError:
            raise
        except Exception as exc:  # a reader thread would treat some exceptions as network failures
            raise StoppedError(f"stopped during {progress.stage} by its listener: {exc}") from exc
