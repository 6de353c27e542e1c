"""Type-ahead: models of the Hub whose names hold what has been typed, where the Hub answers in time."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

from huggingface_hub import HfApi, constants

from mdir_space.access import token_of_space
from mdir_space.markup import text

MOST_SUGGESTIONS = 8
FEWEST_CHARACTERS = 3
KEPT_S = 600.0
MOST_KEPT = 2000
SILENCE_S = 60.0
"""How long the Hub is left alone after it did not answer."""
MOST_ASKED = 30
"""Questions in a minute, for all visitors: a third of what the Hub answers one address, which a Space shares."""


@dataclass(frozen=True)
class Suggestion:
    """A public model, as the list of the Hub has it.

    Attributes:
        name: Its repo id.
        downloads: Of the last month; None where the Hub does not say.
        parameters: By the headers of its weights, where they are safetensors; else None.
        is_gated: Whether its owner lets only some accounts read it.
    """

    name: str
    downloads: int | None = None
    parameters: int | None = None
    is_gated: bool = False

    @property
    def about(self) -> str:
        """What is known of it beside its name, in words."""
        words = ["\N{LOCK} gated"] if self.is_gated else []
        words += [f"{count_text(self.parameters)} parameters"] if self.parameters else []
        words += [f"{count_text(self.downloads)} downloads a month"] if self.downloads is not None else []
        return " · ".join(words)


class Suggestions:
    """Public models, asked for with no visitor's token. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, tuple[Suggestion, ...]]] = OrderedDict()
        self._silent_until = 0.0
        self._asked_at: deque[float] = deque(maxlen=MOST_ASKED)

    def models(self, typed: str) -> tuple[Suggestion, ...]:
        """Return models whose names hold a text, the most downloaded first; none where the Hub does not answer."""
        wanted = typed.strip().lower()  # as the Hub looks for it
        if not FEWEST_CHARACTERS <= len(wanted) <= 96 or "://" in wanted or "@" in wanted or wanted[0] in "./~\\":
            return ()
        now = time.monotonic()
        with self._lock:
            known = self._known(wanted, now)
            if known is not None:
                return known
            is_busy = len(self._asked_at) == MOST_ASKED and now - self._asked_at[0] < 60
            if is_busy or now < self._silent_until:
                return ()
            self._asked_at.append(now)
        try:
            models = self._ask(wanted)
        except Exception:  # whatever fails, somebody can go on typing
            with self._lock:
                self._silent_until = now + SILENCE_S
            return ()
        with self._lock:
            self._kept[wanted] = (now, models)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return models

    def _known(self, wanted: str, now: float) -> tuple[Suggestion, ...] | None:
        """Return what is known already: of what was typed, or of its beginning if that had few answers."""
        for length in range(len(wanted), FEWEST_CHARACTERS - 1, -1):
            since, models = self._kept.get(wanted[:length], (0.0, ()))
            is_all = length == len(wanted) or len(models) < MOST_SUGGESTIONS
            if since and now - since < KEPT_S and is_all:
                return tuple(model for model in models if wanted in model.name.lower())
        return None

    def _ask(self, wanted: str) -> tuple[Suggestion, ...]:
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        models = HfApi(endpoint=endpoint, token=token_of_space() or False).list_models(
            search=wanted,
            sort="downloads",
            limit=MOST_SUGGESTIONS,
            expand=["downloads", "gated", "private", "safetensors"],
        )
        # Whatever the token may see: what is not public is nobody's suggestion.
        return tuple(
            Suggestion(
                model.id,
                model.downloads,
                None if model.safetensors is None else model.safetensors.total,
                is_gated=bool(model.gated),
            )
            for model in models
            if model.private is False
        )[:MOST_SUGGESTIONS]


def datalist(element_id: str, models: tuple[Suggestion, ...]) -> str:
    """Return the options of a field as HTML; a field of the same page shows them while one types."""
    options = "".join(f'<option value="{text(model.name)}" label="{text(model.about)}"></option>' for model in models)
    return f'<datalist id="{text(element_id)}">{options}</datalist>'


def count_text(n: int) -> str:
    """Return a large number in three digits: 135M, 7.62B."""
    value, units = float(n), ["", "k", "M", "B", "T"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000.0
        units.pop(0)
    return f"{value:.3g}{units[0]}"
