"""The sentence of a report names both models and claims no more than the evidence shows."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mdir_hf import HomologyReport, Verdict
from mdir_hf.lineage.cards.claim import claim_of_dict, claim_of_report
from mdir_hf.render.description import describe
from mdir_hf.render.html import html_page, section_html
from mdir_hf.render.sections import SectionKind
from mdir_hf.render.sentence import runs_text
from mdir_hf.render.text import markdown_text, plain
from mdir_hf.report import Exclusion, ExpertOrigin, LayerPair, Reason, SettledBy, StackPair
from mdir_hf.report.parts import Coverage, PartCoverage, Treatment
from tests.render.figures.drawn_reports import (
    HOSTILE_NAMES,
    a_matrix,
    a_model,
    a_report,
    some_neurons,
    stranger,
)

REPORTS = Path(__file__).parents[2] / "docs" / "reports"

FOUND = re.compile(r"share weights \(|same weight files")
MOST_WORDS = 15


BY_NUMBER = (SettledBy.NEAR, SettledBy.NUMBER, SettledBy.EVERY, SettledBy.NOISE)
BY_SEARCH = (SettledBy.KEYS, SettledBy.EMBEDDINGS)

EXPERTS = StackPair(
    reference="experts of layer 2",
    candidate="experts of layer 1",
    verdict=Verdict.HOMOLOGOUS,
    log10_p=-310.4,
    layers=(LayerPair(2, 1),),
    experts=(ExpertOrigin(0, 3, -310.4), ExpertOrigin(4, 4, -20.0)),
)
TOWER = StackPair(
    reference="vision tower",
    candidate="vision tower",
    verdict=Verdict.HOMOLOGOUS,
    log10_p=-90.0,
    layers=(LayerPair(0, 0),),
)
SHARED_TOWER = "the vision tower of me/tuned shares weights with the vision tower of owner/base"
SHARED_EXPERTS = "experts 0 and 4 of layer 1 of me/tuned share weights with experts 3 and 4 of layer 2 of owner/base"


def settled(step, **fields):
    """Return a report that this step settled."""
    neurons = some_neurons(step=step) if step in BY_NUMBER else some_neurons(step=step, log10_p=None)
    standard = {"settled_by": step, "neurons": neurons, "log10_p": neurons.log10_p}
    if step is SettledBy.PARTS:
        silent = some_neurons(step=SettledBy.NUMBER, certain=((0, 0), (0, 1)), matches=(), log10_p=0.0)
        standard = {"settled_by": step, "neurons": silent, "log10_p": -310.4, "parts": (EXPERTS,)}
    if step is SettledBy.IDENTICAL_FILES:
        standard = {"settled_by": step, "neurons": None, "log10_p": -77.1}
    return a_report(**{**standard, **fields})


SHARE = "me/tuned and owner/base share weights"
SENTENCES = {
    **dict.fromkeys(BY_NUMBER, f"{SHARE} (p ≤ 10⁻⁶⁰)."),
    **dict.fromkeys(BY_SEARCH, f"{SHARE} (63 of 64 tested neurons match)."),
    SettledBy.PARTS: f"Parts of {SHARE} (p ≤ 10⁻³¹⁰).",
    SettledBy.IDENTICAL_FILES: "me/tuned and owner/base have the same weight files.",
}


@pytest.mark.parametrize("step", SettledBy)
def test_the_sentence_of_each_step_states_its_strength(step):
    assert settled(step).sentence == SENTENCES[step]


def test_a_match_of_parts_names_them_in_the_warning():
    assert settled(SettledBy.PARTS).warning == f"{SHARED_EXPERTS[0].upper()}{SHARED_EXPERTS[1:]}."


def test_a_shared_tower_alone_is_a_warning():
    warning = f"{SHARED_TOWER[0].upper()}{SHARED_TOWER[1:]}."
    assert settled(SettledBy.NEAR, parts=(TOWER,)).warning is None
    no = replace(stranger(), parts=(TOWER,))
    assert no.sentence == "No shared weights were found between the language models of me/tuned and owner/base."
    assert no.warning == warning
    uncompared = replace(no, neurons=None, excludes=None)
    assert uncompared.sentence == "No shared weights were found between the embeddings of me/tuned and owner/base."
    told = a_report(verdict=Verdict.INCONCLUSIVE, reason=Reason.EMBEDDINGS_ONLY, settled_by=None, parts=(TOWER,))
    assert told.sentence == "me/tuned and owner/base share their embeddings; no neurons of the main stacks match."
    head = replace(told, embedding=None, unembedding=told.embedding)
    assert head.sentence == "me/tuned and owner/base share their unembeddings; no neurons of the main stacks match."
    unread = replace(told, neurons=None)
    assert unread.sentence == "me/tuned and owner/base share their embeddings; no neurons were compared."
    assert told.warning == warning


def test_a_negative_sentence_states_what_was_compared():
    no = replace(stranger(), excludes=Exclusion(0.65, 0.55, 0.33))
    assert no.sentence == "No shared weights were found between me/tuned and owner/base."
    assert no.warning == "This does not prove that the models are independent."
    on_embeddings = replace(no, neurons=None, excludes=Exclusion(None, None, 0.33))
    assert on_embeddings.sentence == "No shared weights were found between the embeddings of me/tuned and owner/base."
    alike = replace(no, embedding=a_matrix(cosine=0.4))
    assert alike.sentence == no.sentence
    assert alike.warning == f"Their embeddings are alike, but not copies. {no.warning}"
    shown = " ".join(no.details.split())
    assert "neurons in place 0.65 or more, keys and neurons 0.55 or more, embeddings 0.33 or more" in shown


@pytest.mark.parametrize("reason", [*Reason, None])
def test_an_inconclusive_sentence_gives_the_reason_and_no_result(reason):
    report = a_report(verdict=Verdict.INCONCLUSIVE, reason=reason, settled_by=None)
    assert "10⁻" not in report.sentence and not FOUND.search(report.sentence)
    why = "A caveat." if reason is Reason.WEIGHTS_UNREADABLE else "This is evidence neither for nor against a relation."
    assert report.warning == why


def test_a_large_part_that_matches_nothing_is_the_warning():
    matched, tower = ledger(layers=60, treatment=Treatment.COMPARED)
    coverage = Coverage(reference=(matched,), candidate=(replace(matched, bytes=400), replace(tower, bytes=600)))
    assert a_report(coverage=coverage).warning == "No match in vision tower (60 %) of me/tuned."
    no = replace(stranger(), coverage=Coverage(
        reference=(replace(matched, is_match=False),),
        candidate=(replace(matched, is_match=False, bytes=230), replace(tower, is_match=None, bytes=770)),
    ))  # fmt: skip
    assert no.sentence == "No shared weights were found between me/tuned and owner/base in 23 % of the bytes."


def of_sizes(*sizes):
    """Return a negative report whose tower, the second part of the candidate, was not compared."""
    matched, tower = ledger(layers=60, treatment=Treatment.NOT_COMPARED)
    parts = (
        replace(matched, is_match=False, bytes=sizes[0]),
        replace(tower, is_match=None, bytes=sizes[1]),
    )
    return replace(stranger(), coverage=Coverage(reference=(replace(matched, is_match=False),), candidate=parts))


def test_a_negative_sentence_never_covers_parts_that_were_not_compared():
    both = "me/tuned and owner/base"
    assert of_sizes(None, 10).sentence == f"No shared weights were found between the compared parts of {both}."
    assert of_sizes(998, 2).sentence == f"No shared weights were found between {both} in 99 % of the bytes."
    alike = replace(of_sizes(23, 77), embedding=a_matrix(cosine=0.4))
    assert alike.sentence == f"No shared weights were found between {both} in 23 % of the bytes."


def test_the_short_answer_fits_a_terminal():
    for report in many_reports():
        lines = str(report).splitlines()
        assert len(lines) <= 12 and all(len(line) <= 80 for line in lines)
        assert " ".join(str(report).split()).count("10⁻") <= 1


def test_local_models_are_named_without_the_folder_that_they_share():
    report = a_report(reference=a_model("/data/models/base"), candidate=a_model("/data/models/tuned/last"))
    assert report.sentence == "tuned/last and base share weights (p ≤ 10⁻⁶⁰)."
    assert "  folder       /data/models\n" in str(report)
    alike = a_report(reference=a_model("/data/models/base"), candidate=a_model("/data/models/base"))
    assert "/data/models/base (the reference)" in alike.sentence


def many_reports():
    """Yield reports of every verdict and reason, and of every step, with and without parts."""
    for parts in ((), (EXPERTS, TOWER)):
        for step in SettledBy:
            yield settled(step, **({"parts": parts} if parts or step is not SettledBy.PARTS else {}))
        for reason in Reason:
            yield a_report(
                verdict=Verdict.INCONCLUSIVE, reason=reason, settled_by=None, log10_p=0.0, assumption=None, parts=parts
            )
        for embedding in (None, stranger().embedding, a_matrix(cosine=0.4)):
            for excludes in (None, Exclusion(0.6, None, None), Exclusion(None, None, None)):
                yield replace(stranger(), embedding=embedding, excludes=excludes, parts=parts)


def test_the_sentence_never_claims_more_than_the_report():
    for report in many_reports():
        sentence = report.sentence
        assert "me/tuned" in sentence and "owner/base" in sentence
        assert len(sentence.replace(" %", "%").split()) <= MOST_WORDS
        assert bool(FOUND.search(sentence)) is (report.verdict is Verdict.HOMOLOGOUS)
        assert sentence.endswith(".") and "\n" not in sentence
        for accusation in ("copied", "stolen", "derived", "descend", "ancestor", "unrelated", "original"):
            assert accusation not in sentence


def ledger(*, layers, treatment):
    """Return the inventory of a partly read language model and a vision tower with a tenth of the bytes."""
    read = PartCoverage(
        part="language model",
        layers=layers,
        tensors=90,
        bytes=900,
        treatment=Treatment.SAMPLED,
        reason="some layers",
        is_match=True,
        is_loaded=True,
    )
    tower = PartCoverage(
        part="vision tower",
        layers=24,
        tensors=10,
        bytes=100,
        treatment=treatment,
        reason="no test reads it",
        is_match=None if treatment is Treatment.NOT_COMPARED else False,
        is_loaded=True,
    )
    return (read, tower)


def test_no_sentence_covers_a_part_that_was_not_compared():
    coverage = Coverage(
        reference=ledger(layers=60, treatment=Treatment.SAMPLED),
        candidate=ledger(layers=60, treatment=Treatment.NOT_COMPARED),
    )
    model = replace(a_model("me/tuned"), layers=60)
    for report in many_reports():
        report = replace(report, coverage=coverage, candidate=model)
        assert not re.search(r"\ball (\d+ )?layers", report.sentence)
        models = next(section for section in describe(report) if section.kind is SectionKind.MODELS)
        how = "digests" if report.settled_by is SettledBy.IDENTICAL_FILES else "samples"
        text = f"of me/tuned, by {how}: matches: language model (90 %); not compared: vision tower (10 %)"
        assert any(text in line.text for line in models.brief)
        assert "vision tower" in section_html(models, {})


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_the_line_distinguishes_models_with_any_names(name):
    report = a_report(reference=a_model(name), candidate=replace(a_model(name), revision="other"))
    assert report.sentence.isprintable()
    assert len(report.sentence) < 800
    assert "(main, a1a1a1a1)" in report.sentence and "(other, a1a1a1a1)" in report.sentence
    alike = replace(report, candidate=report.reference)
    assert "(the reference)" in alike.sentence and "(the candidate)" in alike.sentence


def test_runs_of_layers_are_named_and_many_are_counted():
    assert runs_text([3]) == "layer 3"
    assert runs_text([1, 2]) == "layers 1 and 2"
    assert runs_text([23, 8, 9, 10, *range(11, 23), 0]) == "layers 0 and 8 to 23"
    assert runs_text(range(0, 30, 2)) == "15 layers"


@pytest.mark.parametrize("report", [a_report(), stranger()], ids=["relatives", "strangers"])
def test_every_form_of_a_report_has_the_sentence(report):
    sentence = report.sentence
    assert sentence in " ".join(str(report).split())
    assert sentence in " ".join(report.details.split())
    assert plain(sentence) in markdown_text(report, {})
    assert sentence in html_page(report, {}) and sentence in report._repr_html_()


@pytest.mark.parametrize("step", SettledBy)
def test_every_form_states_the_same_step_and_p(step):
    report = settled(step)
    text, markdown, page = report.details, markdown_text(report, {}), html_page(report, {})
    body = json.loads(report.to_json())
    claim = claim_of_report(report)
    assert claim_of_dict(json.loads(json.dumps(claim.to_dict()))) == claim

    assert body["settled_by"] == step.value and body["log10_p"] == report.log10_p
    for shown in (" ".join(text.split()), markdown, page):
        assert step.words in shown
        assert report.strength in shown or step is SettledBy.IDENTICAL_FILES  # the sentence says it in other words
    assert claim.message == report.strength or step is SettledBy.IDENTICAL_FILES
    if report.log10_p is None:
        assert body["agreement"] == report.agreement and "10⁻" not in page
        for shown in (markdown, page):
            assert "Partners were searched for: no p." in shown


def test_the_neurons_come_before_the_embeddings_and_decide():
    report = a_report()
    (section,) = [part for part in describe(report) if part.kind is SectionKind.EVIDENCE]
    assert section.paragraphs[0].startswith("Step near: ") and "32 neurons" in section.paragraphs[0]
    assert section.tables[0].rows == (("0", "0", "32 of 32", "32 of 32"), ("2", "2", "31 of 32", "31 of 32"))
    assert [table.caption.partition(":")[0] for table in section.tables[1:]] == ["Embeddings", "Unembeddings (lm_head)"]
    assert all("the verdict does not rest on it" in table.caption for table in section.tables[1:])
    assert section.brief[0].label == "neurons" and section.brief[2].label == "embedding"


def test_the_p_of_the_trace_is_qualified_if_axes_stand_out():
    def trace_of(matrix):
        (section,) = [part for part in describe(a_report(embedding=matrix)) if part.kind is SectionKind.EVIDENCE]
        return dict(row[:2] for row in section.tables[1].rows)["log10 p of the trace"]

    assert trace_of(a_matrix(axes_z=(9.0, 1.0))) == "-812.4"
    assert trace_of(a_matrix(axes_z=(9.0, 6.0))) == "-812.4 (no bound: axes stand out in both models)"


def test_stored_reports_of_real_models_have_the_sentence():
    said = {
        path.stem: HomologyReport.from_json(path.read_text(encoding="utf-8")).sentence
        for path in REPORTS.glob("*.json")
    }
    for name in ("fine-tune", "permuted", "rotated"):
        assert said[name].endswith("share weights (p ≤ 10⁻¹⁷⁶).")
    assert said["strangers"].startswith("No shared weights were found")
