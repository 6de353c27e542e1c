"""Saving a report: its files are complete or absent."""

import os
import sys

import pytest

from mdir_hf import HomologyReport
from mdir_hf.errors import InputError
from mdir_hf.installing import install_command
from mdir_hf.render.figures import draw_figures, figure_bytes, figure_img
from mdir_hf.render.folder import save_report
from mdir_hf.writing import HIDDEN
from tests.render.figures.drawn_reports import HOSTILE_NAMES, NO_ARRAYS, a_model, a_report

pytest.importorskip("matplotlib")


def test_a_folder_holds_three_forms_and_every_figure(tmp_path):
    report = a_report()
    paths = save_report(report, tmp_path / "a" / "b")

    names = {path.name for path in (tmp_path / "a" / "b").iterdir()} - {HIDDEN}
    figures = report.figures()
    assert names == {path.name for path in paths.paths}
    assert names == {"report.json", "report.md", "report.html"} | {
        f"{name}{dark}.{file_format}" for name in figures for dark in ("", "-dark") for file_format in ("svg", "png")
    }
    assert HomologyReport.from_json((tmp_path / "a" / "b" / "report.json").read_text()) == report
    dark = draw_figures(report, dark=True)
    assert (tmp_path / "a" / "b" / "neurons.svg").read_bytes() == figure_bytes(figures["neurons"], "svg")
    assert (tmp_path / "a" / "b" / "neurons-dark.png").read_bytes() == figure_bytes(dark["neurons"], "png")
    page = (tmp_path / "a" / "b" / "report.html").read_text("utf-8")
    assert figure_img(figures["neurons"], dark["neurons"]) in page


def test_an_interruption_leaves_the_earlier_files(tmp_path, monkeypatch):
    parts = {"arrays": NO_ARRAYS, "layers": None, "modules": None}
    save_report(a_report(**parts), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    real, calls = os.fdopen, []

    def fails_half_way(descriptor, mode):
        file = real(descriptor, mode)
        calls.append(descriptor)
        if len(calls) == 3:
            file.write(b"half")
            file.close()
            raise KeyboardInterrupt
        return file

    monkeypatch.setattr(os, "fdopen", fails_half_way)
    with pytest.raises(KeyboardInterrupt):
        save_report(a_report(**parts, version="0.2.0"), tmp_path)

    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    monkeypatch.undo()
    save_report(a_report(**parts, version="0.2.0"), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in ("report.json", "report.html"))


@pytest.mark.parametrize("name", HOSTILE_NAMES[::4])  # test_page.py and test_markdown.py use all names
def test_reports_of_any_name_are_saved_as_utf_8(tmp_path, name):
    caveats = (f"No tokenizer files in {name}.",)
    absent = ("neurons", "embedding", "unembedding", "layers", "modules", "projections")
    parts = {**dict.fromkeys(absent), "arrays": NO_ARRAYS}  # no figure
    save_report(a_report(candidate=a_model(name), caveats=caveats, **parts), tmp_path)

    for file in ("report.json", "report.md", "report.html"):
        (tmp_path / file).read_text(encoding="utf-8")
    assert HomologyReport.from_json((tmp_path / "report.json").read_text()).candidate.repo == name


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(InputError, match="cannot write there"):
        save_report(a_report(arrays=NO_ARRAYS, embedding=None, layers=None, modules=None), tmp_path / "taken")


def test_without_matplotlib_all_but_the_figures_is_saved(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    report = a_report()
    saved = save_report(report, tmp_path)

    assert {path.name for path in tmp_path.iterdir()} - {HIDDEN} == {"report.json", "report.md", "report.html"}
    assert {path.name for path in saved.paths} == {"report.json", "report.md", "report.html"}
    assert install_command("plot") in saved.without
    assert HomologyReport.from_json((tmp_path / "report.json").read_text()) == report
