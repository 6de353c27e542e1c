"""Pickles that try to run code or to exhaust memory or time are refused at little cost."""

import os
import pickle
import re
import struct
import tracemalloc

import pytest
import torch

from mdir_hf.budgets import PICKLE, Budget
from mdir_hf.errors import CheckpointError, CorruptCheckpointError, UnsafePickleError, UnsupportedFormatError
from mdir_hf.model.files.pytorch import PytorchSource, machine
from mdir_hf.model.files.pytorch.machine import find_tensors, read_pickle
from mdir_hf.model.files.pytorch.objects import Inert
from tests.conformance_tensors import MemoryTree
from tests.model.files.pytorch.archives import Tensor, holding, pickled

MIB = 1 << 20


def source_of(content):
    return PytorchSource(MemoryTree({"pytorch_model.bin": content}), paths=["pytorch_model.bin"])


def peak_n_bytes(run):
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Calls:
    """Pickles as a function call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


CALLS = {
    "os.system": Calls(os.system, "touch /tmp/pwned"),
    "eval": Calls(eval, "print('pwned')"),
    "exec": Calls(exec, "print('pwned')"),
    "getattr": Calls(getattr, "x", "y"),
    "open": Calls(open, "/etc/passwd"),
    "torch.load": Calls(torch.load, "other.bin"),
    "torch.hub.load": Calls(torch.hub.load, "owner/name", "model"),
    "pickle.loads": Calls(pickle.loads, b"N."),
    "a class of the file's author": Calls(MemoryTree, {}),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_call_of_anything_else_is_refused_by_name(case, protocol):
    with pytest.raises(UnsafePickleError, match=r"names '[\w.]+', which weights do not need.*none of it was executed"):
        source_of(holding({"w": Tensor((2, 3), (3, 1)), "x": CALLS[case]})).names()
    with pytest.raises(UnsafePickleError):
        read_pickle(pickle.dumps(CALLS[case], protocol), label="file")


def test_nothing_is_run(tmp_path):
    witness = tmp_path / "witness"
    with pytest.raises(UnsafePickleError, match=r"'(posix|nt)\.system'"):
        read_pickle(pickle.dumps(Calls(os.system, f"touch {witness}")), label="file")
    assert not witness.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cbuiltins\n__import__\n(S'os'\ntR.",
        b"ios\nsystem\n.",
        b"(ios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x02\x84\x01\x00\x00\x00.",  # EXT4
        b"Pany\n.",  # PERSID
        b"\x80\x05\x97.",  # NEXT_BUFFER
        b"ctorch\nos.system\n.",
        b"ctorch._utils\n__builtins__\n.",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"ccollections\nOrderedDict.__init__\n.",
        b"c\xe2\x80\xae\nx\n.",
    ],
)
def test_every_way_to_name_or_run_something_is_refused(data):
    with pytest.raises((UnsafePickleError, CorruptCheckpointError)):
        read_pickle(data, label="file")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a pickle"),
        (b"\x80\x02", "not a pickle"),
        (b".", "not a pickle"),
        (b"R.", "not a pickle"),
        (b"u.", "not a pickle"),
        (b"t.", "not a pickle"),
        (b"}K\x01.0", "no pickle|holds"),
        (b"h\x05.", "not a pickle"),
        (b"(K\x01d.", "not a pickle"),
        (b"\x85.", "not a pickle"),
        (b"\xff.", "not a pickle"),
        (b"N" + b"\x8e" + struct.pack("<Q", 2**62) + b".", "not a pickle"),  # BINBYTES8
        (b"\x8d" + struct.pack("<Q", 2**63) + b".", "not a pickle"),  # BINUNICODE8
        (b"B" + struct.pack("<I", 2**31) + b".", "not a pickle"),
        (b"\x8b" + struct.pack("<i", 2**31 - 1) + b".", "not a pickle"),  # LONG4
        (b"\x8b" + struct.pack("<i", -5) + b".", "not a pickle"),
        (b"I" + b"9" * 100_000 + b"\n.", "not a pickle"),
        (b"L" + b"9" * 100_000 + b"L\n.", "not a pickle"),
        (b"\x80\x02Q.", "not a pickle"),
        (b"\x80\x02NQ.", "not a storage of numbers"),
        (b"\x80\x02(U\x07storageNNNNtQ.", "not a storage of numbers"),
    ],
)
def test_a_broken_pickle_is_refused_with_little_memory(data, message):
    def run():
        with pytest.raises(CheckpointError, match=message):
            find_tensors(read_pickle(data, label="file"))

    assert peak_n_bytes(run) < 2 * MIB


def test_a_memo_index_takes_no_room():
    data = b"N" + b"r" + struct.pack("<I", 2**32 - 1) + b"."
    assert peak_n_bytes(lambda: read_pickle(data, label="file")) < MIB


def test_tuples_in_tuples_are_never_hashed_nor_walked():
    """Each opcode pair doubles a tuple; as a key it would be hashed 2^200 times over."""
    data = b"\x80\x02})" + b"2\x86" * 200 + b"K\x01s."
    assert read_pickle(data, label="file") == {}


def test_colliding_integers_are_refused_as_keys():
    """Multiples of 2^61 - 1 share one hash, so a dict of them takes quadratic time."""
    keys = b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(1, 200_000))
    assert read_pickle(b"\x80\x02}(" + keys + b"u.", label="file") == {}


def test_colliding_integers_are_refused_as_memo_indices():
    puts = b"".join(b"p%d\n" % (k * (2**61 - 1)) for k in range(1, 10))
    with pytest.raises(CorruptCheckpointError, match="not a pickle: a memo index has"):
        read_pickle(b"N" + puts + b".", label="file")


def test_copies_of_a_long_list_are_not_made():
    """OrderedDict(list), again and again: a short pickle that would copy the list every time."""
    pairs = b"](" + b"K\x01K\x02\x86" * 1000 + b"eq\x00"
    calls = b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00\x85R0" * 5000
    data = b"\x80\x02" + pairs + calls + b"."
    assert peak_n_bytes(lambda: read_pickle(data, label="file")) < 4 * MIB


def test_a_very_long_pickle_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "PICKLE", Budget(PICKLE.n_bytes, 50_000))
    with pytest.raises(UnsupportedFormatError, match="more than 50,000 opcodes"):
        read_pickle(b"\x80\x02" + b"N0" * 25_001 + b"N.", label="file")


@pytest.mark.parametrize("opcodes", [b"}", b"K\x01\x85", b"ccollections\nOrderedDict\n)R"])
def test_the_longest_pickle_takes_bounded_memory(opcodes, monkeypatch):
    n_opcodes = 25_000  # the limit is 2,000,000; memory grows linearly
    monkeypatch.setattr(machine, "PICKLE", Budget(PICKLE.n_bytes, n_opcodes))
    data = b"\x80\x02" + opcodes * n_opcodes + b"."

    def run():
        with pytest.raises(UnsupportedFormatError, match="opcodes"):
            read_pickle(data, label="file")

    assert peak_n_bytes(run) < 8 * MIB  # about 250 bytes for each opcode, including the overhead of tracemalloc


def test_deep_nesting_does_not_recurse():
    nested = read_pickle(b"\x80\x02" + b"](" * 100_000 + b"N" + b"e" * 100_000 + b".", label="file")
    with pytest.raises(UnsupportedFormatError, match="holds a list, but no tensors"):
        find_tensors(nested)
    nested = read_pickle(b"\x80\x02" + b"}U\x05model" * 100_000 + b"N" + b"s" * 100_000 + b".", label="file")
    with pytest.raises(UnsupportedFormatError, match="holds a dict of 'model'"):
        find_tensors(nested)


def test_a_dict_that_contains_itself_terminates():
    with pytest.raises(UnsupportedFormatError, match="no tensors by name"):
        find_tensors(read_pickle(b"\x80\x02}q\x00U\x05modelh\x00s.", label="file"))


def test_shared_dicts_do_not_multiply(monkeypatch):
    """Twelve levels of 16 names for the next level: 2^48 paths to one tensor."""
    monkeypatch.setattr(machine, "_MAX_TENSORS", machine._MAX_TENSORS // 20)  # memory grows linearly
    value: object = Tensor((2, 3), (3, 1))
    for _ in range(11):
        value = {f"k{n}": value for n in range(16)}
    content = holding(value)
    assert len(content) < 10_000

    def run():
        with pytest.raises(CorruptCheckpointError, match="more tensors and names than a checkpoint can have"):
            source_of(content).names()

    assert peak_n_bytes(run) < 5 * MIB


def test_shared_lists_are_not_walked_for_each_path():
    numbers = list(range(2000))
    content = holding({"a": Tensor((2, 3), (3, 1)), **{f"k{n}": numbers for n in range(5000)}})
    with pytest.raises(CorruptCheckpointError, match="more tensors and names"):
        source_of(content).names()


def test_long_names_do_not_multiply():
    inner = {f"{n}": Tensor((2, 3), (3, 1)) for n in range(1000)}
    content = holding({"x" * 200_000: inner})
    with pytest.raises(CorruptCheckpointError, match="more tensors and names"):
        source_of(content).names()


def test_other_objects_of_trainers_are_left_out():
    import argparse
    import collections
    import datetime
    import pathlib

    import numpy as np

    beside = {
        "args": argparse.Namespace(lr=0.1),
        "when": datetime.datetime(2026, 1, 1),
        "where": pathlib.PurePosixPath("x"),
        "numpy": np.float64(1.5),
        "array": np.arange(3),
        "counts": collections.Counter("abc"),
        "by_default": collections.defaultdict(list, a=[1]),
        "set": {1, 2},
        "complex": 1j,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "optimizer": {"state": {0: {"step": 1}}, "param_groups": [{"betas": (0.9, 0.95)}]},
    }
    for protocol in (2, 4):
        assert source_of(holding({"w": Tensor((2, 3), (3, 1)), **beside})).read("w").tolist() == [[0, 1, 2], [3, 4, 5]]
        held = read_pickle(pickled({"args": beside["args"]}, protocol=protocol), label="file")
        assert held == {"args": Inert("argparse.Namespace")}


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor((2, 3), (-3, 1)), r"strides \(-3, 1\); expected integers from 0"),
        (Tensor((2, -3), (3, 1)), r"shape \(2, -3\)"),
        (Tensor((2, 3), (3, 1), offset=-1), "offset -1"),
        (Tensor((2, 3), (3,)), "one stride per axis"),
        (Tensor((2, 3.0), (3, 1)), "expected integers"),
        (Tensor((True, 3), (3, 1)), "expected integers"),
        (Tensor((2**64, 3), (3, 1)), "expected integers"),
        (Tensor([2, 3], (3, 1)), "shape list"),
        (Tensor((1,) * 65, (1,) * 65), "one stride per axis"),
        (Tensor((2, 3), (3, 1), n_values=-6), "not a storage of numbers"),
        (Tensor((2, 3), (3, 1), n_values="6"), "not a storage of numbers"),
        (Tensor((2, 3), (3, 1), key=0), "not a storage of numbers"),
    ],
)
def test_an_impossible_view_is_refused(tensor, message):
    with pytest.raises(CorruptCheckpointError, match=message):
        source_of(holding({"w": tensor})).names()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor((2, 3), (3, 1), offset=1), r"spans elements 1 to 7 of a storage that has 6"),
        (Tensor((2, 3), (2**62, 1)), "of a storage that has 6"),
        (Tensor((2**62, 3), (3, 1)), "of a storage that has 6"),
        (Tensor((2, 3), (3, 1), offset=2**63 - 1), "of a storage that has 6"),
        (
            Tensor((2, 3), (3, 1), n_values=7),
            "storage should have 7 elements of F32, but the archive holds only 24 bytes",
        ),
        (Tensor((2, 3), (3, 1), key="1"), "entry 'archive/data/1', but the archive has none"),
        (Tensor((2, 3), (3, 1), key="../../../etc/passwd"), "the archive has none"),
        (Tensor((2**62, 2**62), (0, 0)), "repeats elements of its storage"),
        (Tensor((7,), (0,)), "repeats elements of its storage"),
    ],
)
def test_a_view_that_leaves_its_storage_is_refused(tensor, message):
    source = source_of(holding({"w": tensor, "fine": Tensor((6,), (1,))}))
    assert source.read("fine").tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CheckpointError, match=message):
        source.read("w")
    reasons = {tensor.name: tensor.reason for tensor in source.contents()}
    assert reasons["fine"] is None and re.search(message, reasons["w"])


def test_an_empty_view_anywhere_is_empty():
    source = source_of(holding({"w": Tensor((0, 3), (2**62, 2**62), offset=2**62)}))
    assert source.read("w").shape == (0, 3)
    assert source.spec("w").n_bytes == 0


def test_a_view_of_overlapping_rows_is_refused():
    source = source_of(holding({"w": Tensor((2, 3), (1, 1), offset=2)}))
    with pytest.raises(CheckpointError, match="repeats elements of its storage"):
        source.read("w")
