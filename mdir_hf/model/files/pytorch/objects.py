"""The globals that a pickled checkpoint may name, and the data built for each of them.

No global is imported or called. Names from training frameworks become inert objects. Unknown names raise an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files.decode import NAME_OF_TORCH_DTYPE
from mdir_hf.model.sources import MOST_AXES

_I64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a global in a pickle; ``name`` is dotted if the global is nested."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Inert:
    """A placeholder for an object that is not a weight; ``kind`` names its class or function."""

    kind: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A sequence of numbers stored in the archive.

    Attributes:
        key: Key of the archive entry ``data/<key>``.
        dtype: Name as in a safetensors header; None for raw bytes.
        n_values: Number of elements, or of bytes if ``dtype`` is None.
    """

    key: str
    dtype: str | None
    n_values: int
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage.

    Attributes:
        offset: Index of the first element in the storage.
        stride: Stride along each axis, in elements.
        is_negated: Whether the stored numbers must be negated (``torch._neg_view``).
    """

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableTensor:
    """A quantised, sparse or otherwise unsupported tensor."""

    kind: str


STORAGE_DTYPES: Final[dict[str, str]] = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
}
_RAW_STORAGES = {"UntypedStorage", "_UntypedStorage"}
_UNREADABLE_STORAGES = {
    "ComplexDoubleStorage": "complex128 numbers",
    "QInt8Storage": "numbers quantised by torch (qint8)",
    "QUInt8Storage": "numbers quantised by torch (quint8)",
    "QInt32Storage": "numbers quantised by torch (qint32)",
    "QUInt4x2Storage": "numbers quantised by torch (quint4x2)",
    "QUInt2x4Storage": "numbers quantised by torch (quint2x4)",
}
TORCH_DTYPES: Final[dict[str, str]] = {
    **{str(dtype).removeprefix("torch."): name for dtype, name in NAME_OF_TORCH_DTYPE.items()},
    "float8_e8m0fnu": "F8_E8M0",  # older torch lacks this dtype, but files may name it
    **{"double": "F64", "float": "F32", "half": "F16", "long": "I64", "int": "I32", "short": "I16"},
}
_REFUSED_TENSORS = {
    "_rebuild_qtensor": "quantised by torch",
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_nested_tensor": "a nested tensor",
    "_rebuild_meta_tensor_no_storage": "a tensor without values (meta device)",
    "_rebuild_wrapper_subclass": "a tensor of a class of its own",
    "_rebuild_device_tensor_from_numpy": "saved from a device through numpy",
    "_rebuild_device_tensor_from_cpu_tensor": "saved from a device through another tensor",
    "_rebuild_xla_tensor": "saved from an XLA device",
}
_MOST_MARKS = 8
_NEGATABLE = ("F64", "F32", "F16", "BF16")
_PLAIN_TENSOR_CLASSES = {
    "torch.Tensor",
    "torch._tensor.Tensor",
    "torch.nn.Parameter",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
}

_INERT = re.compile(
    r"""
      (builtins|__builtin__)\.(set|frozenset|bytearray|complex|slice|range|object|dict|list|tuple|int|float|str|bool|bytes)
    | (copyreg|copy_reg)\._reconstructor
    | _codecs\.encode
    | collections\.(OrderedDict|defaultdict|Counter|deque)
    | argparse\.Namespace
    | types\.SimpleNamespace
    | datetime\.(datetime|date|time|timedelta|timezone)
    | pathlib\.\w+
    | decimal\.Decimal
    | uuid\.UUID
    | numpy\.(dtype|ndarray|bool_?|u?int\d+|float\d+)
    | numpy\.(core|_core)\.(multiarray|numeric)\.(scalar|_reconstruct|_frombuffer)
    | numpy\.dtypes\.\w+
    | numpy\.random\._pickle\.\w+
    | torch\.(Size|Tensor|device|dtype|Generator|strided|sparse_coo|sparse_csr|per_(tensor|channel)_\w+)
    | torch\.q?u?int\w*
    | torch\.(bits|complex|float)\w*
    | torch\.serialization\._get_layout
    | torch\.torch_version\.TorchVersion
    | torch\.(nn|optim|distributed|cuda\.amp|amp)\.[\w.]+
    | torch\._tensor\.Tensor
    | (transformers|accelerate|peft|deepspeed|megatron|fairseq|omegaconf|pytorch_lightning|lightning|lightning_fabric
       |lightning_utilities|bitsandbytes|__torch__)\.[\w.]+
    """,
    re.VERBOSE,
)
"""Names of objects that are discarded."""


def is_allowed(name: Global) -> bool:
    """Return whether a checkpoint may name this global."""
    return (
        storage_kind(name) is not None
        or str(name) in REBUILDERS
        or (name.module == "torch._utils" and name.name in _REFUSED_TENSORS)
        or (name.module == "torch" and name.name in TORCH_DTYPES)
        or _INERT.fullmatch(str(name)) is not None
    )


def storage_kind(name: Global) -> tuple[str | None, str | None] | None:
    """Return a storage class's dtype and, if unsupported, a description; None for other names."""
    if name.module not in ("torch", "torch.cuda", "torch.storage"):
        return None
    if name.name in STORAGE_DTYPES:
        return STORAGE_DTYPES[name.name], None
    if name.name in _UNREADABLE_STORAGES:
        return None, _UNREADABLE_STORAGES[name.name]
    return (None, None) if name.name in _RAW_STORAGES else None


def make_storage(pid: object) -> Storage:
    """Return the storage for a persistent id ``("storage", class, key, device, n_values)``."""
    if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], Global):
        kind, (key, _, n_values) = storage_kind(pid[1]), pid[2:5]
        if kind is not None and isinstance(key, str) and _is_size(n_values):
            return Storage(key, kind[0], n_values, kind[1])
    raise CorruptCheckpointError("the pickle has a persistent id that is not a storage of numbers")


def apply(function: object, arguments: object) -> object:
    """Return the data for ``function(*arguments)``, calling only functions of this module.

    Raises:
        CorruptCheckpointError: If the arguments do not describe a tensor.
    """
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        return Inert("the result of a call")
    if function.module == "torch._utils" and function.name in _REFUSED_TENSORS:
        return UnreadableTensor(_REFUSED_TENSORS[function.name])
    build = REBUILDERS.get(str(function))
    return Inert(str(function)) if build is None else build(arguments)


def _tensor(arguments: tuple[Any, ...]) -> object:
    if len(arguments) < 4 or not isinstance(arguments[0], Storage):
        _refuse_arguments()
    storage = arguments[0]
    if storage.unreadable is not None:
        return UnreadableTensor(storage.unreadable)
    if storage.dtype is None:
        _refuse_arguments()
    return _marked(_view(storage, storage.dtype, *arguments[1:4]), arguments[6:7])


def _tensor_of_raw_bytes(arguments: tuple[Any, ...]) -> object:
    if len(arguments) < 7 or not isinstance(arguments[0], Storage) or not isinstance(arguments[6], Global):
        _refuse_arguments()
    dtype = TORCH_DTYPES.get(arguments[6].name) if arguments[6].module == "torch" else None
    if dtype is None:
        return UnreadableTensor(f"of dtype {arguments[6]}")
    return _marked(_view(arguments[0], dtype, *arguments[1:4]), arguments[7:8])


def _marked(tensor: PickledTensor, metadata: tuple[Any, ...]) -> object:
    """Apply marks that torch stores with a view, such as ``{"neg": True}`` or ``{"conj": True}``."""
    marks = metadata[0] if metadata else None
    if not marks:
        return tensor
    if not isinstance(marks, dict) or len(marks) > _MOST_MARKS:
        _refuse_arguments()
    names = sorted(str(name)[:40] for name, value in marks.items() if value is not False)
    if not names:
        return tensor
    if names == ["neg"] and tensor.dtype in _NEGATABLE:
        return replace(tensor, is_negated=True)
    return UnreadableTensor(f"a view of {tensor.dtype} with the marks {', '.join(names)}")


def _view(storage: Storage, dtype: str, offset: Any, shape: Any, stride: Any) -> PickledTensor:  # noqa: ANN401
    if not (
        _is_size(offset)
        and isinstance(shape, tuple)
        and isinstance(stride, tuple)
        and len(shape) == len(stride) <= MOST_AXES
        and all(_is_size(size) for size in (*shape, *stride))
    ):
        raise CorruptCheckpointError(
            f"the pickle describes a tensor at offset {_short(offset)} of shape {_short(shape)} with strides "
            f"{_short(stride)}; expected integers from 0 to 2^63 - 1, and one stride per axis"
        )
    return PickledTensor(storage, dtype, offset, shape, stride)


def _parameter(arguments: tuple[Any, ...]) -> object:
    if not arguments or not isinstance(arguments[0], PickledTensor | UnreadableTensor):
        _refuse_arguments()
    return arguments[0]


def _from_type(arguments: tuple[Any, ...]) -> object:
    if len(arguments) < 3 or not isinstance(arguments[1], Global):
        _refuse_arguments()
    function, kind, inner = arguments[:3]
    if str(kind) not in _PLAIN_TENSOR_CLASSES:
        return UnreadableTensor(f"a tensor of the class {kind}")
    # Nested wrappers are rejected: a tensor is wrapped once, and a chain of wrappers would recurse.
    if not isinstance(function, Global) or str(function) not in _TENSOR_REBUILDERS or not isinstance(inner, tuple):
        _refuse_arguments()
    return apply(function, inner)


def _size(arguments: tuple[Any, ...]) -> object:
    return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else Inert("torch.Size")


_TENSOR_REBUILDERS: Final[dict[str, Callable[[tuple[Any, ...]], object]]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_raw_bytes,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}

REBUILDERS: Final[dict[str, Callable[[tuple[Any, ...]], object]]] = {
    **_TENSOR_REBUILDERS,
    "torch._tensor._rebuild_from_type": _from_type,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.tensor._rebuild_from_type": _from_type,
    "torch.nn.parameter.Parameter": _parameter,
    # Items are added one by one later. Building a dict from a list would let a short pickle copy it many times.
    "collections.OrderedDict": lambda arguments: Inert("collections.OrderedDict") if arguments else {},
    "collections.defaultdict": lambda arguments: {},
    "torch.Size": _size,
}
"""Functions that build data from a call's arguments, keyed by the name of the called global."""


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _I64_MAX


def _short(value: object) -> str:
    if isinstance(value, tuple) and len(value) <= MOST_AXES:
        return "(" + ", ".join(_short(item) if not isinstance(item, tuple) else "…" for item in value) + ")"
    if type(value) in (int, float, bool, type(None)) and (type(value) is not int or value.bit_length() <= 128):
        return repr(value)
    return type(value).__name__


def _refuse_arguments() -> NoReturn:
    raise CorruptCheckpointError("the pickle rebuilds a tensor from invalid arguments")
