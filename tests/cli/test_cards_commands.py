"""``mdir-hf card`` and ``verify`` on the command line and in scripts."""

from __future__ import annotations

import json
import shutil

import pytest

from mdir_hf import HomologyChecker, HomologyReport, make_badge
from mdir_hf.cli import main
from tests.loopback.faults import Fault
from tests.specimens import gaussian, write_model

V, N = 1200, 64
CARD = b"---\r\nlicense: mit\r\n---\r\n# Tuned\r\n"


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """A Hub with owner/base, and me/tuned, which declares it."""
    loopback_hub.add_repository("owner/base", write_model(tmp_path / "base", gaussian(V, N, 0)))
    folder = write_model(tmp_path / "tuned", gaussian(V, N, 0) + 0.2 * gaussian(V, N, 1))
    (folder / "README.md").write_bytes(CARD)
    loopback_hub.add_repository("me/tuned", folder)
    return loopback_hub


@pytest.fixture
def report(hub, tmp_path):
    """A file with the output of ``compare --json``."""
    path = tmp_path / "in" / "first.json"
    path.parent.mkdir()
    compared = HomologyChecker.from_pretrained("owner/base").compare("me/tuned", progress=False)
    path.write_text(compared.to_json() + "\n")
    return path


def refused(capsys, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("mdir-hf: error: ")
    return err


def test_a_badge_lies_beside_its_report(report, tmp_path, capsys):
    assert main(["card", str(report), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    badge = make_badge(HomologyReport.from_json(report.read_text()))
    assert f"shared weight ancestry | {badge.message}" in said
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {"badge.svg", "badge.md", "badge.json", "report.json"}
    assert (folder / "badge.svg").read_text() == badge.svg
    assert (folder / "badge.json").read_text() == badge.endpoint_json
    assert (folder / "badge.md").read_text() == badge.markdown("badge.svg", "report.json") + "\n"
    assert HomologyReport.from_json((folder / "report.json").read_text()) == HomologyReport.from_json(
        report.read_text()
    )


def test_a_badge_goes_to_the_folder_of_its_report_by_default(report, capsys):
    before = report.read_bytes()
    assert main(["card", str(report)]) == 0
    assert {path.name for path in report.parent.iterdir()} == {
        "badge.svg", "badge.md", "badge.json", "report.json", "first.json",
    }  # fmt: skip
    assert main(["card", str(report.parent / "report.json")]) == 0  # the report itself is not written again
    assert report.read_bytes() == before
    capsys.readouterr()


def test_the_report_of_another_comparison_is_not_overwritten(report, capsys):
    (report.parent / "report.json").write_text("{}")
    assert "is not the report of this badge" in refused(capsys, "card", report)
    assert (report.parent / "report.json").read_text() == "{}"
    assert not (report.parent / "badge.svg").exists()


def test_badge_json_is_one_object(report, tmp_path, capsys):
    assert main(["card", str(report), "--output", str(tmp_path / "out"), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["message"].startswith("p ≤ 10⁻") and len(body["report_sha256"]) == 64
    assert body["markdown"].endswith("(badge.svg)](report.json)")
    assert len(body["files"]) == 4


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other"}', "\x00"])
def test_a_badge_of_an_invalid_report_gives_one_line(tmp_path, capsys, content):
    (tmp_path / "x.json").write_text(content)
    assert "x.json" in refused(capsys, "card", tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_badge_into_a_file_is_refused(report, tmp_path, capsys):
    (tmp_path / "taken").write_text("x")
    assert "taken" in refused(capsys, "card", report, "--output", tmp_path / "taken")


def test_the_card_goes_to_stdout_as_it_is_and_the_diff_to_stderr(report, capsysbinary):
    assert main(["card", "me/tuned", str(report)]) == 0
    out, err = capsysbinary.readouterr()
    assert out.startswith(CARD) and out.count(b"\r\n") == out.count(b"\n")
    assert b"+## Weight ancestry" in err and b"no request was sent" in err


def test_the_card_goes_to_a_folder_with_its_report_and_badge(report, tmp_path, capsys):
    place = tmp_path / "new"
    options = ["--confirm-base-model", "--base-model-relation", "finetune"]
    assert main(["card", "me/tuned", str(report), "--output", str(place), *options]) == 0
    assert capsys.readouterr().out == ""
    assert b"base_model: owner/base\r\nbase_model_relation: finetune\r\n---\r\n" in (place / "README.md").read_bytes()
    assert {path.name for path in (place / ".lineage").iterdir()} == {"report.json", "badge.svg"}
    assert "it is a file" in refused_err(capsys, "card", "me/tuned", report, "--output", place / "README.md")


def refused_err(capsys, *arguments: object) -> str:
    """Like :func:`refused`, but the error follows a diff."""
    assert main([str(argument) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1]


def test_a_relation_needs_the_authors_confirmation(report, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["card", "me/tuned", str(report), "--base-model-relation", "merge"])
    assert exit_info.value.code == 2
    assert "--confirm-base-model" in capsys.readouterr().err


def test_a_merged_pull_request_is_not_repeated(report, hub, capsys, monkeypatch):
    command = ["card", "me/tuned", str(report), "--create-pr"]
    assert "hf auth login" in refused_err(capsys, *command)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert main(command) == 0
    assert capsys.readouterr().out == f"{hub.endpoint}/me/tuned/discussions/1\n"
    assert "pull request 1" in refused_err(capsys, *command)
    hub.merge("me/tuned", 1)
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "the repository has all of this already\n")
    assert len(hub.pull_requests("me/tuned")) == 1
    # The updated card passes verification.
    assert main(["verify", "--badge", f"{hub.endpoint}/me/tuned/resolve/main/.lineage/badge.svg", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("MATCH")


def test_a_report_of_other_models_is_refused(report, capsys):
    assert "does not mention" in refused(capsys, "card", "owner/elsewhere", report)


def test_verify_sets_the_card_beside_the_weights(hub, tmp_path, capsys):
    (tmp_path / "tuned" / "README.md").write_text("---\nbase_model: [owner/base, owner/none]\n---\n")
    hub.add_repository("me/tuned", tmp_path / "tuned")
    assert main(["verify", "me/tuned"]) == 0
    out, err = capsys.readouterr()
    assert "declared: base model owner/base (README.md); measured: shared weight ancestry" in out
    assert "; not measured: " in out
    assert "plan:" in err
    assert main(["verify", "me/tuned", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == "mdir-hf/lineage/1" and err == ""


@pytest.mark.parametrize(
    ("bases", "status", "line"),
    [
        ("owner/base", 0, ""),
        ("[owner/base, owner/none]", 3, "base owner/none (README.md): not measured"),
        ("[owner/base, 'two words']", 3, "'two words' does not name a repository"),
        ("me/other", 3, "base me/other (README.md): measured: no evidence"),
        ("ME/tuned", 3, "it declares itself as its own base model"),
        ("owner/gated", 1, "base owner/gated (README.md): not measured"),
        ("owner/failing", 1, "base owner/failing (README.md): not measured"),
        (None, 3, "it declares no base model"),
    ],
)
def test_a_card_is_held_to_the_policy(hub, tmp_path, capsys, waits, bases, status, line):
    hub.add_repository("me/other", write_model(tmp_path / "other", gaussian(V, N, 2)))
    hub.add_repository("owner/gated", tmp_path / "base", gated=True)
    hub.faults.append(Fault("status", path="owner/failing", status=429, times=None))
    card = "license: mit" if bases is None else f"base_model: {bases}"
    (tmp_path / "tuned" / "README.md").write_text(f"---\n{card}\n---\n")
    hub.add_repository("me/tuned", tmp_path / "tuned")
    for condition in ("all", "bases"):
        assert main(["verify", "me/tuned", "--quiet", "--require", condition]) == status
        err = capsys.readouterr().err
        assert err.count("\n") == bool(line) and line in err
    assert main(["verify", "me/tuned", "--quiet"]) == (status if status == 1 else 0)


def test_badges_are_held_to_the_policy(report, hub, tmp_path, capsys):
    assert main(["verify", "--badge", str(report), "--json", "--quiet", "--require", "all"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["state"] == "match" and err == ""
    (tmp_path / "tuned" / "config.json").write_bytes((tmp_path / "tuned" / "config.json").read_bytes() + b"\n")
    hub.find("me/tuned").add_revision("main", tmp_path / "tuned")
    assert main(["verify", "--badge", str(report), "--quiet", "--require", "bases"]) == 0
    assert main(["verify", "--badge", str(report), "--quiet", "--require", "all"]) == 3
    out, err = capsys.readouterr()
    assert "STALE" in out and err.startswith("mdir-hf: not so: pins: ") and "changed: config.json" in err
    body = json.loads(report.read_text())
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({**body, "log10_p": 3 * body["log10_p"]}))
    assert main(["verify", "--badge", str(report), str(wrong), "--json", "--quiet"]) == 3
    out, err = capsys.readouterr()
    assert [badge["state"] for badge in json.loads(out)["badges"]] == ["stale", "different"]
    assert err == f"mdir-hf: not so: bases: {wrong}: the result differs\n"


def test_verify_badge_of_a_model_in_a_folder_of_its_repository(hub, tmp_path, capsys):
    (tmp_path / "deep").mkdir()
    shutil.move(tmp_path / "tuned", tmp_path / "deep" / "v2")
    hub.add_repository("me/tuned", tmp_path / "deep")
    assert main(["compare", "owner/base", "me/tuned", "--candidate-subfolder", "v2", "--json", "--quiet"]) == 0
    (tmp_path / "r.json").write_text(capsys.readouterr().out)
    assert main(["verify", "--badge", str(tmp_path / "r.json"), "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("MATCH")


@pytest.mark.parametrize(
    "arguments",
    [
        ["card"],
        ["card", "a/b", "x", "--confirm-base-model", "--base-model-relation", "child"],
        ["verify"],
        ["verify", "a/b", "--require", "false"],
        ["verify", "--badge"],
        ["verify", "--badge", "x", "--require", "digests"],
        ["verify", "--badge", "x", "--level", "deep"],
        ["verify-badge", "x"],
    ],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage:" in capsys.readouterr().err
