"""A report is checked by comparing the models again on its sample."""

import copy
import json
import shlex
import shutil
from dataclasses import replace

import pytest

from mdir_hf import HomologyReport, NamedModel, Settings, Verdict, check_report, compare
from mdir_hf.cli import main
from mdir_hf.comparison.check import THE_SAME, TOLERANCE
from mdir_hf.render.reproduce import command_line, python_lines
from tests.comparison.relatives import SIZES, drift, edited, new_embeddings, turned
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")


@pytest.fixture
def folders(base, save):
    return {
        "base": save(base, "base"),
        "tune": save(drift(copy.deepcopy(base), 0.3), "tune"),
        "hidden": save(new_embeddings(edited(base, turned(base))), "hidden"),
        "stranger": save(new_model(seed=9, **SIZES), "stranger"),
    }


def stored(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    return str(path)


@pytest.mark.parametrize(
    ("candidate", "level"),
    [
        *((candidate, "auto") for candidate in ("base", "tune", "hidden", "stranger")),
        ("hidden", "layers"),
        ("stranger", "layers"),
        ("tune", "paper"),
    ],
)
def test_a_true_report_is_confirmed(folders, candidate, level):
    models = folders["base"], folders[candidate]
    report = compare(*models, level=level, alpha=1e-6, seed=5, progress=False)
    assert (report.verdict is Verdict.HOMOLOGOUS) == (candidate != "stranger")
    check = check_report(HomologyReport.from_json(report.to_json()), *models, progress=False)
    assert check.is_same and str(check) == THE_SAME


@pytest.mark.parametrize("options", [{"describes": True}, {"settings": Settings(describes_relatives=True)}])
def test_descriptions_on_request_are_repeated(folders, options):
    models = folders["base"], folders["tune"]
    report = compare(*models, progress=False, **options)
    assert report.embedding is not None or report.projections is not None
    assert check_report(report, *models, progress=False).is_same


def test_a_report_with_a_chosen_sample_stays_inconclusive(folders):
    models = folders["base"], folders["tune"]
    report = compare(*models, sample_seed=3, progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert check_report(report, *models, progress=False).is_same


def test_the_printed_command_and_code_confirm_the_report(folders, tmp_path, monkeypatch, capsys):
    models = folders["base"], folders["tune"]
    report = compare(*models, level="layers", seed=5, progress=False)
    stored(report, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command_line(report).replace("\\\n", " "))[1:]) == 0
    assert capsys.readouterr().out == f"{THE_SAME}\n"
    exec(python_lines(report), {})
    assert capsys.readouterr().out == f"{THE_SAME}\n"


NO = {"verdict": Verdict.NO_EVIDENCE, "log10_p": 0.0, "settled_by": None, "assumption": None}


@pytest.mark.parametrize(
    ("forge", "fields"),
    [
        (lambda report: {"neurons": replace(report.neurons, tested=65)}, ["neurons.tested", "agreement"]),
        (lambda report: {"log10_p": report.log10_p * 1.001}, ["log10_p"]),
        (lambda report: NO, ["verdict", "log10_p", "settled_by", "assumption"]),
        (lambda report: {"sample_seed": None}, ["sample_seed"]),
    ],
)
def test_forged_numbers_and_verdicts_are_named_with_status_3(folders, forge, fields, tmp_path, capsys):
    models = str(folders["base"]), str(folders["tune"])
    report = compare(*models, progress=False)
    path = stored(replace(report, **forge(report)), tmp_path)
    assert main(["compare", *models, "--check", path, "--quiet"]) == 3
    out = capsys.readouterr().out
    assert all(f"\n  {field}: " in out for field in fields)
    assert THE_SAME not in out and "HOMOLOGOUS" not in out


def test_another_model_has_other_numbers(folders, tmp_path, capsys):
    report = compare(folders["base"], folders["tune"], progress=False)
    names = str(folders["base"]), str(folders["stranger"])
    assert main(["compare", *names, "--check", stored(report, tmp_path), "--json", "--quiet"]) == 3
    body = json.loads(capsys.readouterr().out)
    fields = {difference["field"]: difference for difference in body["differences"]}
    assert body["is_same"] is False
    assert (fields["verdict"]["reported"], fields["verdict"]["repeated"]) == ("homologous", "no_evidence")


def test_another_folder_with_the_same_numbers_is_mentioned(folders, tmp_path, capsys):
    report = compare(folders["base"], folders["tune"], progress=False)
    copy_of_it = tmp_path / "copy"
    shutil.copytree(folders["tune"], copy_of_it)
    assert main(["compare", str(folders["base"]), str(copy_of_it), "--check", stored(report, tmp_path), "-q"]) == 0
    assert capsys.readouterr().out == f"{THE_SAME}; of copy, which the report calls tune\n"


def test_a_folder_is_no_commit(folders):
    report = compare(folders["base"], folders["tune"], progress=False)
    pinned = replace(report, candidate=replace(report.candidate, repo="me/tune", commit="a1" * 20))
    check = check_report(pinned, folders["base"], NamedModel(folders["tune"]), progress=False)
    assert [difference.field for difference in check.differences] == ["candidate.repo", "candidate.commit"]


def test_numbers_may_differ_by_rounding(folders, tmp_path):
    models = folders["base"], folders["tune"]
    report = compare(*models, progress=False)
    near = replace(report, log10_p=report.log10_p * (1.0 + 0.5 * TOLERANCE))
    assert check_report(near, *models, progress=False).is_same


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"schema": "mdir-hf/report/4"}', b"\xff\xfe"])
def test_an_unreadable_report_is_one_line_and_status_1(folders, content, tmp_path, capsys):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["compare", str(folders["base"]), str(folders["tune"]), "--check", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("mdir-hf: error: ") and err.count("\n") == 1 and str(path) in err


def test_the_outcome_of_the_report_can_fail_a_script(folders, tmp_path, capsys):
    models = folders["base"], folders["tune"]
    path = stored(compare(*models, progress=False), tmp_path)
    words = ["compare", *map(str, models), "--check", path, "--quiet", "--fail-on"]
    assert (main([*words, "homologous"]), main([*words, "no_evidence"])) == (3, 0)


@pytest.mark.parametrize(
    "options", [["--level", "layers"], ["--alpha", "0.1"], ["--seed", "4"], ["--sample-seed", "0"], ["--output", "x"]]
)
def test_options_that_the_report_states_are_wrong_usage(options, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["compare", "a", "b", "--check", "report.json", *options])
    assert exit_info.value.code == 2
    assert options[0] in capsys.readouterr().err
