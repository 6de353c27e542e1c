"""The reconstruction in its tab: progress, download, cancelling, and answers without one."""

import zipfile

from playwright.sync_api import expect

from mdir_hf import load_reconstruction
from tests.loopback.faults import Fault
from tests.space.live.steps import compare, is_quiet, open_tab, settle, verdict
from tests.space.models import BASE, DEEP, DEEP_MOVED, RELATED, STRANGER


def test_the_button_gives_words_and_files(visit, live_hub, tmp_path):
    page = visit()
    compare(page, DEEP, DEEP_MOVED)
    verdict(page, "share weights (")
    settle(page)
    assert f"takes {DEEP} to {DEEP_MOVED}" in open_tab(page, "Reconstruction")
    page.get_by_label("Compare with, optional").fill(STRANGER)  # the reconstruction is of the answer, not of the fields
    page.get_by_role("button", name="Align", exact=True).click()
    link = page.get_by_role("link", name="Download the reconstruction")
    expect(link).to_be_visible()
    panel = page.locator("#panel-reconstruction").inner_text()
    assert "Residual channels are reordered" in panel and "Heads are reordered in 4 layers" in panel
    with page.expect_download() as started:
        link.click()
    assert started.value.suggested_filename == "owner_deep-owner_deep-moved-reconstruction.zip"
    zipfile.ZipFile(started.value.path()).extractall(tmp_path)
    assert load_reconstruction(tmp_path).stream.outer.kind == "permutation"


def test_a_cancelled_reconstruction_stops_reading(visit, live_hub):
    page = visit(f"/?a={BASE}&b={RELATED}&level=embedding")
    settle(page)
    open_tab(page, "Reconstruction")
    live_hub.faults.append(Fault("slow", origin="cdn", path="related", times=None, delay_s=5.0))
    page.get_by_role("button", name="Align", exact=True).click()
    expect(page.locator("#panel-reconstruction progress")).to_be_visible()
    page.get_by_role("button", name="Cancel the reconstruction").click()
    expect(page.locator("#panel-reconstruction")).to_contain_text("Stopped. Nothing more is read.")
    expect(page.get_by_role("button", name="Align", exact=True)).to_be_visible()
    assert is_quiet(live_hub)
    expect(page.get_by_role("link", name="Download the reconstruction")).to_have_count(0)


def test_answers_without_a_transformation_have_a_reason_and_no_button(visit):
    page = visit(f"/?a={BASE}&b={STRANGER}")
    settle(page)
    assert "Only homologous models have a transformation" in open_tab(page, "Reconstruction")
    expect(page.get_by_role("button", name="Align", exact=True)).to_have_count(0)
    page = visit("/?example=permuted")
    settle(page)
    assert "No repository has the models of a stored result" in open_tab(page, "Reconstruction")
    expect(page.get_by_role("button", name="Align", exact=True)).to_have_count(0)
