"""Show a progress bar on standard error: current step, progress and bytes read."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from tqdm import tqdm

from mdir_hf.report import n_bytes_text

if TYPE_CHECKING:
    from mdir_hf.comparison.progress import Progress

DELAY_S = 2.0
"""Work that finishes sooner shows no bar."""

_BETWEEN_DRAWINGS_S = 0.25

LOOKED_FOR = {
    "opening": "opening the models",
    "vocabulary": "looking for common tokens",
    "screen": "looking for channels that match",
    "neurons": "comparing a few neurons by number",
    "embedding": "looking at all channels of the embeddings",
    "unembedding": "looking at the channels of the unembeddings",
    "layers": "looking for layers that match",
    "modules": "looking into the matched layers",
    "index": "looking for bases in the index",
    "rows": "reading a sample of rows",
    "pairs": "looking for related pairs",
    "trees": "growing family trees",
    "cards": "looking for declared bases",
}
"""Description of each stage in the terminal."""

_PARTS = {"layers": "maps", "modules": "layers", "rows": "models", "pairs": "pairs", "trees": "trees", "cards": "cards"}


class ProgressBar:
    """Show the latest :class:`~mdir_hf.comparison.progress.Progress` inside a ``with`` block.

    A separate thread draws the bar, so that it appears and its clock advances during long computations.

    Args:
        is_wanted: Whether to show the bar if standard error is a terminal.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = is_wanted and is_terminal and not are_progress_bars_disabled()
        self._told: Progress | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="mdir-hf-progress", daemon=True)

    def __enter__(self) -> ProgressBar:
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._is_shown:
            self._thread.join()

    def tell(self, progress: Progress) -> None:
        """Set the current progress. Thread-safe and cheap."""
        self._told = progress

    def _show(self) -> None:
        if self._ended.wait(DELAY_S):
            return
        bar: tqdm[NoReturn] = tqdm(file=sys.stderr, leave=False, dynamic_ncols=True, bar_format="{desc}")
        with bar:
            bar.start_t -= DELAY_S
            while True:
                if self._told is not None:
                    _draw(bar, self._told)
                if self._ended.wait(_BETWEEN_DRAWINGS_S):
                    return


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
