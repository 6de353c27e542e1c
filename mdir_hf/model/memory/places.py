"""Locates the numbers of one parameter: gathers shards, fetches offloaded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mdir_hf.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class PlacedParameter:
    """A parameter or buffer of a model, wherever its numbers are.

    Attributes:
        name: Its name in the model.
        tensor: What the model holds under it.
    """

    name: str
    tensor: torch.Tensor

    def outline(self) -> torch.Tensor:
        """Shape and dtype of the whole: a tensor on the meta device."""
        shape = getattr(self.tensor, "ds_shape", self.tensor.shape)  # ZeRO-3 leaves an empty tensor on each rank
        return torch.empty(tuple(shape), dtype=self.tensor.dtype, device="meta")

    @property
    def is_at_hand(self) -> bool:
        """Whether it is a plain tensor with all of its numbers, on whatever device."""
        return not (
            self.tensor.device.type == "meta"
            or hasattr(self.tensor, "ds_id")
            or is_traceable_wrapper_subclass(self.tensor)
        )

    @property
    def place(self) -> object:
        """Equal for what lies at the same place: names of one tensor."""
        if self.is_at_hand and self.tensor.numel():
            return self.tensor.device, self.tensor.data_ptr(), tuple(self.tensor.shape)
        return id(self.tensor)

    @property
    def version(self) -> int:
        """Raised by every change in place, as training makes them."""
        return self.tensor._version

    def gather(self, model: torch.nn.Module) -> torch.Tensor:
        """Return it whole, as a plain tensor. Where it is at hand it is returned itself, not a copy.

        Sharded ones are gathered from all ranks, so every rank has to ask for the same ones in the same order.

        Args:
            model: The model that it is of.

        Raises:
            InputError: If it is on the meta device, and nothing says where its numbers are.
        """
        tensor = self.tensor.detach()
        if hasattr(self.tensor, "ds_id"):
            return self._gather_zero()
        if tensor.device.type == "meta":
            return self._fetch_offloaded(model)
        if hasattr(tensor, "full_tensor"):  # a DTensor of FSDP2 or of tensor parallelism
            whole: torch.Tensor = tensor.full_tensor()
            return whole
        if is_traceable_wrapper_subclass(tensor):  # torchao keeps codes and scales inside one tensor
            return tensor.dequantize()
        return tensor

    def _gather_zero(self) -> torch.Tensor:
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        with deepspeed.zero.GatheredParameters([self.tensor]):
            return self.tensor.detach().to("cpu", copy=True)

    def _fetch_offloaded(self, model: torch.nn.Module) -> torch.Tensor:
        """Find the hook of accelerate that would bring it in for a forward pass, and ask it."""
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
            f"parameter {self.name!r} is on the meta device, and no hook of accelerate says where its numbers are; "
            "load the weights before the comparison"
        )


def _weight_maps(hook: Any) -> Iterator[Mapping[str, torch.Tensor]]:  # noqa: ANN401 - of accelerate, which need not be here
    for one in getattr(hook, "hooks", None) or ([] if hook is None else [hook]):
        weights = getattr(one, "weights_map", None)
        if weights is not None:
            yield weights
