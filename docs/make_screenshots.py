"""Renew the screenshots of the Space in docs/images: ``make screenshots``. Needs Chromium; builds the demo's models."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))

REFERENCE, CANDIDATE, STRANGER = "demo/base", "demo/permuted", "demo/other-seed"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1200, "height": 900}
TIMEOUT_MS = 120_000

# Name of the picture -> scheme, window, address, tab to open, what stands at the top of the window.
PAIR = f"/?a={REFERENCE}&b={CANDIDATE}"
PICTURES = {
    "space-light": ("light", DESKTOP, PAIR, None, None),
    "space-dark": ("dark", DESKTOP, f"/?a={REFERENCE}&b={STRANGER}", None, None),
    "space-phone": ("light", PHONE, PAIR, None, ".verdict"),
    "space-layers": ("dark", DESKTOP, f"{PAIR}&level=body", "Layers", "#details"),
    "space-method": ("light", DESKTOP, "/method", None, "article.method h2"),
}


def main() -> None:
    """Serve the demo's models, open the Space on them, take the pictures."""
    from playwright.sync_api import sync_playwright

    from mdir_hf.demo.lineage import build_lineage
    from mdir_hf.demo.loopback import LoopbackHub
    from tests.space.servers import running_command

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    lineage = build_lineage(ROOT / "demo-out" / "models")
    with tempfile.TemporaryDirectory() as home, LoopbackHub() as hub, sync_playwright() as playwright:
        for member in lineage.members:
            hub.add_repository(member.repo, member.folder)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with running_command(["--limited"], {"HF_ENDPOINT": hub.endpoint}, Path(home)) as server:
            for name, (scheme, window, address, tab, top) in PICTURES.items():
                page = browser.new_page(color_scheme=scheme, viewport=window, device_scale_factor=1.5)
                page.set_default_timeout(TIMEOUT_MS)
                page.goto(server.url + address)
                if address == "/method":
                    page.locator("article.method figure img:visible").nth(1).wait_for()
                    page.wait_for_load_state("networkidle")
                else:
                    page.locator("#status .settled").wait_for(state="attached")
                if tab is not None:
                    page.get_by_role("tab", name=tab).click()
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
