"""Output in a terminal: width, colour, progress bars and Ctrl-C."""

import re
import sys
from pathlib import Path

import pytest

from mdir_hf.cli import main
from tests.cli.terminal import in_terminal
from tests.specimens import gaussian, mlp_tensors, write_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")

V, N = 600, 64
BLUE = "\x1b[1;34m"
CONFIG = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
PAUSE = "import time\ndef pause(): print('now', flush=True); time.sleep(60)\n"
NO_BAR = "import mdir_hf.comparison.progress as bar; bar.DELAY_S = 1e6\n"
NO_DELAY = "import mdir_hf.comparison.progress as bar; bar.DELAY_S = 0.0\n"


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = {
        f"model.layers.{k}.self_attn.{name}_proj.weight": gaussian(N, N, 10 * k + at)
        for k in range(12)
        for at, name in enumerate("qkvo")
    }
    for k in range(12):
        layers |= mlp_tensors(N, 256, 1000 + 10 * k, layer=k)
    write_model(tmp_path / "base", gaussian(V, N, 0), config=CONFIG, further=layers)
    write_model(tmp_path / "tuned", gaussian(V, N, 0) + 0.2 * gaussian(V, N, 1), config=CONFIG, further=layers)
    write_model(tmp_path / "retokenized", gaussian(V, N, 2), config=CONFIG, further=layers)


def test_a_report_fits_a_terminal_of_60_columns_and_its_verdict_stands_out(models):
    shown = in_terminal("compare", "base", "tuned", columns=60, before=NO_BAR)
    assert shown.status == 0
    verdict = shown.text.partition(BLUE)[2].partition("\x1b[0m\n")[0]
    assert re.fullmatch(r"HOMOLOGOUS: tuned and base share weights \(p ≤ 10⁻[⁰-⁹¹²³]+\)\.", verdict)
    lines = shown.text.replace(BLUE, "").replace("\x1b[0m", "").split("\n")
    assert max(map(len, lines)) <= 60


def test_no_color_wins_over_force_color(models):
    assert "\x1b" not in in_terminal("compare", "base", "tuned", NO_COLOR="1", FORCE_COLOR="1").text


def test_piped_output_has_no_colour_unless_forced(models, capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    main(["compare", "base", "retokenized", "-q"])
    assert capsys.readouterr().out.startswith("HOMOLOGOUS")
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["compare", "base", "retokenized", "-q"])
    assert capsys.readouterr().out.startswith(f"{BLUE}HOMOLOGOUS")


def test_the_bar_names_the_stage_and_disappears(models):
    shown = in_terminal("compare", "base", "retokenized", "--level", "layers", before=NO_DELAY)
    stage = "comparing every projection of every layer"
    assert stage in shown.text and " read" in shown.text
    assert stage not in shown.text.rpartition("\r")[2]


def test_ctrl_c_prints_findings_and_how_to_continue(models):
    slow = (
        f"{PAUSE}import mdir_hf.comparison.progress as p; tell = p.Watch.enter\n"
        "p.Watch.enter = lambda *a: (tell(*a), a[1] == 'layers' and pause())\n"
    )
    words = ("compare", "base", "retokenized", "--level", "layers")
    shown = in_terminal(*words, stop_at="now", before=slow)
    assert shown.status == 130
    verdict = shown.text.index("HOMOLOGOUS")
    stopped = shown.text.index("mdir-hf: stopped:")
    assert verdict < stopped < shown.text.index("mdir-hf: interrupted:") and "run the same command again" in shown.text


def test_ctrl_c_before_anything_was_found_says_so(models):
    slow = f"{PAUSE}import mdir_hf.comparison.steps as s; s.compare_files = lambda *a: pause()\n"
    shown = in_terminal("compare", "base", "tuned", stop_at="now", before=slow)
    assert shown.status == 130
    assert "there are no results yet" in shown.text and "Traceback" not in shown.text


def test_a_survey_prints_its_size_before_imports(models):
    without = "import sys; sys.modules['mdir_hf.lineage.survey.run'] = None\n"
    shown = in_terminal("survey", "base", "tuned", "retokenized", "--output", "out", before=without)
    assert "3 models to read" in shown.text


def test_a_survey_that_is_stopped_shows_its_pairs(models):
    slow = (
        f"{PAUSE}import mdir_hf.lineage.survey.folder as f; add = f.SurveyFolder.add_pairs\n"
        "f.SurveyFolder.add_pairs = lambda *a: (add(*a), pause())\n"
    )
    shown = in_terminal("survey", "base", "tuned", "retokenized", "--output", "out", stop_at="now", before=slow)
    assert shown.status == 130
    assert "not finished: 2 of 3 models read, 1 of 3 pairs compared" in shown.text


def test_a_survey_that_is_stopped_while_reading_says_that_no_pair_was_compared(models):
    slow = (
        f"{PAUSE}import mdir_hf.lineage.survey.folder as f; add = f.SurveyFolder.add_model\n"
        "f.SurveyFolder.add_model = lambda *a: (add(*a), pause())\n"
    )
    shown = in_terminal("survey", "base", "tuned", "retokenized", "--output", "out", stop_at="now", before=slow)
    assert shown.status == 130
    assert "not finished: 1 of 3 models read, and no pair compared yet" in shown.text
    assert shown.text.count("models read") == 1
    assert "run the same command again" in shown.text and "Traceback" not in shown.text


def test_verbose_prints_each_step_and_the_origin_of_an_error(models, capsys):
    assert main(["compare", "base", "tuned", "-v"]) == 0
    said = capsys.readouterr().err
    assert said.index("opening the models") < said.index("comparing neurons of layers at the same place, ")
    with pytest.raises(ValueError, match="no such folder"):
        main(["compare", "base", "./nowhere", "-v"])


def test_a_long_line_continues_below_its_text(models):
    shown = in_terminal("inspect", "base", columns=60)
    lines = shown.text.splitlines()
    assert max(map(len, lines)) <= 60
    assert {len(line) - len(line.lstrip()) for line in lines[1:] if line} == {2, 17}


def test_a_long_line_of_a_tree_continues_beside_its_branch(models):
    write_model(Path("other"), gaussian(V, N, 3), config=CONFIG)
    shown = in_terminal("family", "tuned", "--among", "base", "other", columns=48)
    assert shown.status == 0
    tree = shown.text[shown.text.index("└─ base") :].splitlines()
    assert max(map(len, tree)) <= 48
    assert tree[2:4] == ["     compared: shared weight ancestry, p ≤", "       10⁻¹⁷⁶ (rests on numbering)"]
