"""Our validator and safetensors' own, on randomly mutated files: both accept the same files with the same specs."""

import json
import re

import numpy as np
import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files.decode import DTYPES
from mdir_hf.model.files.safetensors import LENGTH_N_BYTES, parse_header, read_header_n_bytes

# Our errors for files that safetensors accepts; header.py has the reasons.
STRICTER = re.compile(
    r"is a duplicate name|the header starts with|described by an array|unknown dtype \{|axes; the limit"
    r"|sizes whose product"
)


def ours(content: bytes):
    n_bytes = read_header_n_bytes(content[:100], n_file_bytes=len(content), label="m")
    header = content[LENGTH_N_BYTES : LENGTH_N_BYTES + n_bytes]
    specs = parse_header(header, n_file_bytes=len(content), path="m", label="m")
    return {name: (spec.dtype, list(spec.shape), content[spec.start : spec.stop]) for name, spec in specs.items()}


def theirs(content: bytes):
    return {
        name: (info["dtype"], info["shape"], bytes(info["data"])) for name, info in safetensors.deserialize(content)
    }


def assert_same_judgement(content: bytes) -> None:
    try:
        expected = theirs(content)
    except safetensors.SafetensorError:
        with pytest.raises(CorruptCheckpointError):
            ours(content)
        return
    try:
        got = ours(content)
    except CorruptCheckpointError as exc:
        assert STRICTER.search(exc.message), exc
        return
    assert got == expected


numbers = st.one_of(
    st.integers(-2, 12), st.sampled_from([2**31, 2**61, 2**63, 2**64 - 1, 2**64, -1, 1.0, True, None, "4"])
)


@st.composite
def entries(draw):
    """Tensors that usually tile their data; sometimes one field is replaced."""
    header: dict[str, object] = {}
    at = 0
    for name in draw(st.lists(st.sampled_from(["a", "b", "c", "", "é", "__metadata__"]), unique=True, max_size=4)):
        dtype = draw(st.sampled_from([*DTYPES, "F32", "BF16"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        n_bytes = int(np.prod(shape, dtype=object)) * DTYPES[dtype].n_bits // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    if "__metadata__" in header:
        header["__metadata__"] = draw(st.dictionaries(st.text(max_size=2), st.text(max_size=2) | numbers, max_size=2))
    tensors = [name for name in header if name != "__metadata__"]
    if tensors and draw(st.booleans()):
        entry = header[draw(st.sampled_from(tensors))]
        assert isinstance(entry, dict)
        match draw(st.sampled_from(["shape", "offset", "drop", "extra", "dtype", "swap"])):
            case "shape":
                entry["shape"] = draw(st.lists(numbers, max_size=4))
            case "offset":
                entry["data_offsets"][draw(st.integers(0, 1))] = draw(numbers)
            case "drop":
                del entry[draw(st.sampled_from(sorted(entry)))]
            case "extra":
                entry["more"] = draw(st.recursive(numbers, lambda inner: st.lists(inner, max_size=2), max_leaves=4))
            case "dtype":
                entry["dtype"] = draw(st.sampled_from(["f32", "F8", None, 1, {"F32": None}, *DTYPES]))
            case "swap":
                entry["data_offsets"].reverse()
    return header, at + draw(st.sampled_from([*[0] * 8, -1, 1]))


@st.composite
def files(draw):
    header, n_data_bytes = draw(entries())
    raw = json.dumps(header, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    raw = (
        draw(st.sampled_from([*[b""] * 9, b" ", b"\n"])) + raw + draw(st.sampled_from([*[b"", b"  "] * 4, b"\0", b"}"]))
    )
    length = len(raw) + draw(st.sampled_from([*[0] * 12, -1, 1, 10**8, 2**63]))
    content = bytearray(max(0, length).to_bytes(8, "little") + raw + bytes(max(0, n_data_bytes)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2]))):  # change, insert or delete some bytes
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["set", "insert", "cut", "repeat"])):
            case "set":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                content[at:at] = draw(st.sampled_from([b"0", b"-", b"e9", b"[", b'"', b",", b"\\ud800", b"\xff", b" "]))
            case "cut":
                del content[at : at + draw(st.integers(1, 9))]
            case "repeat":
                content[at:at] = content[at : at + draw(st.integers(1, 60))]
    return bytes(content)


def whole(header: bytes, n_data_bytes: int = 4) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(n_data_bytes)


TENSOR = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@settings(max_examples=150, deadline=None)
@given(files())
@example(whole(b'{"a":' + TENSOR + b',"__metadata__":null}'))
@example(whole(b'{"a":' + TENSOR + b',"a":' + TENSOR + b"}"))
@example(whole(b'{"a":["F32",[1],[0,4]]}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]}}', 0))
@example(whole(b'{"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[1E0],"data_offsets":[0,4]}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1e999}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":' + b"9" * 400 + b"}}"))
@example(whole(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"\\ud83d"}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"\\ud83d\\ude00"}}'))
@example(whole(b'{"a":{"dtype":"\\u00463\\u0032","sh\\u0061pe":[1],"data_offsets":[0,4]}}'))
@example(whole(b'{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}'))
@example(whole(b'{"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]}}'))
@example(whole(b'{"a":{"dtype":"F32","shape":[0,18446744073709551615,9],"data_offsets":[0,0]},"b":' + TENSOR + b"}"))
@example(whole(b'\xef\xbb\xbf{"a":' + TENSOR + b"}"))
def test_the_same_files_are_accepted_with_the_same_tensors(content):
    assert_same_judgement(content)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_each_dtype_has_the_size_that_the_format_gives_it(name):
    right = DTYPES[name].n_bits  # bytes of 8 elements
    for n_bytes in (right - 1, right, right + 1):
        offsets = json.dumps({"a": {"dtype": name, "shape": [8], "data_offsets": [0, n_bytes]}}).encode()
        assert_same_judgement(whole(offsets, n_bytes))


def test_no_dtype_of_the_format_is_missing():
    with pytest.raises(safetensors.SafetensorError) as caught:
        theirs(whole(b'{"a":{"dtype":"?","shape":[1],"data_offsets":[0,4]}}'))
    known = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", str(caught.value)))
    assert known == set(DTYPES)
