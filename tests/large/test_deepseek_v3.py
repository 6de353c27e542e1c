"""A checkpoint with the shape of DeepSeek-V3 (671B, 163 shards, FP8, MLA, experts) is compared like any other."""

import json
import tempfile
from pathlib import Path

import pytest

from mdir_hf.cli import main
from tests.large import deepseek_v3, llama_8b
from tests.large.measure import run_compare
from tests.loopback.hub import FullHub

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    # 1.9 GB, deleted when these tests end: both models have the same files, and the Hub states other digests for the
    # second, as if its values differed.
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place, FullHub() as hub:
        hub.folder = Path(place, "base")
        digests = deepseek_v3.write_checkpoint(hub.folder, llama_8b.tokenizer_of_real_size())
        other_digests = {path: digest[::-1] for path, digest in digests.items()}
        hub.add_repository("deepseek/base", hub.folder, sha256=digests)
        hub.add_repository("deepseek/fine-tune", hub.folder, sha256=other_digests)
        yield hub


def test_the_checkpoint_has_the_published_size():
    shapes = deepseek_v3.tensors()
    assert len(shapes) == 91_991


def test_embeddings_are_compared_with_few_requests_and_megabytes(hub, tmp_path):
    # Bytes and memory depend on the sample. With this seed the noise step reads a layer of experts; with a dense layer
    # (seed 2), the comparison takes 790 MB, 6.9 GB of memory and nine minutes of processor time.
    run = run_compare("deepseek/base", "deepseek/fine-tune", "--sample-seed", "1", endpoint=hub.endpoint, home=tmp_path)
    # The layers of these files are holes: the embeddings agree, but no neurons do.
    assert (run.report["verdict"], run.report["reason"]) == ("inconclusive", "embeddings_only")
    io = run.report["io"]
    # Two indices of 9 MB, a tokenizer of 10 MB, neurons of 256 experts in two layers, and some whole gates: 365 MB.
    assert (io["bytes_read"] < 450e6, io["requests"] < 4500) == (True, True), io
    assert run.peak_memory_bytes < 5 << 30  # 3.5 GB: rows of 2,048 neurons, and square matrices of 7,168 channels


def test_it_is_inspected_without_its_161_other_headers(hub, capsys):
    assert main(["inspect", str(hub.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    dense, mixed = found["layer_groups"]
    assert (dense["layers"], mixed["layers"]) == ([0, 1, 2], list(range(3, 61)))
    assert {"q", "k", "v", "o", "gate", "up", "down"} <= set(dense["roles"])
    assert {"q", "k", "v", "o", "router"} <= set(mixed["roles"])
    assert (mixed["experts"], mixed["shared_experts"]) == (256, 1)
    assert mixed["expert_roles"] == ["gate", "up", "down"]
    assert "FP8" in found["quantization"]
    assert found["unplaced"] == []
    assert found["io"]["bytes_read"] < 30e6
