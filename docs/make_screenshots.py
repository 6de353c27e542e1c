"""Renew the screenshots of the Space in docs/images: ``make screenshots``. Needs Chromium; shows stored results."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1200, "height": 1050}
TIMEOUT_MS = 120_000

# Name of the picture -> scheme, window, address, figure whose first cell is asked, what stands at the top.
PICTURES = {
    "space-light": ("light", DESKTOP, "/?example=permuted", None, None),
    "space-dark": ("dark", DESKTOP, "/?example=strangers", None, None),
    "space-phone": ("light", PHONE, "/?example=hidden", None, ".verdict"),
    "space-layers": ("dark", DESKTOP, "/?example=hidden", "layers", "#details"),
    "space-method": ("light", DESKTOP, "/method", None, "article.method h2"),
}


def main() -> None:
    """Open the Space, take the pictures."""
    from playwright.sync_api import sync_playwright

    from mdir_hf.demo.loopback import LoopbackHub
    from tests.space.servers import running_command

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as home, LoopbackHub() as hub, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, Path(home)) as server:
            for name, (scheme, window, address, figure, top) in PICTURES.items():
                page = browser.new_page(color_scheme=scheme, viewport=window, device_scale_factor=1.5)
                page.set_default_timeout(TIMEOUT_MS)
                page.goto(server.url + address)
                if address == "/method":
                    page.locator("article.method figure img:visible").nth(1).wait_for()
                    page.wait_for_load_state("networkidle")
                else:
                    page.locator("#status .settled").wait_for(state="attached")
                if figure is not None:
                    page.locator(f'.answers[data-name="{figure}"] .cells').focus()
                page.wait_for_timeout(1200)  # the page scrolls to a verdict by itself, and smoothly
                if top is None:
                    page.evaluate("scrollTo(0, 0)")
                else:
                    page.locator(top).first.evaluate("e => e.scrollIntoView()")
                page.wait_for_timeout(500)
                page.screenshot(path=IMAGES / f"{name}.png")
                page.close()
                sys.stdout.write(f"{name}\n")
        browser.close()


if __name__ == "__main__":
    main()
