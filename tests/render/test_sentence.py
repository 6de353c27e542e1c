"""The sentence of a report names both models and claims no more than the evidence shows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks.real.scale import PAIRS, TARGET, scale_of
from mdir_hf import HomologyReport, Verdict
from mdir_hf.lineage.cards.claim import claim_of_dict, claim_of_report
from mdir_hf.render.description import describe
from mdir_hf.render.html import html_page, section_html
from mdir_hf.render.scale import measured_pairs
from mdir_hf.render.sections import SectionKind
from mdir_hf.render.sentence import runs_text
from mdir_hf.render.text import markdown_text, plain
from mdir_hf.report import Exclusion, LayerPattern, Placebos, Reason, ResidualMap, SettledBy, Transformation
from mdir_hf.report.optional_parts import Coverage, PartCoverage, Treatment
from mdir_hf.report.words import probability_text
from tests.render.figures.drawn_reports import (
    HOSTILE_NAMES,
    a_layer_map,
    a_matrix,
    a_model,
    a_placebo,
    a_report,
    stranger,
)

REPORTS = Path(__file__).parents[2] / "docs" / "reports"

FOUND = re.compile(r"share weights:|same weight files|\bmatch\b")


def a_map(pairs, n_reference, n_candidate, pattern, **fields):
    matches = tuple((i, j, -40.0) for i, j in pairs)
    return a_layer_map(n_reference, n_candidate, matches=matches, pattern=pattern, **fields)


DEEPER = [*((i, i) for i in range(24)), *((i - 16, i) for i in range(24, 40))]

TABLE = {
    "a first look": (
        {"settled_by": SettledBy.SCREEN, "layers": None, "modules": None},
        "me/tuned and owner/base share weights: the channels of their embeddings match in another order (24 of 24 one "
        "by one); the layers were not compared.",
    ),
    "repeated": (
        {"layers": a_map(DEEPER, 24, 40, "repeated"), "modules": None},
        "all 40 layers of me/tuned match layers of owner/base, of which layers 8 to 23 occur twice.",
    ),
    "pruned": (
        {"layers": a_map([(0, 0), (2, 1), (5, 2)], 6, 3, "pruned"), "modules": None},
        "all 3 layers of me/tuned match layers 0, 2 and 5 of owner/base; layers 1, 3 and 4 of owner/base match none.",
    ),
    "reordered": (
        {"layers": a_map([(1, 0), (0, 2), (2, 1)], 3, 3, "reordered"), "modules": None},
        "all 3 layers of me/tuned match layers of owner/base, in another order.",
    ),
    "compared in part": (
        {"layers": a_map([(1, 0), (0, 1)], 2, 2, "reordered"), "modules": None},
        "2 of the 2 layers of me/tuned that were compared match layers of owner/base.",
    ),
    "some": (
        {"layers": a_map([(0, 0), (1, 1)], 3, 3, "partial"), "modules": None},
        "2 of the 3 layers of me/tuned (layers 0 and 1) match layers of owner/base.",
    ),
    "a rotation": (
        {
            "settled_by": SettledBy.LAYERS,
            "embedding": a_matrix(transformation="rotation", log10_p=0.0),
            "layers": a_layer_map(3, 3, residual_map=ResidualMap.ROTATION),
            "modules": None,
        },
        "me/tuned and owner/base share weights: all 3 layers match in their places, once the channels of one "
        "model are rotated; their embeddings by themselves do not settle it.",
    ),
    "another width": (
        {"candidate": a_model("me/tuned", hidden_size=48), "layers": None},
        "in another order (24 of 24 one by one of the 48 of the wider one); the layers were not compared.",
    ),
    "noise": (
        {"embedding": a_matrix(transformation="identity", matched_channels=0), "layers": None},
        "match in the same order, all of them together, though few or none by itself; the layers",
    ),
    "no layer": (
        {"layers": a_layer_map(3, 3, matches=(), pattern="none"), "modules": None},
        "no layer was found to match.",
    ),
    "the same files": (
        {"settled_by": SettledBy.IDENTICAL_FILES, "embedding": None, "unembedding": None, "layers": None},
        "me/tuned and owner/base have the same weight files, byte for byte.",
    ),
    "inside": (
        {"layers": a_layer_map(3, 3)},
        "all 3 layers match in their places; inside the 2 layers that were analysed, heads stand in another order.",
    ),
}


@pytest.mark.parametrize(("fields", "words"), TABLE.values(), ids=TABLE)
def test_the_sentence_states_the_findings(fields, words):
    assert words in a_report(projections=None, **fields).sentence


def test_a_negative_sentence_states_the_exclusion():
    no = replace(stranger(), excludes=Exclusion(9.3, 56.0, 3.3))
    proof = "This does not prove that the models are independent."
    assert no.sentence == f"No shared weights were found. {proof}"
    on_embeddings = replace(no, excludes=Exclusion(400.0, None, None))
    assert on_embeddings.sentence == (
        f"No shared weights were found in the embeddings; the layers were not compared. {proof}"
    )
    shown = " ".join(str(no).split())
    assert "matched weights that correlate by 0.11 or more on the embeddings, 0.29 or more on the layers" in shown


@pytest.mark.parametrize("reason", [*Reason, None])
def test_an_inconclusive_sentence_gives_only_the_reason(reason):
    sentence = a_report(verdict=Verdict.INCONCLUSIVE, reason=reason, settled_by=None).sentence
    assert sentence.startswith("Whether me/tuned and owner/base share weights could not be told")
    assert (":" in sentence) is (reason is not None)


def many_reports():
    """Yield all combinations of verdict, deciding step, transformation, map and pattern, including impossible ones."""
    maps = [
        a_map(pairs, n, m, pattern, residual_map=residual_map)
        for (pairs, n, m), pattern, residual_map in product(
            (([(0, 0)], 1, 1), (DEEPER, 24, 40), ([(4, 1), (2, 3)], 6, 5), ([], 3, 3)), LayerPattern, ResidualMap
        )
    ]
    for k, (verdict, step, found) in enumerate(product(Verdict, (*SettledBy, None), Transformation)):
        for layers in (None, maps[(7 * k) % len(maps)], maps[(7 * k + 3) % len(maps)]):
            yield a_report(
                verdict=verdict,
                settled_by=step,
                reason=Reason.TOKENS_UNKNOWN if verdict is Verdict.INCONCLUSIVE else None,
                embedding=a_matrix(transformation=found),
                layers=layers,
                excludes=Exclusion(2.0, None, 1.0) if verdict is Verdict.NO_EVIDENCE else None,
            )


def test_the_sentence_never_claims_more_than_the_report():
    for report in many_reports():
        sentence = report.sentence
        is_plain_no = report.verdict is Verdict.NO_EVIDENCE and not report.parts
        assert ("me/tuned" in sentence and "owner/base" in sentence) is not is_plain_no
        assert bool(FOUND.search(sentence)) is (report.verdict is Verdict.HOMOLOGOUS)
        assert sentence.endswith(".") and "\n" not in sentence and "see the evidence" not in sentence
        held = set()
        if report.layers is not None:
            held = {*report.layers.reference_layers, *report.layers.candidate_layers}
        for listed in re.findall(r"layers? ((?:\d+(?: to \d+)?(?:, | and )?)+)", sentence):
            assert {int(n) for n in re.findall(r"\d+", listed)} <= held
        for accusation in ("copied", "stolen", "derived", "descend", "ancestor", "unrelated", "original"):
            assert accusation not in sentence


def ledger(*, layers, treatment):
    """Return the inventory of a partly read language model and a vision tower with a tenth of the bytes."""
    read = PartCoverage(
        part="language model", layers=layers, tensors=90, bytes=900, treatment=Treatment.SAMPLED, reason="some layers"
    )
    tower = PartCoverage(
        part="vision tower", layers=24, tensors=10, bytes=100, treatment=treatment, reason="no test reads it"
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
        assert "all 40 layers" not in report.sentence and "all 60 layers" not in report.sentence
        assert not re.search(r"\ball \d+ layers of me/tuned match", report.sentence)
        models = next(section for section in describe(report) if section.kind is SectionKind.MODELS)
        assert any(
            "of the candidate: vision tower (24 layers, 10 % of the bytes)" in line.text for line in models.brief
        )
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
    assert plain(sentence) in markdown_text(report, {})
    assert sentence in html_page(report, {}) and sentence in report._repr_html_()
    assert describe(report)[0].paragraphs[0] == sentence


def standing(**fields):
    axes = Placebos(a_placebo(), a_placebo(), (9.0, 6.0))
    return a_report(embedding=a_matrix(placebo=axes), **fields)


def test_p_its_words_and_the_badge_agree():
    proved, measured = a_report(), standing()
    assert proved.standing_axes is None and measured.standing_axes == (9.0, 6.0)
    for report, is_bound in ((proved, True), (measured, False)):
        page = html_page(report, {})
        assert ("p is at most" in page) is is_bound
        assert ("no bound on p holds" in page.lower()) is not is_bound
        assert ("no bound on p holds" in " ".join(str(report).split())) is not is_bound
        claim = claim_of_report(report)
        assert claim.message == ("p < 1e-812" if is_bound else "24 of 24 channels match")
        assert ("log10 p" in claim.numbers) is is_bound
        for shown in (report._repr_html_().partition("<details")[0], str(describe(report)[0])):
            assert ("812" in shown) is is_bound and ("24 of 24 channels match" in shown) is not is_bound
        assert ("no bound is proved" in claim.description) is not is_bound
        assert claim_of_dict(json.loads(json.dumps(claim.to_dict()))) == claim


def test_axes_of_other_steps_do_not_affect_p():
    assert standing(settled_by=SettledBy.LAYERS).standing_axes is None
    assert standing(settled_by=SettledBy.UNEMBEDDING).standing_axes is None
    assert standing(verdict=Verdict.INCONCLUSIVE, settled_by=None).standing_axes is None


def test_the_scale_matches_the_judged_pairs():
    assert TARGET.read_text(encoding="utf-8") == scale_of(PAIRS.read_text(encoding="utf-8"))
    strangers, relatives = measured_pairs()
    assert max(relatives) < -10.0 < min(strangers)


@pytest.mark.parametrize(
    ("log10_p", "words"),
    [
        (0.0, "among the unrelated"),
        (-20.0, "without any measured pair"),
        (-1e6, "This pair has -1,000,000: among the rel"),
    ],
)
def test_a_p_is_placed_beside_real_models(log10_p, words):
    (section,) = [part for part in describe(replace(stranger(), log10_p=log10_p)) if part.kind is SectionKind.SCALE]
    assert words in section.paragraphs[0]
    assert 'role="img" aria-label="A scale of log10 p.' in section_html(section, {})


def test_results_without_p_are_not_on_the_scale():
    for report in (
        a_report(verdict=Verdict.INCONCLUSIVE, settled_by=None),
        a_report(settled_by=SettledBy.IDENTICAL_FILES),
    ):
        assert SectionKind.SCALE not in {section.kind for section in describe(report)}


def test_stored_reports_of_real_models_have_the_sentence():
    said = {
        path.stem: HomologyReport.from_json(path.read_text(encoding="utf-8")).sentence
        for path in REPORTS.glob("*.json")
    }
    assert "match in the same order (576 of 576 one by one)" in said["fine-tune"]
    assert "all 1,920 neurons that were tested in 30 layers kept their number" in said["rotated"]
    assert said["strangers"].startswith("No shared weights were found. This does not prove")


@pytest.mark.parametrize("name", ["fine-tune", "permuted", "rotated"])
def test_the_sentence_has_only_the_probability_of_the_report(name):
    report = HomologyReport.from_json((REPORTS / f"{name}.json").read_text(encoding="utf-8"))
    probabilities = re.findall(r"10\^-[\d,]+", report.sentence)
    assert probabilities == [probability_text(report.log10_p)]


def test_channels_that_match_only_together_are_not_counted():
    few = a_matrix(placebo=Placebos(a_placebo(), a_placebo(), (9.0, 6.0)), matched_channels=3)
    assert a_report(embedding=few).agreement == "the channels match as a whole"
