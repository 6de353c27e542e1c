"""Errors that can be detected without a model are reported before torch is imported."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys

import pytest

from mdir_hf.cli import main
from mdir_hf.cli.arguments import settings_of
from mdir_hf.cli.main import EPILOG, build_parser
from mdir_hf.cli.parser import commands_of
from mdir_hf.comparison.settings import Settings
from mdir_hf.report import Level
from tests.specimens import gaussian, write_model

WITHOUT_WEIGHTS = [
    (["compare", "./there-is-none", "owner/name"], 1, "./there-is-none: there is no such folder here"),
    (["compare", "owner/name", "/nowhere/model.safetensors"], 1, "there is no such file here"),
    (["compare", "owner/name", "two words"], 1, "'two words' does not name a model"),
    (["compare", "owner/name", "https://example.com/owner/name"], 1, "its host is not the Hub's"),
    (["compare", "owner/name", "./text"], 1, "./text: not a checkpoint: a text file"),
    (["compare", "owner/name", "~nobody-here/model"], 1, "there is no such folder here"),
    (["compare", "owner/name", "owner/other", "--level", "nonsense"], 2, "invalid choice: 'nonsense'"),
    (["compare", "owner/name", "owner/other", "--output", "text"], 1, "error: cannot save into text: it is a file"),
    (["compare", "owner/name", "owner/other", "--output", "text/below"], 1, "text is a file; name another folder"),
    (["compare", "owner/name", "owner/other", "--output", 300 * "x"], 1, "File name too long"),
    (["compare", "owner/name"], 2, "B"),
    (["align", "owner/name", "owner/other", "--output", "text"], 1, "it is a file"),
    (["inspect", "~/there-is-none"], 1, "there is no such folder here"),
    (["survey", "./there-is-none", "owner/name", "--output", "out"], 1, "there is no such folder here"),
    (["survey", "owner/name", "owner/other"], 2, "--output"),
    (["survey", "owner/name", "--output", "out"], 2, "at least two models, got 1"),
    (["survey", "owner/name", "owner/name", "--output", "out"], 1, "named twice"),
    (["survey", "folder", "--tree"], 2, "--output"),
    (["survey", "owner/name", "owner/other", "--output", "out", "--tokens", "5"], 1, "is too small to show anything"),
    (["survey", "--from", "text", "--output", "out"], 1, "at least two models, got 1"),
    (["survey", "--from", "there-is-none", "--output", "out"], 1, "cannot read the list of models there-is-none"),
    (["survey", "owner/name", "owner/other", "--output", "text"], 1, "it is a file"),
    (["survey", "owner/name", "--sample", ".", "--output", "out"], 1, "is not the folder of a survey"),
    (["survey", "--join", ".", "--output", "out"], 1, "is not the folder of a survey"),
    (["survey", "--author", "owner", "--local-files-only", "--output", "out"], 2, "need the network"),
    (["family", "owner/name", "--index", "there-is-none"], 1, "there-is-none: cannot be read"),
    (["family", "owner/name", "--among", "./there-is-none"], 1, "there is no such folder here"),
    (["family", "owner/name", "--bom", "folder"], 1, "folder: cannot be written: it is a folder"),
    (["index", "grow", "owner/name"], 2, "invalid choice: 'grow'"),
    (["index", "build", "--output", "bases.safetensors"], 2, "name base models"),
    (["index", "build", "owner/name"], 2, "--output"),
    (["index", "build", "owner/name", "--output", "folder"], 1, "folder: cannot be written: it is a folder"),
    (["index", "build", "./there-is-none", "--output", "bases.safetensors"], 1, "there is no such folder here"),
    (["index", "atlas", "there-is-none.toml", "--output", "out"], 1, "there-is-none.toml: cannot be read"),
    (["index", "atlas", "owner/name", "--output", "text"], 1, "it is a file"),
    (["index", "publish", "there-is-none", "--dataset", "owner/name"], 1, "there is no such file or folder"),
    (["index", "publish", "folder"], 2, "--dataset"),
    (["compare", "owner/name", "owner/other", "--check", "there-is-none"], 1, "there-is-none: there is no such file"),
    (["align", "owner/name", "owner/other"], 2, "--output"),
    (["align", "owner/name", "owner/other", "--output", "."], 1, "error: .: it is not empty"),
    (["inspect", "folder"], 1, "error: folder: no weights, and no other file"),
    (["compare", "owner/name", "texts"], 1, "error: texts: no weights, only config.json"),
    (["family", "texts"], 1, "error: texts: no weights, only config.json"),
    (["family", "owner/name", "--index", "text"], 1, "text: is not an index of base models"),
    (["index", "build", "--from", "nothing", "--output", "new"], 1, "the lists name no base models"),
    (["index", "build", "owner/name", "--output", "text"], 1, "text: is not an index of base models"),
    (["index", "atlas", "bad.toml", "--output", "new"], 1, "bad.toml: this is not a list of base models"),
    (["index", "publish", "text", "--dataset", "owner/name"], 1, "text: is not an index of base models"),
    (["verify", "--badge", "text"], 1, "text: is neither SVG nor JSON"),
    (["card", "folder"], 1, "folder: is a folder; name the file in it"),
    (["card", "report.json", "--create-pr"], 2, "name its repository"),
    (["card", "folder", "there-is-none"], 1, "there-is-none: there is no such file"),
    (["card", "folder", "foreign.json"], 1, "foreign.json: "),
    (["card", "owner/name", "report.json", "--output", "text"], 1, "it is a file"),
    (["verify", "--badge", "there-is-none"], 1, "there-is-none: cannot be read"),
    (["verify", "--bom", "there-is-none"], 1, "cannot be read: No such file"),
    (["verify", "--bom", "folder"], 1, "folder: cannot be read: Is a directory"),
    (["verify", "--bom", "text"], 1, "text: is not JSON"),
    (["verify", "--bom", "foreign.json"], 1, "not a CycloneDX bill of materials: it has no bomFormat"),
    (["verify", "--bom", "spdx.json"], 1, "spdx.json: is an SPDX document"),
    (["verify", "--bom", "pipe"], 1, "pipe: cannot be read: it is not a regular file"),
    (["verify", "--badge", "pipe"], 1, "pipe: cannot be read: it is not a regular file"),
    (["family", "owner/name", "--index", "pipe"], 1, "pipe: cannot be read: it is not a regular file"),
    (["verify", "--bom", "large.json"], 1, "large.json: is too large"),
    (["verify", "--bom", "empty.json"], 0, ""),
    (["verify", "--bom", "empty.json", "--require", "all"], 3, "the bill lists no machine-learning model"),
    (["verify", "--bom", "elsewhere.json", "--require", "pins"], 3, "its package URL is of another host"),
    (["verify", "--bom", "empty.json", "--require", "base"], 2, "'base' is not a condition; did you mean 'bases'?"),
    (["verify", "--bom", "empty.json", "--require", "x"], 2, "the conditions are all, pins, digests, bases, relations"),
    (["verify", "owner/name", "--require", "pins"], 2, "a model card states no pins; use bases, relations, or all"),
    (["verify", "owner/name", "--badge", "text"], 2, "--badge takes neither a model nor --bom"),
    (["verify", "--badge", "text", "--alpha", "0.1"], 2, "--badge takes alpha and seeds from the badge"),
    (["verify", "--badge", "text", "--variant", "fp16"], 2, "--badge reads models as the badge says"),
    (["verify", "owner/name", "--reference-tokenizer", "owner/words"], 2, "need --badge"),
    (["verify", "--mergekit", "text"], 2, "name a model"),
    (["verify", "owner/name", "--bom", "folder"], 1, "folder: cannot be written: it is a folder"),
    (["verify", "owner/name", "--mergekit", "there-is-none"], 1, "there-is-none: cannot be read"),
    (["verify", "owner/name", "--mergekit", "pipe"], 1, "pipe: cannot be read: it is not a regular file"),
    (["verify", "owner/name", "--mergekit", "text"], 1, "is not a supported mergekit recipe"),
]


@pytest.mark.parametrize(("words", "status", "message"), WITHOUT_WEIGHTS, ids=lambda value: str(value)[:80])
def test_an_error_is_reported_without_torch(words, status, message, tmp_path):
    (tmp_path / "text").write_text("owner/name\n")
    (tmp_path / "foreign.json").write_text('{"schema": "foreign"}')
    (tmp_path / "spdx.json").write_text('{"spdxVersion": "SPDX-2.3"}')
    elsewhere = {"type": "machine-learning-model", "purl": "pkg:huggingface/o/m?repository_url=https://hub.example"}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [elsewhere]}
    (tmp_path / "elsewhere.json").write_text(json.dumps(bill))
    (tmp_path / "empty.json").write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6"}')
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "folder").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "config.json").write_text("{}")
    (tmp_path / "nothing").write_text("# no model\n")
    (tmp_path / "bad.toml").write_text("[\n")
    heavy = ("torch", "transformers", "numpy", "scipy", "tokenizers", "matplotlib")
    code = (
        "import sys; from mdir_hf.cli import main\n"
        f"try: status = main({words!r})\n"
        "except SystemExit as exc: status = exc.code\n"
        f"print(status, *(name for name in {heavy} if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout.splitlines()[-1] == str(status)
    assert message in run.stderr


def test_near_copies_are_compared_without_scipy(tmp_path):
    """Its import takes an eighth of the processor time of such a comparison."""
    rows = gaussian(600, 64, 0)
    write_model(tmp_path / "base", rows)
    write_model(tmp_path / "tuned", rows + 0.01 * gaussian(600, 64, 1))
    code = (
        "import sys; from mdir_hf.cli import main\n"
        "main(['compare', 'base', 'tuned', '--json', '--quiet'])\n"
        "sys.exit('scipy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(run.stdout)["settled_by"] == "near"


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission_are_reported_at_once(tmp_path, capsys):
    (tmp_path / "bom.json").write_text("{}")
    (tmp_path / "bom.json").chmod(0)
    assert main(["verify", "--bom", str(tmp_path / "bom.json")]) == 1
    assert "cannot be read: Permission denied" in capsys.readouterr().err
    tmp_path.chmod(0o500)
    try:
        assert main(["compare", "owner/name", "owner/other", "--output", str(tmp_path / "out")]) == 1
    finally:
        tmp_path.chmod(0o700)
    assert "is not writable" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A standard error stream that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a", "b"],
        ["align", "a", "b", "--output", "aligned"],
        ["inspect", "a"],
        ["survey", "a", "b", "--output", "out"],
        ["survey", "a", "b", "--output", "out", "--prepare"],
        ["family", "a"],
        ["index", "atlas", "list.toml", "--output", "out"],
        ["verify", "a"],
        ["verify", "--badge", "badge.json"],
    ],
    ids=" ".join,
)
def test_a_terminal_shows_the_import_of_torch(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mdir_hf.cli.output._has_torch", lambda: False)  # as at the first command of a process
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for name in ("a/results.jsonl", "a/model.bin", "b/model.bin", "index.safetensors", "list.toml"):
        (tmp_path / name).touch()
    (tmp_path / "badge.json").write_text("{}")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    main(words)  # the files have no contents
    before, shown, after = terminal.getvalue().partition("loading torch …\r\x1b[K")
    assert shown and "loading" not in after and (not before or words[0] == "survey")


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("HF_HUB_DISABLE_PROGRESS_BARS", "1")])
def test_the_import_is_not_shown_if_bars_are_disabled(variable, value, tmp_path, monkeypatch):
    monkeypatch.setattr("mdir_hf.cli.output._has_torch", lambda: False)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv(variable, value)
    main(["inspect", str(tmp_path)])
    assert "loading" not in terminal.getvalue() and "error" in terminal.getvalue()


def test_the_nearest_path_is_suggested(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert main(["inspect", "./model"]) == 1
    assert "did you mean './models'?" in capsys.readouterr().err


# --- one convention for all commands


def test_every_command_with_a_result_prints_it_as_json():
    commands = commands_of(build_parser())
    flags = {name: command._option_string_actions.get("--json") for name, command in commands.items()}
    assert {name for name, flag in flags.items() if flag is None} == {"space", "demo", "completion"}
    assert len({flag.help for flag in flags.values() if flag is not None}) == 1


def test_every_command_that_writes_files_has_an_output():
    has_output = {
        name for name, command in commands_of(build_parser()).items() if "--output" in command._option_string_actions
    }
    assert has_output == set(commands_of(build_parser())) - {"inspect", "verify", "completion"}


# --- every command that reads models has the same options for them


COMPUTING = {
    "compare": ["a", "b"],
    "verify": ["a"],
    "family": ["a", "--index", "f"],
}


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("command", COMPUTING)
def test_options_become_settings(command):
    assert settings_of(parsed(command, *COMPUTING[command])) == Settings()
    words = ["--level", "layers", "--alpha", "1e-6", "--seed", "3", "--device", "auto"]
    words += ["--max-bytes", "2k", "--max-memory", "1M"]
    expected = Settings(Level.LAYERS, 1e-6, 3, "auto", 2000, 10**6)
    assert settings_of(parsed(command, *COMPUTING[command], *words)) == expected


# Twelve questions of newcomers, each with the command whose help must have its words.
QUESTIONS = {
    "do two models share weights?": "compare",
    "in which layers?": "compare",
    "repeats a report": "compare",
    "which of many models are related?": "survey",
    "family trees": "survey",
    "which base models was a model made from?": "family",
    "check a model card": "verify",
    "a bill of materials": "verify",
    "undo a disguise": "align",
    "which parts are compared?": "inspect",
    "make its badge": "card",
    "with an API and MCP": "space",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_help_answers_a_newcomers_question(question):
    help_of = {action.dest: action.help for action in build_parser()._subparsers._group_actions[0]._choices_actions}
    assert [name for name, text in help_of.items() if question in text] == [QUESTIONS[question]]


def test_as_an_extension_of_hf_it_calls_itself_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/me/.local/share/hf/extensions/hf-mdir/venv/bin/hf-mdir"])
    assert build_parser().prog == "hf mdir"
    assert commands_of(build_parser())["compare"].prog == "hf mdir compare"


def test_the_help_fits_80_columns():
    assert all(len(line) <= 80 for line in EPILOG.splitlines())
