"""A listener receives the progress of a comparison and can stop it."""

import threading
import time
from itertools import pairwise

import pytest

from mdir_hf import HomologyChecker, compare
from mdir_hf.comparison.progress import Progress, Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import ByteBudgetError, StoppedError
from mdir_hf.model.hub import IoLedger
from tests.model.hub.fixtures import hf_home, loopback_hub
from tests.specimens import gaussian, write_model

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

__all__ = ["hf_home", "loopback_hub"]

V, N = 1500, 96


@pytest.fixture
def pair(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0)), write_model(tmp_path / "stranger", gaussian(V, N, 1))


def stages(seen: list[Progress]) -> list[str]:
    return list(dict.fromkeys(progress.stage for progress in seen))


def test_every_stage_is_reported_in_order_and_bytes_only_grow(pair):
    seen: list[Progress] = []
    checker = HomologyChecker.from_pretrained(pair[0])
    report = checker.compare(pair[1], progress=False, on_progress=seen.append)
    assert stages(seen) == ["opening", "vocabulary", "screen", "neurons", "layers"]
    assert all(before.bytes_read <= after.bytes_read for before, after in pairwise(seen))
    # The reference was opened before; the listener saw the rest of the counted bytes.
    assert 0 < seen[-1].bytes_read <= report.io.bytes_read + report.io.bytes_from_cache


@pytest.mark.parametrize(
    ("stage", "level"),
    [("opening", "auto"), ("vocabulary", "auto"), ("screen", "auto"), ("embedding", "embedding"), ("layers", "auto")],
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
        if progress.stage == "screen" and progress.bytes_read > seen[0].bytes_read + 4096:
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
            watch.enter("screen")
        reader.join()
    assert overlapped == [False] * 100


def with_layers(path, seed, n_layers=3, layers_of=None):
    """Write a model with some layers, drawn from ``layers_of`` if given, else from ``seed``."""
    further = {
        f"model.layers.{k}.self_attn.{name}_proj.weight": gaussian(N, N, 100 * (layers_of or seed) + 10 * k + j)
        for k in range(n_layers)
        for j, name in enumerate("qkvo")
    }
    config = {
        "model_type": "llama",
        "hidden_size": N,
        "vocab_size": V,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
    }
    return write_model(path, gaussian(V, N, seed), config=config, further=further)


def test_the_result_of_the_embeddings_arrives_before_the_layers_are_read(tmp_path):
    base, other = with_layers(tmp_path / "base", 1), with_layers(tmp_path / "other", 2)
    told: list = []
    checker = HomologyChecker.from_pretrained(base)
    report = checker.compare(other, progress=False, on_progress=told.append, on_found=told.append)
    (at,) = (place for place, event in enumerate(told) if not isinstance(event, Progress))
    assert "layers" not in stages(told[:at])
    assert "layers" in stages([event for event in told[at + 1 :] if isinstance(event, Progress)])
    assert told[at].embedding == report.embedding
    assert told[at].verdict.value == "inconclusive"
    assert "The layers were not compared: the comparison was stopped before that." in told[at].caveats
    assert "The layers were not compared: the comparison was stopped before that." not in report.caveats


def test_evidence_grows_with_every_matched_pair(tmp_path):
    base, other = with_layers(tmp_path / "base", 1), with_layers(tmp_path / "other", 2, layers_of=1)
    found: list = []
    parts: list = []
    report = HomologyChecker.from_pretrained(base).compare(
        other, level="full", progress=False, on_progress=parts.append, on_found=found.append
    )
    assert [len(one.modules or ()) > 0 for one in found] == [False, False, True, True]
    # The second witness is compared only after the layers are mapped, so no verdict is settled before.
    assert {one.verdict.value for one in found} == {"inconclusive"}
    assert [one.layers.matches for one in found[1:]] == [report.layers.matches] * 3
    assert len(found[2].modules) < len(found[3].modules) < len(report.modules)
    assert "2 matched pairs of layers were not analysed: the comparison was stopped before that." in found[2].caveats
    assert not any("stopped" in caveat for caveat in report.caveats)
    assert [(part.n_done, part.n_parts) for part in parts if part.stage == "modules" and part.n_parts][-1] == (2, 3)


def test_a_budget_that_ends_it_leaves_what_was_found_last(tmp_path):
    base, other = with_layers(tmp_path / "base", 1), with_layers(tmp_path / "other", 2)
    found: list = []
    compare(base, other, progress=False, on_found=found.append)
    enough_for_embeddings = found.pop().io.bytes_read + 1000
    with pytest.raises(ByteBudgetError):
        compare(base, other, max_bytes=enough_for_embeddings, progress=False, on_found=found.append)
    assert found[-1].embedding is not None
    assert found[-1].layers is None
