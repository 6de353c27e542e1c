"""A pickle interpreter that builds only data.

``pickle.Unpickler`` is not safe enough even with an allow-list: it allocates any size that a file claims (a memo index
of 2^31 takes 32 GiB), hashes any key (nested tuples take exponential time), and ``BUILD`` can set attributes. This
interpreter reads opcodes with ``pickletools.genops``, which builds no objects, and creates only its own types.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mdir_hf.budgets import PICKLE
from mdir_hf.errors import CorruptCheckpointError, MdirError, UnsafePickleError, UnsupportedFormatError
from mdir_hf.model.files.pytorch.objects import (
    Global,
    Inert,
    PickledTensor,
    UnreadableTensor,
    apply,
    is_allowed,
    make_storage,
)

_HOLDS_THE_WEIGHTS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights")
"""Keys under which trainers store the weights. The first match is used."""

_WRAPPERS = frozenset(("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Name components inserted by torch.compile, Lightning Fabric, FSDP and its checkpointing."""

_MAX_NESTING = 12
_MOST_SHOWN = 40
_MAX_VISITED = 2_000_000
_MAX_TENSORS = 200_000
_MAX_NAMES_N_CHARACTERS = 64 << 20
"""Limits on the search for tensors. Because dicts may be shared or contain themselves, a short pickle can describe any
number of paths."""

Leaf = PickledTensor | UnreadableTensor


@dataclass
class _Bounds:
    n_visited: int = 0
    n_characters: int = 0
    leaves: dict[str, Leaf] = field(default_factory=dict)


def find_tensors(root: object, *, as_named: bool = False, is_shard: bool = False) -> Mapping[str, Leaf]:
    """Return a state dict's tensors, keyed by name, ignoring other objects.

    Nested names are joined with dots. Unless ``as_named``, wrappers are removed from names. If ``is_shard``, the
    dict may be empty.

    Raises:
        UnsupportedFormatError: If the data contains no state dict.
        CorruptCheckpointError: If there are more tensors or names than the limits.
    """
    chosen, _ = _choose(root)
    bounds = _Bounds()
    _collect(chosen, "", 0, bounds)
    if isinstance(root, Leaf) or not (bounds.leaves or (is_shard and root == {})):
        raise UnsupportedFormatError(
            f"its data.pkl holds {_describe(root)}, but no tensors by name; save the state dict of the model "
            "(`model.save_pretrained`, or torch.save(model.state_dict(), …))"
        )
    return bounds.leaves if as_named else _without_wrappers(bounds.leaves)


def unread_parts(root: object) -> list[str]:
    """Return the keys of other parts with tensors beside the state dict, such as an optimizer or averaged weights."""
    return _choose(root)[1]


def _choose(root: object) -> tuple[object, list[str]]:
    """Return the state dict, and the keys beside it that hold tensors, too."""
    unread: list[str] = []
    for _ in range(_MAX_NESTING):
        parts = root if isinstance(root, dict) else {}
        holders = [key for key, part in parts.items() if isinstance(part, dict) and _holds_tensors(part)]
        chosen = next((key for key in _HOLDS_THE_WEIGHTS if key in holders), None)
        if chosen is None:
            break
        unread += [str(key)[:_MOST_SHOWN] for key in holders if key != chosen]
        root = parts[chosen]
    return root, unread


def _holds_tensors(value: object, depth: int = 3) -> bool:
    if isinstance(value, Leaf):
        return True
    if not isinstance(value, dict) or depth == 0:
        return False
    return any(_holds_tensors(inner, depth - 1) for inner in islice(value.values(), 32))


def _collect(value: object, name: str, depth: int, bounds: _Bounds) -> None:
    bounds.n_visited += len(value) if isinstance(value, dict | list) else 1
    if (
        bounds.n_visited > _MAX_VISITED
        or len(bounds.leaves) > _MAX_TENSORS
        or bounds.n_characters > _MAX_NAMES_N_CHARACTERS
    ):
        raise CorruptCheckpointError("its data.pkl describes more tensors and names than a checkpoint can have")
    if isinstance(value, Leaf):
        bounds.n_characters += len(name)
        bounds.leaves[name] = value
    elif isinstance(value, dict | list) and depth < _MAX_NESTING:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, Leaf | dict | list):
                bounds.n_characters += len(name)
                _collect(inner, f"{name}.{key}" if name else str(key), depth + 1, bounds)


def _without_wrappers(leaves: Mapping[str, Leaf]) -> Mapping[str, Leaf]:
    """Remove wrappers from names, and a leading ``module`` (DataParallel) if all names start with it."""
    names = {name: [part for part in name.split(".") if part not in _WRAPPERS] for name in leaves}
    while names and all(len(parts) > 1 and parts[0] == "module" for parts in names.values()):
        names = {name: parts[1:] for name, parts in names.items()}
    short = {name: ".".join(parts) for name, parts in names.items()}
    if len(set(short.values())) != len(leaves):
        return leaves
    return {short[name]: leaf for name, leaf in leaves.items()}


def _describe(root: object) -> str:
    if isinstance(root, Inert):
        return f"a pickled {root.kind}"
    if isinstance(root, Leaf):
        return "one tensor"
    if isinstance(root, dict):
        keys = [repr(key)[:40] for key in islice(root, 5)]
        return f"a dict of {', '.join(keys)}{', …' if len(root) > 5 else ''}" if keys else "an empty dict"
    return f"a {type(root).__name__}"


_MAX_KEY_BITS = 31
"""Maximum number of bits in an integer key. Longer integers could be chosen to collide in a dict."""

_MAX_MEMO_BITS = 32
"""Maximum number of bits in a memo key. Longer keys, which only the decimal opcode allows, could collide."""


_MARK = object()
"""Marks the start of a container's items on the stack."""

_PUSHED_AS_THEY_ARE = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
))  # fmt: skip
_NO_OPS = frozenset(("PROTO", "FRAME"))


def read_pickle(data: bytes, *, label: str) -> object:
    """Interpret a pickle and return its data.

    Tensors become :class:`~.objects.PickledTensor`, and instances of other classes become :class:`~.objects.Inert`.

    Raises:
        UnsafePickleError: If the pickle names a global that weights do not need.
        CorruptCheckpointError: If the pickle is invalid.
        UnsupportedFormatError: If the pickle has more opcodes than the limit.
    """
    try:
        return _Machine().run(data)
    except MdirError as exc:
        raise exc.about(label) from exc.__cause__
    # An empty stack, a missing mark, a truncated or invalid argument; if warnings are errors, also an invalid escape.
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        DeprecationWarning,
        struct.error,
    ) as exc:
        raise CorruptCheckpointError(f"its data.pkl is not a pickle: {exc}", subject=label) from exc


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        for n_done, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if n_done >= PICKLE.n_items:
                raise UnsupportedFormatError(
                    f"its data.pkl has more than {PICKLE.n_items:,} opcodes, which is more than any checkpoint needs; "
                    "save the state dict alone, as safetensors"
                )
            if opcode.name == "STOP":
                return self._stack[-1]
            self._step(opcode.name, argument)
        raise ValueError("it has no STOP")

    def _step(self, name: str, argument: Any) -> None:  # noqa: ANN401
        if name in _PUSHED_AS_THEY_ARE:
            self._stack.append(argument)
        elif name in _PUSHES:
            self._stack.append(_PUSHES[name](self, argument))
        elif name in _ACTS:
            _ACTS[name](self, argument)
        elif name not in _NO_OPS:
            raise UnsafePickleError(f"its data.pkl uses the opcode {name}, which state dicts do not need")

    def _items(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("a mark is missing")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _take(self, n_items: int) -> list[Any]:
        return [self._stack.pop() for _ in range(n_items)][::-1]

    def _put(self, place: int) -> None:
        if place.bit_length() > _MAX_MEMO_BITS:
            raise ValueError(f"a memo index has {place.bit_length()} bits")
        self._memo[place] = self._stack[-1]

    def _extend(self, items: list[Any]) -> None:
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        if isinstance(self._stack[-1], dict):
            _fill(self._stack[-1], items)

    def _frozenset(self) -> Inert:
        self._items()
        return Inert("frozenset")

    def _instance(self, reference: str) -> object:
        self._items()
        return _instance(_global(*reference.split(" ", 1)))


_Handler = Callable[[_Machine, Any], object]

_PUSHES: dict[str, _Handler] = {
    "NONE": lambda machine, _: None,
    "NEWTRUE": lambda machine, _: True,
    "NEWFALSE": lambda machine, _: False,
    "MARK": lambda machine, _: _MARK,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, place: machine._memo[place]),
    "DUP": lambda machine, _: machine._stack[-1],
    "EMPTY_TUPLE": lambda machine, _: (),
    "TUPLE1": lambda machine, _: tuple(machine._take(1)),
    "TUPLE2": lambda machine, _: tuple(machine._take(2)),
    "TUPLE3": lambda machine, _: tuple(machine._take(3)),
    "TUPLE": lambda machine, _: tuple(machine._items()),
    "EMPTY_LIST": lambda machine, _: [],
    "LIST": lambda machine, _: machine._items(),
    "EMPTY_DICT": lambda machine, _: {},
    "DICT": lambda machine, _: _fill({}, machine._items()),
    "EMPTY_SET": lambda machine, _: Inert("set"),
    "FROZENSET": lambda machine, _: machine._frozenset(),
    "GLOBAL": lambda machine, reference: _global(*reference.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: _global(*machine._take(2)),
    "REDUCE": lambda machine, _: apply(*machine._take(2)),
    "NEWOBJ": lambda machine, _: _instance(machine._take(2)[0]),
    "NEWOBJ_EX": lambda machine, _: _instance(machine._take(3)[0]),
    "INST": lambda machine, reference: machine._instance(reference),
    "OBJ": lambda machine, _: _instance(machine._items()[0]),
    "BINPERSID": lambda machine, _: make_storage(machine._stack.pop()),
}
"""Opcodes that push one value."""

_ACTS: dict[str, _Handler] = {
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine._put),
    "MEMOIZE": lambda machine, _: machine._put(len(machine._memo)),
    "POP": lambda machine, _: machine._stack.pop(),
    "POP_MARK": lambda machine, _: machine._items(),
    "APPEND": lambda machine, _: machine._extend(machine._take(1)),
    "APPENDS": lambda machine, _: machine._extend(machine._items()),
    "SETITEM": lambda machine, _: machine._set_items(machine._take(2)),
    "SETITEMS": lambda machine, _: machine._set_items(machine._items()),
    "ADDITEMS": lambda machine, _: machine._items(),
    # Attributes of an object, such as `_metadata` of a state dict.
    "BUILD": lambda machine, _: machine._stack.pop(),
}
"""Opcodes with other effects. EXT1 to EXT4, PERSID and out-of-band buffers are not allowed."""


def _fill(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Weights are keyed by strings, and lists of them by numbers; other keys are ignored.
        if type(key) is str or (type(key) is int and key.bit_length() <= _MAX_KEY_BITS):
            target[key] = value
    return target


def _global(module: object, name: object) -> Global:
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("it names a global by a value that is not a string")
    reference = Global(module, name)
    if is_allowed(reference):
        return reference
    shown = "".join(letter if letter.isprintable() else "�" for letter in str(reference))[:120]
    raise UnsafePickleError(
        f"its data.pkl names {shown!r}, which weights do not need and which an unpickler would import or call; none of "
        "it was executed. Do not load this file with torch.load(weights_only=False); compare a copy in safetensors"
    )


def _instance(kind: object) -> object:
    if isinstance(kind, Global) and str(kind) in ("collections.OrderedDict", "collections.defaultdict"):
        return {}
    return Inert(str(kind) if isinstance(kind, Global) else "an object")
