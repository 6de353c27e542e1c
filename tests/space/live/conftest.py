"""A Space and a Chromium, started once for all tests of this folder."""

import os
import sys
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.loopback.hub import FullHub
from tests.space.live.steps import compare, settle
from tests.space.models import BASE, LARGE, RELATED, STRANGER, add_models, index_of
from tests.space.servers import running_command

TIMEOUT_MS = 120_000
"""Much longer than the page should take, since other programs share the machine."""
SLOWED = float(os.environ.get("MDIR_HF_SLOWED_BROWSER", "1"))
"""Slowdown of the browser's CPU, and its latency in tenths of a second. With 6, tests find actions before the page is
ready."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/space/live" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def shared_hub(model_folders):
    with FullHub() as hub:
        for quotas in hub.limits.quotas.values():
            quotas["api"] = sys.maxsize  # all tests share one IP address, which would exceed its quota
        add_models(hub, model_folders)
        yield hub


@pytest.fixture
def live_hub(shared_hub):
    """The server's Hub, with faults and a request log of one test."""
    shared_hub.requests.clear()
    yield shared_hub
    shared_hub.faults.clear()


@pytest.fixture(scope="package")
def index(shared_hub, tmp_path_factory):
    """An index of two bases of one width and a third base, at their commits on the Hub."""
    folder = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_ENDPOINT", shared_hub.endpoint)
        patched.setenv("MDIR_HF_CACHE", str(folder / "cache"))
        return index_of([BASE, STRANGER, LARGE], folder / "bases.safetensors")


@pytest.fixture(scope="package")
def server(shared_hub, index, tmp_path_factory):
    """``mdir-hf space`` with the limits of a Space, and its own token, which can read everything."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        "HF_ENDPOINT": shared_hub.endpoint,
        "HF_TOKEN": shared_hub.token,
        "MDIR_SPACE_N_RUNNING": "2",
        "MDIR_SPACE_INDEX": index,
    }
    with running_command(["--limited"], environment, home) as running:
        running.home = home
        yield running


@contextmanager
def visitors(chromium, server):
    """Yield a function that opens the Space as a new visitor; at the end, check for outside requests and errors."""
    expect.set_options(timeout=TIMEOUT_MS)
    contexts = []

    def visit(address="/", *, base=None, may_ask=(), scripts_come=True, **options):
        context = chromium.new_context(
            base_url=base or server.url, **{"viewport": {"width": 1200, "height": 900}, **options}
        )
        context.set_default_timeout(TIMEOUT_MS)
        if not scripts_come:  # from the first page on, since a page with only some of them throws errors
            context.route("**/assets/*.js", lambda route: route.abort())
        contexts.append(context)
        page = context.new_page()
        if SLOWED > 1:
            devtools = context.new_cdp_session(page)
            devtools.send("Emulation.setCPUThrottlingRate", {"rate": SLOWED})
            devtools.send("Network.enable")
            late = {"offline": False, "latency": 100 * SLOWED, "downloadThroughput": -1, "uploadThroughput": -1}
            devtools.send("Network.emulateNetworkConditions", late)
        page.outside, page.faults = [], []
        page.on(
            "request", lambda r: None if _is_here(r.url) or r.url.startswith(may_ask) else page.outside.append(r.url)
        )
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("dialog", lambda dialog: (page.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        faults = [(page.outside, page.faults) for page in context.pages]
        context.close()
        for outside, thrown in faults:
            assert (outside, thrown) == ([], [])


@pytest.fixture
def visit(chromium, server):
    """Open the Space as a new visitor: ``visit("/?a=…", color_scheme="dark")``."""
    with visitors(chromium, server) as visit:
        yield visit


@pytest.fixture(scope="package")
def settled_result(chromium, server):
    with visitors(chromium, server) as visit:
        page = visit(permissions=["clipboard-read", "clipboard-write"])
        compare(page, BASE, RELATED)
        settle(page)
        yield page


@pytest.fixture
def result(settled_result):
    """The page with the result for two relatives, for tests that change only its tabs."""
    page = settled_result
    yield page
    page.emulate_media(color_scheme="light")
    page.evaluate("document.documentElement.style.fontSize = ''")
    assert (page.outside, page.faults) == ([], [])


def _is_here(url):
    return url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:"))
