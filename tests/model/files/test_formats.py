import json

import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from tests.conformance_tensors import MemoryTree, safetensors_bytes
from tests.model.files.pytorch.archives import saved


def content(value, *, name="w"):
    return safetensors_bytes({name: torch.full((1, 1), float(value))})


def pickled(value, *, name="w"):
    return saved({name: torch.full((1, 1), float(value))})


def index(path):
    return json.dumps({"weight_map": {"w": path}}).encode()


FOUND = {
    "one file": ({"model.safetensors": 1, "other.safetensors": 2}, None),
    "one file, as transformers does, before an index": (
        {
            "model.safetensors": 1,
            "model-00001-of-00001.safetensors": 2,
            "model.safetensors.index.json": "model-00001-of-00001.safetensors",
        },
        None,
    ),
    "index": (
        {
            "model-00001-of-00001.safetensors": 1,
            "model.safetensors.index.json": "model-00001-of-00001.safetensors",
            "x.safetensors": 2,
        },
        None,
    ),
    "index with shards in a folder": (
        {"shards/a.safetensors": 1, "model.safetensors.index.json": "shards/a.safetensors"},
        None,
    ),
    "only file": ({"weights.safetensors": 1, "config.json": b"{}"}, None),
    "only file beside an adapter": ({"weights.safetensors": 1, "adapter_model.safetensors": 2}, None),
    "one shard given as a file": ({"model-00002-of-00003.safetensors": 1}, None),
    "shards without index": ({"model-00001-of-00001.safetensors": 1, "config.json": b"{}"}, None),
    "shards of another stem": ({"pytorch_model-00001-of-00001.safetensors": 1, "config.json": b"{}"}, None),
    "shards named model before others": (
        {"model-00001-of-00001.safetensors": 1, "x-00001-of-00001.safetensors": 2},
        None,
    ),
    "before pickles": ({"model.safetensors": 1, "pytorch_model.bin": b""}, None),
    "standard pickles before a file of any name": ({"extra.safetensors": 2, "pytorch_model.bin": pickled(1)}, None),
    "pickles": ({"pytorch_model.bin": pickled(1), "training_args.bin": b"", "optimizer.pt": b""}, None),
    "sharded pickles": (
        {
            "pytorch_model-00001-of-00001.bin": pickled(1),
            "pytorch_model.bin.index.json": "pytorch_model-00001-of-00001.bin",
        },
        None,
    ),
    "pickles of a variant": ({"pytorch_model.bin": pickled(2), "pytorch_model.fp16.bin": pickled(1)}, "fp16"),
    "sharded pickles of a variant": (
        {"a.bin": pickled(1), "pytorch_model.bin": pickled(2), "pytorch_model.bin.index.fp16.json": "a.bin"},
        "fp16",
    ),
    "shards of pickles without index": ({"pytorch_model-00001-of-00001.bin": pickled(1), "config.json": b"{}"}, None),
    "original Llama, one slice": ({"consolidated.00.pth": pickled(1), "params.json": b"{}"}, None),
    "RWKV": ({"RWKV-x060-World-7B-v2.1.pth": pickled(1), "README.md": b""}, None),
    "one pickle of a trainer": ({"model.pt": pickled(1), "rng_state_0.pth": b"", "scheduler.pt": b""}, None),
    "variant": ({"model.safetensors": 2, "model.fp16.safetensors": 1}, "fp16"),
    "index of a variant": (
        {"model.safetensors": 2, "a.safetensors": 1, "model.safetensors.index.fp16.json": "a.safetensors"},
        "fp16",
    ),
    "older index of a variant": (
        {"model.safetensors": 2, "a.safetensors": 1, "model.fp16.safetensors.index.json": "a.safetensors"},
        "fp16",
    ),
    "shards of a variant": (
        {"model-00001-of-00001.safetensors": 2, "model.fp16-00001-of-00001.safetensors": 1},
        "fp16",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_right_file_is_opened(case):
    files, variant = FOUND[case]
    built = {
        path: what if isinstance(what, bytes) else index(what) if isinstance(what, str) else content(what)
        for path, what in files.items()
    }
    assert open_checkpoint(MemoryTree(built), variant=variant).read("w").item() == 1


REFUSED = {
    "original Llama": (["consolidated.00.pth", "consolidated.01.pth"], "2 slices for tensor parallelism"),
    "several RWKV": (
        ["RWKV-x060-World-1B6.pth", "RWKV-x060-World-7B.pth"],
        r"which of 2 files is the model \(RWKV-x060-World-1B6.pth.*, RWKV.*several epochs.*owner/name/file.pth",
    ),
    "GGUF": (["one.Q8_0.gguf", "two.Q8_0.gguf"], r"2 GGUF models.*: one.Q8_0.gguf, two.Q8_0.gguf; name one file"),
    "TensorFlow": (["tf_model.h5"], "TensorFlow or Flax files"),
    "Flax": (["flax_model.msgpack"], "TensorFlow or Flax files"),
    "CTranslate2": (["model.bin", "shared_vocabulary.json"], "CTranslate2"),
    "TensorRT": (["rank0.engine"], "TensorRT engine"),
    "TensorFlow Lite": (["model.tflite"], "TensorFlow Lite"),
    "ExecuTorch": (["model.pte"], "ExecuTorch"),
    "Core ML": (["model.mlpackage/Data/weights.bin"], "Core ML"),
    "NeMo": (["model.nemo"], "NeMo archive"),
    "several files": (
        ["a.safetensors", "b.safetensors"],
        r"2 files is the model \(a.safetensors, b.saf",
    ),
    "several sets": (["a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"], "several sets of shards"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_format_that_is_not_read_is_named(case):
    paths, message = REFUSED[case]
    with pytest.raises(UnsupportedFormatError, match=message):
        open_checkpoint(MemoryTree({**{p: pickled(1) if "RWKV" in p else b"" for p in paths}, "config.json": b"{}"}))


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_is_refused_if_its_base_cannot_be_opened(weights):
    with pytest.raises(UnsupportedFormatError, match=rf"PEFT adapter \({weights}\), .* the base is not opened here"):
        open_checkpoint(MemoryTree({weights: b"", "adapter_config.json": b"{}"}))


@pytest.mark.parametrize("options", [{}, {"open_base": lambda config: None}])
def test_an_adapter_without_config_is_refused(options):
    with pytest.raises(UnsupportedFormatError, match=r"and there is no adapter_config\.json"):
        open_checkpoint(MemoryTree({"adapter_model.safetensors": b""}), **options)


def test_weights_of_a_subfolder_are_named_before_a_format_that_is_not_read():
    with pytest.raises(NoWeightsError, match=r"name the subfolder that holds them \(fp32/model.safetensors\)"):
        open_checkpoint(MemoryTree({"onnx/model.onnx": b"", "fp32/model.safetensors": b""}))


ADAPTER = {"adapter_config.json": b'{"r": 1}', "adapter_model.safetensors": safetensors_bytes({})}


@pytest.mark.parametrize("variant", [None, "fp16"])
@pytest.mark.parametrize("file", [None, "adapter_model.safetensors"])
def test_an_adapter_is_opened_on_its_base(variant, file):
    base = open_checkpoint(MemoryTree({"model.safetensors": content(1)}, label="base"))
    source = open_checkpoint(MemoryTree(ADAPTER), variant=variant, file=file, open_base=lambda config: base)
    assert source.read("w").item() == 1
    assert "an adapter (LoRA) on base" in source.description.notes[0]


def test_incomplete_shards_are_refused_with_the_first_missing():
    files = {"model-00001-of-00003.safetensors": b"", "model-00003-of-00003.safetensors": b"", "config.json": b"{}"}
    with pytest.raises(
        CorruptCheckpointError, match=r"2 of 3 shards model-…-of-00003.*; shard 2 is the first one missing"
    ):
        open_checkpoint(MemoryTree(files))


def test_one_shard_of_a_repository_is_an_incomplete_set():
    files = {"model-00001-of-00002.safetensors": b"", "config.json": b"{}"}
    with pytest.raises(CorruptCheckpointError, match="shard 2 is the first one missing"):
        open_checkpoint(MemoryTree(files))


@pytest.mark.parametrize(
    "named",
    [
        *("model_{:05}-of-{:05}", "model-{:05}-of-{:06}", "model-{:06}-of-{:06}", "model-{}-of-{}", "model_{}_of_{}"),
        *("model.{:02}-of-{:02}", "consolidated-{:05}-of-{:05}", "model.safetensors-{:05}-of-{:05}"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pth"])
def test_shards_without_an_index_are_read_however_they_are_numbered(named, first, suffix):
    write = content if suffix == ".safetensors" else pickled
    files = {named.format(first + at, 2) + suffix: write(at + 1, name=f"w{at}") for at in range(2)}
    source = open_checkpoint(MemoryTree({**files, "config.json": b"{}"}))
    assert [source.read(name).item() for name in source.names()] == [1, 2]


@pytest.mark.parametrize(
    "named",
    [
        *("consolidated.{:02}.pth", "consolidated.{:02}.safetensors", "model{}-mp2.safetensors"),
        *("model-rank-{}-part-0.safetensors", "rank_{}.safetensors", "mp_rank_{:02}_model_states.pt", "model.tp{}.pt"),
    ],
)
def test_slices_for_tensor_parallelism_are_called_so(named):
    files = {named.format(at): b"" for at in range(2)}
    with pytest.raises(UnsupportedFormatError, match=r"2 slices for (tensor parallelism|the ranks of a run)"):
        open_checkpoint(MemoryTree(files))


def test_shards_that_hold_the_same_tensors_are_called_slices():
    files = {f"model-0000{number}-of-00002.safetensors": content(number) for number in (1, 2)}
    with pytest.raises(CorruptCheckpointError, match=r"'w' is in .*as in the slices of several ranks"):
        open_checkpoint(MemoryTree(files)).names()


def test_shards_that_do_not_count_from_one_are_refused():
    files = {f"model-0000{number}-of-00002.safetensors": b"" for number in (0, 1, 2)}
    with pytest.raises(CorruptCheckpointError, match="numbers do not start from 1"):
        open_checkpoint(MemoryTree(files))


def test_a_repository_without_weights_lists_the_expected_files():
    with pytest.raises(
        NoWeightsError, match=r"2 files \(README.md, config.json\); looked for model.safetensors, .*gguf"
    ):
        open_checkpoint(MemoryTree({"config.json": b"{}", "README.md": b""}))


def test_an_empty_repository_has_no_weights():
    with pytest.raises(NoWeightsError, match="no weights, and no other file"):
        open_checkpoint(MemoryTree({}))


def test_weights_in_a_subfolder_are_pointed_out():
    with pytest.raises(NoWeightsError, match=r"name the subfolder that holds them \(unet/model.safetensors\)"):
        open_checkpoint(MemoryTree({"unet/model.safetensors": b"", "config.json": b"{}"}))


def test_a_missing_variant_names_the_available_files():
    with pytest.raises(NoWeightsError, match=r"for the variant 'fp16'; without a variant there is model.safetensors"):
        open_checkpoint(MemoryTree({"model.safetensors": b""}), variant="fp16")


def test_a_named_file_is_opened_beside_other_files():
    tree = MemoryTree({"model.safetensors": content(2), "other.safetensors": content(1)})
    assert open_checkpoint(tree, file="other.safetensors").read("w").item() == 1


@pytest.mark.parametrize("file", ["old.bin", "old.PTH", "old.pt"])
def test_a_named_pickle_is_opened_beside_other_files(file):
    tree = MemoryTree({"model.safetensors": content(2), file: pickled(1), "optimizer.pt": b""})
    assert open_checkpoint(tree, file=file).read("w").item() == 1


def test_a_named_index_of_pickles_is_opened():
    files = {"a.bin": pickled(1), "pytorch_model.bin.index.json": index("a.bin")}
    assert open_checkpoint(MemoryTree(files), file="pytorch_model.bin.index.json").read("w").item() == 1


def test_a_named_index_is_opened():
    files = {"model.safetensors": content(2), "a.safetensors": content(1), "old.index.json": index("a.safetensors")}
    assert open_checkpoint(MemoryTree(files), file="old.index.json").read("w").item() == 1


def test_a_named_file_of_another_format_is_refused():
    with pytest.raises(
        UnsupportedFormatError,
        match=r"'model\.h5' has an unsupported format; name a \.safetensors, \.bin, .* or the index",
    ):
        open_checkpoint(MemoryTree({"model.h5": b""}), file="model.h5")
