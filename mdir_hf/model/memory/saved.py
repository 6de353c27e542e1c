"""A model's parameters under the names used when saving."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from mdir_hf.errors import InputError
from mdir_hf.model.files.decode import NAME_OF_TORCH_DTYPE


@dataclass(frozen=True, slots=True, eq=False)
class PlacedParameter:
    """A parameter or buffer of a model, which may be sharded or offloaded."""

    name: str
    tensor: torch.Tensor

    def outline(self) -> torch.Tensor:
        """Return a meta tensor with the parameter's dtype and full shape."""
        shape = getattr(self.tensor, "ds_shape", self.tensor.shape)  # ZeRO-3 leaves an empty tensor on each rank
        return torch.empty(tuple(shape), dtype=self.tensor.dtype, device="meta")

    @property
    def is_at_hand(self) -> bool:
        """Whether this is a plain tensor that contains all of its values."""
        return not (
            self.tensor.device.type == "meta"
            or hasattr(self.tensor, "ds_id")
            or is_traceable_wrapper_subclass(self.tensor)
        )

    @property
    def is_sharded(self) -> bool:
        """Whether several ranks of ``torch.distributed`` store parts of this parameter."""
        return hasattr(self.tensor, "ds_id") or hasattr(self.tensor, "full_tensor")

    @property
    def place(self) -> object:
        """A key that is the same for parameters that share memory."""
        if self.is_at_hand and self.tensor.numel():
            return self.tensor.device, self.tensor.data_ptr(), tuple(self.tensor.shape)
        return id(self.tensor)

    @property
    def version(self) -> int:
        """A number that increases with every in-place change."""
        return self.tensor._version

    def gather(self, model: torch.nn.Module) -> torch.Tensor:
        """Return the whole parameter as a plain tensor.

        All ranks must request the same sharded parameters in the same order.

        Raises:
            InputError: If the parameter is on the meta device and its values are unknown.
        """
        tensor = self.tensor.detach()
        if hasattr(self.tensor, "ds_id"):
            return self._gather_zero()
        if tensor.device.type == "meta":
            return self._fetch_offloaded(model)
        if hasattr(tensor, "full_tensor"):  # a DTensor, from FSDP2 or tensor parallelism
            whole: torch.Tensor = tensor.full_tensor()
            return whole
        if is_traceable_wrapper_subclass(tensor):  # torchao stores codes and scales in one tensor
            return tensor.dequantize()
        return tensor

    def _gather_zero(self) -> torch.Tensor:
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        with deepspeed.zero.GatheredParameters([self.tensor]):
            return self.tensor.detach().to("cpu", copy=True)

    def _fetch_offloaded(self, model: torch.nn.Module) -> torch.Tensor:
        parts = self.name.split(".")
        for depth in range(len(parts) - 1, -1, -1):
            module = model.get_submodule(".".join(parts[:depth]))
            for weights in _weight_maps(getattr(module, "_hf_hook", None)):
                try:
                    tensor: torch.Tensor = weights[".".join(parts[depth:])]
                except KeyError:
                    continue
                return tensor.detach()
        raise InputError(
            f"parameter {self.name!r} is on the meta device, and no accelerate hook has its values; "
            "load the weights before the comparison"
        )


def _weight_maps(hook: Any) -> Iterator[Mapping[str, torch.Tensor]]:  # noqa: ANN401 - from accelerate, which is optional
    for single_hook in getattr(hook, "hooks", None) or ([] if hook is None else [hook]):
        weights = getattr(single_hook, "weights_map", None)
        if weights is not None:
            yield weights


class SavedParameters(Mapping[str, torch.Tensor]):
    """A model's tensors, keyed by the names used when saving, and gathered or converted on access.

    transformers 5 fuses experts in memory and splits them when saving. The split runs once on the meta device, to find
    the parameters behind each saved tensor, and again on access.
    """

    def __init__(self, model: Any, parameters: Mapping[str, PlacedParameter]) -> None:  # noqa: ANN401 - from transformers
        self._model = model
        self._parameters = _as_saved_once(model, parameters)
        self._lock = threading.RLock()
        self._last_group: tuple[object, Mapping[str, torch.Tensor]] | None = None
        outlines = {name: parameter.outline() for name, parameter in self._parameters.items()}
        with _Origins(outlines) as origins:
            saved = _revert(model, outlines)
        self.outlines: dict[str, torch.Tensor] = saved
        self._sources = {name: tuple(sorted(origins.of(tensor))) for name, tensor in saved.items()}
        whole = {id(tensor): name for name, tensor in outlines.items()}
        self._same = {name: whole[id(tensor)] for name, tensor in saved.items() if id(tensor) in whole}

    def __len__(self) -> int:
        return len(self.outlines)

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __getitem__(self, name: str) -> torch.Tensor:
        parameter_name = self._same.get(name)
        if parameter_name is not None and self._parameters[parameter_name].is_at_hand:
            return self._parameters[parameter_name].tensor.detach()
        sources = self._sources[name]
        with self._lock:  # so that one group is in memory, and all ranks gather in the same order
            # Training changes parameters in place, which increases their version.
            group = (sources, tuple(self._parameters[source].version for source in sources))
            if self._last_group is None or self._last_group[0] != group:
                self._last_group = None
                self._last_group = (group, self._make(sources))
            return self._last_group[1][name]

    def _make(self, sources: tuple[str, ...]) -> Mapping[str, torch.Tensor]:
        gathered = {source: self._parameters[source].gather(self._model) for source in sources}
        with torch.no_grad():
            return _revert(self._model, gathered)


class _Origins(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    """Records which named tensors each computed tensor depends on."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self._of = {id(tensor): frozenset((name,)) for name, tensor in named.items()}
        self._alive: list[torch.Tensor] = []  # an id is valid only while its tensor exists

    def of(self, tensor: torch.Tensor) -> frozenset[str]:
        return self._of.get(id(tensor), frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        names = frozenset().union(*map(self.of, operands))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._of[id(tensor)] = self.of(tensor) | names
                self._alive.append(tensor)
        return out


def _revert(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # noqa: ANN401
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError as exc:
        import transformers

        raise InputError(
            f"models in memory need transformers 5, but this is {transformers.__version__}; update it, or save the "
            "model and compare its folder"
        ) from exc
    saved: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(tensors))
    return saved


def _as_saved_once(
    model: Any,  # noqa: ANN401
    parameters: Mapping[str, PlacedParameter],
) -> dict[str, PlacedParameter]:
    from transformers.modeling_utils import _get_tied_weight_keys

    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    saved = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.tensor.dtype in NAME_OF_TORCH_DTYPE and name not in ignored
    }
    by_place: dict[object, list[str]] = defaultdict(list)
    for name, parameter in saved.items():
        by_place[parameter.place].append(name)
    tied = [re.compile(pattern) for pattern in set(_get_tied_weight_keys(model))]
    for names in by_place.values():
        if len(names) > 1:
            aliases = [name for name in sorted(names) if any(pattern.search(name) for pattern in tied)]
            for name in aliases[: len(names) - 1]:
                del saved[name]
    for name, target in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        # Offloading gives each name its own empty parameter.
        if (
            name != target
            and {name, target} <= saved.keys()
            and not (saved[name].is_at_hand or saved[target].is_at_hand)
        ):
            del saved[name]
    return saved
