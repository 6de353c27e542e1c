"""Errors that can be detected without a model are reported before torch is imported."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys

import pytest

from mdir_hf.cli import main
from mdir_hf.cli.arguments import settings_of
from mdir_hf.cli.main import build_parser
from mdir_hf.comparison.settings import Settings
from mdir_hf.report import Level


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["compare", "./there-is-none", "owner/name"], 1, "./there-is-none: there is no such folder here"),
        (["compare", "owner/name", "/nowhere/model.safetensors"], 1, "there is no such file here"),
        (["inspect", "~/there-is-none"], 1, "there is no such folder here"),
        (["survey", "./there-is-none", "--output", "out"], 1, "there is no such folder here"),
        (["survey", "owner/name", "owner/other"], 2, "--output"),
        (["survey", "--author", "owner", "--local-files-only", "--output", "out"], 2, "need the network"),
        (["index", "bases.safetensors"], 2, "name base models"),
        (["atlas", "build", "one.toml", "two.toml", "--output", "out"], 2, "takes one list"),
        (["compare", "owner/name"], 2, "B"),
    ],
)
def test_an_error_is_reported_without_torch(words, status, message, tmp_path):
    code = (
        "import sys; from mdir_hf.cli import main\n"
        f"try: status = main({words!r})\n"
        "except SystemExit as exc: status = exc.code\n"
        "print(status, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout.split() == [str(status), "False"]
    assert message in run.stderr


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
        ["tree", "a"],
        ["family", "a"],
        ["identify", "a", "--index", "index.safetensors"],
        ["atlas", "build", "list.toml", "--output", "out"],
        ["verify", "a"],
        ["verify-badge", "badge.json"],
    ],
    ids=" ".join,
)
def test_a_terminal_shows_the_import_of_torch(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mdir_hf.cli.output._has_torch", lambda: False)  # as at the first command of a process
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    main(words)  # the folders are empty
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


# --- every command that reads models has the same options for them


COMPUTING = {
    "compare": ["a", "b"],
    "verify": ["a"],
    "identify": ["a", "--index", "f"],
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
