"""Renew the screenshots of the Space in docs/images: ``make screenshots``. Needs Chromium.

They show stored results, and a survey of real models in ``MDIR_HF_REAL_CACHE`` (filled by ``make real``). If a model is
missing, its screenshot stays unchanged.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))

WINDOW = {"width": 1200, "height": 1050}
TIMEOUT_MS = 600_000

SURVEYED = {
    "real/SmolLM2-135M-Instruct": "smollm2-135m-instruct/base",
    "real/SmolLM2-135M-Instruct-fine-tuned": "smollm2-135m-instruct/tuned-1e-4",
    "real/SmolLM2-135M-Instruct-reordered": "smollm2-135m-instruct/permuted",
    "real/Qwen2.5-Coder-0.5B-Instruct": "qwen2.5-coder-0.5b-instruct/base",
}
"""Name on the loopback Hub -> path in the cache of real models."""

# Name of the screenshot -> URL, figure whose first cell is selected, element at the top.
PICTURES = {
    "space-light": ("/?example=permuted", None, ".verdict"),
    "space-survey": (f"/?a={'+'.join(SURVEYED)}", "matrix", ".figures-of-survey"),
}


def main() -> None:
    """Open the Space and take the screenshots."""
    from playwright.sync_api import sync_playwright

    from benchmarks.real.sources import cache_root
    from mdir_hf.demo.loopback import LoopbackHub
    from tests.space.servers import running_command

    names = ("chromium-headless-shell", "chromium", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)))
    with tempfile.TemporaryDirectory() as home, LoopbackHub() as hub, sync_playwright() as playwright:
        folders = {name: cache_root() / "models" / place for name, place in SURVEYED.items()}
        pictures = dict(PICTURES)
        if all(folder.is_dir() for folder in folders.values()):
            for name, folder in folders.items():
                hub.add_repository(name, folder)
        else:
            sys.stdout.write("space-survey: a model is not in the cache; its picture stays\n")
            del pictures["space-survey"]
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, Path(home)) as server:
            for name, (address, figure, top) in pictures.items():
                page = browser.new_page(color_scheme="light", viewport=WINDOW, device_scale_factor=1.5)
                page.set_default_timeout(TIMEOUT_MS)
                page.goto(server.url + address)
                page.locator("#status .settled").wait_for(state="attached")
                if figure is not None:
                    page.locator(f'.answers[data-name="{figure}"] .cells').focus()
                    page.keyboard.press("ArrowRight")
                page.wait_for_timeout(1200)  # the page scrolls smoothly to a verdict
                page.locator(top).first.evaluate("e => e.scrollIntoView()")
                page.wait_for_timeout(500)
                page.screenshot(path=IMAGES / f"{name}.png")
                page.close()
                sys.stdout.write(f"{name}\n")
        browser.close()


if __name__ == "__main__":
    main()
