"""The HTML of the page: escaped, with units, and neutral."""

import html
import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import jsonschema
import pytest

from mdir_hf import HomologyReport, Level, LineageCheck, ReadPlan, SettledBy, Verdict
from mdir_hf.comparison.progress import Progress
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.lineage.cards.verify_lineage import BaseCheck
from mdir_hf.lineage.family import Family
from mdir_hf.model.hub.repository import ResolvedModel
from mdir_hf.render.description import describe
from mdir_hf.render.figures import figure_img
from mdir_hf.render.reproduce import compare_command
from mdir_hf.render.sections import SectionKind
from mdir_hf.report import DirectionFact, Exclusion, FactKind, LayerPair, ModuleResult, ModuleRole, ReportArrays
from mdir_space.html import figures as drawing
from mdir_space.html.figures import DrawnFigures, ReportFigures
from mdir_space.html.notices import (
    cut_short_notice,
    does_not_fit,
    plan_notice,
    progress_notice,
    read_notice,
    refusal_notice,
    stored_notice,
)
from mdir_space.html.reproduce import badge_tab, reproduce_tab
from mdir_space.html.tabs import NOT_RUN, NOTHING_COMPARED, tab_html
from mdir_space.html.templates import HUB
from mdir_space.html.verdict_card import declared_lineage_html, verdict_card
from mdir_space.jobs.access import Access
from mdir_space.jobs.estimate import SECONDS_OF_STEP, Pace, bytes_of, duration_text, size_text
from mdir_space.jobs.examples import example_of, example_with, stored_examples
from mdir_space.jobs.job import Interim
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.progress import TotalProgress, stage_weights
from mdir_space.jobs.question import FamilyQuestion, PairQuestion, RefusedError, SurveyQuestion
from mdir_space.jobs.service import Answered, Queued, Running
from mdir_space.page import answer as page_answer
from mdir_space.page.answer import first_tab
from mdir_space.page.panels import Panels
from mdir_space.routes.answers import WORDS, answer_of, answer_schema
from tests.space.coroutines import finish

EXAMPLES = {example.name: example for example in stored_examples()}
HOSTILE = "<script>refusal_notice(1)</script>\"'><img src=x onerror=refusal_notice(2)>\n```$(rm -rf ~)`id`"


@pytest.fixture(scope="module")
def relatives():
    """Report of real relatives with layers and projections, as if they were on the Hub."""
    report = EXAMPLES["upscaled"].report
    return replace(
        report,
        reference=replace(report.reference, repo="demo/base", commit="a1" * 20),
        candidate=replace(report.candidate, repo="demo/permuted", commit="b2" * 20),
    )


@pytest.fixture(scope="module")
def hostile(relatives):
    return replace(
        relatives,
        reference=replace(
            relatives.reference, repo=HOSTILE, revision=HOSTILE, architecture=HOSTILE, quantization=HOSTILE
        ),
        candidate=replace(relatives.candidate, repo=HOSTILE, revision=HOSTILE, commit=None),
        caveats=(HOSTILE,),
    )


class Tags(HTMLParser):
    """Collects elements and attributes of HTML, and checks that each element is closed."""

    VOID = frozenset({"img", "br", "input", "source"})

    def __init__(self, markup):
        super().__init__()
        self.found, self.attributes, self.open = set(), set(), []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def pieces(report):
    pictures = ReportFigures(report)
    declared = DeclaredLineage(report.reference.repo, None, (HOSTILE,), HOSTILE, "README.md", None, (), False)
    yield verdict_card(report, declared=declared_lineage_html(report, (declared, declared)), link=HOSTILE, note=HOSTILE)
    yield from (tab_html(report, kind, pictures) for kind in NOT_RUN)
    yield reproduce_tab(report, server=HOSTILE)
    yield badge_tab(report, "https://huggingface.co/spaces/a/b?a=%3Cb%3E&b=c")
    refused = RefusedError(HOSTILE, runs_locally=True, choices={HOSTILE: (HOSTILE,)})
    yield refusal_notice(refused, PairQuestion(HOSTILE, HOSTILE))


@pytest.fixture(scope="module")
def rendered():
    """All pieces of the page for a relative with layers and for a stranger."""
    return [piece for name in ("upscaled", "hidden", "strangers") for piece in pieces(EXAMPLES[name].report)]


def test_any_repository_name_is_escaped(hostile):
    for piece in pieces(hostile):
        tags = Tags(piece)
        assert tags.open == []
        assert "script" not in tags.found
        assert not any(name.startswith("on") for name in tags.attributes)
        assert "<img src=x" not in piece


def test_every_piece_closes_what_it_opens(rendered):
    assert all(Tags(piece).open == [] for piece in rendered)


@pytest.mark.parametrize(
    ("question", "title"),
    [
        (PairQuestion("o/a", "o/b"), "Not compared"),
        (FamilyQuestion("o/a"), "Its family was not searched"),
        (SurveyQuestion(("o/a", "o/b", "o/c")), "The models were not surveyed"),
        (None, "This is not a valid question"),
    ],
)
def test_a_refusal_says_what_was_not_done(question, title):
    assert f"<h2>{title}</h2>" in refusal_notice(RefusedError("why"), question)


def test_stored_results_are_found_by_their_models_in_any_order():
    for example in EXAMPLES.values():
        assert example.models == (example.report.reference.repo, example.report.candidate.repo)
        assert example_of(reversed(example.models)).name == example.name
        assert "Compare opens that result again" in stored_notice(example)
    (name, other), mixed = EXAMPLES["hidden"].models, ("owner/mine", "SmolLM2-135M-Instruct-hidden")
    assert example_of(mixed) is None and example_of((name,)) is None
    assert example_with(mixed)[0] == other
    assert example_with(("owner/mine", "HuggingFaceTB/SmolLM2-135M-Instruct")) is None


def test_the_command_keeps_a_hostile_name_one_word():
    import shlex

    name = HOSTILE.replace("\n", " ")  # a line break is written out as $'\\n', which shlex does not know
    said = refusal_notice(RefusedError("too large", runs_locally=True), PairQuestion(name, "a/b"))
    (command,) = re.findall("<code>(.*?)</code>", said, re.DOTALL)
    words = shlex.split(html.unescape(command).replace("\\\n", " "))
    assert words[words.index("compare") + 1 :][:2] == [name, "a/b"]


def test_the_commands_of_the_page_match_the_package(relatives):
    report = replace(relatives, alpha=1e-6, seed=3)
    panel_text = html.unescape(reproduce_tab(report, server="http://here"))
    (section,) = [section for section in describe(report) if section.kind is SectionKind.REPRODUCE]
    for listing in section.code:
        assert listing.text in panel_text
    local = html.unescape(
        refusal_notice(RefusedError("too large", runs_locally=True), PairQuestion("a/b", "c/d", "layers", 1e-6))
    )
    assert compare_command("a/b", "c/d", level="layers", alpha=1e-6) in local


def test_a_part_that_was_not_run_says_why(relatives):
    nothing = dict.fromkeys(("embedding", "unembedding", "neurons", "layers", "modules", "projections"))
    bare = replace(relatives, **nothing, arrays=ReportArrays())
    same = replace(bare, settled_by=SettledBy.IDENTICAL_FILES)
    for kind, sentence in NOT_RUN.items():
        assert sentence in tab_html(same, kind, ReportFigures(same))
    assert NOTHING_COMPARED in tab_html(bare, SectionKind.EVIDENCE, ReportFigures(bare))


def test_a_negative_verdict_states_its_exclusion_on_the_card(relatives):
    report = replace(EXAMPLES["strangers"].report, excludes=Exclusion(0.65, 0.55, 0.33))
    card = verdict_card(report)
    assert "What this excludes" in card
    assert "0.65 or more" in card and "0.55 or more" in card and "0.33 or more" in card
    assert "What this excludes" not in verdict_card(relatives)


def test_the_card_begins_with_a_sentence_to_quote(relatives):
    for report in (relatives, EXAMPLES["strangers"].report):
        card = verdict_card(report)
        assert f"<span>{report.sentence}</span></h2>" in card
        assert card.index(report.sentence) < card.index('class="numbers-behind"')


@pytest.fixture(scope="module")
def deciding():
    """The deciding figure of each stored result."""
    return {name: ReportFigures(example.report).deciding for name, example in EXAMPLES.items()}


def test_the_answer_and_the_deciding_figure_are_unfolded(deciding):
    for name_of_example, example in EXAMPLES.items():
        report, figure = example.report, deciding[name_of_example]
        open_part, _, folded = verdict_card(report, figure=figure).partition('<details class="numbers-behind">')
        assert report.sentence in open_part and (report.warning is None or report.warning in open_part)
        is_settled = report.settled_by is not None
        of_p = ("strength", "p rests on" if report.p_is_bound else "the verdict rests on")
        for name in (*of_p, "settled by"):
            assert (f"<dt>{name}</dt>" in folded) is is_settled
            assert f"<dt>{name}</dt>" not in open_part
        assert ('<figure class="deciding">' in open_part) is is_settled
        assert not is_settled or open_part.count("<img") == 2  # light and dark


def test_the_card_has_the_figure_of_the_deciding_step(deciding):
    for name, example in EXAMPLES.items():
        n_matches = 0 if example.report.neurons is None else len(example.report.neurons.matches)
        assert (f"Neurons of the layers: {n_matches} of" in deciding[name]) is (name != "strangers")
    assert deciding["strangers"] == ""


def test_visitors_who_come_at_once_wait_for_one_drawing(monkeypatch):
    report, n_drawn = EXAMPLES["strangers"].report, []

    class Slow(ReportFigures):
        def __init__(self, report):
            n_drawn.append(report)
            time.sleep(0.5)  # the others come meanwhile
            super().__init__(report)

    monkeypatch.setattr(drawing, "ReportFigures", Slow)
    drawn = DrawnFigures()
    with ThreadPoolExecutor(8) as visitors:
        shown = list(visitors.map(lambda _: drawn.of(report), range(8)))
    assert len(n_drawn) == 1 and all(one is shown[0] for one in shown)


def test_a_failed_drawing_is_tried_again(monkeypatch):
    drawn = DrawnFigures()
    with monkeypatch.context() as patched:
        patched.setattr(drawing, "ReportFigures", lambda report: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drawn.of(EXAMPLES["strangers"].report)
    assert isinstance(drawn.of(EXAMPLES["strangers"].report), ReportFigures)


def test_figures_of_a_public_report_are_drawn_once(monkeypatch):
    drawn = []

    def count(figure):
        drawn.append(figure)
        return figure_img(figure)

    monkeypatch.setattr("mdir_space.html.figures.figure_img", count)
    kept, strangers = DrawnFigures(most=1), EXAMPLES["strangers"].report
    first = tab_html(strangers, SectionKind.EVIDENCE, kept.of(strangers))
    n_drawn = len(drawn)
    assert n_drawn == 2 * first.count('class="answers"') > 0
    assert tab_html(strangers, SectionKind.EVIDENCE, kept.of(strangers)) == first
    assert len(drawn) == n_drawn

    equal = replace(strangers)  # an equal report of another question takes the only place in the cache
    assert tab_html(equal, SectionKind.EVIDENCE, kept.of(equal)) == first
    tab_html(strangers, SectionKind.EVIDENCE, kept.of(strangers))
    assert len(drawn) == 3 * n_drawn


@pytest.mark.parametrize("is_kept", [True, False])
def test_figures_are_kept_for_public_results_only(monkeypatch, is_kept):
    drawn = DrawnFigures()
    monkeypatch.setattr(page_answer, "PUBLIC_FIGURES", drawn)
    report = replace(EXAMPLES["strangers"].report)
    models = tuple(ResolvedModel(name, None, None, name, False) for name in ("/one", "/other"))
    answered = Answered(report, Access(models), is_kept=is_kept)
    panels = Panels(*map(str, range(len(fields(Panels)))))
    request = SimpleNamespace(headers={"host": "127.0.0.1"}, query_params={})

    async def show():
        return [each async for each in page_answer._show(panels, PairQuestion("/one", "/other"), answered, request, ())]

    assert any(panels.evidence in updates for updates in finish(show()))
    assert [kept for kept, _ in drawn._figures.values()] == [report] * is_kept


def test_a_few_caveats_are_shown_and_the_others_are_folded(relatives):
    card = verdict_card(replace(relatives, caveats=tuple(f"caveat {k}" for k in range(5))))
    shown, folded = card.split("<summary>2 more</summary>")
    assert "caveat 2" in shown and "caveat 3" not in shown and "caveat 4" in folded
    assert "more</summary>" not in verdict_card(relatives)


def test_names_link_to_the_commits_that_were_read(relatives):
    card = verdict_card(relatives)
    for model in (relatives.reference, relatives.candidate):
        assert f'href="{HUB}/{model.repo}/tree/{model.commit}"' in card
    assert "href" not in verdict_card(relatives, is_example=True)
    in_a_folder = replace(relatives, reference=replace(relatives.reference, commit=None))
    assert f"{HUB}/{relatives.reference.repo}/" not in verdict_card(in_a_folder)


def test_the_deciding_tab_opens_first():
    opened = {name: first_tab(example.report) for name, example in EXAMPLES.items()}
    assert {name for name, tab in opened.items() if tab == "layers"} == {"upscaled"}  # all layers requested


def test_empty_tabs_link_to_the_layers_unless_requested_before(relatives):
    bare = replace(relatives, layers=None, modules=None, projections=None)
    said = tab_html(bare, SectionKind.LAYERS, ReportFigures(bare), "http://here/?a=a/b&b=c/d&alpha=1e-20")
    assert 'href="?a=a/b&amp;b=c/d&amp;alpha=1e-20&amp;level=layers"' in said
    # Modules are on the tab of the layers; one link is enough.
    assert "href" not in tab_html(bare, SectionKind.MODULES, ReportFigures(bare), "http://here/?a=a/b&b=c/d")
    for kind in (SectionKind.LAYERS, SectionKind.MODULES):
        assert "href" not in tab_html(bare, kind, ReportFigures(bare), "http://here/?a=a/b&b=c/d&level=layers")
        assert "href" not in tab_html(bare, kind, ReportFigures(bare))


def test_identical_files_have_no_third_model(relatives):
    same = replace(relatives, settled_by=SettledBy.IDENTICAL_FILES)
    lineage = DeclaredLineage("demo/permuted", None, (), None, "README.md", None, (), False)
    assert "their weight files are the same" in declared_lineage_html(same, (None, lineage))


def test_no_piece_accuses(rendered):
    words = " ".join(re.sub("<[^>]*>", " ", piece) for piece in rendered).lower()
    for accusation in ("stolen", "plagiar", "theft", "launder", "infring"):
        assert accusation not in words


@pytest.mark.parametrize(
    ("verdict", "declared", "sentence"),
    [
        ("homologous", True, "The measurement agrees with the declared lineage."),
        ("homologous", False, "A card need not name every ancestor"),
        ("no_evidence", True, "found no trace of it in the weights"),
        ("no_evidence", False, "Neither card names the other model."),
        ("inconclusive", True, "neither confirms nor contradicts"),
    ],
)
def test_the_card_compares_declared_and_measured_lineage(relatives, verdict, declared, sentence):
    report = replace(relatives, verdict=Verdict(verdict), reason=None)
    bases = ("DEMO/base",) if declared else ("somebody/else",)
    candidate = DeclaredLineage("demo/permuted", None, bases, "finetune", "README.md", None, (), False)
    assert sentence in declared_lineage_html(report, (None, candidate))


def test_a_model_compared_with_itself_has_one_declaration(relatives):
    same = replace(relatives, candidate=relatives.reference, settled_by=SettledBy.IDENTICAL_FILES)
    lineage = DeclaredLineage(same.reference.repo, None, ("owner/other",), None, "README.md", None, (), False)
    assert declared_lineage_html(same, (lineage, lineage)).count("declares") == 1


def test_cards_that_declare_nothing_are_one_sentence(relatives):
    nothing = DeclaredLineage("demo/base", None, (), None, "README.md", None, (), False)
    assert declared_lineage_html(relatives, (nothing, nothing)).count("<li>") == 1


def test_unreadable_cards_are_not_mentioned(relatives):
    assert declared_lineage_html(relatives, (None, None)) == ""


def test_short_and_detailed_answers_follow_the_schema(relatives):
    answered = Answered(relatives, Access(()), was_kept=False)
    short, whole = (answer_of(answered, "", detailed=detailed) for detailed in (False, True))
    for answer in (short, whole):
        jsonschema.validate(answer, answer_schema())
        report = {name: value for name, value in answer.items() if name not in (*WORDS, "does_not_mean")}
        assert HomologyReport.from_json(json.dumps(report)).log10_p == relatives.log10_p
    assert len(json.dumps(short)) < len(relatives.to_json()) / 2  # the table of projections is whole
    assert short["layers"]["matrix"] == [] and len(short["layers"]["matches"]) == len(relatives.layers.matches)
    assert whole["layers"]["matrix"]


def test_a_short_answer_has_the_strongest_module_of_each_role(relatives):
    modules = tuple(
        ModuleResult(LayerPair(at, at), role, 12.0, 0.5, log10_p)
        for role in (ModuleRole.Q, ModuleRole.V)
        for at, log10_p in enumerate((-3.0, -20.0, 0.0))
    )
    short = answer_of(Answered(replace(relatives, modules=modules), Access(())), "")
    jsonschema.validate(short, answer_schema())
    assert [(module["role"], module["log10_p"]) for module in short["modules"]] == [("q", -20.0), ("v", -20.0)]


def test_stored_reports_have_the_data_of_their_figures():
    assert {"fine-tune", "permuted", "hidden", "other-tokenizer", "quantised", "strangers"} <= set(EXAMPLES)
    verdicts = {name: example.report.verdict.value for name, example in EXAMPLES.items()}
    assert verdicts == {**dict.fromkeys(EXAMPLES, "homologous"), "strangers": "no_evidence"}
    for name, example in EXAMPLES.items():
        report = example.report
        assert isinstance(report, HomologyReport)
        assert "embedding" in report.figures()
        assert 0.0 <= report.arrays.embedding.polar.min() < report.arrays.embedding.polar.max() <= 1.0
        models = (report.reference, report.candidate)
        assert all(model.commit is None and "/" not in model.repo for model in models), "it names a commit or a folder"
        assert not any("/" in file for file in report.io.files)
        assert "is in no repository" in example.note or name == "strangers"
        assert all(model.repo in example.note for model in models)
    assert "embedding_matched" in EXAMPLES["permuted"].report.figures()
    assert {"neurons", "layers", "flow", "drift"} <= set(EXAMPLES["upscaled"].report.figures())
    assert EXAMPLES["hidden"].report.settled_by is SettledBy.KEYS and EXAMPLES["hidden"].report.log10_p is None


STEPS = (("near", 400_000), ("number", 600_000), ("keys", 500_000), ("every", 900_000), ("embeddings", 600_000))


def plan(level="auto", **changes):
    """Return a plan of 3 MB or, at level layers, of 19 MB."""
    steps = STEPS if level == "auto" else (*STEPS, ("layers", 16_000_000))
    fields = {
        "steps": steps,
        "bytes_of_weights": 16_000_000,
        "memory": (("keys", 450_000_000),),
        "least_memory_bytes": 430_000_000,
        "level": Level(level),
    }
    return ReadPlan(**{**fields, **changes})


def test_planned_and_read_bytes_stand_side_by_side(relatives):
    io = replace(relatives.io, bytes_read=5_000_000, bytes_from_cache=0, bytes_planned=(4_000_000, 9_000_000))
    said = read_notice(replace(relatives, io=io), ("a", "b"))
    assert (
        "Planned: 4 MB, or at most 9 MB if every step is needed. Read: 5 MB, headers and tokenizers included." in said
    )
    assert read_notice(replace(relatives, io=replace(io, bytes_planned=None)), ()) == ""


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("auto", "Reads at least 200 kB, and at most 3 MB if no step settles the question; both models have 16 MB"),
        ("layers", "Reads at least 200 kB, and at most 19 MB if no step settles the question; both models have 16 MB"),
    ],
)
def test_a_plan_gives_bytes_time_memory_and_fit(level, words):
    said = plan_notice(plan(level), Pace(), Limits())
    assert words in said
    assert "Takes a few seconds, by estimate. Needs 450 MB of memory; it fits." in said


def test_a_plan_names_the_byte_limit_only_if_it_may_be_hit():
    limited = plan_notice(plan(), Pace(), Limits(n_bytes=2_000_000))
    assert "It stops at 2 MB, the limit here, and shows its results so far." in limited
    assert "stops" not in plan_notice(plan(), Pace(), Limits(n_bytes=20_000_000))


def test_a_cut_short_answer_offers_a_lighter_level_and_a_command():
    question = PairQuestion("owner/a", "owner/b@v1", "layers", 1e-6)
    said = cut_short_notice("More than 4 GB.", question)
    assert 'href="?a=owner/a&amp;b=owner/b@v1&amp;alpha=1e-06"' in said
    assert "Compare at level “auto”, which reads less" in said
    assert "mdir-hf compare owner/a owner/b@v1 --level layers" in said
    assert "reads less" not in cut_short_notice("More.", replace(question, level="auto"))


def test_a_plan_that_does_not_fit_says_so():
    assert "one comparison may use 300 MB here" in plan_notice(plan(), Pace(), Limits(memory_bytes=300_000_000))
    assert "one comparison may read 100 kB here" in does_not_fit(plan(), Limits(n_bytes=100_000))
    assert does_not_fit(plan(), Limits(n_bytes=500_000, memory_bytes=500_000_000)) == ""


def test_a_plan_that_fits_in_part_says_what_is_left_out():
    told = plan_notice(plan(), Pace(), Limits(memory_bytes=440_000_000))
    assert "Needs 450 MB of memory; steps that need more than 440 MB are left out here." in told


def test_the_pace_is_learnt_from_what_was_read(relatives):
    pace = Pace()
    large = plan(steps=(("near", 10**6), ("every", 10**9)))
    assert pace.seconds(large) == pytest.approx((0.5 / 15 + SECONDS_OF_STEP, 1001 / 15 + 2 * SECONDS_OF_STEP))
    slow = replace(relatives, io=replace(relatives.io, bytes_read=10_000_000), seconds={"near": 100.0})
    for _ in range(20):
        pace.learn(slow)
    assert pace.bytes_per_s == pytest.approx(100_000, rel=0.2)  # 0.7^20 of the first guess is left: 12,000
    assert pace.seconds(large)[1] > 8000
    assert bytes_of(large) == (10**6 // 2, 10**6 + 10**9)


def test_progress_says_bytes_or_the_place_in_the_queue():
    said = progress_notice(Running(None, Progress("embeddings", 1_500_000), 4.2, share=0.5))
    assert "Looking at the embeddings" in said
    assert "1.5 MB read · 4 s" in said
    assert 'value="0.500"' in said
    parts = progress_notice(Running(None, Progress("layers", 9_000_000, None, 3, 15), 60.0))
    assert "Comparing every projection of every layer" in parts and "part 4 of 15" in parts
    assert "Waiting: place 3 of 12, about 40 s." in progress_notice(Queued(3, 12, 41.0))
    assert "place 1 of 1, about 5 s" in progress_notice(Queued(1, 1, 0.4))
    assert "place 30 of 30, about 4 min" in progress_notice(Queued(30, 30, 250.0))


def test_sizes_and_durations_are_round():
    assert [size_text(n) for n in (0, 999, 1000, 15_800_000, 2.5e9, 3e12)] == [
        *("0 bytes", "999 bytes", "1 kB", "15.8 MB", "2.5 GB", "3 TB")
    ]
    assert [duration_text(s) for s in (0.1, 12, 62, 600)] == ["a few seconds", "10 seconds", "60 seconds", "10 minutes"]


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_the_bar_covers_all_work_and_never_goes_back(level):
    whole, shares = TotalProgress(), [0.0]
    planned = plan(Level(level))
    n_read = 0
    whole.update(Progress("opening", 0))
    whole.update(planned)
    # Stages may be skipped, or return after others, as noise does.
    for stage in ("near", "number", "noise", "keys", "every", "embeddings", "noise", *["layers"] * (level == "layers")):
        n_bytes = dict(planned.steps).get(stage, 0)
        for done in range(11):
            whole.update(Progress(stage, n_read + done * n_bytes // 10))
            shares.append(whole.share)
        n_read += n_bytes
    assert all(a <= b for a, b in itertools.pairwise(shares))
    assert len(set(shares)) > 12 and shares[-1] == pytest.approx(1.0)
    assert sum(stage_weights(planned).values()) == pytest.approx(1.0)
    whole.update(Progress("opening", 0))  # read again with the visitor's token
    assert whole.share == shares[-1]


def test_the_bar_of_a_family_goes_on_within_its_comparisons():
    declared = DeclaredLineage("o/a", None, ("o/b", "o/c"), "merge", "README.md", None, (), False)
    whole, shares = TotalProgress(), []
    for n_done in range(2):
        checks = tuple(BaseCheck(base, None, "is not there") for base in declared.base_models[:n_done])
        whole.update(Interim(Family("o/n", declared=LineageCheck(declared, checks, None))))
        shares.append(whole.share)
        n_before = 20_000 * n_done
        whole.update(Progress("opening", n_before))
        whole.update(plan(steps=(("near", 10_000),)))
        whole.update(Progress("near", n_before))
        for n_read in (5_000, 10_000):
            whole.update(Progress("near", n_before + n_read))
            shares.append(whole.share)
    assert shares == pytest.approx([0.0, 0.55 / 3, 1 / 3, 1 / 3, 1.55 / 3, 2 / 3])


def test_facts_of_direction_are_on_the_card(relatives):
    fact = DirectionFact(FactKind.ROUNDED, "the rows of <b> are rounded rows of a")
    card = verdict_card(replace(relatives, direction=(fact,)))
    assert "<h3>What is equal</h3><ul><li>The rows of &lt;b&gt; are rounded rows of a.</li>" in card
    assert "What is equal" not in verdict_card(replace(relatives, direction=()))
