"""Cards and badges that link a bill of materials."""

import json

import pytest

from mdir_hf import compare
from mdir_hf.cli import main
from mdir_hf.errors import InputError
from mdir_hf.lineage.bom.linking import linked_bom
from mdir_hf.lineage.cards.card import propose_card
from tests.lineage.bom.models import serve_family


@pytest.fixture
def bom(loopback_hub, tmp_path):
    serve_family(loopback_hub, tmp_path)
    path = tmp_path / "bom.json"
    assert main(["verify", "me/tuned", "--bom", str(path), "--quiet"]) == 0
    return path


@pytest.fixture
def report(bom, tmp_path):
    found = compare("owner/base", "me/tuned", progress=False)
    path = tmp_path / "report.json"
    path.write_text(found.to_json())
    return path


def test_a_card_says_what_was_checked(bom, report):
    found = compare("owner/base", "me/tuned", progress=False)
    proposal = propose_card("me/tuned", found, bom=linked_bom(bom, "me/tuned"))
    text = proposal.after.decode()
    assert "/me/tuned/blob/main/.lineage/bom.json) (CycloneDX). Bases compared by their weights: " in text
    assert "owner/base: declared and confirmed." in text
    assert proposal.files[".lineage/bom.json"] == bom.read_bytes()


def test_a_card_without_a_document_links_none(bom):
    found = compare("owner/base", "me/tuned", progress=False)
    proposal = propose_card("me/tuned", found)
    assert b"bom.json" not in proposal.after and ".lineage/bom.json" not in proposal.files


def test_the_command_writes_the_link(bom, report, tmp_path):
    out = tmp_path / "out"
    words = ["card", "me/tuned", str(report), "--bom", str(bom), "--output", str(out), "--quiet"]
    assert main(words) == 0
    assert ".lineage/bom.json" in (out / "README.md").read_text()
    assert (out / ".lineage" / "bom.json").read_bytes() == bom.read_bytes()


def test_a_document_about_another_model_is_refused(bom):
    with pytest.raises(InputError, match="is about me/tuned, not about me/other"):
        linked_bom(bom, "me/other")


def test_a_document_of_another_program_is_refused(bom):
    body = json.loads(bom.read_text())
    body["metadata"]["tools"]["components"][0]["name"] = "other"
    bom.write_text(json.dumps(body))
    with pytest.raises(InputError, match="was not written by mdir-hf"):
        linked_bom(bom, "me/tuned")
