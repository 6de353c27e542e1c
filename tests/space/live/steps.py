"""Actions of a visitor on the page."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from mdir_space.jobs.examples import stored_examples

MOVING_MS = 5_000
"""Time allowed for a tab to move into or out of the overflow menu."""
TABS = {
    "Evidence": "Evidence",
    "Layers": "Layers",
    "Modules": "Layers",
    "Reconstruction": "Share",
    "Reproduce": "Share",
    "Badge": "Share",
}
"""Tab of each panel."""


def fill(page: Page, first: str, second: str) -> None:
    """Name the two models."""
    page.get_by_label("One model").fill(first)
    page.get_by_label("Compare with, optional").fill(second)


def compare(page: Page, first: str, second: str) -> None:
    """Name two models and press the button."""
    fill(page, first, second)
    page.get_by_role("button", name="Compare", exact=True).click()


def open_example(page: Page, name: str) -> None:
    """Open a stored result from the first view of the page; unfold the list if it has the button."""
    if page.locator("#page .verdict").count():
        page.goto(page.url.partition("?")[0])
    words = next(example.words for example in stored_examples() if example.name == name)
    button = page.get_by_role("button", name=words, exact=True)
    if not words.endswith("?") and not button.is_visible():
        page.locator("#more-examples > button").click()
    button.click()


def focus(field: Locator) -> None:
    """Focus a field once it is visible, because focusing a hidden field silently fails."""
    expect(field).to_be_visible()
    field.focus()
    expect(field).to_be_focused()


def verdict(page: Page, part: str = "") -> str:
    """Wait for a verdict that contains a text, and return its words."""
    words = page.locator("#verdict-words")
    expect(words).to_be_visible()
    expect(words).to_have_text(re.compile(re.escape(part) or "."), use_inner_text=True)
    return words.inner_text()


def settle(page: Page) -> None:
    """Wait until the last tab is filled and the button is visible again."""
    expect(page.locator("#status .settled")).to_be_attached()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()


def open_tab(page: Page, name: str) -> str:
    """Open the tab of a panel, from the overflow menu if it is there, and return the panel's text."""
    tab = page.get_by_role("tab", name=TABS[name])
    menu = page.locator("#details .overflow-menu button").first
    panel = page.locator(f"#panel-{name.lower()}")
    for is_last in (False, False, True):  # tabs move to the menu only after they appear
        expect(tab.or_(menu).first).to_be_visible()
        try:
            if tab.count() and tab.first.is_visible():
                tab.first.click(timeout=None if is_last else MOVING_MS)
            else:
                menu.click(timeout=None if is_last else MOVING_MS)
                page.locator("#details .overflow-dropdown button", has_text=TABS[name]).click()
            break
        except PlaywrightTimeoutError:
            if is_last:
                raise
    expect(panel).to_be_visible()
    return panel.inner_text().replace("\N{NO-BREAK SPACE}", " ")


def refusal(page: Page) -> str:
    """Wait for the permanent error message, and return it."""
    alert = page.locator("#alert [role=alert]")
    expect(alert).to_be_visible()
    return alert.inner_text()


def next_refusal(page: Page, first: str, second: str) -> str:
    """Compare two names that are refused, and return the new error message."""
    page.locator("#alert [role=alert]").evaluate_all("all => all.forEach(one => one.classList.add('before'))")
    compare(page, first, second)
    alert = page.locator("#alert [role=alert]:not(.before)")
    expect(alert).to_be_visible()
    return alert.inner_text()


def is_quiet(hub, *, quiet_s: float = 2.5, timeout_s: float = 30.0) -> bool:
    """Tell whether a hub gets no requests for some seconds, after those in flight have arrived."""
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        asked = len(hub.requests)
        time.sleep(quiet_s)
        if len(hub.requests) == asked:
            return True
    return False


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


_TABBABLE = """() => {
  const all = document.querySelectorAll("a[href], button, input, textarea, select, summary, [tabindex]");
  window.tabbable = [...all].filter((e) => e.tabIndex >= 0 && !e.disabled && !e.closest("[aria-hidden=true]")
    && e.checkVisibility({ visibilityProperty: true }) && (e.type !== "radio" || e.checked));
  window.tabbable[0].focus();
  return window.tabbable.map((e) => (e.ariaLabel || e.innerText || e.placeholder || e.outerHTML).trim().slice(0, 80));
}"""


def walked(page: Page) -> tuple[list[str], list[int]]:
    """Go through the page with Tab.

    Returns:
        Focusable elements that were not reached, and the positions on the page of those that were.
    """
    names = page.evaluate(_TABBABLE)
    places: list[int] = []
    for _ in range(2 * len(names)):  # elements that appear meanwhile, such as a cell's link, are stops as well
        place = page.evaluate("window.tabbable.indexOf(document.activeElement)")
        if place in places:
            break
        places += [place] if place >= 0 else []
        page.keyboard.press("Tab")
    return [name for place, name in enumerate(names) if place not in places], places
