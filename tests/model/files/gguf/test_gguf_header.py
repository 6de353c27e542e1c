"""Hostile and broken headers, written byte by byte, raise our errors at once and in bounded memory."""

import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.budgets import GGUF_HEADER, GGUF_PAIRS, GGUF_STRINGS
from mdir_hf.errors import CorruptCheckpointError, MdirError, UnsupportedFormatError
from mdir_hf.model.files.gguf import header
from mdir_hf.model.files.gguf.header import read_gguf_header
from tests.conformance_tensors import MemoryBytes
from tests.gguf_writer import gguf_bytes

U8, U32, STRING, ARRAY = 0, 4, 8, 9
F32, Q4_0 = 0, 2


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return u64(len(data)) + data


def pair(key, kind, value):
    return text(key) + u32(kind) + value


def entry(name, sizes, kind=F32, offset=0, n_dimensions=None):
    """A row of the table; sizes as in the file, fastest-varying first."""
    return (
        text(name)
        + u32(len(sizes) if n_dimensions is None else n_dimensions)
        + b"".join(map(u64, sizes))
        + (u32(kind) + u64(offset))
    )


def file(pairs=(), entries=(), *, magic=b"GGUF", version=3, n_tensors=None, n_pairs=None, data=1 << 10):
    head = magic + u32(version) + u64(len(entries) if n_tensors is None else n_tensors)
    head += u64(len(pairs) if n_pairs is None else n_pairs) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + bytes(data)


class HugeFile:
    """Claims a size, returns zeros past its content, and records the number of bytes requested."""

    label = "huge"

    def __init__(self, content, n_bytes):
        self.content, self.n_bytes, self.n_read = content, n_bytes, 0

    def read(self, start, stop):
        assert stop <= self.n_bytes
        self.n_read += stop - start
        return (self.content[start:stop] + bytes(stop - start))[: stop - start]


def read(content):
    return read_gguf_header(MemoryBytes("f", content), path="f", first_n_bytes=64)


def test_a_header_written_by_hand_is_read():
    header = read(file([pair("a", U32, u32(7))], [entry("w", [4, 2]), entry("v", [32], Q4_0, offset=32)], version=2))
    assert header.version == 2
    assert header.metadata == {"a": 7}
    assert header.tensors["w"].shape == (2, 4)
    assert header.tensors["v"].start == header.tensors["w"].start + 32
    assert header.tensors["v"].n_bytes == 18


BROKEN = {
    "nothing": (b"", "has 0 bytes"),
    "too short": (b"GGUF" + u32(3), "has 8 bytes, but a GGUF file starts with 24"),
    "another magic": (file(magic=b"\x93NUM"), r"starts with b'\\x93NUM'"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer.*git lfs pull"),
    "no table": (file(n_tensors=3, data=0), "a header of 3 tensors takes 72 bytes .* ends before"),
    "2^63 tensors": (file(n_tensors=1 << 63), "claims 9,223,372,036,854,775,808 tensors; expected at most"),
    "2^64 - 1 pairs": (file(n_pairs=(1 << 64) - 1), "claims 18,446,744,073,709,551,615 key/value pairs"),
    "most tensors": (file(n_tensors=GGUF_HEADER.n_items), "a header of 65,536 tensors takes"),
    "most pairs": (file(n_pairs=GGUF_PAIRS), "a header of 65,536 key/value pairs takes"),
    "key of 2^60 bytes": (file([u64(1 << 60)], n_pairs=1), "key 0 claims 1,152,921,504,606,846,976 bytes"),
    "key past the end": (file([u64(5000)], n_pairs=1), r"key 0 takes 5,000 bytes from byte 32 on, but this file of"),
    "key of no characters": (file([pair(b"\xff\xfe", U32, u32(0))]), "key 0 is not UTF-8"),
    "value of unknown type": (file([pair("a", 13, u32(0))]), "'a' has values of type 13"),
    "string past the end": (file([pair("a", STRING, u64(1 << 40))]), "the value of 'a' takes 1,099,511,627,776 bytes"),
    "string of 2^64 - 1": (file([pair("a", STRING, u64((1 << 64) - 1))]), "the value of 'a' takes 18,446,"),
    "numbers past the end": (file([pair("a", ARRAY, u32(U8) + u64(1 << 62))]), "'a' takes 4,611,686,018,427,387,904 b"),
    "strings past the end": (file([pair("a", ARRAY, u32(STRING) + u64(5000))]), "'a' takes 40,000 bytes"),
    "strings without end": (
        file([pair("a", ARRAY, u32(STRING) + u64(1 << 50))]),
        "'a' claims 1,125,899,906,842,624 str",
    ),
    "one string past the end": (
        file([pair("a", ARRAY, u32(STRING) + u64(3) + text("x") + u64(1 << 61))]),
        "the value of 'a' takes .* ends before",
    ),
    "too many strings": (
        file([pair("a", ARRAY, u32(STRING) + u64(GGUF_STRINGS + 1))], data=1 << 26),
        "'a' claims 2,097,153 strings; expected at most 2,097,152",
    ),
    "arrays in arrays": (file([pair("a", ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(0))]), "'a' is an array of arrays"),
    "array of unknown type": (file([pair("a", ARRAY, u32(99) + u64(1))]), "'a' has values of type 99"),
    "key twice": (file([pair("a", U32, u32(1)), pair("a", U32, u32(2))]), "key 'a' is in the header twice"),
    "tensor twice": (file(entries=[entry("w", [1]), entry("w", [1], offset=32)]), "'w' is in the header twice"),
    "five dimensions": (file(entries=[entry("w", [1] * 5)]), "'w' has 5 dimensions; the format allows 4"),
    "2^32 - 1 dimensions": (file(entries=[entry("w", [1], n_dimensions=(1 << 32) - 1)]), "'w' has 4294967295 dim"),
    "a size of 2^64 - 1": (file(entries=[entry("w", [(1 << 64) - 1])]), "more bytes than a 63-bit count"),
    "sizes that overflow": (file(entries=[entry("w", [1 << 32, 1 << 32])]), "more bytes than a 63-bit count"),
    "bytes that overflow": (file(entries=[entry("w", [1 << 62])]), "more bytes than a 63-bit count"),
    "an empty tensor whose strides overflow": (
        file(entries=[entry("w", [2, 1 << 62, 0])]),
        "sizes whose product",
    ),
    "rows that are not blocks": (file(entries=[entry("w", [33, 32], Q4_0)]), r"rows of 33; Q4_0 packs 32 each"),
    "a number of a block": (file(entries=[entry("w", [], Q4_0)]), r"no dimensions; Q4_0 packs 32"),
    "offset past the end": (file(entries=[entry("w", [4], offset=1 << 40)]), "ends at byte .* it is truncated"),
    "offset that overflows": (file(entries=[entry("w", [4], offset=(1 << 64) - 32)]), "it is truncated"),
    "offset between": (file(entries=[entry("w", [4], offset=16)]), "data offset 16, not a multiple of 32"),
    "overlap": (
        file(entries=[entry("w", [16]), entry("v", [16], offset=32)]),
        r"'v' overlaps 'w': it starts at \d+, expected at least",
    ),
    "same place": (file(entries=[entry("w", [4]), entry("v", [4])]), "'.' overlaps '.'"),
    "truncated data": (file(entries=[entry("w", [1000])], data=3999), "it is truncated"),
    "alignment 0": (file([pair("general.alignment", U32, u32(0))]), "general.alignment is 0; expected a power of two"),
    "alignment 24": (file([pair("general.alignment", U32, u32(24))]), "general.alignment is 24"),
    "alignment 2^31": (file([pair("general.alignment", U32, u32(1 << 31))]), "general.alignment is 2147483648"),
    "alignment of text": (file([pair("general.alignment", STRING, text("x" * 999))]), "alignment is 'xxx.{0,50}; exp"),
    "name of no characters": (file(entries=[entry(b"\xff", [1])]), "the name of tensor 0 is not UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_refused_with_what_is_wrong(case):
    content, message = BROKEN[case]
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        read(content)
    assert caught.value.subject == "f"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file(version=1), "version 1, which was in use for a few days"),
        (file(version=0), "version 0; this version reads 2 and 3"),
        (file(version=4), "version 4; this version reads 2 and 3"),
        (file(version=0x03000000), "big-endian GGUF file; convert it"),
        (file(version=0x02000000), "big-endian GGUF file"),
        (file(magic=b"tjgg"), "a GGML file from before GGUF"),
        (file(magic=b"lmgg"), "a GGML file from before GGUF"),
    ],
)
def test_a_gguf_file_of_another_kind_is_named(content, message):
    with pytest.raises(UnsupportedFormatError, match=message):
        read(content)


@pytest.mark.parametrize(
    "content",
    [
        file(n_tensors=1 << 63),
        file(n_pairs=1 << 63),
        file([pair("a", STRING, u64(1 << 40))]),
        file([pair("a", ARRAY, u32(U8) + u64(1 << 40))]),
        file([pair("a", ARRAY, u32(STRING) + u64(1 << 40))]),
        file([pair("a", ARRAY, u32(STRING) + u64(2) + u64(1 << 40))]),
    ],
)
def test_a_count_in_a_file_of_terabytes_costs_no_read(content):
    source = HugeFile(content, 1 << 45)
    with pytest.raises(CorruptCheckpointError):
        read_gguf_header(source, path="f")
    assert source.n_read <= 1 << 20


@pytest.mark.parametrize("kind", [U8, STRING])
def test_an_endless_header_is_refused_in_bounded_memory(monkeypatch, kind):
    most = 1 << 21
    monkeypatch.setattr(header, "MAX_HEADER_N_BYTES", most)
    claimed = most - 100 if kind == U8 else most // 8 - 100
    content = file([pair("a", ARRAY, u32(kind) + u64(claimed))], n_tensors=5)
    source = HugeFile(content, 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError):
            read_gguf_header(source, path="f")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The growing prefix, the piece that is read next (twice, as this source creates it), and a copy of the array.
    assert peak < 5 * most
    assert source.n_read <= most


def test_any_byte_but_zero_is_true():
    assert read(file([pair("a", 7, b"\x07"), pair("b", ARRAY, u32(7) + u64(2) + b"\0\x02")])).metadata["a"] is True
    assert read(file([pair("b", ARRAY, u32(7) + u64(2) + b"\0\x02")])).metadata["b"].tolist() == [False, True]


def test_every_truncation_of_a_valid_file_is_refused_or_harmless():
    whole = gguf_bytes({"w": torch.ones(4, 8)}, {"a": 1, "tokenizer.ggml.tokens": ["x", "yy"], "f": [0.5, 1.5]})
    header = read(whole)
    for n_bytes in range(len(whole)):
        with pytest.raises(CorruptCheckpointError):
            read(whole[:n_bytes])
    assert header.tensors["w"].stop == len(whole)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_damaged_headers_end_in_a_header_or_in_our_error(data):
    whole = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        filling = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8)])))
        whole[at : at + len(filling)] = filling
    try:
        header = read(bytes(whole))
    except MdirError as error:
        assert str(error).startswith("f: ")
        return
    assert all(0 <= spec.start <= spec.stop <= len(whole) for spec in header.tensors.values())


VALID = gguf_bytes(
    {"w": torch.ones(4, 8), "blk.0.v": torch.ones(2, 32).half()},
    {"a": 1, "s": "text", "tokenizer.ggml.tokens": ["x", "yy"], "f": [0.5, 1.5], "b": True},
)
