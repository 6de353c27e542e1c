"""Read safetensors files, single or sharded, with range requests.

A file consists of ``N`` as a little-endian ``u64``, ``N`` bytes of JSON that map each name to ``{dtype, shape,
data_offsets}``, and the data.

The reader accepts the same files as the format's validator (``Metadata::validate`` in ``safetensors/src/tensor.rs``,
0.8), except that it is:

- stricter on what the README forbids: white space before the ``{``, or a duplicate name.
- stricter on forms that writers do not produce: entries that are JSON arrays, or a dtype ``{"F32": null}``.
- stricter on shapes that torch may reject: more than 64 axes, or an empty tensor whose other sizes multiply to more
  than 2^48.
- stricter on size: at most as many values in the header as about 90,000 tensors need.
- more lenient on unknown fields of an entry, which may be nested deeper than 127 levels.
"""

from __future__ import annotations

import json
import math
import re
from functools import cached_property
from typing import NoReturn, cast

from mdir_hf.budgets import MARKS_OF_A_TENSOR, SAFETENSORS_HEADER, collector_paused, json_values
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError, naming
from mdir_hf.model.files.decode import DTYPES
from mdir_hf.model.files.shards import Header, ShardedTensors
from mdir_hf.model.sources import TensorSpec, excess_of_shape

LENGTH_N_BYTES = 8
"""Size of the length field before the header."""

_U64_MAX = 2**64 - 1
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_FIELDS = ("dtype", "shape", "data_offsets")


def read_header_n_bytes(prefix: bytes, *, n_file_bytes: int, label: str) -> int:
    """Return the number of JSON bytes after the length field.

    ``prefix`` contains at least the first 8 bytes of the file; the ninth, if given, is checked too.

    Raises:
        CorruptCheckpointError: If the file is too short, the length is not allowed, or no header follows.
    """
    with naming(label):
        if n_file_bytes < LENGTH_N_BYTES or len(prefix) < LENGTH_N_BYTES:
            _fail(f"the file has {n_file_bytes} bytes, but a safetensors file starts with 8 bytes of header length")
        n_bytes = int.from_bytes(prefix[:LENGTH_N_BYTES], "little")
        if prefix.startswith(b"version https://git-lfs"):
            _fail("this is a Git LFS pointer, not the weights; fetch the file itself (`git lfs pull`)")
        if n_bytes > SAFETENSORS_HEADER.n_bytes:
            _fail(f"the header claims {n_bytes:,} bytes; the format allows {SAFETENSORS_HEADER.n_bytes:,}")
        if LENGTH_N_BYTES + n_bytes > n_file_bytes:
            _fail(
                f"the header claims {n_bytes:,} bytes, but only {n_file_bytes - LENGTH_N_BYTES:,} follow in this file "
                f"of {n_file_bytes:,}; it is truncated, or not a safetensors file"
            )
        first = prefix[LENGTH_N_BYTES : LENGTH_N_BYTES + 1]
        if first and n_bytes and first != b"{":
            _fail(f"the header starts with {first!r}; expected '{{'")
    return n_bytes


@collector_paused()
def parse_header(header: bytes, *, n_file_bytes: int, path: str, label: str) -> dict[str, TensorSpec]:
    """Parse and validate the JSON bytes of a header.

    The offsets in the specs are absolute, and cover the data without gaps or overlaps.

    Raises:
        CorruptCheckpointError: If the header breaks the rules of the format.
        UnsupportedFormatError: If the header has more values than the limit.
    """
    with naming(label):
        n_structure = json_values(header)
        if n_structure > SAFETENSORS_HEADER.n_items:
            raise UnsupportedFormatError(
                f"the header of {len(header):,} bytes lists {n_structure:,} values and groups of values; the limit is "
                f"{SAFETENSORS_HEADER.n_items:,}, enough for about 90,000 tensors in one file"
            )
        entries = _load_object(header)
        _check_metadata(entries.pop("__metadata__", None))
        base = LENGTH_N_BYTES + len(header)
        specs = [_read_entry(name, entry, base=base, path=path) for name, entry in entries.items()]
        _check_tiling(specs, base=base, n_file_bytes=n_file_bytes)
    return {spec.name: spec for spec in specs}


class _JsonError(ValueError):
    """Invalid JSON that Python's parser accepts."""


def _load_object(header: bytes) -> dict[str, object]:
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise CorruptCheckpointError(f"the header is not UTF-8: {exc}") from exc
    if not text.startswith("{"):
        _fail(f"the header starts with {text[:1]!r}; expected '{{'")
    try:
        loaded = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_int=_parse_int if _has_odd_number(header) else None,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
        if re.search(r"\\u[dD][89a-fA-F]", text):
            # Half of a surrogate pair is not a character; Python accepts it, but the format does not.
            json.dumps(loaded, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as exc:
        raise CorruptCheckpointError(f"the header escapes half a surrogate pair: {exc}") from exc
    except ValueError as exc:
        raise CorruptCheckpointError(f"the header is not valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise CorruptCheckpointError("the header is nested too deeply") from exc
    return cast("dict[str, object]", loaded)


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_name = dict(pairs)
    if len(by_name) != len(pairs):
        seen_names: set[str] = set()
        for name, _ in pairs:
            if name in seen_names:
                raise _JsonError(f"{name!r} is a duplicate name")
            seen_names.add(name)
    return by_name


def _has_odd_number(header: bytes) -> bool:
    return b"-0" in header or bytes(300 * b"0") in header.translate(_ZEROS)


def _parse_int(digits: str) -> int | float:
    if len(digits) >= 300:  # larger than any float: out of range for the format's parser, and slow to parse here
        return _parse_float(digits)
    # The format's parser reads "-0" as a float, which is not a valid size or offset.
    return int(digits) if digits != "-0" else -0.0


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _JsonError(f"number out of range: {digits[:20]}…")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _JsonError(f"{name} is not JSON")


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        _fail(f"__metadata__ is {_kind(metadata)}; it must map strings to strings")
    for key, value in metadata.items():
        if not isinstance(value, str):
            _fail(f"__metadata__[{key!r}] is {_kind(value)}; it must be a string")


def _read_entry(name: str, entry: object, *, base: int, path: str) -> TensorSpec:
    if not isinstance(entry, dict):
        _fail(f"tensor {name!r} is described by {_kind(entry)}; expected an object with {', '.join(_FIELDS)}")
    missing_fields = [field for field in _FIELDS if field not in entry]
    if missing_fields:
        _fail(f"tensor {name!r} has no {' and no '.join(missing_fields)}")
    dtype, shape, offsets = (entry[field] for field in _FIELDS)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        _fail(f"tensor {name!r} has the unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(_is_u64(size) for size in shape):
        _fail(f"tensor {name!r} has shape {shape!r}; expected a list of integers from 0 to 2^64 - 1")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_u64(offset) for offset in offsets):
        _fail(f"tensor {name!r} has data_offsets {offsets!r}; expected two integers from 0 to 2^64 - 1")
    start, stop = offsets
    expected_n_bytes = _n_bytes(name, shape, dtype)
    if stop < start:
        _fail(f"tensor {name!r} ends at {stop}, before it starts at {start}")
    if stop - start != expected_n_bytes:
        _fail(
            f"tensor {name!r} occupies {stop - start:,} bytes (data_offsets {start}..{stop}); "
            f"{dtype} of shape {tuple(shape)} takes {expected_n_bytes:,}"
        )
    excess = excess_of_shape(shape)
    if excess is not None:
        _fail(f"tensor {name!r} {excess}")
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype, path=path, start=base + start, stop=base + stop)


def _n_bytes(name: str, shape: list[int], dtype: str) -> int:
    n_elements = 1
    for size in shape:
        n_elements *= size
        if n_elements > _U64_MAX:
            _fail(f"tensor {name!r} of shape {tuple(shape)} has more elements than a 64-bit count can hold")
    n_bits = n_elements * DTYPES[dtype].n_bits
    if n_bits > _U64_MAX:
        _fail(f"tensor {name!r} ({dtype}, shape {tuple(shape)}) has more bits than a 64-bit count can hold")
    if n_bits % 8:
        _fail(
            f"tensor {name!r} ({dtype}, shape {tuple(shape)}) has {n_bits} bits, which is not a whole number of bytes"
        )
    return n_bits // 8


def _check_tiling(specs: list[TensorSpec], *, base: int, n_file_bytes: int) -> None:
    end = base
    previous = "the header"
    for spec in sorted(specs, key=lambda spec: (spec.start, spec.stop)):
        if spec.start != end:
            what = "leaves a gap after" if spec.start > end else "overlaps"
            _fail(
                f"tensor {spec.name!r} {what} {previous}: it starts at data offset {spec.start - base:,}, "
                f"expected {end - base:,}"
            )
        end = spec.stop
        previous = repr(spec.name)
    if end != n_file_bytes:
        _fail(
            f"header and tensors take {end:,} bytes, but the file has {n_file_bytes:,}; "
            + ("it is truncated" if n_file_bytes < end else "the rest belongs to no tensor")
        )


def _is_u64(value: object) -> bool:
    return type(value) is int and 0 <= value <= _U64_MAX


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _fail(message: str) -> NoReturn:
    raise CorruptCheckpointError(message)


HEADER_GUESS_N_BYTES = 100_000
"""Length of the first read. According to huggingface_hub, 97% of headers in the 1000 most used repositories are
shorter."""


UNNAMED_TENSORS = 100_000
"""Shards may list up to twice as many tensors as their index, plus this number."""


class SafetensorsSource(ShardedTensors):
    """The tensors of a safetensors checkpoint, read lazily.

    Each header takes one or two reads.
    """

    format_name = "safetensors"
    usual_stem = "model"
    usual_suffix = ".safetensors"
    sizes_tell = True

    _n_listed = 0

    @cached_property
    def _unparsed(self) -> dict[str, bytes]:
        """Headers that were read to count their tensors, keyed by file."""
        return {}

    def _most_tensors(self, path: str) -> int:
        content = self._unparsed[path] = self._header_bytes(path)
        if sum(map(len, self._unparsed.values())) > SAFETENSORS_HEADER.n_bytes:
            raise UnsupportedFormatError(
                f"the headers up to the one in {path} have more than {SAFETENSORS_HEADER.n_bytes:,} bytes, and no "
                "index says which of them are needed",
                subject=self.label,
            )
        return json_values(content) // MARKS_OF_A_TENSOR

    def _read_header(self, path: str) -> Header:
        content = self._unparsed.pop(path, None)
        if content is None:
            content = self._header_bytes(path)
        source = self._byte_source(path)
        if self._index is not None:
            # Normal shards list few tensors that the index lacks. Parsing many long headers would take minutes.
            self._n_listed += json_values(content) // MARKS_OF_A_TENSOR
            if self._n_listed > 2 * len(self._index.weight_map) + UNNAMED_TENSORS:
                raise UnsupportedFormatError(
                    f"the headers up to the one in {path} list many more tensors than the index names",
                    subject=self._label_of_index(),
                )
        return parse_header(content, n_file_bytes=source.n_bytes, path=path, label=source.label)

    def _header_bytes(self, path: str) -> bytes:
        source = self._byte_source(path)
        prefix = source.read(0, min(source.n_bytes, LENGTH_N_BYTES + HEADER_GUESS_N_BYTES))
        n_bytes = read_header_n_bytes(prefix, n_file_bytes=source.n_bytes, label=source.label)
        stop = LENGTH_N_BYTES + n_bytes
        if stop > len(prefix):
            prefix += source.read(len(prefix), stop)
        return bytes(prefix[LENGTH_N_BYTES:stop])
