"""``mdir-hf compare`` on the command line and in scripts."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mdir_hf import HomologyReport
from mdir_hf.cli import main
from mdir_hf.errors import ByteBudgetError
from mdir_hf.report import SCHEMA
from tests.specimens import gaussian, tokens, write_model

V, N = 1200, 64

# A process started from a background job ignores Ctrl-C, and so do its children unless they restore the handler.
HEEDING_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mdir_hf.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def pair(tmp_path):
    base = write_model(tmp_path / "base", gaussian(V, N, 0))
    copy = write_model(tmp_path / "copy", gaussian(V, N, 0) + 0.2 * gaussian(V, N, 1))
    stranger = write_model(tmp_path / "stranger", gaussian(V, N, 2))
    return str(base), str(copy), str(stranger)


def test_it_prints_the_report_on_stdout_and_the_plan_on_stderr(pair, capsys):
    assert main(["compare", *pair[:2]]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("HOMOLOGOUS")
    assert "plan:" in err and "plan:" not in out


def test_json_is_one_object_and_nothing_else_on_stdout(pair, capsys):
    assert main(["compare", pair[0], pair[2], "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["verdict"] == "no_evidence"
    assert body["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("candidate", "fail_on", "status"),
    [
        (1, ["homologous"], 3),
        (2, ["homologous"], 0),
        (2, ["no_evidence,inconclusive"], 3),
        (1, ["no_evidence", "inconclusive"], 0),
    ],
)
def test_fail_on_turns_a_verdict_into_status_3(pair, candidate, fail_on, status, capsys):
    options = [word for verdict in fail_on for word in ("--fail-on", verdict)]
    assert main(["compare", pair[0], pair[candidate], "--quiet", *options]) == status
    capsys.readouterr()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["compare"],
        ["compare", "a"],
        ["compare", "a", "b", "--alpha", "2"],
        ["compare", "a", "b", "--alpha", "x"],
        ["compare", "a", "b", "--alpha", "nan"],
        ["compare", "a", "b", "--seed", "-1"],
        ["compare", "a", "b", "--seed", "0.5"],
        ["verify", "a", "--seed", "-1"],
        ["family", "a", "--index", "f", "--alpha", "0"],
        ["survey", "a", "b", "--output", "d", "--seed", "-1"],
        ["compare", "a", "b", "--fail-on", "related"],
        ["compare", "a", "b", "--level", "deep"],
        ["compare", "a", "b", "--level", "screen"],
        ["compare", "a", "b", "--layers", "3"],
        ["compare", "a", "b", "--max-bytes", "many"],
        ["nonsense"],
    ],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("./nowhere", "no such"),
        ("owner/name/extra/parts", "owner/name"),
        ("http://example.com/a/b", "owner/name"),
    ],
)
def test_a_known_error_gives_one_line_and_status_1(reference, said, pair, hf_home, capsys):
    assert main(["compare", reference, pair[0]]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mdir-hf: error: ") and err.count("\n") == 1
    assert said in err and "Traceback" not in err


def test_remote_code_is_refused(pair, capsys):
    assert main(["compare", *pair[:2], "--trust-remote-code"]) == 1
    assert "never runs" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "status"), [("10k", 1), ("0.5M", 0), ("1GB", 0)])
def test_a_cap_on_bytes_is_kept(pair, size, status, capsys):
    assert main(["compare", *pair[:2], "--max-bytes", size, "--quiet"]) == status
    capsys.readouterr()


@pytest.mark.parametrize(("interruption", "status"), [(KeyboardInterrupt, 130), (ByteBudgetError, 1)])
def test_an_interruption_reports_the_findings(interruption, status, tmp_path, monkeypatch, capsys):
    pair = [str(write_model(tmp_path / f"{seed}", gaussian(V, N, seed))) for seed in (1, 2)]

    def interrupted(*_arguments, **_keywords):
        raise interruption("the next read would pass the cap")

    monkeypatch.setattr("mdir_hf.comparison.steps.look_at_embeddings", interrupted)
    assert main(["compare", *pair, "--json", "--output", str(tmp_path / "out")]) == status
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["neurons"]["step"] == "number" and found["embedding"] is None
    assert "The embeddings have not been compared yet: the comparison is not finished." in found["caveats"]
    assert (tmp_path / "out" / "report.json").is_file()
    assert "stopped: the results so far are above" in err and "Traceback" not in err


def test_save_writes_report_page_and_figures(pair, tmp_path, capsys):
    assert main(["compare", *pair[:2], "--output", str(tmp_path / "out" / "deep"), "--json"]) == 0
    folder = tmp_path / "out" / "deep"
    names = {path.name for path in folder.iterdir()}
    assert {
        "report.json",
        "report.md",
        "report.html",
        "embedding.png",
        "embedding.svg",
        "neurons.png",
        "neurons.svg",
    } <= names
    printed = capsys.readouterr().out
    assert HomologyReport.from_json((folder / "report.json").read_text()) == HomologyReport.from_json(printed)
    page = (folder / "report.html").read_text()
    assert "http://" not in page and "https://" not in page  # nothing is fetched when it is opened
    assert page.count("<img ") == page.count("<source ") == 2


def test_describe_reads_the_embeddings_of_relatives(pair, capsys):
    for options, is_read in (([], False), (["--describe"], True)):
        assert main(["compare", *pair[:2], "--json", "--quiet", *options]) == 0
        body = json.loads(capsys.readouterr().out)
        assert (body["settled_by"], body["embedding"] is not None) == ("near", is_read)


def test_saving_into_a_file_is_refused_before_anything_is_read(pair, tmp_path, capsys):
    (tmp_path / "taken").write_text("x")
    assert main(["compare", *pair[:2], "--output", str(tmp_path / "taken")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "it is a file" in err and "plan:" not in err


def test_a_repo_name_cannot_put_markup_into_the_page(tmp_path, capsys):
    folder = write_model(tmp_path / "<b>x<", gaussian(V, N, 0))
    assert main(["compare", str(folder), str(folder), "--output", str(tmp_path / "out"), "--quiet"]) == 0
    assert "<b>x<" not in (tmp_path / "out" / "report.html").read_text()
    capsys.readouterr()


def test_two_hub_ids_are_compared_over_http(tmp_path, loopback_hub, capsys):
    for name, seed in (("base", 0), ("twin", 1)):
        further = {"model.norm.weight": gaussian(1, 500_000, seed)[0]}
        folder = write_model(tmp_path / name, gaussian(V, N, 0) + 0.1 * gaussian(V, N, seed), further=further)
        loopback_hub.add_repository(f"some/{name}", folder)
    assert main(["compare", "some/base", f"{loopback_hub.endpoint}/some/twin", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["verdict"] == "homologous"
    assert body["reference"]["repo"] == "some/base" and len(body["reference"]["commit"]) == 40
    assert 0 < body["io"]["requests"] <= len(loopback_hub.requests)
    assert body["io"]["bytes_read"] < body["io"]["bytes_of_weights"] / 3


def test_files_of_the_same_digest_are_settled_without_a_weight_byte(tmp_path, loopback_hub, capsys):
    folder = write_model(tmp_path / "base", gaussian(V, N, 0))
    for name in ("base", "mirror"):
        loopback_hub.add_repository(f"some/{name}", folder)
    assert main(["compare", "some/base", "some/mirror", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["verdict"] == "homologous" and body["settled_by"] == "identical_files"
    assert body["embedding"] is None
    assert body["log10_p"] == pytest.approx(-77.06, abs=0.01)  # 256 bits


def test_ctrl_c_ends_with_130_one_line_and_no_half_written_file(tmp_path, loopback_hub):
    from tests.loopback.faults import Fault

    for name, seed in (("base", 1), ("twin", 2)):
        folder = write_model(tmp_path / name, gaussian(6000, 256, seed), words=tokens(6000))
        loopback_hub.add_repository(f"some/{name}", folder)
    loopback_hub.faults.append(Fault("slow", origin="cdn", times=None, delay_s=0.3))
    home = tmp_path / "home"
    environment = {**os.environ, "HF_ENDPOINT": loopback_hub.endpoint, "HF_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING_CTRL_C, "compare", "some/base", "some/twin", "--output", str(tmp_path / "out")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not [r for r in loopback_hub.sent("cdn") if r.method == "GET"] and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert not [path for path in home.rglob("*") if path.name.endswith((".tmp", ".partial"))]
