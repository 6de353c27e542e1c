"""The Space in Chromium: the page loads in under 2 s, and a screen is settled in under 5 s from click to verdict.

Two related models of width 1024 with 32,000 tokens, served by a Hub on this machine; a new server with empty caches for
every run, so that every byte is read. Prints the median and the worst of the runs, and how loaded the machine was.
Run from the repository: ``.venv/bin/python -m benchmarks.space_speed``.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.loopback.hub import FullHub
from tests.space.live.conftest import CHROMIUM
from tests.space.servers import running_command
from tests.specimens import gaussian, write_model

RUNS = 5
N_TOKENS, WIDTH = 32_000, 1024


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, FullHub() as hub, sync_playwright() as playwright:
        home = Path(folder)
        base = gaussian(N_TOKENS, WIDTH, 0)
        hub.add_repository("owner/base", write_model(home / "base", base))
        noised = base + 0.5 * gaussian(N_TOKENS, WIDTH, 1)
        hub.add_repository("owner/related", write_model(home / "related", noised))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        runs = [one_run(hub, browser, home / f"run-{number}") for number in range(RUNS)]
        browser.close()
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {RUNS} runs")
    goals = ("page load", 2.0), ("click to verdict", 5.0), ("click to last figure", None), ("read", None)
    for (name, goal), values in zip(goals, zip(*runs, strict=True), strict=True):
        unit = "MB" if name == "read" else "s"
        told = f" (goal: under {goal:.0f} s)" if goal else ""
        print(f"{name:<22}{statistics.median(values):6.2f} {unit}, worst {max(values):.2f} {unit}{told}")


def one_run(hub: FullHub, browser: Browser, home: Path) -> tuple[float, float, float, float]:
    """Return seconds of the page load, to the verdict, to the last figure, and megabytes read."""
    home.mkdir()
    with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, home) as server:
        page = browser.new_page()
        page.goto(server.url)  # the first visit after a start compiles what later ones find
        page.get_by_role("button", name="Compare", exact=True).wait_for()
        page.close()
        page = browser.new_page()
        started = time.perf_counter()
        page.goto(server.url)
        page.get_by_role("button", name="Compare", exact=True).wait_for()
        loaded_s = time.perf_counter() - started
        page.get_by_label("One model").fill("owner/base")
        page.get_by_label("The other model").fill("owner/related")
        read = sum(request.bytes_sent for request in hub.requests)
        started = time.perf_counter()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.locator("#verdict-words, #alert [role=alert]").first.wait_for(timeout=120_000)
        assert page.locator("#verdict-words").count(), page.locator("#alert").inner_text()
        verdict_s = time.perf_counter() - started
        page.locator("#status .settled").wait_for(state="attached", timeout=120_000)
        settled_s = time.perf_counter() - started
        assert "share weight ancestry" in page.locator("#verdict-words").inner_text()
        page.close()
        return loaded_s, verdict_s, settled_s, (sum(request.bytes_sent for request in hub.requests) - read) / 1e6


if __name__ == "__main__":
    main()
