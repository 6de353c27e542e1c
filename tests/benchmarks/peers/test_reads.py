"""Counted reads of peers, if they can be predicted from the files."""

import pytest
import safetensors
import torch

from benchmarks.peers.awm import Awm
from benchmarks.peers.full_size import LLAMA_8B, N_BYTES_PER_WEIGHT, Shape, weights_of_strangers, weights_read
from benchmarks.peers.gradient import LeafBenchGradient, TensorGuard
from benchmarks.peers.huref import HuRef
from benchmarks.peers.model_tracing import Csu, Match
from benchmarks.peers.pdf import Pdf
from benchmarks.peers.provenance_kit import ProvenanceKit, ProvenanceKitSignals
from benchmarks.peers.reads import Reads
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
from tests.specimens import save_pretrained

pytestmark = pytest.mark.slow

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
        save_pretrained(tmp_path / str(seed), model)
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


def test_the_large_shape_matches_the_published_files():
    stored = sum(torch.Size(shape).numel() for shape in llama_8b.tensor_shapes().values())
    assert LLAMA_8B.all == stored
    assert N_BYTES_PER_WEIGHT * stored == pytest.approx(16.06e9, rel=1e-3)
