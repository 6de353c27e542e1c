"""Finds the weights in an object saved by ``torch.save``: a state dict, or a trainer's checkpoint that contains one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.pytorch.objects import Inert, PickledTensor, UnreadableTensor

_HOLDS_THE_WEIGHTS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights")
"""Keys under which trainers store the weights beside optimiser, schedule and arguments; the first match is used."""

_WRAPPERS = frozenset(("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Name components that torch.compile, Lightning Fabric, FSDP and its checkpointing insert."""

_MAX_NESTING = 12
_MAX_VISITED = 2_000_000
_MAX_TENSORS = 200_000
_MAX_NAMES_N_CHARACTERS = 64 << 20
"""Limits. Dicts may be shared and may contain themselves, so a short pickle can describe any number of paths."""

Leaf = PickledTensor | UnreadableTensor


@dataclass
class _Bounds:
    n_visited: int = 0
    n_characters: int = 0
    leaves: dict[str, Leaf] = field(default_factory=dict)


def find_tensors(root: object, *, as_named: bool = False, is_shard: bool = False) -> Mapping[str, Leaf]:
    """Return the tensors of a state dict by name; other objects are ignored.

    Args:
        root: The object in the pickle.
        as_named: Whether to keep prefixes of wrappers, because an index names the tensors.
        is_shard: Whether it is one of several shards, and may be empty.

    Returns:
        Tensors by name. Names in nested dicts and lists are joined by dots, without prefixes of wrappers.

    Raises:
        UnsupportedFormatError: If it contains no state dict.
        CorruptCheckpointError: If it describes more tensors or names than the limits.
    """
    chosen = _choose(root)
    bounds = _Bounds()
    _collect(chosen, "", 0, bounds)
    if isinstance(root, Leaf) or not (bounds.leaves or (is_shard and root == {})):
        raise UnsupportedFormatError(
            f"its data.pkl holds {_describe(root)}, but no tensors by name; save the state dict of the model "
            "(`model.save_pretrained`, or torch.save(model.state_dict(), …))"
        )
    return bounds.leaves if as_named else _without_wrappers(bounds.leaves)


def _choose(root: object) -> object:
    """Follow the trainers' keys to the dict with the weights."""
    for _ in range(_MAX_NESTING):
        parts = [root.get(key) for key in _HOLDS_THE_WEIGHTS] if isinstance(root, dict) else []
        inner = next((part for part in parts if isinstance(part, dict) and _holds_tensors(part)), None)
        if inner is None:
            break
        root = inner
    return root


def _holds_tensors(value: object, depth: int = 3) -> bool:
    """Return whether a tensor is nested within; checks only the first values of each dict."""
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
    """Remove wrappers from names: ``module`` (DataParallel) if every name starts with it, the others anywhere."""
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
