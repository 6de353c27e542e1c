"""The commands that reproduce a report, in a shell and in Python."""

import ast
import dataclasses
import os
import shlex
import shutil
import subprocess

import pytest

from mdir_hf.cli.main import build_parser
from mdir_hf.render.reproduce import command_line, comparison_lines, python_lines
from tests.render.figures.drawn_reports import HOSTILE_NAMES, a_model, a_report

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("name", ["owner/base", "it's", *[name for name in HOSTILE_NAMES if "\x00" not in name]])
def test_a_shell_passes_the_names_on_as_they_are(name, tmp_path):
    report = a_report(reference=a_model(name), candidate=a_model("./" + name, commit=None), seed=7)
    command = command_line(report).replace("mdir-hf", "printf '%s\\0'", 1)
    (tmp_path / "script").write_bytes(command.encode("utf-8"))  # a name without surrogates
    process = subprocess.run(
        [BASH, tmp_path / "script"], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )

    words = [os.fsdecode(word) for word in process.stdout.split(b"\0")]
    assert words == [
        *("compare", f"{name}@{'a1' * 20}", f"./{name}"),
        *("--check", "report.json", ""),
    ]
    assert process.stderr == b""


@pytest.mark.parametrize("lines", [python_lines, comparison_lines])
@pytest.mark.parametrize("name", ["owner/base", *HOSTILE_NAMES])
def test_python_reads_the_names_as_they_are(name, lines):
    report = a_report(reference=a_model(name), candidate=a_model(name[::-1], commit=None))
    calls = [
        (node.func.id, [ast.literal_eval(a) for a in node.args if isinstance(a, ast.Constant)],
         {k.arg: ast.literal_eval(k.value) for k in node.keywords})
        for node in ast.walk(ast.parse(lines(report).encode("utf-8", "replace")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]  # fmt: skip

    assert ("NamedModel", [name], {"revision": "a1" * 20}) in calls
    assert ("NamedModel", [name[::-1]], {}) in calls
    settings = {"level": "layers", "alpha": 1e-10, "seed": 0}
    assert (("compare", [], settings) in calls) == (lines is comparison_lines)


def test_how_a_model_was_read_is_part_of_the_command():
    reference = dataclasses.replace(
        a_model("owner/base"), subfolder="a b", variant="fp16", tokenizer=f"me/w@{'b' * 40}/x"
    )
    candidate = dataclasses.replace(a_model("me/many"), file="two.gguf", bases=(f"owner/base@{'c' * 40}", "./here"))
    report = a_report(reference=reference, candidate=candidate)
    options = build_parser().parse_args(shlex.split(command_line(report).replace("\\\n", " "))[1:])
    assert (options.subfolder, options.variant, options.tokenizer) == ("a b", "fp16", f"hf://models/me/w@{'b' * 40}/x")
    assert options.candidate == f"hf://models/me/many@{'a1' * 20}/two.gguf"
    assert (options.base, options.candidate_base) == ([], [f"owner/base@{'c' * 40}"])
    lines = python_lines(report)
    assert f"'owner/base', revision={'a1' * 20!r}, subfolder='a b', variant='fp16', tokenizer=" in lines
    assert f"NamedModel('hf://models/me/many@{'a1' * 20}/two.gguf', bases=('owner/base@{'c' * 40}',))" in lines
