"""Names with terminal control characters: no command, form of a report or page passes them on."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from dataclasses import replace

import pytest

from mdir_hf import HomologyReport, Level, SettledBy
from mdir_hf.cli import main
from mdir_hf.render.description import describe
from mdir_hf.render.sections import SectionKind
from mdir_space.html.figures import ReportFigures
from mdir_space.html.reproduce import badge_tab, reproduce_tab
from mdir_space.html.tabs import tab_html
from mdir_space.html.verdict_card import verdict_card
from tests.gguf_writer import gguf_bytes
from tests.lineage.cards.reports import a_report, model
from tests.specimens import gaussian, write_model

V, N = 1200, 64
EVIL = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\x00\x7f\u2028b\U000e0001c"
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def hidden(text):
    """Return the invisible and control characters of a text, except line breaks and tabs."""
    return {f"U+{ord(c):04X}" for c in text if unicodedata.category(c) in HIDDEN and c not in "\n\t"}


@pytest.fixture
def models(tmp_path, hf_home):
    """A base and a relative with only hostile names: tensors, layers, type, architecture, tokenizer, folder."""
    layer = {"model.layers.0.self_attn.q_proj.weight": gaussian(N, N, 7)}
    evil = {f"model.layers.0.{EVIL}.weight": gaussian(N, N, 8), EVIL: gaussian(4, 4, 9)}
    config = {
        "model_type": EVIL,
        "architectures": [EVIL],
        "hidden_size": N,
        "vocab_size": V,
        "num_hidden_layers": 1,
        "_name_or_path": EVIL,
    }
    paths = []
    for name, seed in (("base", 0), ("twin", 1)):
        # A file name may contain neither NUL nor "/".
        folder = tmp_path / f"{name}{EVIL.replace(chr(0), '')}"
        weights = gaussian(V, N, 0) + 0.1 * seed * gaussian(V, N, 1)
        write_model(folder, weights, further={**layer, **evil}, config=config)
        paths.append(str(folder))
    return paths


@pytest.fixture
def shown(capsys):
    """Run a command, check that its output has no control characters, and return both streams."""

    def shown(*arguments, may_fail=False):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert hidden(out) == set(), out
        assert hidden(err) == set(), err
        assert status == 0 or may_fail, err
        return out + err

    return shown


def test_inspect_and_compare(models, shown, tmp_path):
    for options in ([], ["--json"]):
        assert "\\u001b[2J" in shown("inspect", models[0], *options)
    for level in ("auto", "layers"):
        shown("compare", *models, "--level", level, "--quiet", may_fail=True)
    said = json.loads(shown("compare", *models, "--json", "--quiet"))
    assert "\x1b[2J" in said["reference"]["repo"]  # JSON keeps the value, escaped
    shown("compare", *models, "--quiet", "--output", tmp_path / "saved")
    for file in ("report.md", "report.html"):
        assert hidden((tmp_path / "saved" / file).read_text(encoding="utf-8")) == set(), file


def test_many_models(models, shown, tmp_path):
    shown("survey", *models, "--output", tmp_path / "survey", "--tree", may_fail=True)
    shown("index", "build", models[0], "--output", tmp_path / "bases.safetensors", may_fail=True)
    shown("family", models[1], "--index", tmp_path / "bases.safetensors", may_fail=True)
    shown("family", models[1], "--index", tmp_path / "bases.safetensors", "--json", may_fail=True)


def test_cards_and_badges(models, shown, tmp_path):
    report = tmp_path / "report.json"
    hostile = a_report(reference=model(f"owner/{EVIL}"), candidate=replace(model("me/tuned"), architecture=EVIL))
    report.write_text(hostile.to_json(), encoding="utf-8")
    shown("card", report, "--output", tmp_path, may_fail=True)
    shown("card", models[1], report, may_fail=True)
    shown("verify", models[1], may_fail=True)
    shown("verify", "--badge", report, may_fail=True)
    shown("index", "publish", tmp_path / EVIL.replace(chr(0), ""), "--dataset", f"me/{EVIL}", may_fail=True)


def test_fields_of_gguf(shown, tmp_path):
    folder = tmp_path / "gguf"
    folder.mkdir()
    fields = {"general.architecture": EVIL, "tokenizer.ggml.model": EVIL, "general.name": EVIL}
    (folder / "model.gguf").write_bytes(gguf_bytes({"token_embd.weight": gaussian(V, N, 0)}, fields))
    shown("inspect", folder, may_fail=True)
    shown("compare", folder, folder, "--quiet", may_fail=True)


def test_the_words_of_a_report_and_the_page():
    report: HomologyReport = a_report(
        reference=replace(model(EVIL, revision=EVIL), architecture=EVIL, quantization=EVIL),
        settled_by=SettledBy.NEAR,
        level=Level.AUTO,
        caveats=(f"{EVIL} was not read.", "x" * 50_000),
    )
    assert hidden(str(report)) == set()
    assert max(map(len, str(report).splitlines())) < 5000
    assert hidden(repr(describe(report)).replace("\\\\", "")) == set()
    pictures = ReportFigures(report)
    parts = [verdict_card(report, link=EVIL, note=EVIL)]
    shown = (SectionKind.EVIDENCE, SectionKind.LAYERS, SectionKind.MODULES)
    parts += [tab_html(report, kind, pictures) for kind in shown]
    parts += [reproduce_tab(report, server="http://127.0.0.1"), badge_tab(report, EVIL)]
    for part in parts:
        assert hidden(html.unescape(re.sub(r"data:[^\"]*", "", part))) == set()
