"""A pickle machine that can do nothing but build data.

Why not ``pickle.Unpickler`` with an allow-list: its C code allocates what a file claims before it looks (a memo index
of 2^31 takes 32 GiB, a length of 2^40 a terabyte), hashes whatever is made a key (nested tuples take exponential
time), and lets ``BUILD`` write attributes on whatever the allow-list hands out. Here opcodes come from
``pickletools.genops``, which builds nothing, every object is one of a few of ours, and time and memory are bounded by
the number of opcodes and the bytes of the file.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any, NoReturn

from ...errors import CorruptCheckpointError, MdirError, UnsafePickleError, UnsupportedFormatError
from .objects import Global, Inert, apply, is_allowed, make_storage

MAX_PICKLE_N_BYTES = 64 << 20
MAX_OPCODES = 2_000_000
"""A tensor takes about 40: this is enough for 50,000 in one file, and is worked off in some seconds."""

_MAX_KEY_BITS = 31
"""Longest integer that may be a key: longer ones can be chosen to collide in a dict."""

_MAX_MEMO_BITS = 32
"""As in the binary opcodes; the one in digits knows no bound, and would let places in the memo collide."""


class _Mark:
    """Where the items of a container begin on the stack."""


_MARK = _Mark()
_PUSHED_AS_THEY_ARE = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
))  # fmt: skip
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NO_OPS = frozenset(("PROTO", "FRAME"))


def read_pickle(data: bytes, *, label: str) -> object:
    """Run a pickle for its data.

    Args:
        data: The pickle, to its ``STOP``.
        label: What an error calls the file.

    Returns:
        What it holds: dicts, lists, tuples and plain values, :class:`~.objects.PickledTensor` for tensors,
        :class:`~.objects.Inert` for everything else.

    Raises:
        UnsafePickleError: If it names anything that a file of weights does not need.
        CorruptCheckpointError: If it is no pickle, or describes what cannot be.
        UnsupportedFormatError: If it is longer than that of any checkpoint.

    Cost: O(opcodes) time, at most 2,000,000 of them; memory of the same order, and the bytes of the pickle.
    """
    try:
        return _Machine().run(data)
    except MdirError as exc:
        raise exc.about(label) from exc.__cause__
    # The stack runs empty, a mark is missing, an argument is cut off or is no number.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as exc:
        raise CorruptCheckpointError(f"its data.pkl is no pickle: {exc}", subject=label) from exc


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        for n_done, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if n_done >= MAX_OPCODES:
                raise UnsupportedFormatError(
                    f"its data.pkl has more than {MAX_OPCODES:,} opcodes, more than that of any checkpoint of weights; "
                    "save the state dict alone, as safetensors"
                )
            if opcode.name == "STOP":
                return self._stack[-1]
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:  # noqa: ANN401
        stack = self._stack
        if name in _PUSHED_AS_THEY_ARE:
            stack.append(argument)
        elif name in _PUTS:
            if argument.bit_length() > _MAX_MEMO_BITS:
                raise ValueError(f"it remembers something under {argument.bit_length()} bits")
            self._memo[argument] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            items = tuple(stack[-_TUPLES[name] :])
            if len(items) < _TUPLES[name]:
                raise IndexError("its stack runs empty")
            del stack[-len(items) :]
            stack.append(items)
        elif name == "MARK":
            stack.append(_MARK)
        elif name not in _NO_OPS:
            handler = _HANDLERS.get(name)
            if handler is None:
                raise UnsafePickleError(f"its data.pkl uses the opcode {name}, which no state dict needs")
            handler(self, argument)

    def _items(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("it lacks a mark")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _memoize(self, _: object) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _pop(self, _: object) -> None:
        self._stack.pop()

    def _pop_mark(self, _: object) -> None:
        self._items()

    def _dup(self, _: object) -> None:
        self._stack.append(self._stack[-1])

    def _empty_list(self, _: object) -> None:
        self._stack.append([])

    def _list(self, _: object) -> None:
        self._stack.append(self._items())

    def _append(self, _: object) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self, _: object) -> None:
        self._extend(self._items())

    def _extend(self, items: list[Any]) -> None:
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(items)

    def _tuple(self, _: object) -> None:
        self._stack.append(tuple(self._items()))

    def _empty_dict(self, _: object) -> None:
        self._stack.append({})

    def _dict(self, _: object) -> None:
        items = self._items()
        self._stack.append({})
        self._set_items(items)

    def _set_item(self, _: object) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _set_many(self, _: object) -> None:
        self._set_items(self._items())

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                # Weights are named by strings, lists of them by numbers; other keys are of what is not read.
                if type(key) is str or (type(key) is int and key.bit_length() <= _MAX_KEY_BITS):
                    target[key] = value

    def _set(self, _: object) -> None:
        self._stack.append(Inert("set"))

    def _set_of_items(self, _: object) -> None:
        self._items()
        self._stack.append(Inert("frozenset"))

    def _drop_items(self, _: object) -> None:
        self._items()

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._name(module, name)

    def _stack_global(self, _: object) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("it names a global by something that is no name")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        asked = Global(module, name)
        if not is_allowed(asked):
            _refuse(asked)
        self._stack.append(asked)

    def _reduce(self, _: object) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(apply(function, arguments))

    def _new(self, _: object) -> None:
        self._stack.pop()
        self._stack.append(_instance(self._stack.pop()))

    def _new_with_keywords(self, _: object) -> None:
        self._stack.pop()
        self._new(None)

    def _instance(self, argument: str) -> None:
        self._items()
        self._global(argument)
        self._stack.append(_instance(self._stack.pop()))

    def _object(self, _: object) -> None:
        self._stack.append(_instance(self._items()[0]))

    def _build(self, _: object) -> None:
        self._stack.pop()  # attributes of an object: `_metadata` of a state dict, and whatever inert ones have

    def _persistent(self, _: object) -> None:
        self._stack.append(make_storage(self._stack.pop()))


_HANDLERS = {
    "MEMOIZE": _Machine._memoize,
    "POP": _Machine._pop,
    "POP_MARK": _Machine._pop_mark,
    "DUP": _Machine._dup,
    "EMPTY_LIST": _Machine._empty_list,
    "LIST": _Machine._list,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "TUPLE": _Machine._tuple,
    "EMPTY_DICT": _Machine._empty_dict,
    "DICT": _Machine._dict,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_many,
    "EMPTY_SET": _Machine._set,
    "ADDITEMS": _Machine._drop_items,
    "FROZENSET": _Machine._set_of_items,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._new,
    "NEWOBJ_EX": _Machine._new_with_keywords,
    "INST": _Machine._instance,
    "OBJ": _Machine._object,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent,
}
"""Every opcode that does something; EXT1 to EXT4, PERSID and out-of-band buffers have no place in a checkpoint."""


def _instance(kind: object) -> object:
    if isinstance(kind, Global) and str(kind) in ("collections.OrderedDict", "collections.defaultdict"):
        return {}
    return Inert(str(kind) if isinstance(kind, Global) else "an object")


def _refuse(asked: Global) -> NoReturn:
    shown = "".join(letter if letter.isprintable() else "�" for letter in str(asked))[:120]
    raise UnsafePickleError(
        f"its data.pkl names {shown!r}, which no file of weights needs and which an unpickler would import or call; "
        "nothing of it was run. Do not load this file with torch.load(weights_only=False); compare a copy in "
        "safetensors"
    )
