"""A checkpoint with the shape of DeepSeek-V3 (671B, 163 shards, FP8, MLA, experts) is screened like any other.

The full test of this width takes minutes: ``benchmarks/deepseek_v3_bytes.py`` runs it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from mdir_hf.cli import main
from tests.benchmarks.evidence import WITH_THE_SCRIPTS
from tests.large import deepseek_v3, llama_8b
from tests.large.measure import run_compare
from tests.loopback.hub import FullHub

pytestmark = pytest.mark.slow

EMBEDDING_SHARD, HEAD_SHARD = "model-00001-of-00163.safetensors", "model-00163-of-00163.safetensors"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    # 5 GB, deleted when these tests end.
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place, FullHub() as hub:
        hub.folder = Path(place)
        add_model(hub, "base", deepseek_v3.base_rows)
        add_model(hub, "fine-tune", deepseek_v3.fine_tuned_rows)
        yield hub


def add_model(hub, name, rows):
    """Write a checkpoint and serve it."""
    folder = hub.folder / name
    tokenizer = llama_8b.tokenizer_of_real_size()
    like = None if name == "base" else hub.folder / "base"
    digests = deepseek_v3.write_checkpoint(folder, rows, tokenizer, like=like)
    hub.add_repository(f"deepseek/{name}", folder, sha256=digests)


def weight_files(run) -> set[str]:
    return {path.rsplit(":", 1)[1] for path in run.report["io"]["files"] if path.endswith(".safetensors")}


def test_the_checkpoint_has_the_published_size():
    shapes = deepseek_v3.tensors()
    assert len(shapes) == 91_991


def test_embeddings_are_compared_with_few_requests_and_megabytes(hub, tmp_path):
    run = run_compare("deepseek/base", "deepseek/fine-tune", endpoint=hub.endpoint, home=tmp_path)
    # The layers of these files are holes: the embeddings agree, but no neurons do.
    assert (run.report["verdict"], run.report["reason"]) == ("inconclusive", "embeddings_only")
    io = run.report["io"]
    # Two indices of 9 MB, a tokenizer of 10 MB, neurons of 256 experts in two layers, and some whole gates.
    assert (io["bytes_read"] < 400e6, io["requests"] < 4500) == (True, True), io
    assert run.peak_memory_bytes < 4 << 30  # the noise step fits 35,840 rows of 7,168 channels


@WITH_THE_SCRIPTS  # half a minute of processor time
def test_a_stranger_is_screened_with_few_requests(hub, tmp_path):
    add_model(hub, "stranger", deepseek_v3.stranger_rows)
    run = run_compare("deepseek/base", "deepseek/stranger", endpoint=hub.endpoint, home=tmp_path)
    assert run.report["verdict"] == "inconclusive"  # the layers of these files are holes
    # The plan reads the headers of the shards with the first neurons; the screen reads no further headers.
    assert len(weight_files(run) - {EMBEDDING_SHARD, HEAD_SHARD}) <= 4
    assert run.report["io"]["requests"] < 200
    assert run.peak_memory_bytes < 2 << 30


def test_it_is_inspected_without_its_161_other_headers(hub, capsys):
    assert main(["inspect", str(hub.folder / "base"), "--json"]) == 0
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
