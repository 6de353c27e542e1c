"""Suggest models on the Hub whose names contain the typed text."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from markupsafe import Markup

from mdir_space.html.templates import render
from mdir_space.jobs.access import token_of_space

MAX_SUGGESTIONS = 8
MIN_CHARACTERS = 3
KEPT_S = 600.0
MAX_KEPT = 2000
SILENCE_S = 60.0
"""Pause after a failed request to the Hub, in seconds."""
MAX_REQUESTS_PER_MINUTE = 30
"""Requests per minute for all visitors: a third of the Hub's limit per IP address, which Spaces share."""
ANSWER_S = 10.0
"""Timeout for a complete response, in seconds."""
_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 20
_MOST_COUNTED = 10**15


@dataclass(frozen=True)
class Suggestion:
    """A public model, as listed by the Hub.

    Attributes:
        name: Repo id.
        downloads: Downloads in the last month, or None.
        parameters: Number of parameters according to the safetensors headers, or None.
        is_gated: Whether the owner restricts access.
    """

    name: str
    downloads: int | None = None
    parameters: int | None = None
    is_gated: bool = False

    @property
    def about(self) -> str:
        """A short description of the model, excluding its name."""
        words = ["\N{LOCK} gated"] if self.is_gated else []
        words += [f"{count_text(self.parameters)} parameters"] if self.parameters else []
        words += [f"{count_text(self.downloads)} downloads a month"] if self.downloads is not None else []
        return " · ".join(words)


class Suggestions:
    """Suggests public models, requested without a visitor's token. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models_by_text: OrderedDict[str, tuple[float, tuple[Suggestion, ...]]] = OrderedDict()
        self._silent_until = 0.0
        self._asked_at: deque[float] = deque(maxlen=MAX_REQUESTS_PER_MINUTE)

    def models(self, typed: str) -> tuple[Suggestion, ...]:
        """Return models whose names contain a text, most downloads first; empty if the Hub does not respond."""
        wanted = typed.strip().lower()  # like the Hub's search
        if not MIN_CHARACTERS <= len(wanted) <= 96 or "://" in wanted or "@" in wanted or wanted[0] in "./~\\":
            return ()
        now = time.monotonic()
        with self._lock:
            cached_models = self._cached_models(wanted, now)
            if cached_models is not None:
                return cached_models
            is_busy = len(self._asked_at) == MAX_REQUESTS_PER_MINUTE and now - self._asked_at[0] < 60
            if is_busy or now < self._silent_until:
                return ()
            self._asked_at.append(now)
        try:
            models = self._ask(wanted)
        except Exception:  # the visitor can continue without suggestions
            with self._lock:
                self._silent_until = now + SILENCE_S
            return ()
        with self._lock:
            self._models_by_text[wanted] = (now, models)
            while len(self._models_by_text) > MAX_KEPT:
                self._models_by_text.popitem(last=False)
        return models

    def _cached_models(self, wanted: str, now: float) -> tuple[Suggestion, ...] | None:
        """Return cached models for a text, or from the complete list for its beginning; None if not cached."""
        for length in range(len(wanted), MIN_CHARACTERS - 1, -1):
            since, models = self._models_by_text.get(wanted[:length], (0.0, ()))
            is_all = length == len(wanted) or len(models) < MAX_SUGGESTIONS
            if since and now - since < KEPT_S and is_all:
                return tuple(model for model in models if wanted in model.name.lower())
        return None

    def _ask(self, wanted: str) -> tuple[Suggestion, ...]:
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        parameters = {
            "search": wanted,
            "sort": "downloads",
            "limit": MAX_SUGGESTIONS,
            "expand": ["downloads", "gated", "private", "safetensors"],
        }
        models = _first_page(f"{endpoint}/api/models", parameters, token=token_of_space() or False)
        # The token may see private models; only public ones are suggested.
        return tuple(_suggestion(model) for model in models if model.get("private") is False)[:MAX_SUGGESTIONS]


def _first_page(url: str, parameters: dict[str, Any], *, token: str | bool) -> list[dict[str, Any]]:
    """Return one page of the Hub's list, because the client's own iterator would fetch all pages."""
    ends_at, content = time.monotonic() + ANSWER_S, bytearray()
    headers = build_hf_headers(token=token)
    with get_session().stream("GET", url, params=parameters, headers=headers, timeout=_TIMEOUT_S) as response:
        response.raise_for_status()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _MOST_BYTES or time.monotonic() > ends_at:
                raise ValueError("the answer is too long or too slow")
    listed: list[dict[str, Any]] = json.loads(content)
    return listed


def _suggestion(model: dict[str, Any]) -> Suggestion:
    name, weights = model["id"], model.get("safetensors")
    if not isinstance(name, str):
        raise ValueError("the model has no name")
    parameters = _count(weights.get("total")) if isinstance(weights, dict) else None
    return Suggestion(name, _count(model.get("downloads")), parameters, is_gated=bool(model.get("gated")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_COUNTED else None


def datalist(element_id: str, models: tuple[Suggestion, ...]) -> Markup:
    """Return suggestions as HTML, to be shown while the visitor types."""
    return render("datalist", id=element_id, models=models)


def count_text(n: int) -> str:
    """Format a large number with three significant digits, such as 135M or 7.62B."""
    value, units = float(n), ["", "k", "M", "B", "T"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000.0
        units.pop(0)
    return f"{value:.3g}{units[0]}"
