"""The cards of families and surveys."""

import base64
import csv
import html
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mdir_hf import BaseIndex, HomologyReport, Identification, LineageCheck, SurveyReport
from mdir_hf.comparison.progress import Progress
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.lineage.cards.verify_lineage import BaseCheck
from mdir_hf.lineage.family import Family
from mdir_hf.lineage.index.identify import Ancestor
from mdir_hf.lineage.survey.results import ModelResult, PairResult, Stage
from mdir_hf.report import ModelSummary
from mdir_space.html.family_card import family_card, family_caveats, family_sentence
from mdir_space.html.notices import progress_of_several
from mdir_space.html.survey_card import pairs_csv, survey_card, survey_sentence
from mdir_space.jobs.base_index import index_place, shipped_bases
from mdir_space.jobs.question import (
    family_question,
    survey_question,
)
from mdir_space.jobs.service import Running
from mdir_space.jobs.survey import SurveyResult
from tests.space.models import (
    BASE,
    DECLARED,
    LARGER,
    MEDIUM,
)
from tests.space.own_process import family


def test_a_negative_answer_says_which_copy_it_excludes(index):
    answer = family(LARGER, index)
    assert family_sentence(answer, family_question(LARGER)) == (
        "No base of it was found.",
        "No shared weights were found. This does not prove that the models are independent. It has no model card.",
    )
    below = " ".join(family_caveats(answer))
    assert "compared with 3 base models of the index. One of them is as wide as this model; a copy of it" in below

    assert "None of them has its width and shares enough tokens" in " ".join(family_caveats(family(MEDIUM, index)))
    assert "It was compared with" not in " ".join(family_caveats(family(DECLARED, index)))


def test_every_row_links_to_a_full_comparison(index):
    question = family_question(DECLARED)
    card = family_card(family(DECLARED, index), question)
    assert f'href="?a={BASE}&amp;b={DECLARED}"' in card
    entry = BaseIndex.load(Path(index_place())).bases[0].model
    known = Ancestor(entry, -500.0, 96, is_nominated=True)
    found = Identification(entry, (known,), 4, 1e-10, 0)
    card = family_card(Family("o/n", found), question)
    repository = shipped_bases()[entry.repo].repository
    assert f'href="?a={repository}&amp;b={DECLARED}"' in card
    note = f"{entry.repo}: {shipped_bases()[entry.repo].read}. The repository {repository} has this name; the two"
    assert note in html.unescape(card)
    declared = DeclaredLineage(DECLARED, None, (repository,), None, "README.md", None, (), is_adapter=False)
    check = LineageCheck(declared, (BaseCheck(repository, None, "the repository is gated"),), None)
    both = family_card(Family("o/n", found, declared=check), question)
    assert "index; its card" in both and note in html.unescape(both)


def test_a_chain_of_pairs_is_not_called_all_related():
    names = ("o/a", "o/b", "o/c", "o/d")
    summary = ModelSummary("o/a", None, None, "llama", 8, 1, 8)
    models = {name: ModelResult(name, summary) for name in names}

    def said(*related):
        pairs = {
            pair: PairResult(*pair, "homologous" if pair in related else "no_evidence", None, -50.0, 9)
            for pair in itertools.combinations(names, 2)
        }
        return survey_sentence(SurveyReport(names, models, pairs, stages=frozenset(Stage)))

    assert said() == (
        "No relatives were found.",
        "In 6 pairs of 4 models: no relative found by neurons of four layers; not compared in full.",
    )
    assert said(("o/a", "o/b")) == (
        "2 of 4 form one family.",
        "o/a and o/b share weight ancestry. The other 2: no relative found by neurons of four layers; not compared "
        "in full.",
    )
    chain = said(("o/a", "o/b"), ("o/b", "o/c"))[1]
    assert chain.startswith("o/a, o/b and o/c are joined by pairs that share weight ancestry. The other one")


def test_a_survey_that_is_not_finished_counts_what_was_compared():
    names = ("o/a", "o/b", "o/c", "o/d")
    summary = ModelSummary("o/a", None, None, "llama", 8, 1, 8)

    def answer(read, verdicts):
        models = {name: ModelResult(name, summary) for name in read}
        pairs = {pair: PairResult(*pair, verdict, None, -50.0, 9) for pair, verdict in verdicts.items()}
        return survey_sentence(SurveyReport(names, models, pairs))

    assert answer(names[:2], {("o/a", "o/b"): "homologous"}) == (
        "So far: one family, 2 of 4 models.",
        "2 of 4 models read, 1 of 6 pairs compared. So far: o/a and o/b share weight ancestry.",
    )
    assert answer(names[:2], {("o/a", "o/b"): "no_evidence"}) == (
        "No relatives so far.",
        "2 of 4 models read, 1 of 6 pairs compared.",
    )
    assert answer(names, {("o/a", "o/b"): "homologous"})[0].startswith("So far")


def test_a_survey_shows_p_only_if_it_is_a_bound():
    names = ("o/a", "o/b", "o/c")
    summary = ModelSummary("o/a", None, None, "llama", 8, 1, 8)
    pairs = {pair: PairResult(*pair, "no_evidence", None, 0.0, 9) for pair in itertools.combinations(names, 2)}

    def card(**fields):
        pair = PairResult("o/a", "o/b", "homologous", None, settled_by="number", **fields)
        report = SurveyReport(names, {name: ModelResult(name, summary) for name in names}, pairs | {names[:2]: pair})
        return survey_card(SurveyResult(report, is_done=True), survey_question(list(names)))

    assert "p ≤ 10⁻⁵⁰, by neurons of four layers" in card(log10_p=-50.4)
    shown = card(agreement="all 64 tested neurons match")
    assert "tested neurons match, by neurons of four layers" in shown and "10⁻" not in shown
    assert 'href="?a=o/a+o/b+o/c&amp;level=layers">Compare this one in full</a>' in shown
    assert "not found by neurons of four layers; not compared in full</td>" in shown


def test_a_family_shows_p_only_if_it_is_a_bound(index, monkeypatch):
    found = family(DECLARED, index)
    assert "p ≤ 10⁻" in family_card(found, family_question(DECLARED))
    monkeypatch.setattr(HomologyReport, "p_is_bound", False)
    shown = family_card(found, family_question(DECLARED))
    assert "tested neurons match" in shown and "10⁻" not in shown.partition('class="relatives"')[0]


def test_any_model_name_is_escaped():
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    summary = ModelSummary(hostile, None, "c" * 40, "llama", 8, 1, 8)
    found = Identification(summary, (Ancestor(summary, -50.0, 9, is_nominated=True, error=hostile),), 1, 1e-10, 0)
    model = ModelResult(hostile, summary, hostile)
    pair = PairResult(hostile, "o/b", "homologous", None, -50.0, 9)
    report = SurveyReport(
        (hostile, "o/b"), {hostile: model, "o/b": ModelResult("o/b", summary)}, {(hostile, "o/b"): pair}
    )
    for card in (
        family_card(
            Family(hostile, found, hostile, None, hostile), family_question(hostile), link=hostile, note=hostile
        ),
        survey_card(
            SurveyResult(report, left_out=hostile), survey_question([hostile, "o/b"]), link=hostile, note=hostile
        ),
    ):
        assert "<script" not in card and "<img" not in card


def test_a_table_for_spreadsheets_keeps_empty_cells_empty_and_runs_no_formula():
    pair = PairResult("=1+1", "o/b", "no_evidence", None, 0.0, 9)
    heads, row = csv.reader(io.StringIO(pairs_csv(SurveyReport(("=1+1", "o/b"), {}, {("=1+1", "o/b"): pair}))))
    cells = dict(zip(heads, row, strict=True))
    assert cells["reference"] == "'=1+1" and cells["log10_p"] == "0.0"
    assert cells["reason"] == cells["error"] == ""


def test_a_card_with_a_link_offers_a_bill_of_materials(index):
    question, found = family_question(DECLARED), family(DECLARED, index)
    card = family_card(found, question, link="http://x/?a=1")
    (data,) = re.findall(r'download="bom.cdx.json" href="data:application/vnd.cyclonedx\+json;base64,([^"]+)"', card)
    (model,) = json.loads(base64.b64decode(data))["components"]
    assert f"{model['group']}/{model['name']}" == DECLARED
    assert [f"{one['group']}/{one['name']}" for one in model["pedigree"]["ancestors"]] == [BASE]
    assert "bom.cdx.json" not in family_card(found, question)


def test_a_model_whose_facts_are_unknown_has_no_document(index):
    found = replace(family(DECLARED, index), facts=None)
    assert "bom.cdx.json" not in family_card(found, family_question(DECLARED), link="http://x/?a=1")


@pytest.mark.parametrize(("n_layers", "words"), [(0, "0 pairs"), (1, "1 pair")])
def test_a_survey_that_compares_layers_counts_its_pairs(n_layers, words):
    names = ("o/a", "o/b", "o/c")
    pairs = {
        pair: PairResult(*pair, "no_evidence", None, 0.0, 9, layers_compared=place < n_layers)
        for place, pair in enumerate(itertools.combinations(names, 2))
    }
    report = SurveyReport(names, {name: ModelResult(name, None) for name in names}, pairs)
    running = Running(None, Progress("near", 2_000_000), 1.0, interim=SurveyResult(report))
    notice = progress_of_several(running)
    assert f"Comparing pairs in full {words} compared in full, 2 MB read" in " ".join(notice.striptags().split())
