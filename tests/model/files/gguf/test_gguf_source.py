from __future__ import annotations

import builtins
import re
import sys

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, UnsupportedFormatError
from mdir_hf.installing import install_command
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.gguf import GgufSource
from mdir_hf.model.files.gguf.dequantise import GGML_TYPES
from mdir_hf.model.files.gguf.header import read_gguf_header
from tests.conformance_tensors import MemoryBytes, MemoryTree, TensorSourceConformance, random_tensors
from tests.gguf_quantise import quantised
from tests.gguf_writer import gguf_bytes

NOT_IN_GGUF = ("fp8", "fp8_wide", "mask")


def known_types():
    """Names of the quantised types that the package can dequantise."""
    names = []
    for kind in GGML_TYPES.values():
        try:
            gguf.quants.dequantize(np.zeros((1, kind.n_bytes), np.uint8), Type(kind.number))
        except (NotImplementedError, ValueError):
            continue
        if not kind.is_plain:
            names.append(kind.name)
    return names


def random_blocks(name, shape, seed=0):
    """A matrix of random blocks with finite values, ``(rows, bytes)``."""
    kind, rng = GGML_TYPES[Type[name]], np.random.default_rng(seed)
    n_blocks = shape[0] * shape[1] // kind.n_values
    blocks = rng.integers(0, 256, (8 * n_blocks, kind.n_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(gguf.quants.dequantize(blocks, Type[name])).all(axis=1)
    return blocks[is_finite][:n_blocks].reshape(shape[0], -1)


class GgufConformance(TensorSourceConformance):
    """The test suite for tensor sources, with the dtypes that GGUF supports."""

    @pytest.fixture
    def tensors(self):
        return {name: tensor for name, tensor in random_tensors().items() if name not in NOT_IN_GGUF}


class TestOneFile(GgufConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree({"model.gguf": gguf_bytes(tensors)}))


class TestSplit(GgufConformance):
    def make(self, tensors, tmp_path):
        return open_checkpoint(MemoryTree(split(tensors, 3)))


class TestManySmallSpans(GgufConformance):
    def make(self, tensors, tmp_path):
        return GgufSource(MemoryTree({"m.gguf": gguf_bytes(tensors)}), paths=["m.gguf"], max_span_bytes=16)


def split(tensors, n_parts, first_is_empty=False):
    """Files of a split checkpoint, with the tensors distributed over the parts."""
    names = sorted(tensors)
    files = {}
    for part in range(n_parts):
        own = names[part::n_parts] if not first_is_empty else names[part - 1 :: n_parts - 1] if part else []
        keys = {"split.no": part, "split.count": n_parts, "split.tensors.count": len(names)}
        path = f"model-{part + 1:05}-of-{n_parts:05}.gguf"
        files[path] = gguf_bytes({name: tensors[name] for name in own}, keys)
    return files


def test_block_sizes_match_the_gguf_package():
    for number, sizes in gguf.constants.GGML_QUANT_SIZES.items():
        kind = GGML_TYPES[number]
        assert (kind.name, kind.n_values, kind.n_bytes) == (number.name, *sizes)


@pytest.mark.parametrize("name", known_types())
def test_a_quantised_matrix_is_decoded_as_by_the_package(name):
    shape = (24, 512)
    data = random_blocks(name, shape)
    expected = torch.from_numpy(gguf.quants.dequantize(data, Type[name]))
    source = open_checkpoint(MemoryTree({"model.gguf": gguf_bytes({"w": (data, Type[name])})}))
    spec = source.spec("w")
    assert (spec.shape, spec.dtype, spec.n_bytes) == (shape, name, data.nbytes)
    assert torch.equal(source.read("w"), expected)
    rows = np.array([7, 0, 23, 7, 8])
    assert torch.equal(source.read_rows("w", rows), expected[torch.from_numpy(rows)])
    assert torch.equal(source.read_stored("w"), torch.from_numpy(data))
    assert torch.equal(source.read_stored_rows("w", rows), torch.from_numpy(data)[torch.from_numpy(rows)])
    assert source.description.quantization == name


def test_a_row_reads_only_the_bytes_of_its_blocks():
    data = random_blocks("Q6_K", (100, 256))
    tree = MemoryTree({"model.gguf": gguf_bytes({"w": (data, Type.Q6_K)})})
    source = open_checkpoint(tree)
    start = source.spec("w").start
    tree.opened["model.gguf"].reads.clear()
    source.read_rows("w", np.array([3, 4, 90]))
    assert tree.opened["model.gguf"].reads == [(start + 3 * 210, start + 5 * 210), (start + 90 * 210, start + 91 * 210)]


def test_a_block_whose_scale_is_infinite_is_refused_with_its_row():
    data = random_blocks("Q8_0", (10, 64))
    data[6, :2] = np.array([np.inf], np.float16).view(np.uint8)
    source = open_checkpoint(MemoryTree({"model.gguf": gguf_bytes({"w": (data, Type.Q8_0)})}))
    with pytest.raises(CorruptCheckpointError, match=r"'w' \(Q8_0, shape \(10, 64\)\) holds NaN or inf.* row 6"):
        source.read("w")
    assert source.read_rows("w", np.array([5, 7])).shape == (2, 64)


def test_quantised_types_say_what_to_install(monkeypatch):
    file = gguf_bytes({"plain": torch.ones(2, 32).half(), "packed": (random_blocks("Q4_0", (2, 32)), Type.Q4_0)})
    real_import = builtins.__import__

    def no_gguf(name, *args, **kwargs):
        if name == "gguf":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "gguf")
    monkeypatch.setattr(builtins, "__import__", no_gguf)
    source = open_checkpoint(MemoryTree({"model.gguf": file}))
    assert torch.equal(source.read("plain"), torch.ones(2, 32))
    with pytest.raises(
        UnsupportedFormatError, match=r"'packed' holds Q4_0 weights.*" + re.escape(install_command("gguf"))
    ):
        source.read_rows("packed", np.array([0]))


@pytest.mark.parametrize("name", ["Q8_K", "Q4_0_4_4"])
def test_a_type_without_a_reader_is_refused_by_name(name):
    kind = next(kind for kind in GGML_TYPES.values() if kind.name == name)
    packed = np.zeros((2, 256 // kind.n_values * kind.n_bytes), np.uint8)
    # Written as a known type of the same size, then renumbered.
    twin = Type.Q8_K if kind.n_values == 256 else Type.Q4_0
    file = gguf_bytes({"packed": (packed, twin), "plain": torch.ones(2, 4)})
    file = renumbered(file, b"packed", kind.number)
    source = open_checkpoint(MemoryTree({"model.gguf": file}))
    assert torch.equal(source.read("plain"), torch.ones(2, 4))
    with pytest.raises(
        UnsupportedFormatError, match=rf"tree:model.gguf: tensor 'packed' holds {name} weights.*not deq"
    ):
        source.read("packed")


def test_an_unknown_type_does_not_hide_other_tensors():
    file = gguf_bytes({"a": torch.ones(2, 32), "new": torch.ones(2, 32), "b": torch.full((2, 32), 3.0)})
    file = renumbered(file, b"new", 4711)
    source = open_checkpoint(MemoryTree({"model.gguf": file}))
    assert torch.equal(source.read("a"), torch.ones(2, 32))
    assert torch.equal(source.read("b"), torch.full((2, 32), 3.0))
    for read in (source.read, source.read_stored):
        with pytest.raises(UnsupportedFormatError, match=r"'new' .*type 4711"):
            read("new")


@pytest.mark.parametrize(
    ("number", "name"), [(4, "type 4"), (999, "type 999"), (2**32 - 1, "type 4294967295"), (31, None)]
)
def test_unknown_and_dropped_types_are_named(number: int, name: str | None):
    packed = np.zeros((2, 18), np.uint8)
    file = renumbered(gguf_bytes({"a": torch.ones(2, 32), "new": (packed, Type.Q4_0)}), b"new", number)
    found = open_checkpoint(MemoryTree({"model.gguf": file})).description
    assert found.unreadable == {"new"}
    assert found.notes == (
        f"1 tensor holds values of GGUF types that are unknown or no longer in use ({name or 'Q4_0_4_4'}) and cannot "
        "be read: new",
    )
    assert not open_checkpoint(MemoryTree({"model.gguf": gguf_bytes({"a": torch.ones(2, 4)})})).description.unreadable


@pytest.mark.parametrize(("n_values", "twin", "name"), [(64, Type.Q4_0, "Q2_0"), (128, Type.Q8_0, "Q2_0_128")])
def test_two_bits_of_one_scale_are_read_in_groups_of_both_sizes(n_values, twin, name):
    rng = np.random.default_rng(0)
    codes, scale = rng.integers(0, 4, (24, 256)), rng.normal(size=(24, 256 // n_values)).astype(np.float16)
    packed = sum(codes.reshape(24, -1, n_values // 4, 4)[..., place] << 2 * place for place in range(4)).astype(
        np.uint8
    )
    blocks = np.concatenate([scale.reshape(24, -1, 1).view(np.uint8), packed], axis=2).reshape(24, -1)
    file = renumbered(gguf_bytes({"codes": (blocks, twin), "b": torch.ones(2, 4)}), b"codes", 42, n_columns=256)
    source = open_checkpoint(MemoryTree({"model.gguf": file}))
    expected = torch.from_numpy((codes - 1) * scale.astype(np.float32).repeat(n_values, axis=1))
    assert (source.spec("codes").dtype, source.spec("codes").shape) == (name, (24, 256))
    assert torch.equal(source.read("codes"), expected.float())
    assert torch.equal(source.read_rows("codes", np.array([2, 0])), expected.float()[[2, 0]])
    assert torch.equal(source.read("b"), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("n_bytes", "number", "name"), [(96, 36, "I2_S"), (160, 36, "IQ4_NL_4_4"), (48, 42, "type 42")], ids=str
)
def test_a_type_number_reused_by_forks_is_named_by_the_tensor_size(n_bytes, number, name):
    content = torch.zeros(2, n_bytes // 2, dtype=torch.int8)
    file = renumbered(gguf_bytes({"codes": content, "b": torch.ones(2, 4)}), b"codes", number, n_columns=128)
    source = open_checkpoint(MemoryTree({"model.gguf": file}))
    assert torch.equal(source.read("b"), torch.ones(2, 4))
    assert source.spec("codes").dtype == name
    assert source.description.unreadable == {"codes"}
    why = "order depends on the processor" if name == "I2_S" else name
    with pytest.raises(UnsupportedFormatError, match=rf"'codes' holds .*{why}"):
        source.read("codes")


def renumbered(file, name, number, *, n_columns=None):
    """The file with a different type for a matrix: name, u32 count of sizes, two u64 sizes, u32 type."""
    sizes = file.index(name) + len(name) + 4
    if n_columns is not None:
        file = file[:sizes] + n_columns.to_bytes(8, "little") + file[sizes + 8 :]
    at = sizes + 16
    return file[:at] + number.to_bytes(4, "little") + file[at + 4 :]


def long_vocabulary(n_tokens):
    return {"tokenizer.ggml.tokens": [f"token{i}" for i in range(n_tokens)], "tokenizer.ggml.merges": ["a b"] * 100}


def test_the_header_is_read_in_growing_steps_each_byte_once():
    file = gguf_bytes({"w": torch.ones(64, 64)}, long_vocabulary(40_000))
    source = MemoryBytes("f", file)
    header = read_gguf_header(source, path="f", first_n_bytes=1000)
    assert source.reads[0] == (0, 1000)
    assert all(before[1] == after[0] for before, after in zip(source.reads, source.reads[1:], strict=False))
    assert header.n_bytes <= source.reads[-1][1] <= 2 * header.n_bytes
    assert len(source.reads) <= 11
    assert header.tensors["w"].stop == len(file)


def test_a_vocabulary_stays_packed_until_it_is_iterated():
    tokens = ["a", "", "ÿ", "x" * 300]
    file = gguf_bytes({"w": torch.ones(2, 2)}, {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"]})
    metadata = open_checkpoint(MemoryTree({"m.gguf": file})).description.metadata
    packed = metadata["tokenizer.ggml.tokens"]
    assert isinstance(packed.data, bytes)
    assert len(packed) == 4
    assert [token.decode() for token in packed] == tokens
    assert metadata["tokenizer.ggml.merges"] is None  # merges are not needed and are the longest field


def test_values_of_every_type_are_read():
    values = {"u": 7, "s": "naïve", "yes": True, "no": False, "f": 0.5, "floats": [0.25, -1.0], "ints": [1, -2]}
    metadata = open_checkpoint(MemoryTree({"m.gguf": gguf_bytes({"w": torch.ones(1, 1)}, values)})).description.metadata
    assert {key: metadata[key] for key in ("u", "s", "yes", "no", "f")} == {
        key: values[key] for key in ("u", "s", "yes", "no", "f")
    }
    assert metadata["floats"].tolist() == [0.25, -1.0]
    assert metadata["ints"].tolist() == [1, -2]
    assert metadata["yes"] is True


def test_a_split_that_begins_with_the_vocabulary_is_whole():
    tensors = {f"blk.{i}.w": torch.full((2, 2), float(i)) for i in range(5)}
    files = split(tensors, 3, first_is_empty=True)
    for source in (open_checkpoint(MemoryTree(files)), open_checkpoint(MemoryTree(files), file=max(files))):
        assert source.paths == tuple(sorted(files))
        assert source.names() == tuple(sorted(tensors))
        assert all(torch.equal(source.read(name), tensors[name]) for name in tensors)
        assert source.n_bytes == sum(map(len, files.values()))


def test_parts_of_another_split_are_refused():
    files = split({f"w{i}": torch.ones(2, 2) for i in range(4)}, 2)
    first, second = sorted(files)
    with pytest.raises(CorruptCheckpointError, match=r"part 0 \(counted from 0\) of 2, but its name says part 1 of 2"):
        open_checkpoint(MemoryTree({first: files[first], second: files[first]})).names()


def test_a_tensor_in_two_parts_is_refused():
    keys = [{"split.no": part, "split.count": 2} for part in range(2)]
    files = {f"m-0000{n + 1}-of-00002.gguf": gguf_bytes({"w": torch.ones(1, 1)}, keys[n]) for n in range(2)}
    with pytest.raises(CorruptCheckpointError, match=r"'w' is in m-00001-of-00002.gguf and in m-00002"):
        open_checkpoint(MemoryTree(files)).names()


def test_a_vocabulary_alone_is_not_a_model():
    file = gguf_bytes({}, long_vocabulary(3))
    with pytest.raises(NoWeightsError, match=r"m\.gguf holds no tensors, only a vocabulary"):
        open_checkpoint(MemoryTree({"m.gguf": file})).names()


@pytest.mark.parametrize(
    ("metadata", "architecture", "what"),
    [
        ({"general.type": "adapter"}, "llama", "a LoRA adapter"),
        ({"general.type": "imatrix"}, "llama", "statistics for quantising"),
        ({"general.type": "mmproj"}, "clip", "the vision tower"),
        ({}, "clip", "the vision tower"),
    ],
)
def test_other_kinds_of_gguf_files_are_named(metadata, architecture, what):
    file = gguf_bytes({"w": torch.ones(1, 1)}, metadata, architecture=architecture)
    with pytest.raises(UnsupportedFormatError, match=rf"tree:m\.gguf: this GGUF file is {what}"):
        open_checkpoint(MemoryTree({"m.gguf": file})).names()


def test_types_are_named_by_their_size():
    tensors = {
        "a": (random_blocks("Q4_0", (64, 64)), Type.Q4_0),
        "b": (random_blocks("Q8_0", (2, 64)), Type.Q8_0),
        "norm": torch.ones(64),
    }
    assert open_checkpoint(MemoryTree({"m.gguf": gguf_bytes(tensors)})).description.quantization == "Q4_0, Q8_0"


# --- a matrix for which a K-quant is requested is quantised at every width, as in llama.cpp


@pytest.mark.parametrize(
    ("width", "kind", "stored", "most_bits"),
    [(576, "Q4_K", "Q5_0", 7), (96, "Q4_K", "Q5_0", 7), (512, "Q4_K", "Q4_K", 5), (576, "Q6_K", "Q8_0", 9)],
)
def test_rows_that_fill_no_block_of_256_take_blocks_of_32(width, kind, stored, most_bits):
    matrix = torch.randn(40, width, generator=torch.Generator().manual_seed(0))
    data, written = quantised(matrix, kind)
    assert written.name == stored
    assert data.nbytes * 8 / matrix.numel() < most_bits
    read = torch.from_numpy(gguf.quants.dequantize(data, written))
    # Rounding keeps the values close but leaves no row unchanged.
    assert not (read == matrix).all(1).any()
    assert float((read - matrix).norm() / matrix.norm()) < 0.1


@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0"])
def test_rows_that_not_even_blocks_of_32_fill_stay_f16(kind):
    assert quantised(torch.ones(3, 80), kind).dtype == torch.float16


def test_vectors_stay_f32():
    assert quantised(torch.ones(576), "Q4_K").dtype == torch.float32
