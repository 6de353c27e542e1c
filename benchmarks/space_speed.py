"""The Space in Chromium: how soon a visitor sees the page, a kept verdict and the first evidence; what it remembers.

    python -m benchmarks.space_speed [--comparisons 200]

A page of gradio with one button is served in the same run, and the same comparison is made without a page: what they
take is the floor on this machine, and the times of the page are given as multiples of it, too. Two related models of
width 1024 with 32,000 tokens lie on a Hub on this machine that answers 100 ms late. Every run starts a server with
empty caches, so that every byte is read. Memory is that of the server's own process over comparisons of small models,
each with an alpha of its own, so that none is kept.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import Browser, Page, sync_playwright

from tests.loopback.hub import FullHub
from tests.loopback.traffic import Network
from tests.space.live.conftest import CHROMIUM
from tests.space.servers import Server, running, running_command
from tests.specimens import gaussian, write_model

RUNS = 3
N_TOKENS, WIDTH = 32_000, 1024
LATENCY_S = 0.1
FLOOR = """
import gradio as gr
with gr.Blocks(analytics_enabled=False) as demo:
    said = gr.HTML(elem_id="said")
    gr.Button("Say", elem_id="say").click(lambda: "<p>said</p>", None, said, show_progress="hidden")
demo.launch(server_name="127.0.0.1", ssr_mode=False, quiet=True, prevent_thread_lock=True, footer_links=[])
print("Open", demo.local_url, flush=True)
demo.block_thread()
"""
LIBRARY = """
import os, time
os.nice(5)  # as comparisons of the page are
from mdir_hf.comparison.api import compare
started = time.perf_counter()
report = compare("owner/base", "owner/related", token=False, progress=False)
assert report.verdict.value == "homologous"
print("Took", time.perf_counter() - started, flush=True)
"""
GOALS = {
    "first paint (s)": 1.0,
    "before a click (kB)": 400.0,
    "kept result to the verdict (s)": 0.3,
    "link to a kept verdict (s)": 0.3,
    "first evidence of a near copy (s)": 3.0,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=200, help="over how many memory is measured; 0: not at all")
    n_comparisons = parser.parse_args().comparisons
    with tempfile.TemporaryDirectory() as folder, FullHub() as hub, sync_playwright() as playwright:
        home = Path(folder)
        add_models(hub, home)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        floor = [one_floor(hub, browser, home / f"floor-{number}") for number in range(RUNS)]
        runs = [one_run(hub, browser, home / f"run-{number}") for number in range(RUNS)]
        browser.close()
        print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {RUNS} runs, median and worst")
        for name in runs[0]:
            values = [run[name] for run in runs]
            told = f"  goal under {GOALS[name]:g}" if name in GOALS else ""
            if name in floor[0]:
                least = statistics.median(one[name] for one in floor)
                told += f"  floor {least:.2f}, ratio {statistics.median(values) / least:.2f}"
            print(f"{name:<36}{statistics.median(values):8.2f} {max(values):8.2f}{told}")
        if n_comparisons:
            memory(hub, home / "memory", n_comparisons)


def add_models(hub: FullHub, home: Path) -> None:
    """Serve two relatives of some size, and two that are small."""
    base = gaussian(N_TOKENS, WIDTH, 0)
    hub.add_repository("owner/base", write_model(home / "base", base))
    hub.add_repository("owner/related", write_model(home / "related", base + 0.1 * gaussian(N_TOKENS, WIDTH, 1)))
    for seed, name in enumerate(("small", "small-stranger")):
        hub.add_repository(f"owner/{name}", write_model(home / name, gaussian(1500, 96, seed)))


def opened(browser: Browser, url: str, ready: str) -> tuple[Page, dict[str, float]]:
    """Open a page; return it with seconds to its first paint and to a button, and kB on the wire until then."""
    page = browser.new_page()
    page.route(lambda address: not address.startswith(("http://127.0.0.1", "data:")), lambda route: route.abort())
    received: list[float] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    started = time.perf_counter()
    page.goto(url)
    page.locator(ready).wait_for()
    usable_s = time.perf_counter() - started
    page.wait_for_timeout(1500)
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return page, {
        "first paint (s)": paint_ms / 1000.0,
        "usable (s)": usable_s,
        "before a click (kB)": sum(received) / 1000.0,
    }


def one_floor(hub: FullHub, browser: Browser, home: Path) -> dict[str, float]:
    """Measure a page of gradio that has nothing but a button, and the comparison without a page."""
    home.mkdir()
    hub.network = Network(round_trip_s=LATENCY_S)
    with running(["-c", LIBRARY], {"HF_ENDPOINT": hub.endpoint}, home, says="Took ") as library:
        compared_s = float(library.lines[-1].split()[1])
    hub.network = Network()
    with running(["-c", FLOOR], {}, home, says="Open ") as server:
        url = server.lines[-1].split()[1]
        opened(browser, url, "#say")[0].close()
        page, times = opened(browser, url, "#say")
        started = time.perf_counter()
        page.locator("#say").click()
        page.locator("#said p").wait_for()
        times["kept result to the verdict (s)"] = time.perf_counter() - started
        page.close()
    return {**times, "first evidence of a near copy (s)": compared_s}


def one_run(hub: FullHub, browser: Browser, home: Path) -> dict[str, float]:
    """Measure a visit to a Space with empty caches."""
    home.mkdir()
    hub.network = Network(round_trip_s=LATENCY_S)
    try:
        with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, home) as server:
            opened(browser, server.url, "#compare")[0].close()  # the first visit compiles what later ones find
            page, times = opened(browser, server.url, "#compare")
            started = asked(page)
            verdict(page)
            times["first evidence of a near copy (s)"] = time.perf_counter() - started
            page.locator("#status .settled").wait_for(state="attached", timeout=120_000)
            times["click to last figure (s)"] = time.perf_counter() - started
            hub.network = Network()
            page.goto(server.url)
            page.locator("#compare").wait_for()
            started = asked(page)
            verdict(page)
            times["kept result to the verdict (s)"] = time.perf_counter() - started
            link = page.get_by_label("Link to this comparison").input_value()
            page.close()
            page = browser.new_page()
            started = time.perf_counter()
            page.goto(link, wait_until="commit")
            verdict(page)
            times["link to a kept verdict (s)"] = time.perf_counter() - started
            page.close()
    finally:
        hub.network = Network()
    return times


def asked(page: Page) -> float:
    """Name both models and press the button; return when that was."""
    fields = page.locator("#models input, #models textarea")
    for at, name in enumerate(("owner/base", "owner/related")):
        fields.nth(at).fill(name)
    started = time.perf_counter()
    page.locator("#compare").click()
    return started


def verdict(page: Page) -> None:
    """Wait for the verdict."""
    page.locator("#verdict-words:visible, #alert [role=alert]").first.wait_for(timeout=120_000)
    assert "share weight ancestry" in page.locator("#verdict-words").inner_text()


def memory(hub: FullHub, home: Path, n_comparisons: int) -> None:
    """Print what the server's process has after some comparisons, and after all of them."""
    home.mkdir()
    with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, home) as server:
        client = Client(server.url, verbose=False)
        seen = []
        for at in range(1, n_comparisons + 1):
            client.predict("owner/small", "owner/small-stranger", "auto", 10.0 ** -(3 + at / 4), api_name="/compare")
            if at % max(1, n_comparisons // 10) == 0:
                seen.append((at, resident_mb(server)))
        client.close()
    print("memory of the server, MB: " + ", ".join(f"{mb:.0f} after {at}" for at, mb in seen))
    print(f"from the half to the end {seen[-1][1] / seen[len(seen) // 2 - 1][1]:.2f} times")


def resident_mb(server: Server) -> float:
    """What the server's own process has in memory; those that compare are children of another one."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000.0


if __name__ == "__main__":
    main()
