"""Locates the values of a parameter: gathers shards and fetches offloaded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mdir_hf.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class PlacedParameter:
    """A parameter or buffer of a model, wherever its values are."""

    name: str
    tensor: torch.Tensor

    def outline(self) -> torch.Tensor:
        """Return a meta tensor with the full shape and dtype."""
        shape = getattr(self.tensor, "ds_shape", self.tensor.shape)  # ZeRO-3 leaves an empty tensor on each rank
        return torch.empty(tuple(shape), dtype=self.tensor.dtype, device="meta")

    @property
    def is_at_hand(self) -> bool:
        """Whether it is a plain tensor with all values, on any device."""
        return not (
            self.tensor.device.type == "meta"
            or hasattr(self.tensor, "ds_id")
            or is_traceable_wrapper_subclass(self.tensor)
        )

    @property
    def place(self) -> object:
        """A key that is equal for parameters that share memory."""
        if self.is_at_hand and self.tensor.numel():
            return self.tensor.device, self.tensor.data_ptr(), tuple(self.tensor.shape)
        return id(self.tensor)

    @property
    def version(self) -> int:
        """A number that every in-place change increases, for example in training."""
        return self.tensor._version

    def gather(self, model: torch.nn.Module) -> torch.Tensor:
        """Return the whole parameter as a plain tensor; a plain tensor is not copied.

        Sharded parameters are gathered from all ranks, so every rank must request the same ones in the same order.

        Raises:
            InputError: If it is on the meta device, and the place of its values is unknown.
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
        """Get the values from the accelerate hook that loads them for a forward pass."""
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
