"""The folder ``space`` as on the Hub: each account reads with its own permissions."""

import shutil
import socket

import pytest
from playwright.sync_api import expect

from tests.space.identity_provider import IdentityProvider
from tests.space.live.steps import compare, refusal, settle, verdict
from tests.space.models import BASE, GATED, PRIVATE
from tests.space.servers import ROOT, running

# In a Space, gradio adds the Hub's header to the page.
GRADIO_ASKS_IN_A_SPACE = ("https://fonts.googleapis.com/css2", "https://huggingface.co/api/spaces/owner/mdir-hf")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def provider(shared_hub):
    with IdentityProvider({"reader": shared_hub.token, "outsider": shared_hub.outsider_token}) as provider:
        yield provider


@pytest.fixture(scope="module")
def space(shared_hub, provider, tmp_path_factory):
    home = tmp_path_factory.mktemp("space-home")
    # Only the folder itself is uploaded.
    app = shutil.copytree(ROOT / "space", home / "app", ignore=shutil.ignore_patterns("__pycache__")) / "app.py"
    port = free_port()
    environment = {
        **provider.environment,
        "SYSTEM": "spaces",
        "SPACE_ID": "owner/mdir-hf",
        "HF_ENDPOINT": shared_hub.endpoint,
        "HF_TOKEN": shared_hub.token,
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_SERVER_NAME": "127.0.0.1",
    }
    with running([str(app)], environment, home, says="Running on local URL") as server:
        server.home, server.url = home, f"http://127.0.0.1:{port}"
        yield server


@pytest.fixture
def come(visit, space):
    """Open the Space without signing in."""
    return lambda address="/": visit(address, base=space.url, may_ask=GRADIO_ASKS_IN_A_SPACE)


def sign_in(page, provider, account):
    provider.next_account = account
    may_sign_in = page.get_by_role("button", name="Sign in for gated models")
    is_signed_in = page.get_by_role("button", name=f"Sign out {account}")
    for timeout_ms in (30_000, None):
        may_sign_in.click()
        try:
            expect(is_signed_in).to_be_visible(timeout=timeout_ms)
            return
        except AssertionError:  # on a busy machine, gradio once lost the click or the following label
            page.reload()
            expect(may_sign_in.or_(is_signed_in)).to_be_visible()
            if is_signed_in.is_visible():
                return
    raise AssertionError(f"not signed in as {account}")


def test_signing_in_opens_a_gated_model_and_keeps_the_link(come, provider, shared_hub):
    page = come(f"/?a={BASE}&b={GATED}")
    assert "Sign in with an account" in refusal(page)

    sign_in(page, provider, "reader")

    expect(page.get_by_label("Compare with, optional")).to_have_value(GATED)
    verdict(page, "share weights (p ≤")
    link = page.get_by_label("Link to this comparison").input_value()
    assert link == f"https://huggingface.co/spaces/owner/mdir-hf?a={BASE}&b={GATED}"
    settle(page)
    assert shared_hub.token not in page.content()


def test_results_of_one_account_are_shown_to_no_other_visitor(come, provider, space):
    reader = come()
    sign_in(reader, provider, "reader")
    for name in (GATED, PRIVATE):
        compare(reader, BASE, name)
        verdict(reader, "share weights (p ≤")
        settle(reader)

        stranger = come()
        compare(stranger, BASE, name)
        refusal(stranger)
        assert stranger.locator("#verdict-words").count() == 0

    kept = [path.as_posix() for path in space.home.rglob("*") if path.is_file()]
    assert not any("gated" in path or "private" in path for path in kept)


def test_an_account_without_access_gets_a_message(come, provider):
    page = come()
    sign_in(page, provider, "outsider")
    compare(page, BASE, GATED)
    assert "your account has not been granted access" in refusal(page)


def test_signing_out_ends_the_rights(come, provider):
    page = come()
    sign_in(page, provider, "reader")
    page.get_by_role("button", name="Sign out reader").click()
    expect(page.get_by_role("button", name="Sign in for gated models")).to_be_visible()
    compare(page, BASE, GATED)
    assert "Sign in with an account" in refusal(page)
