import json

import numpy as np
import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsafePathError, UnsupportedFormatError
from mdir_hf.model.files import SafetensorsSource, open_checkpoint
from mdir_hf.model.files.decode import DTYPES
from tests.conformance_tensors import MemoryTree, TensorSourceConformance, safetensors_bytes


def sharded(tensors, n_shards, **index_more):
    """Files of a checkpoint whose tensors are distributed over shards, with an index."""
    names = sorted(tensors)
    paths = [f"model-{number + 1:05}-of-{n_shards:05}.safetensors" for number in range(n_shards)]
    weight_map = {name: paths[number % n_shards] for number, name in enumerate(names)}
    files = {
        path: safetensors_bytes({name: tensors[name] for name in names if weight_map[name] == path}) for path in paths
    }
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map, **index_more}).encode()
    return files


class TestOneFile(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree({"model.safetensors": safetensors_bytes(tensors)}))


class TestShardsWithIndex(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree(sharded(tensors, 3)))


class TestShardsWithoutIndex(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        files = sharded(tensors, 3)
        del files["model.safetensors.index.json"]
        return open_checkpoint(MemoryTree(files))


class TestManySmallSpans(TensorSourceConformance):
    """Split every read into pieces of a few bytes, as a large tensor is split into pieces of 8 MiB."""

    def make(self, tensors, tmp_path):
        tree = MemoryTree({"model.safetensors": safetensors_bytes(tensors)})
        return SafetensorsSource(tree, paths=["model.safetensors"], max_span_bytes=16)


@pytest.fixture
def weights():
    return {"embed.weight": torch.arange(4000, dtype=torch.float32).reshape(1000, 4), "other": torch.ones(2, 2)}


def test_a_long_header_takes_two_reads_and_no_data():
    tensors = {f"layers.{number}.{'x' * 80}.weight": torch.ones(1, 8) for number in range(2000)}
    tree = MemoryTree({"model.safetensors": safetensors_bytes(tensors)})
    source = open_checkpoint(tree)
    spec = source.spec(source.names()[0])
    header_stop = min(source.spec(name).start for name in source.names())
    assert header_stop > 200_000
    assert tree.opened["model.safetensors"].reads == [(0, 100_008), (100_008, header_stop)]
    assert spec.shape == (1, 8)


def test_a_shard_that_is_not_there_matters_only_to_its_tensors(weights):
    files = sharded(weights, 2)
    del files["model-00001-of-00002.safetensors"]
    source = open_checkpoint(MemoryTree(files))
    assert torch.equal(source.read("other"), torch.ones(2, 2))
    with pytest.raises(
        CorruptCheckpointError, match=r"model-00001-of-00002.*'embed\.weight', but there is no such file"
    ):
        source.spec("embed.weight")


def test_a_tensor_that_its_shard_lacks_is_reported(weights):
    files = sharded(weights, 2)
    files["model-00001-of-00002.safetensors"] = safetensors_bytes({"something": torch.ones(1)})
    source = open_checkpoint(MemoryTree(files))
    with pytest.raises(CorruptCheckpointError, match=r"holds tensor 'embed\.weight', but its header does not list it"):
        source.spec("embed.weight")


@pytest.mark.parametrize("size", ["big", -1, 1.5, [], True, float("nan"), float("inf")])
def test_an_invalid_total_size_raises_when_a_tensor_is_read(weights, size):
    source = open_checkpoint(MemoryTree(sharded(weights, 2, metadata={"total_size": size})))
    with pytest.raises(CorruptCheckpointError, match=r"total_size is .*expected a number of bytes"):
        source.spec("other")


@pytest.mark.parametrize("metadata", [None, {}, {"total_size": 0}, {"total_size": 16016.0}, {"total_size": 10**15}])
def test_a_stale_or_absent_total_size_does_no_harm(weights, metadata):
    source = open_checkpoint(MemoryTree(sharded(weights, 2, metadata=metadata)))
    assert source.spec("other").shape == (2, 2)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"not json", "the index is not JSON"),
        (b"\xff\xfe", "the index is not JSON"),
        (b"[" * 100_000, "the index is not JSON"),
        (b"[]", "no 'weight_map'"),
        (b"{}", "no 'weight_map'"),
        (b'{"weight_map": []}', "no 'weight_map'"),
        (b'{"weight_map": {"a": 1}}', "maps tensor 'a' to 1; expected the name of a shard"),
        (b'{"weight_map": {"a": null}}', "maps tensor 'a' to None"),
    ],
)
def test_an_invalid_index_is_refused(index, message):
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        open_checkpoint(MemoryTree({"model.safetensors.index.json": index}))
    assert caught.value.subject == "tree:model.safetensors.index.json"


@pytest.mark.parametrize(
    "path",
    [
        "../model.safetensors",
        "a/../../model.safetensors",
        "..",
        "/etc/passwd",
        "//host/share",
        "a\\b.safetensors",
        "..\\model.safetensors",
        "C:\\model.safetensors",
        "C:/model.safetensors",
        "c:model.safetensors",
        "a\x00.safetensors",
        "a\n.safetensors",
        "",
        "a//b.safetensors",
        "a/",
    ],
)
def test_a_shard_path_that_leaves_the_repository_is_refused(path):
    index = json.dumps({"weight_map": {"fine": "model-00001-of-00002.safetensors", "w": path}}).encode()
    with pytest.raises(UnsafePathError, match=r"is rejected.*leave the repository"):
        open_checkpoint(MemoryTree({"model.safetensors.index.json": index}))


def test_a_tensor_in_two_shards_without_index_is_refused(weights):
    content = safetensors_bytes(weights)
    files = {f"model-0000{number}-of-00002.safetensors": content for number in (1, 2)}
    source = open_checkpoint(MemoryTree(files))
    with pytest.raises(CorruptCheckpointError, match=r"'embed\.weight' is in model-00001.* and in model-00002"):
        source.names()


def test_the_number_of_tensors_without_an_index_is_limited(weights, monkeypatch):
    shards = {f"model-0000{k}-of-00003.safetensors": safetensors_bytes({f"w.{k}": weights["other"]}) for k in (1, 2, 3)}
    monkeypatch.setattr("mdir_hf.model.files.shards.MAX_TENSORS_UNINDEXED", 3)
    assert len(open_checkpoint(MemoryTree(shards)).names()) == 3
    monkeypatch.setattr("mdir_hf.model.files.shards.MAX_TENSORS_UNINDEXED", 1)
    monkeypatch.setattr("mdir_hf.model.files.safetensors.parse_header", None)  # raised before any header is parsed
    with pytest.raises(
        UnsupportedFormatError, match=r"up to model-00002.* list up to 2 tensors without an index; the limit is 1"
    ):
        open_checkpoint(MemoryTree(shards)).names()


def test_shards_may_list_little_that_their_index_does_not_name(weights, monkeypatch):
    shards = {f"model-{k}.safetensors": safetensors_bytes({f"w.{k}": weights["other"]}) for k in range(9)}
    many = safetensors_bytes({f"x.{k}": weights["other"].clone() for k in range(40)} | {"w.9": weights["other"]})
    index = {"weight_map": {f"w.{k}": f"model-{k}.safetensors" for k in range(10)}}
    files = {**shards, "model-9.safetensors": many, "model.safetensors.index.json": json.dumps(index).encode()}
    monkeypatch.setattr("mdir_hf.model.files.safetensors.UNNAMED_TENSORS", 40)
    source = open_checkpoint(MemoryTree(files))
    assert [source.spec(f"w.{k}").shape for k in range(10)] == [tuple(weights["other"].shape)] * 10
    monkeypatch.setattr("mdir_hf.model.files.safetensors.UNNAMED_TENSORS", 20)
    source = open_checkpoint(MemoryTree(files))
    with pytest.raises(
        UnsupportedFormatError, match=r"up to the one in model-9.* many more tensors than the index names"
    ):
        [source.spec(f"w.{k}") for k in range(10)]


def test_a_truncated_file_is_refused_from_its_header(weights):
    content = safetensors_bytes(weights)
    source = open_checkpoint(MemoryTree({"model.safetensors": content[:-1]}))
    with pytest.raises(CorruptCheckpointError, match=r"tree:model\.safetensors: .*truncated"):
        source.spec("other")


@pytest.mark.parametrize("dtype", sorted(name for name, dtype in DTYPES.items() if not dtype.is_weight))
def test_every_other_dtype_has_a_spec_and_is_refused_when_read(dtype):
    n_bytes = DTYPES[dtype].n_bits
    header = json.dumps({"w": {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, n_bytes]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(n_bytes)
    source = open_checkpoint(MemoryTree({"model.safetensors": content}))
    assert source.spec("w").shape == (2, 4)
    with pytest.raises(UnsupportedFormatError, match=f"'w' holds .*{dtype}.* cannot be decoded to weights without"):
        source.read("w")
    with pytest.raises(UnsupportedFormatError, match=f"'w' holds .*{dtype}.* cannot be decoded to weights without"):
        source.read_rows("w", np.array([0]))


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "U16", "I64", "F8_E8M0", "BOOL"])
def test_every_other_dtype_is_read_as_stored(dtype):
    n_bytes = DTYPES[dtype].n_bits
    header = json.dumps({"w": {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, n_bytes]}}).encode()
    body = bytes(at % 2 for at in range(n_bytes))
    source = SafetensorsSource(
        MemoryTree({"model.safetensors": len(header).to_bytes(8, "little") + header + body}),
        paths=["model.safetensors"],
    )
    row = n_bytes // 2
    assert source.read_stored("w").view(torch.uint8).reshape(-1).tolist() == list(body)
    got = source.read_stored_rows("w", np.array([1]))
    assert got.view(torch.uint8).reshape(-1).tolist() == list(body[row:])
