"""Families and surveys: their jobs, plans, caching and limits."""

import asyncio
import html
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

import mdir_hf
from mdir_hf import BaseIndex, NamedModel, identify
from mdir_hf.comparison.progress import Progress
from mdir_hf.lineage.survey.results import PairResult
from mdir_space.html.family_card import family_card, family_sentence
from mdir_space.html.links import pinned_link
from mdir_space.html.plans import in_sentences
from mdir_space.html.survey_card import survey_card
from mdir_space.jobs.base_index import index_place, shipped_bases
from mdir_space.jobs.estimate import Pace
from mdir_space.jobs.job import Interim
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.listing import listed_models
from mdir_space.jobs.pool import JobRun
from mdir_space.jobs.question import (
    PairQuestion,
    RefusedError,
    family_question,
    parse_question,
    survey_question,
)
from mdir_space.jobs.service import Answered, Running, Service, ServiceSettings
from mdir_space.jobs.survey import SurveyJob
from mdir_space.jobs.visitor import Visitor
from tests.comparison.test_adapters import write_adapter
from tests.loopback.faults import Fault
from tests.space.coroutines import finish
from tests.space.models import (
    BASE,
    DECLARED,
    FILES,
    GATED,
    LARGE,
    LARGER,
    LAYERED,
    LAYERED_STRANGER,
    PRIVATE,
    RELATED,
    STRANGER,
    N,
    V,
)
from tests.space.own_process import access_of, family
from tests.specimens import gaussian, write_model

ANYBODY = Visitor("address 1.2.3.4")


async def steps_of(stream):
    async with aclosing(stream) as steps:
        return [step async for step in steps]


def last(stream):
    step = finish(steps_of(stream))[-1]
    assert isinstance(step, Answered)
    return step


def survey(names, token=None, emit=lambda event: None):
    """Run the job for several models in this process."""
    question = survey_question(names)
    return SurveyJob(access=access_of(question, token), question=question).run(emit)


def test_the_index_and_the_card_both_give_the_base(index):
    service = Service(ServiceSettings(index=index))
    found = last(service.answer(family_question(DECLARED), ANYBODY)).result

    (ancestor,) = found.found.found
    assert ancestor.base.repo == BASE and ancestor.report.verdict.value == "homologous"
    assert ancestor.log10_p < -10
    (checked,) = found.declared.bases
    assert (checked.base, checked.outcome) == (BASE, "homologous")
    assert found.to_dict()["identification"]["schema"] == "mdir-hf/identification/2"
    assert found.to_dict()["lineage"]["schema"] == "mdir-hf/lineage/1"
    with pytest.raises(RefusedError, match="is gated"):
        last(service.answer(family_question(GATED), ANYBODY))


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_with_the_stated_noise_is_found(hub, index, tmp_path, seed):
    stated = identify(NamedModel(LARGER), BaseIndex.open(index)).excluded_noise
    noised = gaussian(6000, 512, 6) + stated * gaussian(6000, 512, 100 + seed)
    hub.add_repository("owner/noised", write_model(tmp_path / "noised", noised))

    found = identify(NamedModel("owner/noised"), BaseIndex.open(index))

    assert [one.base.repo for one in found.ancestors if one.is_nominated] == [LARGE]


def test_without_an_index_the_card_is_still_checked(hub, tmp_path):
    (tmp_path / "broken").write_bytes(b"no index")
    for index, said in (
        ("", "no index of base models"),
        (str(tmp_path / "broken"), "this is not an index of base models"),
    ):
        found = family(DECLARED, index)
        assert found.found is None
        assert said in found.not_searched.lower()
        assert found.declared.bases[0].outcome == "homologous"


def test_a_byte_limit_covers_all_reads_and_keeps_findings(hub, index):
    # Data read with a visitor's token is not cached, so the second run reads the same again.
    whole = family(PRIVATE, index, hub.token).found
    assert whole.found[0].report.verdict.value == "homologous"

    found = family(PRIVATE, index, hub.token, n_bytes=whole.bytes_read + 1000).found

    (proposed,) = [ancestor for ancestor in found.ancestors if ancestor.is_nominated]
    assert proposed.report is None and "bytes allowed" in proposed.error and not found.found


def test_private_models_leave_no_file_and_others_do_not_see_them(hub, hf_home, index):
    def kept():
        return {path: path.stat().st_mtime_ns for path in hf_home.rglob("*") if path.is_file()}

    before = kept()
    assert family(PRIVATE, index, hub.token).found.found[0].base.repo == BASE
    assert survey([BASE, GATED], hub.token).report.groups() == ((BASE, GATED),)
    assert kept() == before
    for name in (PRIVATE, GATED):
        report = survey([BASE, RELATED, name]).report
        assert report.models[name].error and len(report.pairs) == 1


def test_a_refusal_offers_each_model_of_a_repository(index):
    service = Service(ServiceSettings(index=index))
    for asked in (
        service.answer(family_question(FILES), ANYBODY),
        service.answer(PairQuestion(BASE, FILES), ANYBODY),
    ):
        with pytest.raises(RefusedError, match=r"2 GGUF models.*one-Q8_0.gguf, two-Q8_0.gguf") as refused:
            last(asked)
        assert refused.value.choices == {FILES: (f"{FILES}/one-Q8_0.gguf", f"{FILES}/two-Q8_0.gguf")}


def test_a_survey_offers_each_model_of_a_repository(hub):
    surveyed = survey([BASE, RELATED, FILES])
    names = (f"{FILES}/one-Q8_0.gguf", f"{FILES}/two-Q8_0.gguf")
    assert surveyed.choices == {FILES: names}
    card = survey_card(surveyed, survey_question([BASE, RELATED, FILES]))
    assert all(f'data-in-place-of="{FILES}">{name}</button>' in card for name in names)


def test_a_survey_sends_each_model_and_ends_with_a_tree(hub):
    told = []
    surveyed = survey([BASE, STRANGER, RELATED, DECLARED, "owner/absent"], emit=told.append)

    assert surveyed.report.groups()[0] == (BASE, RELATED, DECLARED)
    assert "owner/absent was not found" in surveyed.report.models["owner/absent"].error
    assert set(surveyed.pictures) == {"matrix", "dendrogram"}
    assert len(surveyed.trees) == 1
    reports = [event.result.report for event in told if isinstance(event, Interim)]
    n_read = [len(report.readable()) for report in reports]
    assert n_read == sorted(n_read) and set(n_read) == {0, 1, 2, 3, 4}
    # Each model is compared with those before it when it arrives.
    assert [max(len(report.pairs) for report in reports if len(report.readable()) == n) for n in (2, 3, 4)] == [1, 3, 6]
    body = surveyed.to_dict()
    assert (body["schema"], len(body["pairs"]), len(body["trees"])) == ("mdir-hf/survey/3", 6, 1)


LAYERS = [BASE, RELATED, LAYERED, LAYERED_STRANGER]


def test_a_survey_with_layers_continues_the_one_without(hub):
    question = survey_question(LAYERS)
    first = SurveyJob(access=access_of(question), question=question).run(lambda event: None)
    events = []
    question = replace(question, layers=True)
    continued = SurveyJob(access=access_of(question), question=question, earlier=first).run(events.append)
    anew = SurveyJob(access=access_of(question), question=question).run(lambda event: None)

    reports = [event.result.report for event in events if isinstance(event, Interim)]
    assert reports[0].is_complete and not any(pair.layers_compared for pair in reports[0].pairs.values())
    assert "rows" not in {event.stage for event in events if isinstance(event, Progress)}
    assert {name: pair.verdict for name, pair in continued.report.pairs.items()} == {
        name: pair.verdict for name, pair in anew.report.pairs.items()
    }
    assert continued.report.pairs[LAYERED, LAYERED_STRANGER].layers_compared
    assert continued.trees == first.trees and set(continued.pictures) == {"matrix", "dendrogram"}


def test_models_joined_by_layers_get_a_tree(hub, monkeypatch):
    question = survey_question([BASE, RELATED, LAYERED, LAYERED_STRANGER])
    first = SurveyJob(access=access_of(question), question=question).run(lambda event: None)
    assert first.report.groups()[0] == (BASE, RELATED) and len(first.trees) == 1
    monkeypatch.setattr(
        "mdir_hf.lineage.survey.run.compare_in_full",
        lambda pair, *_, **__: PairResult(
            *pair, "homologous" if pair[0] == LAYERED else "no_evidence", layers_compared=True
        ),
    )
    question = replace(question, layers=True)

    continued = SurveyJob(access=access_of(question), question=question, earlier=first).run(lambda event: None)

    assert continued.report.groups() == ((BASE, RELATED), (LAYERED, LAYERED_STRANGER))
    assert len(continued.trees) == 2 and continued.trees[0] == first.trees[0]


def test_the_page_continues_a_cached_survey_with_layers(hub):
    service, question = Service(ServiceSettings()), replace(survey_question(LAYERS), layers=True)
    anew = finish(service.plan(question, ANYBODY))
    last(service.answer(replace(question, layers=False), ANYBODY))

    continued = finish(service.plan(question, ANYBODY))
    steps = finish(steps_of(service.answer(question, ANYBODY)))

    assert sum(anew.n_bytes.values()) > 0 and set(continued.n_bytes) == set(anew.n_bytes)
    assert not any(continued.n_bytes.values()) and not any(continued.n_rows.values())
    assert "Continues the survey without layers" in in_sentences(continued, Pace(), Limits())
    running = [step for step in steps if isinstance(step, Running)]
    assert running and "rows" not in {step.progress.stage for step in running}
    assert steps[-1].result.report.pairs[LAYERED, LAYERED_STRANGER].layers_compared


def test_the_bytes_of_a_running_survey_never_fall(hub):
    events = []
    survey([BASE, RELATED, STRANGER], emit=events.append)
    n_bytes = [event.bytes_read for event in events if isinstance(event, Progress)]
    assert n_bytes == sorted(n_bytes)


def test_a_survey_without_biopython_lacks_only_its_tree(hub, monkeypatch):
    names = [BASE, RELATED, DECLARED]
    monkeypatch.setitem(sys.modules, "Bio.Phylo.TreeConstruction", None)
    found = survey(names)
    assert found.report.groups() == (tuple(names),) and set(found.pictures) == {"matrix", "dendrogram"}
    (tree,) = found.trees
    assert tree.newick is None and set(tree.members) == set(names)
    card = html.unescape(survey_card(found, survey_question(names)))
    assert "All of them form one family." in card
    assert "No tree is drawn, because biopython is missing: pip install" in card
    assert str(Path(mdir_hf.__file__).parent.parent) not in card


def test_a_survey_under_a_cap_says_which_models_were_not_read(hub):
    question = survey_question([BASE, RELATED, LARGE])
    report = SurveyJob(access=access_of(question), question=question, n_bytes=1_400_000).run(lambda event: None).report
    assert report.groups()[0] == (BASE, RELATED)
    assert "bytes allowed" in report.models[LARGE].error


class HangsAtTheEnd(SurveyJob):
    """A survey that hangs after reading its models."""

    def run(self, emit):
        super().run(emit)
        time.sleep(600)


@pytest.mark.slow
def test_a_late_survey_keeps_its_findings_and_leaves_the_queue(hub, monkeypatch):
    monkeypatch.setattr("mdir_space.jobs.service.SurveyJob", HangsAtTheEnd)
    seconds = [0.0]
    monkeypatch.setattr(JobRun, "seconds", property(lambda run: seconds[0]))
    service = Service(ServiceSettings(Limits(seconds=600.0)))

    async def go_on_until_it_is_late():
        async with aclosing(service.answer(survey_question([BASE, RELATED]), ANYBODY)) as steps:
            async for step in steps:
                if isinstance(step, Running) and step.progress.stage == "trees":
                    seconds[0] = 601.0
        return step

    done = finish(go_on_until_it_is_late())
    assert done.cut_short.startswith("The survey was stopped after")
    assert done.result.report.groups() == ((BASE, RELATED),)
    assert len(service._queue) == 0


def assert_the_bar_goes_on(steps):
    shares = [step.share for step in steps if isinstance(step, Running)]
    assert shares == sorted(shares) and 0.0 < shares[-1] <= 1.0


def opened_again(service, answered, question, visitor=Visitor("address of another")):  # noqa: B008 - frozen
    """Return the result that a second visitor gets at the URL of a result."""
    query = dict(parse_qsl(urlsplit(pinned_link(answered, None, question)).query))
    return finish(
        service.kept_answer(parse_question(query["a"], query.get("b"), "auto", "", query.get("only")), visitor)
    )


def test_a_family_is_kept_with_the_bases_that_it_rests_on(hub, index, tmp_path):
    service, question = Service(ServiceSettings(index=index)), family_question(DECLARED)
    steps = finish(steps_of(service.answer(question, ANYBODY)))
    assert_the_bar_goes_on(steps)
    first = steps[-1]
    n_sent = len(hub.sent("cdn"))
    again = last(service.answer(question, Visitor("address of another")))
    assert (first.was_kept, again.was_kept) == (False, True)
    assert opened_again(service, first, question).result == again.result
    assert family_sentence(again.result, question) == family_sentence(first.result, question)
    assert len(hub.sent("cdn")) == n_sent
    for half in (replace(question, verifies=False), replace(question, searches=False)):
        alone = last(service.answer(half, ANYBODY))
        assert not alone.was_kept and opened_again(service, alone, half).result == alone.result
        assert "has not been searched yet" not in family_card(alone.result, half)

    hub.find(BASE).add_revision("main", write_model(tmp_path / "later", gaussian(1500, 96, 9)))
    assert opened_again(service, first, question) is not None  # it names its commits
    moved = last(service.answer(question, ANYBODY))
    assert not moved.was_kept and moved.result.declared.bases[0].report.verdict.value == "no_evidence"
    hub.find(BASE).gated = True
    assert opened_again(service, moved, question) is None
    hub.find(DECLARED).private = True
    with pytest.raises(RefusedError):
        opened_again(service, moved, question)


def test_a_survey_is_cached_if_all_of_it_is_public(hub):
    service, question = Service(ServiceSettings()), survey_question([BASE, RELATED, STRANGER, GATED])
    steps = finish(steps_of(service.answer(question, ANYBODY)))
    assert_the_bar_goes_on(steps)
    first = steps[-1]
    n_sent = len(hub.sent("cdn"))
    assert last(service.answer(question, Visitor("address of another"))).was_kept
    assert opened_again(service, first, question).result == replace(first.result, left_out="")
    assert len(hub.sent("cdn")) == n_sent
    for _ in range(2):
        reader = last(service.answer(question, Visitor("account reader", hub.token)))
        assert not reader.was_kept and reader.result.report.groups()[0] == (BASE, RELATED, GATED)
        assert pinned_link(reader, None, question) == ""
    hub.find(RELATED).gated = True
    assert opened_again(service, first, question) is None


ADAPTER, FOLDER, HALF = "owner/adapter", "owner/folders", "owner/half"


@pytest.fixture
def unusual(hub, tmp_path):
    """An adapter of a base, a model in a subfolder, and one whose card also declares a gated base."""
    factors = {"lora_embedding_A": gaussian(4, V, 31), "lora_embedding_B": 0.01 * gaussian(N, 4, 32)}
    tensors = {f"base_model.model.model.embed_tokens.{name}": factor for name, factor in factors.items()}
    hub.add_repository(ADAPTER, write_adapter(tmp_path / "adapter", BASE, tensors=tensors, r=4))
    write_model(tmp_path / "folders" / "sub", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 33))
    hub.add_repository(FOLDER, tmp_path / "folders")
    half = write_model(tmp_path / "half", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 34))
    (half / "README.md").write_text(f"---\nbase_model: [{BASE}, {GATED}]\n---\n")
    hub.add_repository(HALF, half)


def test_adapters_folders_and_partial_answers_have_an_address(hub, index, unusual, tmp_path):
    service, in_folder = Service(ServiceSettings(index=index)), f"https://huggingface.co/{FOLDER}/tree/main/sub"
    pair, of_adapter = PairQuestion(STRANGER, ADAPTER), family_question(ADAPTER)
    several = survey_question([BASE, ADAPTER, in_folder])
    for question in (pair, of_adapter, several):
        first = last(service.answer(question, ANYBODY))
        n_sent = len(hub.sent("cdn"))
        assert opened_again(service, first, question).result == first.result
        assert last(service.answer(question, ANYBODY)).was_kept and len(hub.sent("cdn")) == n_sent
    assert [len(group) for group in first.result.report.groups()] == [3]

    half = family_question(HALF)
    first = last(service.answer(half, ANYBODY))
    assert [one.outcome for one in first.result.declared.bases] == ["homologous", "not_read"]
    assert opened_again(service, first, half).result == first.result
    assert not last(service.answer(half, ANYBODY)).was_kept  # unreadable bases may have become readable
    reader = last(service.answer(half, Visitor("account reader", hub.token)))
    assert pinned_link(reader, None, half) == ""  # the reason may depend on permissions

    adapted = last(service.answer(pair, ANYBODY))
    hub.find(BASE).add_revision("main", write_model(tmp_path / "later", gaussian(V, N, 9)))
    assert opened_again(service, adapted, pair) is not None and not last(service.answer(pair, ANYBODY)).was_kept
    hub.find(BASE).gated = True
    assert opened_again(service, adapted, pair) is None


def test_plans_of_families_and_surveys_read_no_weights(hub, index):
    service = Service(ServiceSettings(Limits(n_bytes=100_000), index=index))
    n_sent = len(hub.sent("cdn"))
    of_family = finish(service.plan(family_question(DECLARED), ANYBODY))
    assert (of_family.search.n_bases, of_family.search.n_of_width, of_family.declared) == (3, 2, (BASE,))
    assert of_family.search.excluded_noise > 1 and dict(of_family.comparisons[BASE].steps)["near"] > 0
    reads = finish(service.plan(survey_question([BASE, RELATED, LARGE, GATED, "owner/absent"]), ANYBODY))
    assert reads.n_rows == {BASE: 1499, RELATED: 1499, LARGE: 1499} and reads.n_pairs == 3
    assert reads.n_bytes[LARGE] > 1499 * 512 * 2  # the rows, and the neurons of four layers
    assert sum(request.bytes_sent for request in hub.sent("cdn")[n_sent:]) < 1500 * 96 * 2

    said = in_sentences(of_family, Pace(), service.settings.limits)
    assert "with the index of 3 base models. " in said
    assert "2 are as wide as this model: a copy of one of those with" in said
    assert f"The card declares {BASE}: comparing the two reads" in said and "It stops at 100 kB in all" in said
    said = in_sentences(reads, Pace(), Limits())
    assert said.startswith("Reads 1,499 rows of each of 3 models, 2.47 MB in all, and compares 3 pairs.")
    assert "Takes 5 seconds, by estimate. Sends at most" in said

    of_author = finish(service.plan(family_question("owner"), ANYBODY))
    assert {BASE, STRANGER} <= set(of_author.n_rows) and PRIVATE not in of_author.n_rows
    with pytest.raises(RefusedError, match="is gated"):
        finish(service.plan(family_question(GATED), ANYBODY))


def test_an_author_gives_a_list_and_a_model_of_one_word_does_not(hub):
    service = Service(ServiceSettings())
    assert finish(service.is_list("owner", ANYBODY))
    assert not finish(service.is_list(BASE, ANYBODY))
    names, left_out = listed_models("owner", None)
    assert {BASE, RELATED, STRANGER} <= set(names) and left_out == ""
    assert PRIVATE not in names
    with pytest.raises(RefusedError, match="lists no model"):
        listed_models("nobody", None)


@pytest.mark.slow
def test_closing_stops_the_reading(hub):
    hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=0.3))
    service = Service(ServiceSettings())

    async def look_and_leave():
        async with aclosing(service.answer(survey_question([LARGE, LARGER]), ANYBODY)) as steps:
            async for step in steps:
                if isinstance(step, Running) and step.progress.stage == "rows":
                    break
        while len(service._queue):
            await asyncio.sleep(0.02)
        # Requests in flight when the process ended may be logged a moment later.
        for _ in range(5):
            before = read()
            await asyncio.sleep(1.0)
            if read() == before:
                return True
        return False

    def read():
        return len(hub.requests), sum(request.bytes_sent for request in hub.requests)

    assert finish(look_and_leave())
    # A read that continued would have finished, or still be running.
    assert sum(request.bytes_sent for request in hub.sent("cdn")) < 2 * 1499 * 512 * 2


def test_the_shipped_index_is_small_and_names_its_sources():
    place = Path(index_place())
    index = BaseIndex.load(place)
    assert place.stat().st_size < 10e6
    assert [base.model.repo for base in index.bases] == list(shipped_bases())
    assert all(base.model.commit is None and "/" not in base.model.repo for base in index.bases)


def test_the_owner_may_name_another_index(monkeypatch, tmp_path):
    monkeypatch.setenv("MDIR_SPACE_INDEX", " https://huggingface.co/datasets/o/n/resolve/main/bases.safetensors ")
    assert index_place() == "https://huggingface.co/datasets/o/n/resolve/main/bases.safetensors"
