"""Draw the diagrams of docs/architecture.md as pictures: ``python docs/draw_diagrams.py MERMAID``.

GitHub draws the blocks itself; the site has no script from elsewhere and shows these pictures. MERMAID is the file
``dist/mermaid.min.js`` of the npm package ``mermaid``. Each picture ends with the digest of the text that it was drawn
from, and a test holds that it is the present one. Needs Chromium.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
NAMES = ("rooms", "comparison")
_BLOCK = re.compile(r"```mermaid\n(.*?)```", re.S)
_SETTINGS = """{startOnLoad: false, theme: 'neutral', htmlLabels: false, deterministicIds: true,
    flowchart: {htmlLabels: false}, fontFamily: 'Arial, sans-serif'}"""


def diagrams(markdown: str) -> dict[str, str]:
    """The blocks of the page, by the names of their pictures."""
    return dict(zip(NAMES, _BLOCK.findall(markdown), strict=True))


def picture_of(name: str) -> Path:
    """Where the picture of a block lies."""
    return DOCS / "images" / f"architecture-{name}.svg"


def digest(block: str) -> str:
    """The last line of the picture of a block."""
    return f"<!-- drawn from {hashlib.sha256(block.encode()).hexdigest()} -->\n"


def main(mermaid: str) -> None:
    """Draw them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as player:
        page = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.set_content("<body></body>")
        page.add_script_tag(path=mermaid)
        page.evaluate(f"mermaid.initialize({_SETTINGS})")
        for name, block in diagrams((DOCS / "architecture.md").read_text(encoding="utf-8")).items():
            svg = page.evaluate("async ([name, block]) => (await mermaid.render(name, block)).svg", [name, block])
            picture_of(name).write_text(f"{svg}\n{digest(block)}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
