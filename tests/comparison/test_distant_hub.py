"""Whole comparisons over a failing Hub: errors are retried, within a bounded number of requests."""

import pytest

from benchmarks.layer_cost import Shape, write_llama
from benchmarks.round_trips import write_sharded
from mdir_hf.comparison.api import HomologyChecker, compare
from mdir_hf.comparison.projections.analysis import compare_layers_in_place
from mdir_hf.errors import GatedRepositoryError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import Outcome
from tests.loopback.faults import Fault
from tests.loopback.traffic import in_sequence


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sharded")
    original = write_sharded(root / "original", seed=1)
    return original, write_sharded(root / "copy", seed=2, of=original, noise=0.05)


@pytest.fixture
def pair(loopback_hub, folders):
    for name, folder in zip(("a/original", "b/copy"), folders, strict=True):
        loopback_hub.add_repository(name, folder)
    return "a/original", "b/copy"


def compared(names, **options):
    return compare(*names, progress=False, **options)


def verdict(names, **options):
    return compared(names, **options).verdict.value


@pytest.mark.parametrize("state", ["unreachable", "failing", "silent"])
def test_storage_that_cannot_be_reached_is_not_needed(loopback_hub, folders, pair, state):
    loopback_hub.stores_in_xet, loopback_hub.cas = True, state
    # A tokenizer too large to be stored in git.
    for folder, name in zip(folders, pair, strict=True):
        stored = loopback_hub.find(name).commits[loopback_hub.find(name).revisions["main"]]
        stored["tokenizer.json"] = type(stored["tokenizer.json"])(folder / "tokenizer.json", 117_982, is_lfs=True)
    assert verdict(pair, describes=True) == "homologous"
    assert not loopback_hub.sent(path="/cas/") and not loopback_hub.sent(path="xet-read-token")
    assert [request for request in loopback_hub.sent("cdn", "tokenizer.json") if request.status == 206]


def test_addresses_that_expire_during_a_comparison_are_renewed(loopback_hub, pair):
    assert verdict(pair, on_plan=lambda plan: loopback_hub.expire_locations()) == "homologous"
    refused = [request for request in loopback_hub.sent("cdn") if request.status == 403]
    asked = [request for request in loopback_hub.sent("hub") if request.method == "HEAD"]
    assert refused
    # One request for each shard, and one more for shards that are read again later. Layers are sampled at random.
    assert 4 < len(asked) <= 4 + 4


def test_rate_limits_of_the_hub_are_respected(loopback_hub, pair, waits):
    headers = {"RateLimit": '"resolvers";r=0;t=7', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}
    loopback_hub.faults += [
        Fault("status", origin="hub", path=path, status=429, headers=headers)
        for path in ("/api/models/a/original", "config.json", "tokenizer.json", "00001-of-00002")
    ]
    assert verdict(pair, describes=True) == "homologous"
    # Waits last as long as the answers say, plus at most a second. They run in parallel, not one after another.
    assert len(waits) >= 4
    assert all(7.0 <= wait_s <= 8.0 for wait_s in waits)


def test_identical_weights_cost_no_tokenizer(loopback_hub, folders):
    for name in ("a/original", "a/mirror"):
        loopback_hub.add_repository(name, folders[0])
    report = compared(("a/original", "a/mirror"))
    assert (report.verdict.value, report.settled_by.value) == ("homologous", "identical_files")
    assert not loopback_hub.sent(path="tokenizer")


def test_both_models_are_requested_at_once(loopback_hub, pair):
    loopback_hub.network.round_trip_s = 0.2
    assert verdict(pair) == "homologous"
    first, second = sorted(loopback_hub.sent("hub", "/api/models/"), key=lambda request: request.began)[:2]
    assert second.began < first.ended


def test_if_both_models_cannot_be_opened_the_reference_is_named(loopback_hub, folders):
    for name in ("a/gated", "b/gated"):
        loopback_hub.add_repository(name, folders[0], gated=True)
    loopback_hub.faults.append(Fault("slow", path="/a/gated/", delay_s=0.1, times=None))
    with pytest.raises(GatedRepositoryError, match=r"^a/gated"):
        compared(("a/gated", "b/gated"))


def test_a_checker_asks_for_the_vocabulary_once(loopback_hub, pair):
    loopback_hub.network.round_trip_s = 0.2
    checker = HomologyChecker.from_pretrained(pair[0], use_caches=False)
    assert not loopback_hub.sent(path="tokenizer.json")
    for _ in range(2):
        assert checker.compare(pair[1], describes=True, progress=False).verdict.value == "homologous"
    asked = loopback_hub.sent(path="tokenizer.json")
    assert [request.status for request in asked] == [307, 206]
    assert "a/original" in asked[0].path  # the content is the same in both


def test_rows_of_all_projections_are_fetched_side_by_side(loopback_hub, tmp_path):
    shape, n_pairs = Shape(width=512, n_neurons=1536, n_layers=4), 4
    base = write_llama(tmp_path / "base", shape, n_layers=n_pairs)
    loopback_hub.add_repository("lab/base", base)
    loopback_hub.add_repository("lab/noised", write_llama(tmp_path / "noised", shape, n_layers=n_pairs, noise_on=base))
    models = [Model(open_repository(f"lab/{name}")) for name in ("base", "noised")]
    loopback_hub.requests.clear()
    loopback_hub.network.round_trip_s = 0.05
    analysis = compare_layers_in_place(models[0], models[1], (ResidualBasisMap.identity(512),))
    assert {result.outcome for result in analysis.table.results} == {Outcome.KEPT}
    # For each model: one run of o, gate, up and down, two of q, k and v, and two norms.
    assert len(loopback_hub.requests) <= 2 * n_pairs * (4 + 2 * 3 + 2)
    assert in_sequence(loopback_hub.requests) <= 12
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.safetensors")]
    assert sum(request.bytes_sent for request in loopback_hub.requests) < 0.5 * sum(sizes)
