"""The service answers questions, queues and stops jobs, and shows private results only to authorised visitors."""

import asyncio
import gc
import itertools
from concurrent.futures import Future
from contextlib import aclosing

import pytest

from mdir_hf import HomologyChecker
from mdir_hf.errors import GatedRepositoryError, StoppedError
from mdir_space.jobs.access import Access
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.question import PairQuestion, RefusedError
from mdir_space.jobs.refusals import refusal_of
from mdir_space.jobs.service import Answered, Queued, Running, Service, ServiceSettings, _shielded
from mdir_space.jobs.visitor import Visitor
from tests.comparison.test_adapters import write_adapter
from tests.loopback.faults import Fault
from tests.space.coroutines import finish
from tests.space.models import BASE, GATED, PRIVATE, RELATED, STRANGER
from tests.specimens import gaussian, mlp_tensors, write_model

ANYBODY = Visitor("address 1.2.3.4")


@pytest.fixture
def service(hub):
    return Service(ServiceSettings())


async def steps_of(service, question, visitor=ANYBODY):
    async with aclosing(service.answer(question, visitor)) as steps:
        return [step async for step in steps]


def answer(service, question, visitor=ANYBODY):
    last = finish(steps_of(service, question, visitor))[-1]
    assert isinstance(last, Answered)
    return last


def slow_weights(hub, repo, delay_s=0.2):
    """Delay every 64 KiB of the weights of a repository."""
    hub.faults.append(Fault("slow", origin="cdn", path=repo, times=None, delay_s=delay_s))


def test_steps_have_the_plan_and_growing_bytes(service, hub):
    slow_weights(hub, "related")
    steps = finish(steps_of(service, PairQuestion(BASE, RELATED)))

    working = [step for step in steps if isinstance(step, Running)]
    assert isinstance(steps[-1], Answered)
    assert dict(working[-1].plan.steps)["near"] > 0
    assert working[-1].progress.bytes_read > 0
    assert all(a.progress.bytes_read <= b.progress.bytes_read for a, b in itertools.pairwise(working))


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("that did not happen within 20 s")


def test_work_whose_visitor_has_left_ends_without_a_traceback(caplog):
    async def leave() -> None:
        work = Future()
        waiting = asyncio.ensure_future(_shielded(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        work.set_exception(StoppedError("stopped by the visitor"))
        await asyncio.sleep(0.01)

    finish(leave())
    gc.collect()
    assert not caplog.records


def test_the_second_reader_of_a_public_result_reads_nothing(service, hub):
    first = answer(service, PairQuestion(BASE, RELATED))
    weights = len(hub.sent("cdn"))
    second = answer(service, PairQuestion(BASE, RELATED), Visitor("somebody else"))

    assert (first.was_kept, second.was_kept) == (False, True)
    assert second.result == first.result
    assert len(hub.sent("cdn")) == weights


def test_a_branch_that_moved_is_compared_anew(service, hub, tmp_path):
    before = answer(service, PairQuestion(BASE, RELATED)).result
    hub.find(RELATED).add_revision("main", write_model(tmp_path / "later", gaussian(1500, 96, 9)))
    after = answer(service, PairQuestion(BASE, RELATED))

    assert not after.was_kept
    assert (before.verdict.value, after.result.verdict.value) == ("homologous", "no_evidence")


@pytest.mark.parametrize("name", [GATED, PRIVATE])
def test_private_results_are_not_cached_and_refused_to_others(service, hub, hf_home, name):
    reader = Visitor("account reader", hub.token)
    report = answer(service, PairQuestion(BASE, name), reader).result
    assert report.verdict.value == "homologous"
    assert report.io.bytes_from_cache == 0
    # The Hub client keeps its own list of calling programs.
    kept = [path.name for path in hf_home.rglob("*") if path.is_file()]
    assert [name for name in kept if name != ".agent_harnesses.json"] == []

    for stranger in (ANYBODY, Visitor("account outsider", hub.outsider_token)):
        with pytest.raises(RefusedError):
            answer(service, PairQuestion(BASE, name), stranger)
    assert not answer(service, PairQuestion(BASE, name), reader).was_kept


@pytest.mark.parametrize("token", ["hf_\xe4", "hf_\x80\xff", "hf_\x00"])
def test_a_malformed_token_is_reported_and_not_shown(service, token):
    with pytest.raises(RefusedError, match="the token contains invalid characters") as told:
        answer(service, PairQuestion(BASE, RELATED), Visitor("address 1.2.3.4", token))
    assert token not in str(told.value)


def test_only_our_bounded_cache_is_written(service, hf_home):
    answer(service, PairQuestion(BASE, RELATED))
    kept = [path.relative_to(hf_home) for path in hf_home.rglob("*") if path.is_file()]
    assert {path.parts[0] for path in kept if path.name != ".agent_harnesses.json"} == {"mdir-hf"}


def test_an_account_without_access_to_a_gated_model_gets_a_message(service, hub):
    with pytest.raises(RefusedError, match="has not been granted access"):
        answer(service, PairQuestion(BASE, GATED), Visitor("account outsider", hub.outsider_token))


def test_messages_without_an_account_mention_no_account():
    exc = GatedRepositoryError("the repository is gated", subject="owner/gated")
    assert "read without an account" in refusal_of(exc).message
    assert "read without an account" in refusal_of(exc, Access((), token=None)).message
    assert "your account" in refusal_of(exc, Access((), token="hf_mine")).message


def test_closing_the_answer_stops_the_reading(service, hub):
    slow_weights(hub, "", delay_s=0.6)

    async def look_and_leave():
        async with aclosing(service.answer(PairQuestion(BASE, STRANGER, "layers"), ANYBODY)) as steps:
            async for step in steps:
                if isinstance(step, Running) and step.progress.stage == "near":
                    break
        # Requests in flight arrive, and no others follow.
        await until(lambda: len(service._queue) == 0)
        asked = len(hub.requests)
        await asyncio.sleep(1.0)
        return asked

    asked = finish(look_and_leave())
    assert len(hub.requests) == asked
    assert sum(request.bytes_sent for request in hub.sent("cdn")) < 2 * 1500 * 96 * 2


def test_a_stopped_job_stays_in_the_queue_until_its_thread_ends(hub):
    service = Service(ServiceSettings(Limits(n_running=1)))
    slow_weights(hub, "stranger", delay_s=0.5)

    async def take_turns():
        async with aclosing(service.answer(PairQuestion(BASE, STRANGER), ANYBODY)) as steps:
            async for step in steps:
                if isinstance(step, Running) and step.progress.stage == "near":
                    break
        return await steps_of(service, PairQuestion(BASE, RELATED))

    steps = finish(take_turns())
    assert isinstance(steps[-1], Answered)
    assert len(service._queue) == 0


def test_waiting_jobs_know_how_many_are_ahead(hub):
    service = Service(ServiceSettings(Limits(n_running=1)))
    slow_weights(hub, "related", delay_s=0.3)

    async def ask_four():
        questions = [PairQuestion(BASE, RELATED, alpha=10.0 ** -(4 + k)) for k in range(4)]
        return await asyncio.gather(*(steps_of(service, question) for question in questions))

    answers = finish(ask_four())
    assert all(isinstance(steps[-1], Answered) for steps in answers)
    longest = [max((step.n_ahead for step in steps if isinstance(step, Queued)), default=0) for steps in answers]
    assert sorted(longest) == [0, 1, 2, 3]
    waits = [step for steps in answers for step in steps if isinstance(step, Queued)]
    assert all(1 <= step.n_ahead <= step.n_waiting <= 3 for step in waits)
    assert all(step.seconds > 0.0 for step in waits)


def test_fifty_equal_questions_cost_one_comparison(hub):
    service = Service(ServiceSettings(Limits(n_running=1, n_waiting=100)))
    slow_weights(hub, "related", delay_s=0.2)

    async def ask_fifty():
        return await asyncio.gather(*(steps_of(service, PairQuestion(BASE, RELATED)) for _ in range(50)))

    answers = finish(ask_fifty())
    assert {steps[-1].result.verdict.value for steps in answers} == {"homologous"}
    assert sum(not steps[-1].was_kept for steps in answers) == 1


def test_a_place_is_free_only_when_its_answer_is_kept(hub, monkeypatch):
    service, keep = Service(ServiceSettings(Limits(n_running=1))), Service._keep

    async def keep_late(self, *args):
        await asyncio.sleep(1.0)  # ten polls by waiting visitors
        return await keep(self, *args)

    monkeypatch.setattr(Service, "_keep", keep_late)

    async def ask_twice():
        return await asyncio.gather(*(steps_of(service, PairQuestion(BASE, RELATED)) for _ in range(2)))

    assert sorted(steps[-1].was_kept for steps in finish(ask_twice())) == [False, True]
    assert len(service._queue) == 0


def test_an_unused_answer_holds_no_place(hub):
    service = Service(ServiceSettings(Limits(n_running=1)))

    async def look_at_the_answer_and_linger():
        async with aclosing(service.answer(PairQuestion(BASE, RELATED), ANYBODY)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    assert len(service._queue) == 0
                    return
        raise AssertionError("no answer")

    finish(look_at_the_answer_and_linger())


def test_a_full_queue_refuses_and_answers_the_others(hub):
    service = Service(ServiceSettings(Limits(n_running=1, n_waiting=2)))
    slow_weights(hub, "related", delay_s=0.3)

    async def ask_many():
        questions = [PairQuestion(BASE, RELATED, alpha=10.0 ** -(4 + k)) for k in range(12)]
        return await asyncio.gather(*(steps_of(service, question) for question in questions), return_exceptions=True)

    outcomes = finish(ask_many())
    refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert len(refused) == 9
    assert all("queue is full" in outcome.message and outcome.runs_locally for outcome in refused)
    assert all(isinstance(outcome[-1], Answered) for outcome in outcomes if not isinstance(outcome, RefusedError))


def test_a_late_comparison_is_stopped_with_advice(hub):
    service = Service(ServiceSettings(Limits(seconds=0.5)))
    slow_weights(hub, "", delay_s=0.2)
    with pytest.raises(RefusedError, match="time limit here") as caught:
        answer(service, PairQuestion(BASE, STRANGER))
    assert caught.value.runs_locally
    assert len(service._queue) == 0


def test_too_many_bytes_are_refused_before_they_are_read(hub):
    service = Service(ServiceSettings(Limits(n_bytes=50_000)))
    with pytest.raises(RefusedError, match="limit of bytes here") as caught:
        answer(service, PairQuestion(BASE, RELATED))
    assert caught.value.runs_locally
    assert sum(request.bytes_sent for request in hub.sent("cdn")) < 1500 * 96 * 2


def test_too_much_memory_is_refused_before_weights_are_read(hub):
    service = Service(ServiceSettings(Limits(memory_bytes=1000)))
    with pytest.raises(RefusedError, match="does not fit on this machine") as caught:
        answer(service, PairQuestion(BASE, RELATED))
    assert caught.value.runs_locally


def test_a_plan_reveals_nothing_of_a_gated_model(service, hub):
    finish(service.plan(PairQuestion(BASE, GATED), Visitor("account reader", hub.token)))
    with pytest.raises(RefusedError):
        finish(service.plan(PairQuestion(BASE, GATED), ANYBODY))


class TestAdapters:
    """A public adapter of a base that is not public."""

    @pytest.fixture
    def adapter(self, hub, tmp_path):
        layer = {"model.layers.0.self_attn.q_proj.weight": gaussian(64, 64, 100), **mlp_tensors(64, 256, 200)}
        base = write_model(tmp_path / "gated-base", gaussian(1200, 64, 0), further=layer)
        hub.add_repository("some/gated-base", base, gated=True)
        hub.add_repository("some/copy", write_model(tmp_path / "copy", gaussian(1200, 64, 0), further=layer))
        hub.add_repository("some/adapter", write_adapter(tmp_path / "adapter", "some/gated-base"))
        return "some/adapter"

    def test_the_visitors_token_opens_it_and_nothing_is_cached(self, service, hub, hf_home, adapter):
        reader = Visitor("account reader", hub.token)
        question = PairQuestion(adapter, "some/copy")
        answered = answer(service, question, reader)
        assert answered.result.verdict.value == "homologous"
        assert answered.access.token == hub.token
        assert not any("gated-base" in path.as_posix() for path in hf_home.rglob("*"))
        assert not answer(service, question, reader).was_kept
        assert not answered.is_kept and not service._results._results
        whole = PairQuestion("some/copy", BASE)
        assert answer(service, whole, reader).is_kept

        with pytest.raises(RefusedError):
            answer(service, question)

    def test_the_token_that_the_owner_set_does_not_open_it(self, service, hub, hf_home, adapter, monkeypatch):
        monkeypatch.setenv("MDIR_SPACE_TOKEN", hub.token)
        with pytest.raises(RefusedError):
            answer(service, PairQuestion(adapter, "some/copy"))
        assert not any("gated-base" in path.as_posix() for path in hf_home.rglob("*"))

    def test_the_owners_own_caches_do_not_open_it_to_others(self, service, hub, adapter):
        HomologyChecker.from_pretrained(adapter, token=hub.token).compare("some/copy", progress=False)
        with pytest.raises(RefusedError):
            answer(service, PairQuestion(adapter, "some/copy"))
