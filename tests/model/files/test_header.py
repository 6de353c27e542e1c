import json

import pytest

from mdir_hf.budgets import Budget
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files import safetensors
from mdir_hf.model.files.safetensors import parse_header, read_header_n_bytes


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def parse(header, *, n_data_bytes=4):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return parse_header(raw, n_file_bytes=8 + len(raw) + n_data_bytes, path="m.safetensors", label="repo:m.safetensors")


def test_offsets_become_absolute():
    raw = json.dumps({"b": entry(offsets=(4, 8)), "a": entry(shape=(1, 1))}).encode()
    header = parse_header(raw, n_file_bytes=8 + len(raw) + 8, path="m.safetensors", label="m")
    assert (header["b"].start, header["b"].stop) == (8 + len(raw) + 4, 8 + len(raw) + 8)
    assert header["a"].shape == (1, 1)
    assert header["a"].path == "m.safetensors"


REFUSED = {
    "not utf-8": (b'{"\xff":1}', "not UTF-8"),
    "not json": (b"{'a':1}", "not valid JSON"),
    "spaces": (b" " * 50, "starts with ' '"),
    "nothing": (b"", "starts with ''"),
    "array": (b"[]", r"starts with '\['"),
    "cut short": (b'{"a":', "not valid JSON"),
    "more after it": (b'{"a":1}}', "not valid JSON"),
    "NaN": (b'{"a":NaN}', "NaN is not JSON"),
    "number out of range": (b'{"a":1e999}', "number out of range"),
    "long number out of range": (b'{"a":' + b"9" * 6000 + b"}", "number out of range"),
    "half a surrogate pair": (b'{"\\ud800":1}', "half a surrogate pair"),
    "too deep": (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    "a name twice": (b'{"a":1,"a":2}', "'a' is a duplicate name"),
    "a field twice": (b'{"a":{"dtype":"F32","dtype":"F16"}}', "'dtype' is a duplicate name"),
    "metadata is a list": ({"__metadata__": []}, "__metadata__ is an array"),
    "metadata holds a number": ({"__metadata__": {"step": 1}}, r"__metadata__\['step'\] is a number"),
    "entry is a number": ({"a": 1}, "tensor 'a' is described by a number"),
    "entry lacks a field": ({"a": {"dtype": "F32", "shape": [1]}}, "tensor 'a' has no data_offsets"),
    "unknown dtype": ({"a": entry("F12")}, "tensor 'a' has the unknown dtype 'F12'"),
    "dtype of small letters": ({"a": entry("f32")}, "has the unknown dtype 'f32'"),
    "negative size": ({"a": entry(shape=(-1,))}, r"tensor 'a' has shape \[-1\]"),
    "fractional size": ({"a": entry(shape=(1.0,))}, r"tensor 'a' has shape \[1.0\]"),
    "negative zero": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}', "data_offsets"),
    "truth value as size": ({"a": entry(shape=(True,))}, r"tensor 'a' has shape \[True\]"),
    "shape is a number": ({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, "tensor 'a' has shape 1"),
    "size beyond 64 bits": ({"a": entry(shape=(2**64,))}, "2\\^64 - 1"),
    "three offsets": ({"a": entry(offsets=(0, 4, 5))}, r"data_offsets \[0, 4, 5\]; expected two"),
    "ends before it starts": ({"a": entry(offsets=(4, 0))}, "ends at 0, before it starts at 4"),
    "wrong size": ({"a": entry(shape=(2,))}, r"occupies 4 bytes .*F32 of shape \(2,\) takes 8"),
    "elements overflow": ({"a": entry(shape=(2**63, 4))}, "more elements than a 64-bit count"),
    "elements overflow before a zero": ({"a": entry(shape=(2**63, 4, 0), offsets=(0, 0))}, "more elements"),
    "empty, of a size beyond 63 bits": (
        {"a": entry(shape=(0, 2**63), offsets=(0, 0))},
        "sizes whose product",
    ),
    "empty, and its strides overflow": (
        {"a": entry(shape=(0, 2**62, 2), offsets=(0, 0))},
        "sizes whose product",
    ),
    "empty, and one too large": ({"a": entry(shape=(2**48 + 1, 0), offsets=(0, 0))}, "than 281,474,976,710,656"),
    "one axis too many": ({"a": entry(shape=(1,) * 65)}, "tensor 'a' has 65 axes; the limit is 64"),
    "bits overflow": ({"a": entry(shape=(2**60,))}, "more bits than a 64-bit count"),
    "half a byte": ({"a": entry("F4", (3,), (0, 4))}, "12 bits, which is not a whole number of bytes"),
    "a hole": ({"a": entry(offsets=(1, 5))}, r"'a' leaves a gap after the header: .*offset 1, expected 0"),
    "an overlap": (
        {"a": entry(), "b": entry(offsets=(2, 6))},
        r"'b' overlaps 'a': .*offset 2, expected 4",
    ),
    "same bytes twice": ({"a": entry(), "b": entry()}, "'b' overlaps 'a'"),
    "past the end": ({"a": entry(shape=(2,), offsets=(0, 8))}, "but the file has .* truncated"),
    "bytes left over": ({}, "the rest belongs to no tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_header_that_breaks_the_rules_is_refused_by_name(case):
    header, message = REFUSED[case]
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        parse(header)
    assert caught.value.subject == "repo:m.safetensors"


LENGTHS = {
    "no file": (b"", 0, "has 0 bytes"),
    "too short": (b"1234567", 7, "has 7 bytes"),
    "longer than the file": ((50).to_bytes(8, "little") + b"{", 40, "claims 50 bytes, but only 32 follow"),
    "longer than allowed": ((10**8 + 1).to_bytes(8, "little") + b"{", 10**12, "100,000,001 bytes; the format allows"),
    "a zip file": (b"PK\x03\x04\x00\x00\x08\x08\x00", 10**9, "the format allows 100,000,000"),
    "100 MB of spaces": ((10**8).to_bytes(8, "little") + b"   ", 10**9, "starts with b' '"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid", 130, "Git LFS pointer"),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_an_impossible_length_is_refused_before_more_is_read(case):
    prefix, n_file_bytes, message = LENGTHS[case]
    with pytest.raises(CorruptCheckpointError, match=message):
        read_header_n_bytes(prefix, n_file_bytes=n_file_bytes, label="m")


def test_the_longest_header_allowed_is_allowed():
    prefix = (10**8).to_bytes(8, "little") + b"{"
    assert read_header_n_bytes(prefix, n_file_bytes=10**8 + 8, label="m") == 10**8


def test_a_header_of_too_much_is_refused_before_it_is_parsed():
    header = b'{"a":[' + b"[]," * 1_000_000 + b"0]}"
    with pytest.raises(UnsupportedFormatError, match=r"lists 2,000,002 values .* the limit is 850,000"):
        parse_header(header, n_file_bytes=8 + len(header), path="p", label="file")


def test_a_short_read_does_not_give_a_length():
    with pytest.raises(CorruptCheckpointError, match="starts with 8 bytes"):
        read_header_n_bytes(bytes(7), n_file_bytes=100, label="m")


@pytest.mark.parametrize(("size", "is_too_many"), [(2**64 - 1, False), (2**64, True)])
def test_elements_are_counted_in_64_bits(size, is_too_many):
    # 2^64 - 1 elements of one byte have more than 2^64 bits.
    many = {"a": entry("I8", (size,) if not is_too_many else (2**32, 2**32), (0, 4))}
    with pytest.raises(CorruptCheckpointError, match="more elements" if is_too_many else "more bits"):
        parse(many)


@pytest.mark.parametrize("n_more", [0, 1])
def test_a_header_at_the_limit_of_values_is_read(n_more, monkeypatch):
    monkeypatch.setattr(safetensors, "SAFETENSORS_HEADER", Budget(100, 7))
    raw = json.dumps({"__metadata__": {str(n): "" for n in range(6 + n_more)}}).encode()
    if n_more:
        with pytest.raises(UnsupportedFormatError, match="lists 8 values"):
            parse(raw, n_data_bytes=0)
    else:
        assert parse(raw, n_data_bytes=0) == {}
