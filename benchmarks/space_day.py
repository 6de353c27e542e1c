"""Simulate a day of the Space under a mix of visitors with an attacker in the middle, and measure its resources.

python -m benchmarks.space_day [--minutes 60] [--every 8] [--demo demo-out] [--write]

The script runs ``mdir-hf space --limited`` with empty caches, against a local Hub that serves the demo's models.
Visitors arrive at random: near copies and unrelated models in the page and by API, families and surveys, plans, invalid
names, tabs that are closed early. In the middle third, an attacker repeatedly asks for unrelated models of the largest
permitted width. Every ten seconds it records memory, threads, open files and disk use of all server processes, and for
each visit the outcome and duration. ``--write`` stores a summary in ``benchmarks/results`` and draws
``docs/images/space-day.png``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mdir_hf.demo.lineage import Lineage, build_lineage
from tests.loopback.hub import FullHub
from tests.loopback.limits import RateLimits
from tests.space.servers import running_command
from tests.specimens import tokenizer_json, tokens

RESULTS = Path(__file__).parent / "results" / "space" / "day.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "space-day.png"
SAMPLE_S = 10.0
GIVES_UP_S = 900.0
LARGEST_WIDTH, LARGEST_ROWS = 12288, 16384
"""Shape of the largest permitted embeddings: comparing two of them is planned with 5.9 GB of the permitted 6 GB."""

LARGE = ("attacker/one", "attacker/other")
MIX = {
    "page, copy": 18,
    "page, copy, known": 14,
    "page, stranger": 16,
    "page, family": 8,
    "page, survey": 5,
    "program, copy": 10,
    "program, stranger": 6,
    "plan": 12,
    "wrong name": 12,
    "closed tab": 12,
}
WRONG = (
    "nobody/nothing",
    "demo/bas",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "x" * 5000,
    "/etc/shadow",
    "a\x1b[2Jb",
)


@dataclass(frozen=True)
class Visit:
    """One visit: its kind, start and end (seconds since the start of the day), and outcome."""

    kind: str
    began: float
    ended: float
    how: str


@dataclass
class Day:
    """Events at one server."""

    url: str
    lineage: Lineage
    started: float = field(default_factory=time.monotonic)
    visits: list[Visit] = field(default_factory=list)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def visit(self, kind: str, seed: int) -> None:
        """Make one visit from its own address."""
        chance = random.Random(seed)
        began = self.now()
        try:
            with self.client(f"8.8.{seed // 250 % 250}.{seed % 250 + 1}") as client:
                how = self.act(kind, client, chance)
        except httpx.HTTPError as exc:
            how = f"broken: {type(exc).__name__}"
        self.visits.append(Visit(kind, began, self.now(), how))

    def client(self, address: str) -> httpx.Client:
        """A visitor at an address."""
        return httpx.Client(base_url=self.url, timeout=GIVES_UP_S, headers={"x-forwarded-for": address})

    def act(self, kind: str, client: httpx.Client, chance: random.Random) -> str:
        """Act as a visitor of this kind, and return the outcome."""
        base = self.lineage.reference.repo
        relation = "stranger" if "stranger" in kind else "related"
        candidate = chance.choice([model.repo for model in self.lineage.candidates if model.relation == relation])
        alpha = 1e-10 if kind == "page, copy, known" else 10.0 ** -chance.uniform(6, 14)
        if kind == "page, family":
            base = ""
        if kind == "page, survey":
            base, candidate = "\n".join(model.repo for model in chance.sample(self.lineage.members, 4)), ""
        if kind == "wrong name":
            candidate = chance.choice(WRONG)
        if kind == "plan":
            return program(client, "plan", [base, candidate, "auto", None])
        if kind.startswith("program"):
            return program(client, "compare", [base, candidate, "auto", alpha])
        stays_s = chance.uniform(0.2, 4.0) if kind == "closed tab" else None
        if kind == "closed tab" and chance.random() < 0.3:
            candidate, base = LARGE
        return page(client, base, candidate, alpha, stays_s=stays_s)

    def attack(self, stopped: Callable[[], bool], number: int) -> None:
        """Repeatedly ask for the most expensive job on the page."""
        client = self.client("9.9.9.9")
        chance = random.Random(number)
        while not stopped():
            began = self.now()
            try:
                alpha = 10.0 ** -chance.uniform(6, 14)
                how = page(client, *LARGE, alpha, level="layers", until=stopped)
            except httpx.HTTPError as exc:
                how = f"broken: {type(exc).__name__}"
            self.visits.append(Visit("attacker", began, self.now(), how))
            time.sleep(1.0)
        client.close()


def program(client: httpx.Client, name: str, data: list[object]) -> str:
    """Ask through the API."""
    call = client.post(f"/gradio_api/call/{name}", json={"data": data})
    event = call.json().get("event_id")
    if event is None:
        return f"status {call.status_code}"
    event_name = ""
    with client.stream("GET", f"/gradio_api/call/{name}/{event}") as answer:
        for line in answer.iter_lines():
            event_name = line[7:] if line.startswith("event: ") else event_name
            if event_name in ("complete", "error") and line.startswith("data: "):
                return "answered" if event_name == "complete" else "refused"
    return "cut off"


def page(
    client: httpx.Client,
    reference: str,
    candidate: str,
    alpha: float,
    *,
    level: str = "auto",
    stays_s: float | None = None,
    until: Callable[[], bool] = lambda: False,
) -> str:
    """Open the page and compare, as a browser does; optionally close the tab early."""
    client.get("/").raise_for_status()
    config = client.get("/config").json()
    asking = [
        dependency for dependency in config["dependencies"] if dependency["targets"] and len(dependency["inputs"]) == 4
    ]
    # The others fill one part of the page each.
    click = max(asking, key=lambda dependency: len(dependency["outputs"]))["id"]
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


# --- the server, from outside


def descendants(pid: int) -> list[int]:
    """Return a process and its descendants."""
    pids = [pid]
    for each in pids:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                pids += [int(word) for word in task.read_text().split()]
    return pids


def sample(pid: int, disk: Path) -> dict[str, float]:
    """Return the resources of all server processes; shared memory counts once."""
    sums: dict[str, float] = {"processes": 0, "memory": 0, "server": 0, "threads": 0, "open files": 0}
    for process in descendants(pid):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text().split()
            status = Path(f"/proc/{process}/status").read_text().split()
            n_open = len(list(Path(f"/proc/{process}/fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError):  # the process has just ended
            continue
        n_bytes = int(rollup[rollup.index("Pss:") + 1]) * 1024
        sums["processes"] += 1
        sums["memory"] += n_bytes
        sums["server"] += n_bytes if process == pid else 0
        sums["threads"] += int(status[status.index("Threads:") + 1])
        sums["open files"] += n_open
    files = [path for path in disk.rglob("*") if path.is_file()]
    ranges = [path for path in files if "ranges" in path.parts]
    sums["kept ranges"] = sum(_n_bytes(path) for path in ranges)
    sums["other files"] = len(files) - len(ranges)
    return sums


def _n_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def write_large(folder: Path, seed: int) -> Path:
    """Write a random model of the largest permitted width, in pieces."""
    folder.mkdir()
    shape = [LARGEST_ROWS, LARGEST_WIDTH]
    n_bytes = 2 * shape[0] * shape[1]
    header = {"model.embed_tokens.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [0, n_bytes]}}
    text = json.dumps(header).encode()
    chance = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(0, LARGEST_ROWS, 512):
            rows = chance.standard_normal((512, LARGEST_WIDTH), dtype=np.float32) * np.float32(0.02)
            file.write((rows.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(LARGEST_ROWS))))
    config = {
        "model_type": "llama",
        "hidden_size": LARGEST_WIDTH,
        "vocab_size": LARGEST_ROWS,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def arrivals(minutes: float, every_s: float) -> Iterator[tuple[float, str, int]]:
    """Return the arrivals: seconds since the start, kind, number."""
    chance = random.Random(0)
    at, number = 0.0, 0
    while at < 60 * minutes:
        yield at, chance.choices(list(MIX), list(MIX.values()))[0], number
        at += chance.expovariate(1 / every_s)
        number += 1


def live(day: Day, minutes: float, every_s: float) -> None:
    """Let visitors arrive, and the attacker in the middle third."""
    third = 20.0 * minutes
    attackers = [
        threading.Thread(target=day.attack, args=(lambda: not third <= day.now() < 2 * third, number))
        for number in range(5)  # one more than the limit per visitor
    ]
    are_started = False
    with ThreadPoolExecutor(64) as visitors:
        for at, kind, number in arrivals(minutes, every_s):
            if at >= third and not are_started:
                time.sleep(max(0.0, third - day.now()))
                are_started = True
                for thread in attackers:
                    thread.start()
            time.sleep(max(0.0, at - day.now()))
            visitors.submit(day.visit, kind, number)
    for thread in attackers:
        thread.join()


def run(minutes: float, every_s: float, demo: Path) -> dict[str, Any]:
    """Run the day; return samples and visits."""
    with tempfile.TemporaryDirectory(prefix="space-day-") as folder, FullHub() as hub:
        home = Path(folder)
        plenty = {plan: dict.fromkeys(quotas, 10**9) for plan, quotas in RateLimits().quotas.items()}
        hub.limits = RateLimits(plenty)
        lineage = build_lineage(demo)
        for member in lineage.members:
            hub.add_repository(member.repo, member.folder)
        for seed, name in enumerate(LARGE):
            hub.add_repository(name, write_large(home / f"large-{seed}", seed))
        disk = home / "server"
        (disk / "tmp").mkdir(parents=True)
        environment = {"HF_ENDPOINT": hub.endpoint, "TMPDIR": str(disk / "tmp")}
        with running_command(["--limited"], environment, disk) as server:
            day = Day(server.url, lineage)
            for kind in MIX:  # exclude first-time imports and drawing
                day.visit(kind, 60_000)
            day.visits.clear()
            day.started = time.monotonic()
            samples: list[dict[str, float]] = []
            is_over = threading.Event()

            def watch() -> None:
                while not is_over.is_set():
                    samples.append({"at": day.now(), **sample(server.process.pid, disk)})
                    is_over.wait(SAMPLE_S)

            watcher = threading.Thread(target=watch)
            watcher.start()
            live(day, minutes, every_s)
            time.sleep(3 * SAMPLE_S)
            is_over.set()
            watcher.join()
            left = sorted(str(path.relative_to(disk)) for path in (disk / "tmp").rglob("*") if path.is_file())
            odd = [line for line in server.lines if "Traceback" in line or "not foreseen" in line]
    return {"minutes": minutes, "samples": samples, "visits": day.visits, "left": left, "log": odd}


def summary(day: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a day."""
    minutes, samples, visits = day["minutes"], day["samples"], day["visits"]
    third = 20.0 * minutes
    kinds = {}
    for kind in (*MIX, "attacker"):
        of = [visit for visit in visits if visit.kind == kind]
        kinds[kind] = {
            "visits": len(of),
            "ended": {how: sum(v.how == how for v in of) for how in sorted({v.how for v in of})},
            "seconds": {
                name: _seconds([v.ended - v.began for v in of if third * k <= v.began < third * (k + 1)])
                for k, name in enumerate(("before", "attacked", "after"))
            },
        }
    early = [s for s in samples if third / 2 < s["at"] < third]
    late = [s for s in samples if 60 * minutes - third / 2 < s["at"]]
    ends = {
        name: {
            "first": round(statistics.median(s[name] for s in early)),
            "last": round(statistics.median(s[name] for s in late)),
            "most": round(max(s[name] for s in samples)),
            "at the end": round(samples[-1][name]),
        }
        for name in samples[0]
        if name != "at"
    }
    every = max(1, len(samples) // 180)
    return {
        "minutes": minutes,
        "visits": kinds,
        "server": ends,
        "left in the folder for temporary files": day["left"],
        "faults in the log": day["log"],
        "samples": [{name: round(value) for name, value in s.items()} for s in samples[::every]],
    }


def _seconds(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    values = sorted(values)
    return {"median": round(statistics.median(values), 1), "most": round(values[-1], 1), "n": len(values)}


def draw(totals: dict[str, Any], visits: list[Visit]) -> None:
    """Plot memory, threads and open files, disk, and waiting times."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples, minutes = totals["samples"], totals["minutes"]
    at = [s["at"] / 60 for s in samples]
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained", sharex=True)
    for axis in axes.flat:
        axis.axvspan(minutes / 3, 2 * minutes / 3, color="0.9")
        axis.set(xlabel="minutes")
    axes[0, 0].plot(at, [s["memory"] / 1e9 for s in samples], label="all processes")
    axes[0, 0].plot(at, [s["server"] / 1e9 for s in samples], label="the server's own")
    axes[0, 0].set(title="memory, GB", ylim=(0, None))
    axes[0, 1].plot(at, [s["threads"] for s in samples], label="threads")
    axes[0, 1].plot(at, [s["open files"] for s in samples], label="open files")
    axes[0, 1].plot(at, [s["processes"] for s in samples], label="processes")
    axes[0, 1].set(title="threads, open files, processes", ylim=(0, None))
    axes[1, 0].plot(at, [s["kept ranges"] / 1e6 for s in samples], label="kept byte ranges, MB")
    axes[1, 0].plot(at, [s["other files"] for s in samples], label="other files, number")
    axes[1, 0].set(title="disk", ylim=(0, None))
    for name, kinds in (
        ("page", ("page, copy", "page, stranger", "page, copy, known")),
        ("family, survey", ("page, family", "page, survey")),
        ("program", ("program, copy", "program, stranger")),
        ("plan", ("plan",)),
        ("wrong name", ("wrong name",)),
    ):
        of = [visit for visit in visits if visit.kind in kinds]
        axes[1, 1].plot([v.began / 60 for v in of], [v.ended - v.began for v in of], ".", markersize=4, label=name)
    axes[1, 1].set(title="seconds from request to end", yscale="log")
    for axis in axes.flat:
        axis.legend(fontsize=7)
    figure.suptitle("grey: one visitor repeatedly requests the largest permitted models", fontsize=9)
    figure.savefig(PICTURE, dpi=80)


def main() -> None:
    """Run the day, print and store the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.space_day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=8.0, metavar="SECONDS", help="between visitors, on average")
    parser.add_argument(
        "--demo", type=Path, default=Path("demo-out"), help="folder of `mdir-hf demo` (default demo-out)"
    )
    parser.add_argument("--write", action="store_true", help="store and plot the summary")
    arguments = parser.parse_args()
    day = run(arguments.minutes, arguments.every, arguments.demo)
    totals = summary(day)
    print(json.dumps({name: value for name, value in totals.items() if name != "samples"}, indent=1))
    if arguments.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(totals, indent=1) + "\n", encoding="utf-8")
        draw(totals, day["visits"])


if __name__ == "__main__":
    main()
