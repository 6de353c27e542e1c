"""The parameters of a model under the names that ``save_pretrained`` gives them, each made when it is asked for."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mdir_hf.errors import InputError
from mdir_hf.model.files.dtypes import NAME_OF_TORCH_DTYPE
from mdir_hf.model.memory.places import PlacedParameter


class SavedParameters(Mapping[str, torch.Tensor]):
    """What a file saved from the model would hold, by name; a tensor is gathered or converted when it is asked for.

    transformers 5 keeps some weights in memory otherwise than on disk: experts fused into one tensor, prefixes renamed.
    The conversion back is run once without numbers, on the meta device, which tells what each saved tensor is made of;
    then on one group of parameters at a time. What is in memory as it is saved is returned itself, not a copy.

    Args:
        model: A ``PreTrainedModel`` without wrappers.
        parameters: Its parameters and persistent buffers by the names that they have without an adapter, tied ones
            under each name.

    Attributes:
        outlines: Shape and dtype of every tensor, on the meta device.
    """

    def __init__(self, model: Any, parameters: Mapping[str, PlacedParameter]) -> None:  # noqa: ANN401 - of transformers
        self._model = model
        self._parameters = _as_saved_once(model, parameters)
        self._lock = threading.RLock()
        self._held: tuple[object, Mapping[str, torch.Tensor]] | None = None
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
        own = self._same.get(name)
        if own is not None and self._parameters[own].is_at_hand:
            return self._parameters[own].tensor.detach()
        sources = self._sources[name]
        with self._lock:  # one group at a time is in memory beside the model, and ranks gather in one order
            # Training changes parameters in place, which raises their version.
            made_of = (sources, tuple(self._parameters[source].version for source in sources))
            if self._held is None or self._held[0] != made_of:
                self._held = None
                self._held = (made_of, self._make(sources))
            return self._held[1][name]

    def _make(self, sources: tuple[str, ...]) -> Mapping[str, torch.Tensor]:
        gathered = {source: self._parameters[source].gather(self._model) for source in sources}
        with torch.no_grad():
            return _revert(self._model, gathered)


class _Origins(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    """Notes, while tensors are computed from others, which of the first ones each is made of."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self._of = {id(tensor): frozenset((name,)) for name, tensor in named.items()}
        self._kept: list[torch.Tensor] = []  # an id is of a tensor only while it lives

    def of(self, tensor: torch.Tensor) -> frozenset[str]:
        """Names that it is made of."""
        return self._of.get(id(tensor), frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        names = frozenset().union(*map(self.of, read))
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor):
                self._of[id(made)] = self.of(made) | names
                self._kept.append(made)
        return out


def _revert(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Undo what loading did to names and layouts, as ``save_pretrained`` does."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError as exc:
        import transformers

        raise InputError(
            f"models in memory are read as transformers 5 saves them, and this is {transformers.__version__}; update "
            "it, or save the model and compare its folder"
        ) from exc
    saved: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(tensors))
    return saved


def _as_saved_once(
    model: Any,  # noqa: ANN401
    parameters: Mapping[str, PlacedParameter],
) -> dict[str, PlacedParameter]:
    """Leave out what ``save_pretrained`` leaves out: other names of tied weights, and everything but weights."""
    from transformers.modeling_utils import _get_tied_weight_keys

    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    kept = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.tensor.dtype in NAME_OF_TORCH_DTYPE and name not in ignored
    }
    by_place: dict[object, list[str]] = defaultdict(list)
    for name, parameter in kept.items():
        by_place[parameter.place].append(name)
    tied = [re.compile(pattern) for pattern in set(_get_tied_weight_keys(model))]
    for names in by_place.values():
        if len(names) > 1:
            others = [name for name in sorted(names) if any(pattern.search(name) for pattern in tied)]
            for name in others[: len(names) - 1]:
                del kept[name]
    for name, target in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        # Offloading gives each name an empty parameter of its own.
        if name != target and {name, target} <= kept.keys() and not (kept[name].is_at_hand or kept[target].is_at_hand):
            del kept[name]
    return kept
