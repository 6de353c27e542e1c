"""Four renderings of one description contain all its text."""

import re
from dataclasses import replace
from html import unescape

import pytest

from mdir_hf.render.description import describe
from mdir_hf.render.html import html_page, section_html
from mdir_hf.render.sections import Line, Section, SectionKind, deciding_first
from mdir_hf.render.text import markdown_text, plain
from mdir_hf.report import Assumption, SettledBy
from tests.render.figures.drawn_reports import a_report, some_neurons, stranger


def flat(text):
    return " ".join(text.split())


def shown_in_html(markup):
    return flat(unescape(re.sub("<[^>]*>", " ", markup)).replace("\N{MINUS SIGN}", "-"))


@pytest.mark.parametrize("report", [a_report(), stranger()], ids=["relatives", "strangers"])
def test_every_section_of_a_report_stands_in_markdown_and_html(report):
    markdown, page = markdown_text(report, {}), shown_in_html(html_page(report, {}))

    for section in deciding_first(report, describe(report)[1:]):
        assert section.title in page
        assert (f"## {section.title}" in markdown) is not section.is_detail
        of_facts = (text for fact in section.facts for text in (fact.name, fact.value, fact.meaning))
        of_tables = (table.caption for table in section.tables)
        for text in (*section.paragraphs, *section.bullets, *of_facts, *of_tables):
            assert flat(text) in page
            assert section.is_detail or plain(text) in markdown
        for row in (row for table in section.tables for row in table.rows):
            assert all(flat(cell) in page for cell in row)


def test_every_form_escapes():
    section = Section(SectionKind.CAVEATS, "t", brief=(Line("a", "b"),), bullets=("<b>&\x00",), paragraphs=("\"'<i>",))
    markup = section_html(section, {})

    assert "&lt;b&gt;&amp; " in markup and "<b>" not in markup and "<i>" not in markup and "\x00" not in markup


def test_a_new_fact_is_added_once_and_shows_everywhere(monkeypatch):
    from mdir_hf.render import description

    real = description.reproduce_section

    def with_a_fact(report):
        section = real(report)
        return replace(section, paragraphs=(*section.paragraphs, "A new fact."), brief=(Line("new", "A new fact."),))

    monkeypatch.setattr(description, "reproduce_section", with_a_fact)
    report = a_report()
    (section,) = [s for s in describe(report) if s.kind is SectionKind.REPRODUCE]
    for form in (report.details, markdown_text(report, {}), html_page(report, {}), section_html(section, {})):
        assert "A new fact." in form


def test_searched_neurons_have_no_number_of_their_own():
    """They match in another order, so a count of kept numbers would contradict the sentence."""
    neurons = some_neurons(step=SettledBy.KEYS, log10_p=None)
    report = a_report(log10_p=None, settled_by=SettledBy.KEYS, assumption=Assumption.CALIBRATION, neurons=neurons)
    (evidence,) = [section for section in describe(report) if section.kind is SectionKind.EVIDENCE]
    table = next(table for table in evidence.tables if "neurons with their own number" in table.columns)
    assert {row[-1] for row in table.rows} == {"–"}
    assert "kept" not in " ".join(evidence.paragraphs)


def test_equal_files_rest_on_no_assumption_on_neurons():
    report = a_report(settled_by=SettledBy.IDENTICAL_FILES, assumption=None)
    assert not any(fact.name.endswith("rests on") for fact in describe(report)[0].facts)
