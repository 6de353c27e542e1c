"""A tensor source for tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError, TensorNotFoundError
from mdir_hf.model.files.decode import NAME_OF_TORCH_DTYPE, check_finite, check_weight, result_dtype
from mdir_hf.model.files.ranged import check_rows
from mdir_hf.model.sources import Description, StoredTensor, TensorSpec

NO_FILE = "in memory"


class MemorySource:
    """The tensors in a dict such as ``model.state_dict()``. Implements ``TensorSource``.

    Args:
        tensors: Tensors on any device, keyed by name. They are not copied, so they must not change.
        label: Name used in error messages.
        outlines: The same tensors on the meta device; useful if accessing ``tensors`` is expensive.
        on_read: Called with a tensor's name and size in bytes before each copy; may raise an exception.

    Raises:
        InputError: If a tensor has a dtype that checkpoints cannot store.
    """

    paths: tuple[str, ...]

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        label: str = "memory",
        outlines: Mapping[str, torch.Tensor] | None = None,
        on_read: Callable[[str, int], None] | None = None,
    ) -> None:
        self._tensors = dict(tensors) if outlines is None else tensors
        self._on_read = on_read
        self.label = label
        self.paths = (NO_FILE,)
        self.description = Description("memory")
        self._specs: dict[str, TensorSpec] = {}
        at = 0
        places: dict[Hashable, int] = {}
        for name, tensor in sorted((self._tensors if outlines is None else outlines).items()):
            dtype = NAME_OF_TORCH_DTYPE.get(tensor.dtype)
            if dtype is None:
                raise InputError(
                    f"tensor {name!r} has dtype {tensor.dtype}, which checkpoints cannot hold", subject=label
                )
            start = places.setdefault(_memory_of(tensor, name), at)
            stop = start + tensor.numel() * tensor.element_size()
            self._specs[name] = TensorSpec(name, tuple(tensor.shape), dtype, path="", start=start, stop=stop)
            at = max(at, stop)
        self.n_bytes = at

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all tensors."""
        return tuple(self._specs)

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor, in reverse order of the names, so that a tied ``lm_head`` comes after the embedding."""
        counted: set[tuple[int, int]] = set()
        for name, spec in reversed(self._specs.items()):
            span = (spec.start, spec.stop)
            yield StoredTensor(name, name, 0 if span in counted else spec.n_bytes, spec.shape)
            counted.add(span)

    def read_all_headers(self) -> None:
        """Do nothing, because all shapes are known."""

    def spec(self, name: str) -> TensorSpec:
        """Return a tensor's spec, as if tensors were stored consecutively, and tied tensors once."""
        spec = self._specs.get(name)
        if spec is None:
            raise TensorNotFoundError(f"there is no tensor {name!r}", subject=self.label)
        return spec

    def read(self, name: str) -> torch.Tensor:
        """Copy a tensor to the CPU, converting it to float32 unless it is float64."""
        spec = self.spec(name)
        check_weight(spec, self.label)
        tensor = self._tensors[name]
        self._count(name, spec.n_bytes)
        return check_finite(_as_weights(tensor), spec, self.label)

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Copy the given rows to the CPU; see :meth:`read`."""
        spec = self.spec(name)
        check_weight(spec, self.label)
        stored = self.read_stored_rows(name, rows, max_gap_bytes=max_gap_bytes)
        return check_finite(_as_weights(stored), spec, self.label, rows=np.asarray(rows).reshape(-1))

    def read_stored(self, name: str) -> torch.Tensor:
        """Copy a tensor to the CPU in its own dtype."""
        self._count(name, self.spec(name).n_bytes)
        return self._tensors[name].detach().to(device="cpu", copy=True, memory_format=torch.contiguous_format)

    def read_stored_rows(
        self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None
    ) -> torch.Tensor:
        """Copy the given rows to the CPU in their own dtype."""
        del max_gap_bytes  # applies to files only
        spec = self.spec(name)
        index = torch.from_numpy(check_rows(spec, rows, self.label))
        tensor = self._tensors[name].detach()
        self._count(name, len(index) * spec.shape[-1] * tensor.element_size())
        return tensor.reshape(math.prod(spec.shape[:-1]), spec.shape[-1])[index.to(tensor.device)].cpu()

    def _count(self, name: str, n_bytes: int) -> None:
        if self._on_read is not None:
            self._on_read(name, n_bytes)


def _memory_of(tensor: torch.Tensor, name: str) -> Hashable:
    """Return what identifies a tensor's memory; the name if that is unknown."""
    if tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return name
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _as_weights(tensor: torch.Tensor) -> torch.Tensor:
    dtype = result_dtype(tensor.dtype)
    return tensor.detach().to(device="cpu", dtype=dtype, copy=True, memory_format=torch.contiguous_format)
