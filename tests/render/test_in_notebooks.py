"""A report in a notebook: as a pandas DataFrame, and as the card of a cell."""

import re
import sys
from html.parser import HTMLParser

import pytest

from mdir_hf.errors import MissingExtraError
from tests.render.figures.drawn_reports import HOSTILE_NAMES, a_model, a_report


def test_a_frame_has_a_row_for_every_test():
    pytest.importorskip("pandas")
    report = a_report()
    frame = report.to_frame()
    tests = (report.neurons.matches, report.matrices, report.layers.matches, report.modules)
    assert len(frame) == sum(map(len, tests))
    assert set(frame.loc[frame.part == "neurons", "log10_p"]) == {report.log10_p}
    assert set(frame.loc[frame.part == "neurons", "test"]) == {report.settled_by.value} == {frame.attrs["settled_by"]}
    assert frame.loc[frame.part == "embedding", "log10_p"].item() == report.embedding.log10_p
    assert list(frame.loc[frame.part == "layers", "candidate_layer"]) == [m.candidate for m in report.layers.matches]
    assert frame.attrs["verdict"] == report.verdict.value
    assert frame.candidate_layer.dtype == "Int64"
    assert frame.candidate_layer.isna().sum() == len(report.matrices)


def test_a_report_without_results_is_an_empty_frame():
    pytest.importorskip("pandas")
    frame = a_report(neurons=None, embedding=None, unembedding=None, layers=None, modules=None).to_frame()
    assert frame.empty
    assert "log10_p" in frame.columns


def test_without_pandas_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        a_report().to_frame()


class Elements(HTMLParser):
    """Lists elements, and checks that each is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.names = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_cell_shows_the_verdict_and_figures_and_runs_nothing():
    pytest.importorskip("matplotlib")
    report = a_report()
    html = report._repr_html_()
    elements = Elements(html)
    assert elements.open == []
    assert report.sentence in html
    assert all(sentence in html for sentence in report.does_not_mean)
    assert 4 <= elements.names.count("img") <= len(report.figures())
    assert not {"script", "style", "iframe", "link", "object"} & set(elements.names)
    assert html.count("<details open>") == 1


def test_a_cell_without_matplotlib_shows_the_verdict(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = a_report()._repr_html_()
    assert a_report().sentence in html
    assert "<img" not in html


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_are_text_in_a_cell(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plain = a_report(reference=a_model("a"), candidate=a_model("b"))._repr_html_()
    html = a_report(reference=a_model(name), candidate=a_model("b"))._repr_html_()
    assert Elements(html).names == Elements(plain).names
    assert not re.search("[\x00-\x08\x1b\u202e]", html)
