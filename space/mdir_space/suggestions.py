"""Type-ahead: models of the Hub whose names hold what has been typed, where the Hub answers in time."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict

from huggingface_hub import HfApi, constants

from mdir_space.markup import text

MOST_SUGGESTIONS = 8
FEWEST_CHARACTERS = 3
KEPT_S = 600.0
MOST_KEPT = 2000
SILENCE_S = 60.0
"""How long the Hub is left alone after it did not answer."""


class Suggestions:
    """Names of public models, asked for without any token. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._silent_until = 0.0

    def names(self, typed: str) -> tuple[str, ...]:
        """Return names of models, the most downloaded first; none where the Hub does not answer."""
        wanted = typed.strip()
        if not FEWEST_CHARACTERS <= len(wanted) <= 96 or "://" in wanted or "@" in wanted or wanted[0] in "./~\\":
            return ()
        now = time.monotonic()
        with self._lock:
            since, names = self._kept.get(wanted, (0.0, ()))
            if since and now - since < KEPT_S:
                return names
            if now < self._silent_until:
                return ()
        try:
            names = self._ask(wanted)
        except Exception:  # whatever fails, somebody can go on typing
            with self._lock:
                self._silent_until = now + SILENCE_S
            return ()
        with self._lock:
            self._kept[wanted] = (now, names)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return names

    def _ask(self, wanted: str) -> tuple[str, ...]:
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        models = HfApi(endpoint=endpoint, token=False).list_models(
            search=wanted, sort="downloads", limit=MOST_SUGGESTIONS, expand=["downloads"]
        )
        return tuple(model.id for model in models)[:MOST_SUGGESTIONS]


def datalist(element_id: str, names: tuple[str, ...]) -> str:
    """Return the options of a field as HTML; a field of the same page shows them while one types."""
    options = "".join(f'<option value="{text(name)}"></option>' for name in names)
    return f'<datalist id="{text(element_id)}">{options}</datalist>'
