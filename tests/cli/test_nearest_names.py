"""A mistyped command, option or model gets the nearest name suggested; shells complete known names."""

import subprocess

import pytest

from mdir_hf.cli import main
from mdir_hf.cli.completion import completions, remember_models, seen_models
from mdir_hf.cli.main import build_parser
from tests.specimens import gaussian, write_model


def usage_error(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: mdir-hf")
    return error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compar", "a", "b"], "there is no command 'compar'; did you mean 'compare'?"),
        (["surv"], "did you mean 'survey'?"),
        (["nonsense"], "there is no command 'nonsense': compare, align, inspect,"),
        (["survey", "a", "b", "--ouput", "d"], "there is no option --ouput; did you mean '--output'?"),
        (["compare", "a", "b", "--toknizer=c"], "did you mean '--tokenizer'?"),
        (["compare", "a", "b", "c"], "unexpected: c; `mdir-hf survey` compares more than two models"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(words, said, capsys):
    assert said in usage_error(capsys, *words)


def test_a_model_that_was_read_before_is_remembered(tmp_path, loopback_hub, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_model(tmp_path / "here" / "tuned", gaussian(300, 64, 0))
    loopback_hub.add_repository("some/base-135M", folder)
    assert main(["inspect", "some/base-135M"]) == 0
    assert seen_models() == ("some/base-135M",)
    assert main(["inspect", "some/base-153M"]) == main(["inspect", "here/tunde"]) == 1
    read_before, on_this_disk = capsys.readouterr().err.splitlines()
    assert read_before.endswith("did you mean 'some/base-135M'?")
    assert on_this_disk.endswith("did you mean 'here/tuned'?")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ver"], ["verify"]),
        (["compare", "--lev"], ["--level"]),
        (["compare", "--level", "l"], ["layers"]),
        (["compare", "own"], ["owner/one"]),
        (["compare", "owner/one", "--tokenizer", ""], ["owner/one"]),
        (["compare", "--output", ""], []),
        (["demo", ""], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_a_shell_gets_the_completions_at_the_cursor(words, found, hf_home):
    remember_models(["owner/one"])
    assert completions(build_parser(), words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert f"mdir-hf completion {shell} " in capsys.readouterr().out
    assert main(["completion", shell, "surv"]) == 0
    assert capsys.readouterr().out == "survey\n"


def test_bash_completes_with_the_script(tmp_path, capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    typed = "COMP_WORDS=(mdir-hf compare --level l); COMP_CWORD=3\n"
    ask = typed + 'mdir-hf() { printf "%s " "$@"; }\n_mdir_hf; echo "${COMPREPLY[0]}"'
    said = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
    assert said.stdout == "completion bash compare --level l \n"
