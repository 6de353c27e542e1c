"""A listener receives the progress of a comparison and can stop it."""

import threading
import time
from itertools import pairwise

import pytest

from mdir_hf import HomologyChecker, Reason, Verdict, compare
from mdir_hf.comparison.progress import Progress, Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import ByteBudgetError, StoppedError
from mdir_hf.model.hub import IoLedger
from tests.specimens import gaussian, write_model

V, N = 1500, 96
STEPS = ("near", "number", "noise", "parts", "keys", "every", "embeddings")
"""Steps of a comparison of two strangers, in order."""


@pytest.fixture
def pair(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0)), write_model(tmp_path / "stranger", gaussian(V, N, 1))


def stages(seen: list[Progress]) -> list[str]:
    return list(dict.fromkeys(progress.stage for progress in seen))


def test_every_stage_is_reported_in_order_and_bytes_only_grow(pair):
    seen: list[Progress] = []
    checker = HomologyChecker.from_pretrained(pair[0])
    report = checker.compare(pair[1], progress=False, on_progress=seen.append)
    assert stages(seen) == ["opening", *STEPS]
    assert all(before.bytes_read <= after.bytes_read for before, after in pairwise(seen))
    # The reference was opened before; the listener saw the rest of the counted bytes.
    assert 0 < seen[-1].bytes_read <= report.io.bytes_read + report.io.bytes_from_cache


@pytest.mark.parametrize(
    ("stage", "level"),
    [("opening", "auto"), ("near", "auto"), ("every", "auto"), ("embeddings", "auto"), ("layers", "layers")],
)
def test_a_listener_that_raises_stops_the_comparison(pair, stage, level):
    def stop(progress: Progress) -> None:
        if progress.stage == stage:
            raise OSError("changed my mind")  # a type of error that a reading thread would retry

    checker = HomologyChecker.from_pretrained(pair[0])
    with pytest.raises(StoppedError, match=f"stopped during {stage} .*changed my mind"):
        checker.compare(pair[1], progress=False, level=level, on_progress=stop)
    assert checker.compare(pair[0], progress=False).verdict.value == "homologous"


def test_our_own_errors_pass_through_as_they_are(pair):
    def stop(progress: Progress) -> None:
        raise ByteBudgetError("enough")

    with pytest.raises(ByteBudgetError, match="enough"):
        HomologyChecker.from_pretrained(pair[0]).compare(pair[1], progress=False, on_progress=stop)


def test_a_stopped_comparison_leaves_no_thread(pair, loopback_hub):
    for name, folder in zip(("a/base", "a/stranger"), pair, strict=True):
        loopback_hub.add_repository(name, folder)
    seen: list[Progress] = []

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage == "number" and progress.bytes_read > seen[0].bytes_read + 4096:
            raise KeyError("cancel")

    checker = HomologyChecker.from_pretrained("a/base")
    with pytest.raises(StoppedError):
        checker.compare("a/stranger", progress=False, on_progress=stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mdir")]


def test_the_listener_is_called_by_one_thread_at_a_time():
    inside = threading.Lock()
    overlapped = []

    def listener(_: Progress) -> None:
        overlapped.append(not inside.acquire(blocking=False))
        time.sleep(1e-3)
        inside.release()

    ledger = IoLedger()
    watch = Watch(ledger, Listeners(on_progress=listener))

    def read() -> None:
        for _ in range(50):
            ledger.served_from_cache("file", 1)

    with watch.listening():
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(50):
            watch.enter("near")
        reader.join()
    assert overlapped == [False] * 100


def test_a_report_of_what_is_known_arrives_before_every_step(pair):
    interim, stages_before = [], []
    seen: list[Progress] = []

    def keep(report):
        interim.append(report)
        stages_before.append(stages(seen))

    checker = HomologyChecker.from_pretrained(pair[0])
    report = checker.compare(pair[1], progress=False, on_progress=seen.append, on_found=keep)
    for name, before in zip(STEPS[1:], stages_before, strict=True):  # before the first step, there is nothing to say
        assert name not in before
    assert {(result.verdict, result.reason) for result in interim} == {(Verdict.INCONCLUSIVE, Reason.UNFINISHED)}
    assert all(result.embedding is None for result in interim) and report.embedding is not None
    assert all(sum("not finished" in caveat for caveat in result.caveats) == 1 for result in interim)
    assert not any("stopped" in result.details for result in interim)  # the comparison is running
    assert report.verdict is Verdict.NO_EVIDENCE and "not finished" not in report.details


def test_a_settled_question_stays_settled_in_later_reports(pair, tmp_path):
    relative = write_model(tmp_path / "relative", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 5))
    interim: list = []
    compare(pair[0], relative, level="layers", progress=False, on_found=interim.append)
    assert interim and {result.verdict for result in interim} == {Verdict.HOMOLOGOUS}


def test_a_budget_that_ends_it_leaves_the_last_interim_report(pair):
    interim: list = []
    compare(*pair, progress=False, on_found=interim.append)
    enough_for_neurons = interim.pop().io.bytes_read + 1000
    with pytest.raises(ByteBudgetError):
        compare(*pair, max_bytes=enough_for_neurons, progress=False, on_found=interim.append)
    assert interim[-1].neurons is not None
    assert interim[-1].embedding is None


def test_a_budget_that_ends_the_description_keeps_the_verdict(pair, tmp_path):
    relative = write_model(tmp_path / "relative", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 5))
    n_bytes = compare(pair[0], relative, progress=False).io.bytes_read
    # The samples of two comparisons differ by up to 31 kB; the description takes 200 kB more.
    report = compare(pair[0], relative, describes=True, max_bytes=n_bytes + 80_000, progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.embedding is None
    assert any(caveat.startswith("The models were not described further: ") for caveat in report.caveats)
