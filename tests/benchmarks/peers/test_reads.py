"""Counted reads of peers, if they can be predicted from the files."""

import json
import os
import sys
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from benchmarks.peers import rival
from benchmarks.peers.awm import Awm
from benchmarks.peers.full_size import LLAMA_8B, N_BYTES_PER_WEIGHT, Shape, weights_of_strangers, weights_read
from benchmarks.peers.gradient import LeafBenchGradient, TensorGuard
from benchmarks.peers.huref import HuRef
from benchmarks.peers.inference import loaded
from benchmarks.peers.installed import VARIABLE, InstalledPeer, installed_peers
from benchmarks.peers.model_tracing import Csu, Match
from benchmarks.peers.pdf import Pdf
from benchmarks.peers.provenance_kit import ProvenanceKit, ProvenanceKitSignals
from benchmarks.peers.reads import CountedFolder, Reads
from benchmarks.peers.reef import Reef
from benchmarks.peers.seedprints import SeedPrints
from benchmarks.peers.weights import open_model
from mdir_hf import HomologyChecker
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.hub.local import LocalFile
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model
from tests.benchmarks.peers.conftest import LAYERS, WIDTH
from tests.large import llama_8b
from tests.method.obfuscation import new_model
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.slow

V = 160  # vocabulary size of tests.method.obfuscation
needs_packages = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")
RANGED = (HuRef(), Pdf(), TensorGuard(), Awm(), Csu(), ProvenanceKit(), ProvenanceKitSignals())
WHOLE = (Reef(), LeafBenchGradient(), SeedPrints(), Match())


def names(peer):
    return peer.name


def of_base(peer, models):
    reads = Reads()
    peer.fingerprint(models["base"], reads)
    return reads


def n_bytes(folder, *files):
    return sum((folder / file).stat().st_size for file in files)


# --- the counter itself


def test_a_byte_that_is_read_twice_counts_once(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    reads = Reads()
    reads.add(tmp_path / "model.safetensors", 10, 30)
    reads.add(tmp_path / "model.safetensors", 20, 40)
    assert reads.n_bytes_of_weights == 30


def test_bytes_of_weights_are_counted_apart_from_other_files(tmp_path):
    for name in ("model.safetensors", "model.gguf", "config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(bytes(len(name)))
    reads = Reads()
    for file in tmp_path.iterdir():
        reads.add(file)
    assert reads.n_bytes_of_weights == len("model.safetensors") + len("model.gguf")
    assert reads.n_bytes_beside == len("config.json") + len("tokenizer.json")


def test_readers_of_a_folder_count_spans_and_whole_small_files(tmp_path):
    (tmp_path / "model.bin").write_bytes(bytes(range(100)))
    (tmp_path / "config.json").write_bytes(b"{}")
    reads = Reads()
    folder = CountedFolder(tmp_path, reads)
    source = folder.open("model.bin")
    assert source.read(3, 5) == bytes([3, 4])
    assert [*source.read_many([(4, 6), (90, 100)])] == [bytes([4, 5]), bytes(range(90, 100))]
    assert folder.read("config.json") == b"{}"
    assert (reads.n_bytes_of_weights, reads.n_bytes_beside) == (3 + 10, 2)


# --- our peers, on a Llama of known sizes


@pytest.fixture
def shape(models):
    with safetensors.safe_open(models["base"] / "model.safetensors", "pt") as file:
        rows = file.get_slice("model.embed_tokens.weight").get_shape()[0]
    return Shape(rows=rows, width=WIDTH, layers=LAYERS, kv=WIDTH // 2, neurons=96)


@pytest.mark.parametrize("peer", RANGED, ids=names)
def test_a_peer_reads_the_header_and_the_tensors_that_it_takes(peer, models, shape):
    header = Reads()
    open_model(models["base"], header)
    assert of_base(peer, models).n_bytes_of_weights == header.n_bytes_of_weights + 4 * weights_read(shape)[peer.name][0]


@pytest.mark.parametrize("peer", WHOLE, ids=names)
def test_a_peer_that_runs_the_model_reads_all_of_it(peer, models, shape):
    stored = n_bytes(models["base"], "model.safetensors")
    assert of_base(peer, models).n_bytes_of_weights == stored
    # Except the header, which is below 16 KiB here.
    assert 0 < stored - 4 * weights_read(shape)[peer.name][0] < 1 << 14


@pytest.mark.parametrize(("neurons", "layers"), [(96, 6), (1000, 6), (3000, 10)])
def test_the_checker_reads_the_stated_bytes_of_strangers(neurons, layers, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalFile, "gap_bytes", 0)  # at real widths such rows lie megabytes apart
    sizes = {"hidden_size": 96, "num_hidden_layers": layers, "num_attention_heads": 6, "num_key_value_heads": 3}
    for seed in (0, 1):
        model = new_model(seed=seed, **sizes, head_dim=16, intermediate_size=neurons)
        model.float().save_pretrained(tmp_path / str(seed))
        (tmp_path / str(seed) / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
    ledger = IoLedger()
    reference = Model(open_repository(tmp_path / "0", RepositoryOptions(use_caches=False), ledger=ledger))
    report = HomologyChecker(reference, ledger=ledger, reading=Reading(use_caches=False)).compare(
        tmp_path / "1", progress=False
    )
    assert report.settled_by is None
    read = sum(n for name, n in ledger.files.items() if name.endswith(".safetensors"))
    n_common = report.embedding.common_tokens
    shape = Shape(rows=n_common, width=96, layers=layers, kv=48, neurons=neurons, kv_heads=3)
    expected = 4 * weights_of_strangers(shape)
    headers = 2 * (8 + 100_000)  # the length and the first chunk of each header
    # Rows of small layers lie so close together that reads include gaps between them, and rows of one step may have
    # been read for another. Gains are read with the matrices after them. Which rows coincide depends on the sample.
    assert 0.65 * expected < read - headers < 1.15 * expected


def test_tokenizers_and_configs_count_beside_weights_and_once(models):
    base = models["base"]
    assert of_base(Pdf(), models).n_bytes_beside == n_bytes(base, "config.json")
    assert of_base(Awm(), models).n_bytes_beside == n_bytes(base, "config.json", "tokenizer.json")
    both = n_bytes(base, "config.json", "tokenizer.json", "tokenizer_config.json")
    assert of_base(HuRef(), models).n_bytes_beside == both
    assert of_base(Reef(), models).n_bytes_beside == both + n_bytes(base, "generation_config.json")


def test_quantised_weights_count_as_they_are_stored(models):
    reads = Reads()
    Reef().fingerprint(models["int4"], reads)
    assert reads.n_bytes_of_weights == n_bytes(models["int4"], "model.safetensors")


def test_transformers_takes_every_tensor_out_of_the_file(models, monkeypatch):
    # ``loaded`` counts files whole; this test checks that they are read whole.
    from transformers import modeling_utils

    spans = set()
    monkeypatch.setattr(safetensors, "safe_open", safetensors.safe_open)
    rival.count_tensors(spans)
    monkeypatch.setattr(modeling_utils, "safe_open", safetensors.safe_open)
    with loaded(models["base"], Reads()):
        pass
    assert sum(stop - start for _, start, stop in spans) == n_bytes(models["base"], "model.safetensors")


def test_the_large_shape_matches_the_published_files():
    stored = sum(torch.Size(shape).numel() for shape in llama_8b.tensor_shapes().values())
    assert LLAMA_8B.all == stored
    assert N_BYTES_PER_WEIGHT * stored == pytest.approx(16.06e9, rel=1e-3)


# --- packages in separate processes

ASKED = """
import sys
sys.path.insert(0, {peers!r})
import rival
from pathlib import Path

def take(*folders):
    import safetensors
    for folder in folders:
        Path(folder, "config.json").read_text()
        with safetensors.safe_open(Path(folder, "model.safetensors"), framework="pt") as file:
            file.get_tensor("b")
            file.get_tensor("b")
    return {{"score": 1.0}}

rival.PACKAGES["double"] = lambda cache: rival.Package(take, prepare=lambda folder: None, warm_up=take)
rival.main()
"""


@pytest.fixture
def double(tmp_path):
    """A package that reads one tensor of each model for every pair, twice."""
    script = tmp_path / "double"
    program = tmp_path / "program.py"
    program.write_text(ASKED.format(peers=str(Path(rival.__file__).parent)))
    script.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {program} "$@"\n')
    script.chmod(0o755)
    return InstalledPeer("double", "double", "nowhere", 0.5, str(script))


def test_tensors_taken_by_a_package_count_once_with_their_header(double, tmp_path):
    rows = {"one": 3, "two": 5}
    for name, n_rows in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        save_file({"a": torch.zeros(7, 2), "b": torch.zeros(n_rows, 2)}, tmp_path / name / "model.safetensors")
    sides, made = [], Reads()
    for name in ("one", "two"):
        sides.append(double.fingerprint(tmp_path / name, made))
    found = double.score(*sides)
    headers = sum(
        n_bytes(tmp_path / name, "model.safetensors") - 4 * 2 * (7 + n) for name, n in (("one", 3), ("two", 5))
    )
    assert found.score == 1.0
    assert found.n_bytes_of_weights == headers + 4 * 2 * (3 + 5)
    assert made.n_bytes_of_weights == 0
    assert double.elsewhere_cpu_s > 0


@needs_packages
def test_the_kit_reads_a_model_once_and_weightscope_for_every_pair(models):
    kit, scope = installed_peers()
    base, noisy = models["base"], models["noisy"]
    stored = n_bytes(base, "model.safetensors")
    for peer, first, again in ((kit, stored, 0), (scope, 0, 2 * stored)):
        reads = Reads()
        sides = [peer.fingerprint(base, reads), peer.fingerprint(noisy)]
        assert reads.n_bytes_of_weights == first
        assert peer.score(*sides).n_bytes_of_weights == again
        if peer is kit:
            assert reads.n_bytes_beside == n_bytes(base, "config.json", "tokenizer.json", "tokenizer_config.json")
