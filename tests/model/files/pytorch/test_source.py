import io
import json
import warnings

import numpy as np
import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.pytorch import PytorchSource
from tests.conformance_tensors import MemoryTree, TensorSourceConformance
from tests.model.files.pytorch.archives import saved, zipped


def repacked(content):
    """The same entries in an archive not written by torch, without alignment."""
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(content))
    return zipped({name: archive.read(name) for name in archive.namelist()})


def source_of(content, **options):
    return PytorchSource(MemoryTree({"pytorch_model.bin": content}), paths=["pytorch_model.bin"], **options)


def sharded(tensors, n_shards):
    names = sorted(tensors)
    paths = [f"pytorch_model-{number + 1:05}-of-{n_shards:05}.bin" for number in range(n_shards)]
    weight_map = {name: paths[number % n_shards] for number, name in enumerate(names)}
    files = {path: saved({name: tensors[name] for name in names if weight_map[name] == path}) for path in paths}
    files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


class TestOneFile(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree({"pytorch_model.bin": saved(dict(tensors))}))


class TestParametersOfATrainer(TensorSourceConformance):
    """A trainer's checkpoint: parameters, wrapped names and additional objects."""

    def make(self, tensors, tmp_path):
        state = {f"module._orig_mod.{name}": _as_parameter(tensor) for name, tensor in tensors.items()}
        return open_checkpoint(MemoryTree({"model.pt": saved({"step": 3, "state_dict": state, "lr": [1e-3]})}))


class TestNewerProtocol(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return source_of(saved(dict(tensors), pickle_protocol=4))


class TestShardsWithIndex(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree(sharded(tensors, 3)))


class TestShardsWithoutIndex(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        files = sharded(tensors, 3)
        del files["pytorch_model.bin.index.json"]
        return open_checkpoint(MemoryTree(files))


class TestWrittenByAnotherProgram(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return source_of(repacked(saved(dict(tensors))))


class TestManySmallSpans(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return source_of(saved(dict(tensors)), max_span_bytes=16)


class TestTransposed(TensorSourceConformance):
    """Every tensor is stored transposed, so none is contiguous."""

    def make(self, tensors, tmp_path):
        return source_of(saved({name: _transposed(tensor) for name, tensor in tensors.items()}))


class TestCutOutOfLargerOnes(TensorSourceConformance):
    """Every tensor is a window of a larger storage."""

    def make(self, tensors, tmp_path):
        return source_of(saved({name: _window(tensor) for name, tensor in tensors.items()}), max_span_bytes=16)

    def stored_bytes(self, tensor):
        window = _window(tensor)
        first_to_last = sum((size - 1) * step for size, step in zip(window.shape, window.stride(), strict=True))
        return (first_to_last + 1) * tensor.element_size() if window.numel() else 0


def _as_parameter(tensor):
    return torch.nn.Parameter(tensor) if tensor.dtype == torch.float32 else tensor


def _transposed(tensor):
    axes = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(axes).contiguous().permute(axes)


def _window(tensor):
    if not tensor.ndim:
        return torch.stack([tensor, tensor])[1]
    around = torch.zeros([size + 3 for size in tensor.shape], dtype=tensor.dtype)
    view = around[tuple(slice(1, 1 + size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def test_tensors_are_read_as_by_torch():
    rng = torch.Generator().manual_seed(3)
    weights = torch.randn(30, 8, generator=rng)
    state = {
        "rows": weights[4:9],
        "columns": weights[:, 2:5],
        "every_third": weights[::3],
        "transposed": weights.t(),
        "bfloat16": weights.bfloat16(),
        "half": torch.nn.Parameter(weights.half()),
        "byte": (weights > 0).to(torch.uint8),
        "wide": torch.tensor([1, 2, 65535], dtype=torch.uint16),
        "long": torch.arange(5),
        "buffer": torch.nn.Parameter(weights[0], requires_grad=False),
    }
    state["with_attributes"] = torch.nn.Parameter(weights)
    state["with_attributes"].tensor_model_parallel = True
    content = saved(state)
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    source = source_of(content)
    assert source.names() == tuple(sorted(loaded))
    for name, tensor in loaded.items():
        assert source.spec(name).shape == tuple(tensor.shape)
        assert torch.equal(source.read_stored(name), tensor), name
    for name in ("columns", "transposed", "every_third"):
        rows = np.array([2, 0, 2], dtype=np.int64)
        assert torch.equal(source.read_rows(name, rows), loaded[name][torch.from_numpy(rows)])


def test_another_programs_archive_costs_one_read_more_a_tensor():
    tree = MemoryTree({"pytorch_model.bin": repacked(saved({"a": torch.ones(40_000), "b": torch.ones(40_000)}))})
    source = open_checkpoint(tree)
    source.names()
    n_reads = len(tree.opened["pytorch_model.bin"].reads)
    for _ in range(2):
        source.spec("a")
    assert len(tree.opened["pytorch_model.bin"].reads) == n_reads + 1


@pytest.mark.parametrize(
    "value",
    [
        {"model": {"w": 1}, "optimizer": {"state": {0: {"exp_avg": 2}}}},
        {"epoch": torch.tensor(7), "model_state_dict": {"w": 1}, "optimizer": {"w": 2}},
        {"module": {"module.w": 1}},
        {"state_dict": {"model": {"_orig_mod.w": 1}}, "args": {"lr": 0.1}},
        {"w": 1, "version": "x", "shape": (1, 2), "nothing": None},
        {"_fsdp_wrapped_module.w": 1},
    ],
)
def test_the_weights_are_found_inside_of_a_trainers_checkpoint(value):
    def with_tensors(part):
        if isinstance(part, dict):
            return {key: with_tensors(inner) for key, inner in part.items()}
        return torch.full((1, 1), float(part)) if type(part) is int else part

    source = source_of(saved(with_tensors(value)))
    assert source.names() == ("w",)
    assert source.read("w").item() == 1


def test_parts_of_a_model_kept_apart_are_joined():
    source = source_of(
        saved({"model": {"encoder": {"w": torch.ones(1)}, "layers": [torch.ones(2), {"b": torch.ones(3)}]}})
    )
    assert source.names() == ("encoder.w", "layers.0", "layers.1.b")


def test_prefixes_that_would_make_two_names_one_stay():
    source = source_of(saved({"_orig_mod.w": torch.ones(1), "w": torch.ones(2)}))
    assert source.names() == ("_orig_mod.w", "w")


def test_prefixes_that_an_index_names_stay():
    files = sharded({"module.w": torch.ones(1), "module.b": torch.ones(2)}, 2)
    source = open_checkpoint(MemoryTree(files))
    assert source.names() == ("module.b", "module.w")
    assert source.read("module.w").item() == 1


def test_tensors_of_other_kinds_are_refused_when_read():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch warns that this kind of tensor will be removed
        quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    content = saved({"w": torch.ones(2), "q": quantised, "z": torch.ones(2, dtype=torch.complex128)})
    source = open_checkpoint(MemoryTree({"pytorch_model.bin": content}))
    assert source.names() == ("q", "w", "z")
    assert torch.equal(source.read("w"), torch.ones(2))
    with pytest.raises(UnsupportedFormatError, match="'q' is quantised by torch"):
        source.spec("q")
    with pytest.raises(UnsupportedFormatError, match="'z' is complex128 numbers"):
        source.read("z")


def test_an_expanded_view_is_refused():
    source = source_of(saved({"w": torch.ones(1, 4).expand(3, 4)}))
    with pytest.raises(UnsupportedFormatError, match=r"'w' of shape \(3, 4\) with strides \(0, 1\) repeats elements"):
        source.spec("w")


@pytest.mark.parametrize("shape", [(0, 1 << 49), ((1 << 49), 0), (1 << 30, 0, 1 << 30)])
def test_an_empty_tensor_of_absurd_sizes_is_refused(shape):
    source = source_of(saved({"w": torch.empty(0).reshape(shape), "e": torch.empty(0).reshape(0, 1 << 48)}))
    assert source.read("e").shape == (0, 1 << 48)
    with pytest.raises(CorruptCheckpointError, match=r"tensor 'w' of shape .* has sizes whose product"):
        source.spec("w")


@pytest.mark.parametrize(
    "stride", [(0, 0), (0, 1), (1, 0), (1, 1), (3, 1), (4, 2)], ids=lambda stride: "x".join(map(str, stride))
)
def test_a_view_that_overlaps_itself_is_refused(stride):
    view = torch.arange(64.0).as_strided((3, 4), stride)
    with pytest.raises(UnsupportedFormatError, match="repeats elements of its storage"):
        source_of(saved({"w": view})).spec("w")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_legacy_files_are_refused_with_advice(protocol):
    content = saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    with pytest.raises(UnsupportedFormatError, match=r"before 1\.6.*torch\.load\(weights_only=True\)"):
        source_of(content).names()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_negated_view_has_the_signs_of_the_view(dtype, is_transposed):
    values = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    view = torch._neg_view(values.T if is_transposed else values)
    source = source_of(saved({"w": view, "row": torch._neg_view(values[1])}))
    expected = view.resolve_neg().contiguous()
    assert torch.equal(source.read("w"), expected.to(source.read("w").dtype))
    assert torch.equal(source.read("row").double(), -values[1].double())
    assert torch.equal(source.read_rows("w", np.array([2, 0])).double(), expected[[2, 0]].double())
    assert torch.equal(source.read_stored("w"), expected)
    assert torch.equal(source.read_stored_rows("w", np.array([1])), expected[1:2])


def test_a_view_with_another_mark_is_refused_by_name():
    source = source_of(saved({"w": torch.ones(2, 2, dtype=torch.complex64).conj(), "v": torch.ones(2)}))
    assert source.names() == ("v", "w")
    with pytest.raises(UnsupportedFormatError, match="'w' is a view of C64 with the marks conj"):
        source.read("w")


def test_torchscript_is_refused():
    buffer = io.BytesIO()
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    with pytest.raises(UnsupportedFormatError, match="TorchScript"):
        source_of(buffer.getvalue()).names()


def test_a_pickled_module_is_refused():
    with pytest.raises(UnsupportedFormatError, match=r"a pickled torch\.nn\.modules\.linear\.Linear, but no tensors"):
        source_of(saved(torch.nn.Linear(2, 2))).names()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2), "one tensor"),
        ({}, "an empty dict"),
        ({"lr": 1e-3, "steps": [1, 2]}, "a dict of 'lr', 'steps'"),
        ([1, 2], "a list"),
    ],
)
def test_the_contents_of_a_file_without_named_tensors_are_reported(value, message):
    with pytest.raises(UnsupportedFormatError, match=f"holds {message}, but no tensors by name"):
        source_of(saved(value)).names()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", UnsupportedFormatError, "Git LFS pointer"),
        (b"GGUF\x03" + bytes(600), UnsupportedFormatError, "GGUF file under another name"),
        (b"tjgg" + bytes(600), UnsupportedFormatError, r"old llama\.cpp"),
        (b"", CorruptCheckpointError, "not a file of torch.save"),
        (bytes(1000), CorruptCheckpointError, "not a file of torch.save"),
    ],
)
def test_other_files_are_named(content, error, message):
    with pytest.raises(error, match=message):
        source_of(content).names()


@pytest.mark.parametrize("n_bytes", [10, 100, 700, 1500])
def test_a_truncated_file_is_reported(n_bytes):
    content = saved({"w": torch.ones(200)})
    with pytest.raises(CorruptCheckpointError, match="ends before its directory"):
        source_of(content[:n_bytes]).names()


def test_big_endian_numbers_are_refused():
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(saved({"w": torch.ones(2)})))
    entries = {name: archive.read(name) for name in archive.namelist()}
    with pytest.raises(UnsupportedFormatError, match="big-endian"):
        source_of(zipped({**entries, "archive/byteorder": b"big"})).names()
