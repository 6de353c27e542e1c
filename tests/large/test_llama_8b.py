"""Checkpoints with the widths of Llama-3.1-8B and one layer each are settled with a tiny share of their bytes."""

import tempfile
from pathlib import Path

import pytest

from tests.large import llama_8b
from tests.large.measure import run_compare
from tests.loopback.hub import FullHub

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    tokenizer = llama_8b.tokenizer_of_real_size()
    # 0.7 GB, deleted when these tests end.
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place, FullHub() as hub:
        folder = Path(place)
        digests = {
            "base": llama_8b.write_checkpoint(folder / "base", llama_8b.base_neurons, tokenizer),
            "fine-tune": llama_8b.write_checkpoint(folder / "fine-tune", llama_8b.moved_neurons, tokenizer),
        }
        for name, sha256 in digests.items():
            hub.add_repository(f"llama/{name}", folder / name, sha256=sha256)
        hub.add_repository("llama/mirror", folder / "base", sha256=digests["base"])
        yield hub


def test_a_relative_is_settled_with_a_few_megabytes(hub, tmp_path):
    run = run_compare("llama/base", "llama/fine-tune", endpoint=hub.endpoint, home=tmp_path)
    assert run.report["verdict"] == "homologous"
    # Gate and up of 64 tested and 24 fitted neurons of one layer of each model (2.9 MB), headers, and neurons in gaps
    # between them, whose number depends on the sample: up to 4.4 MB in six runs.
    assert run.report["io"]["bytes_read"] < 6e6
    assert run.peak_memory_bytes < 1 << 30
    assert not any(path.endswith("tokenizer.json") for path in run.report["io"]["files"])


def test_an_exact_copy_is_settled_by_digests_without_a_weight_byte(hub, tmp_path):
    hub.requests.clear()
    run = run_compare("llama/base", "llama/mirror", endpoint=hub.endpoint, home=tmp_path)
    assert run.report["settled_by"] == "identical_files"
    assert (run.report["verdict"], run.report["embedding"]) == ("homologous", None)
    assert run.peak_memory_bytes < 1 << 30
    assert not any(path.endswith("tokenizer.json") for path in run.report["io"]["files"])
    weights = [r for r in hub.requests if r.method == "GET" and ".safetensors" in r.path and "index" not in r.path]
    # Opening a model reads the header of the shard with the embedding; tensors begin after it.
    assert all(int(r.range.removeprefix("bytes=").split("-")[0]) < 100_008 for r in weights)
