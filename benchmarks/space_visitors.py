"""Send many visitors at once to a Space, and measure what each of them gets.

The script runs ``mdir-hf space --limited`` against a local Hub with small models. Visitors have addresses of their own
and act in a loop: a third load the page, a third ask a question with a stored answer (on the page or through the API),
a sixth ask a new one and wait for the answer, a sixth ask a new one and leave after two seconds. Reads from the Hub are
slow enough that a new question takes some seconds, so visitors ask more than the server can answer. The time of an
answer on the page begins with the click. Before the visitors and 30 seconds after each round, the script measures the
time of a new question and the memory of the main process. The cache of results is full from the beginning, so rounds
should add no more than 5 %. ``tests/space/live/test_leaks.py`` counts objects.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.runner import Benchmark, Case, Row
from tests.loopback.faults import Fault
from tests.loopback.hub import FullHub
from tests.loopback.limits import RateLimits
from tests.space.models import BASE, MEDIUM, MEDIUM_STRANGER, RELATED, add_models, write_models
from tests.space.servers import running_command

N_VISITORS = 60
N_STORED = 128
"""Number of results that a Space keeps, ``MAX_RESULTS`` in ``mdir_space.jobs.results``."""
GIVES_UP_S = 300.0
PAUSE_S = 3.0
"""Pause of a visitor between two actions, on average."""

LEAVES_S = 2.0
AFTER_S = 30.0
SLOW_READ_S = 0.05
"""Delay of every 64 kB that new questions read."""

KINDS = ("page", "cached, page", "page", "cached, API", "patient", "leaver")


@dataclass(frozen=True)
class Act:
    """One action of a visitor: its kind, its outcome, and its duration in seconds."""

    kind: str
    outcome: str
    seconds: float


def page(client: httpx.Client, reference: str, candidate: str, alpha: float, **options: Any) -> str:
    """Open the page and compare, as a browser does; for ``options`` see :func:`compare`."""
    return compare(client, opened_page(client), reference, candidate, alpha, **options)


def opened_page(client: httpx.Client) -> int:
    """Open the page, and return the number of the event that its button starts."""
    client.get("/").raise_for_status()
    config = client.get("/config").json()
    asking = [
        dependency for dependency in config["dependencies"] if dependency["targets"] and len(dependency["inputs"]) == 4
    ]
    # The others fill one part of the page each.
    return int(max(asking, key=lambda dependency: len(dependency["outputs"]))["id"])


def compare(
    client: httpx.Client,
    click: int,
    reference: str,
    candidate: str,
    alpha: float,
    *,
    level: str = "auto",
    stays_s: float | None = None,
    until: Callable[[], bool] = lambda: False,
) -> str:
    """Click the button of an open page, and wait for the answer; optionally close the tab early."""
    session = uuid.uuid4().hex
    data = [reference, candidate, level, f"{alpha:.3g}"]
    joined = client.post("/gradio_api/queue/join", json={"data": data, "fn_index": click, "session_hash": session})
    if joined.status_code != 200:
        return f"status {joined.status_code}"
    until_s = None if stays_s is None else time.monotonic() + stays_s
    outcome = ""
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as answer:
        for line in answer.iter_lines():
            if until() or (until_s is not None and time.monotonic() > until_s):
                return "closed"
            for words, how in (
                ('class=\\"verdict ', "answered"),
                ('class=\\"alert', "refused"),
                ('role=\\"alert', "refused"),
            ):
                outcome = how if words in line else outcome
            if "close_stream" in line:
                return outcome or "ended without a message"
    return "cut off"


class Visitors:
    """Visitors of one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acts: list[Act] = []
        self._alphas = itertools.count(1)

    def client(self, address: str, timeout_s: float = GIVES_UP_S) -> httpx.Client:
        """Return the client of a visitor at an address."""
        return httpx.Client(base_url=self.url, timeout=timeout_s, headers={"x-forwarded-for": address})

    def ask_new(self, client: httpx.Client, stays_s: float = GIVES_UP_S) -> str:
        """Ask a question that nobody asked before."""
        return ask(client, [MEDIUM, MEDIUM_STRANGER, "auto", 10.0 ** -(6 + next(self._alphas) / 100)], stays_s)

    def visit(self, kind: str, number: int, until: float) -> None:
        """Act in a loop until a time."""
        chance = random.Random(number)
        with self.client(f"8.8.{number // 250}.{number % 250 + 1}") as client:
            time.sleep(chance.uniform(0.0, PAUSE_S))
            while (started := time.monotonic()) < until:
                try:
                    click = opened_page(client) if kind == "cached, page" else 0
                    started = time.monotonic()
                    outcome = self._act(kind, client, until, click)
                except httpx.HTTPError as exc:
                    outcome = f"broken: {type(exc).__name__}"
                self.acts.append(Act(kind, outcome, time.monotonic() - started))
                time.sleep(chance.uniform(0.0, 2 * PAUSE_S))

    def _act(self, kind: str, client: httpx.Client, until: float, click: int) -> str:
        if kind == "page":
            return "answered" if client.get("/").status_code == 200 else "refused"
        if kind == "cached, page":
            return compare(client, click, BASE, RELATED, 1e-10)
        if kind == "cached, API":
            return ask(client, [BASE, RELATED, "auto", 1e-10])
        return self.ask_new(client, until - time.monotonic() if kind == "patient" else LEAVES_S)

    def round(self, n_visitors: int, seconds: float) -> None:
        """Let visitors act at the same time."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self.visit, args=(KINDS[number % len(KINDS)], number, until))
            for number in range(n_visitors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def new_question_s(self) -> float:
        """Return the time of a new question by a new visitor, in seconds."""
        started = time.monotonic()
        with self.client("9.9.9.9") as client:
            if (outcome := self.ask_new(client)) != "answered":
                raise RuntimeError(f"a new question without other visitors was {outcome}")
        return time.monotonic() - started


def ask(client: httpx.Client, data: list[object], stays_s: float = GIVES_UP_S) -> str:
    """Ask through the API, and return the outcome: answered, refused, or that it had a place when the caller left."""
    event = client.post("/gradio_api/call/compare", json={"data": data}).json().get("event_id")
    if event is None:
        return "refused"
    kind = ""
    # The stream is silent until the answer, but for a heartbeat every 15 s.
    timeout = httpx.Timeout(GIVES_UP_S, read=max(0.1, stays_s))
    leaves_at = time.monotonic() + stays_s
    with (
        suppress(httpx.ReadTimeout),
        client.stream("GET", f"/gradio_api/call/compare/{event}", timeout=timeout) as answer,
    ):
        for line in answer.iter_lines():
            kind = line[7:] if line.startswith("event: ") else kind
            if kind in ("complete", "error") and line.startswith("data: "):
                return "answered" if kind == "complete" else "refused"
            if time.monotonic() > leaves_at:
                break
    return "has a place"


def main_memory(pid: int) -> int:
    """Return the memory of the main process in bytes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(rollup[rollup.index("Pss:") + 1]) * 1024


def summary(acts: list[Act]) -> dict[str, Any]:
    """Return outcomes and durations by kind."""
    of_kind = {kind: [act for act in acts if act.kind == kind] for kind in dict.fromkeys(KINDS)}
    return {
        kind: {
            "outcomes": {how: sum(act.outcome == how for act in some) for how in sorted({act.outcome for act in some})},
            "seconds": [
                round(statistics.median(act.seconds for act in some), 2),
                round(max(act.seconds for act in some), 2),
            ],
        }
        for kind, some in of_kind.items()
        if some
    }


def measure(n_rounds: int, seconds: float) -> Row:
    """Send the visitors for some rounds, and return a line of the results."""
    with tempfile.TemporaryDirectory(prefix="space-visitors-") as folder, FullHub() as hub:
        plenty = {plan: dict.fromkeys(quotas, 10**9) for plan, quotas in RateLimits().quotas.items()}
        hub.limits = RateLimits(plenty)
        models = Path(folder) / "models"
        models.mkdir()
        add_models(hub, write_models(models))
        home = Path(folder) / "server"
        home.mkdir()
        environment = {"HF_ENDPOINT": hub.endpoint, "MDIR_HF_CACHE_MAX_BYTES": "0"}  # every new question reads anew
        with running_command(["--limited"], environment, home) as server:
            visitors = Visitors(server.url)
            with visitors.client("9.9.9.8") as client:
                page(client, BASE, RELATED, 1e-10)  # from now on, its answer and figures are stored
                for _ in range(N_STORED):
                    visitors.ask_new(client)
                page(client, BASE, RELATED, 1e-10)
            hub.faults.append(Fault("slow", origin="cdn", path="medium", times=None, delay_s=SLOW_READ_S))
            idle_s = statistics.median(visitors.new_question_s() for _ in range(3))
            before = main_memory(server.process.pid)
            rounds = []
            for _ in range(n_rounds):
                visitors.acts.clear()
                visitors.round(N_VISITORS, seconds)
                figures = summary(visitors.acts)
                time.sleep(AFTER_S)
                after_s = round(visitors.new_question_s(), 2)
                rounds.append({**figures, "new question after": after_s, "memory": main_memory(server.process.pid)})
            faults = [line for line in server.lines if "Traceback" in line]
    return {
        "visitors": N_VISITORS,
        "seconds": seconds,
        "n_rounds": n_rounds,
        "new question idle": round(idle_s, 2),
        "memory before": before,
        "memory after the last round, of that before": round(rounds[-1]["memory"] / before, 3),
        "rounds": rounds,
        "faults": len(faults),
    }


SPACE_VISITORS = Benchmark(
    "space-visitors",
    "what 60 visitors at once get from a limited Space",
    ("n_rounds", "seconds"),
    lambda: (Case(rounds, partial(measure, *rounds)) for rounds in ((1, 120.0), (10, 30.0))),
)
