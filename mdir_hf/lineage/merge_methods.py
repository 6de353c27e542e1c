"""Compute the tensors that mergekit's methods give, to compare them with a merge.

The formulas follow mergekit's documentation; everything is computed in the dtype of the given tensors, as
mergekit does, because a 16-bit dtype also rounds the weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

ELEMENTWISE = frozenset({"passthrough", "linear", "task_arithmetic", "nearswap"})
"""Methods that compute each entry from the same entry of the sources, so that a sample of entries can be tested."""

RANDOM = frozenset({"dare_linear", "dare_ties", "della", "della_linear"})
"""Methods that keep random entries: a merged entry is one of a few values, but which one cannot be foretold."""

ON_SPHERE = frozenset({"slerp", "nuslerp", "multislerp", "karcher", "model_stock"})
"""Methods that form a weighted sum. The weights depend on products of whole tensors, which 16-bit arithmetic determines
only roughly."""

BY_SIZE = frozenset({"ties", "breadcrumbs", "breadcrumbs_ties", "sce"})
"""Methods that keep only the largest changes."""

_COLLINEAR = 0.9995
"""Cosine above which slerp interpolates linearly."""


class CannotComputeError(ValueError):
    """Raised if a recipe does not determine a tensor; the message says why."""


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """The tensors from which one tensor of a merge is made.

    Attributes:
        tensors: Tensors of the sources, in the order of the recipe, of one shape and dtype.
        base: Position of the base model among them, or None.
        shared: Returns a parameter of the method, given its name and default.
        own: Returns a parameter of one source, given its position, the name and the default.
    """

    tensors: Sequence[torch.Tensor]
    base: int | None
    shared: Callable[[str, float], float]
    own: Callable[[int, str, float | None], float]

    @property
    def others(self) -> list[int]:
        """Positions of the sources without the base."""
        return [at for at in range(len(self.tensors)) if at != self.base]

    def base_tensor(self) -> torch.Tensor:
        """Return the base's tensor, which the method needs."""
        if self.base is None:
            raise CannotComputeError("the recipe names no base model, which its method needs")
        return self.tensors[self.base]

    def expect(self, n_sources: int) -> None:
        """Raise an error unless there are as many sources as the method takes."""
        if len(self.tensors) != n_sources:
            raise CannotComputeError(f"its method takes {n_sources} models, and the recipe names {len(self.tensors)}")

    def weights(self, positions: Sequence[int]) -> torch.Tensor:
        """Return the ``weight`` of each source, in the dtype of the tensors."""
        return torch.tensor([self.own(at, "weight", None) for at in positions], dtype=self.tensors[0].dtype)


class MergedTensor(NamedTuple):
    """A tensor that a recipe gives, and the sum of the absolute weights, by which rounding errors grow."""

    tensor: torch.Tensor
    gain: float = 1.0


def needs_whole_tensors(method: str, inputs: MergeInputs) -> bool:
    """Return whether a method needs whole tensors.

    Raises:
        CannotComputeError: If the method is unknown.
    """
    if method in ELEMENTWISE or method in RANDOM:
        return False
    if method in _TASK_VECTORS:
        return any(inputs.own(at, "density", 1.0) < 1.0 for at in inputs.others)
    if method not in _METHODS:
        raise CannotComputeError(f"the method {method or 'of the recipe'} is not known")
    return True


def merge_tensors(method: str, inputs: MergeInputs) -> MergedTensor:
    """Compute one tensor of a merge from tensors that :func:`needs_whole_tensors` allows.

    Raises:
        CannotComputeError: If the recipe does not determine the tensor.
    """
    if method in _TASK_VECTORS:
        return _of_task_vectors(inputs, *_TASK_VECTORS[method])
    return _METHODS[method](inputs)


def weights_on_sphere(method: str, inputs: MergeInputs, products: torch.Tensor) -> torch.Tensor:
    """Return the weight of each source in a merged tensor, given the ``(k, k)`` products of its whole tensors.

    The method is applied to short vectors that have the same products.

    Raises:
        CannotComputeError: If the recipe does not determine the tensor.
    """
    values, vectors = torch.linalg.eigh(products.double())
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    short = replace(inputs, tensors=[row[None] for row in root])
    merged = _METHODS[method](short).tensor.double().flatten()
    weights: torch.Tensor = torch.linalg.lstsq(root.T, merged[:, None], driver="gelsd").solution[:, 0]
    return weights


MOST_RANDOM = 4
"""Maximum number of models whose entries a random method keeps or drops, because 16 values of an entry are possible."""

RESCALING = 0.05
"""Largest relative difference between one over the density and the factor by which kept changes are rescaled."""


class RandomMerge(NamedTuple):
    """The values that a random method allows for each entry.

    Attributes:
        tensors: Values, one row for each choice of kept changes, ``(2^r, ...)``.
        kept: Whether each choice keeps the change of each random source, ``(2^r, r)``.
        densities: Stated share of the changes that each random source keeps, ``(r,)``.
        spread: Largest relative difference of the factor by which kept changes are rescaled.
    """

    tensors: torch.Tensor
    kept: torch.Tensor
    densities: torch.Tensor
    spread: float


def random_merge(method: str, inputs: MergeInputs) -> RandomMerge | None:
    """Compute the values that a random method allows for each entry; None if the method is not random here.

    Raises:
        CannotComputeError: If too many models have a density below 1.
    """
    densities = [inputs.own(at, "density", 1.0) for at in inputs.others] if method in RANDOM else []
    drawn = [place for place, density in enumerate(densities) if density < 1.0]
    if not drawn:
        return None
    if len(drawn) > MOST_RANDOM:
        raise CannotComputeError(f"{method} drops random entries of {len(drawn)} models; {MOST_RANDOM} can be tested")
    if min(densities) <= 0.0:
        raise CannotComputeError("a density is not positive")
    is_rescaled = bool(inputs.shared("rescale", 1.0))
    choices = list(itertools.product((0.0, 1.0), repeat=len(drawn)))
    merged = []
    for choice in choices:
        factors = [1.0] * len(densities)
        for place, is_kept in zip(drawn, choice, strict=True):
            factors[place] = is_kept / densities[place] if is_rescaled else is_kept
        merged.append(_of_task_vectors(inputs, *_TASK_VECTORS[method], factors))
    spread = RESCALING if is_rescaled else 0.0
    if method.startswith("della"):  # keeps large changes more often
        spread += max(inputs.own(at, "epsilon", 0.15) for at in inputs.others) / min(densities)
    stated = torch.tensor([densities[place] for place in drawn], dtype=torch.float64)
    return RandomMerge(torch.stack([one.tensor for one in merged]), torch.tensor(choices), stated, spread)


def _passthrough(inputs: MergeInputs) -> MergedTensor:
    inputs.expect(1)
    scale = inputs.own(0, "scale", 1.0)
    return MergedTensor(inputs.tensors[0] if scale == 1.0 else inputs.tensors[0] * scale, abs(scale))


def _linear(inputs: MergeInputs) -> MergedTensor:
    weights = inputs.weights(range(len(inputs.tensors)))
    gain = float(weights.double().abs().sum())
    total = _weighted_sum(inputs.tensors, weights)
    if inputs.shared("normalize", 1.0):
        divisor = weights.sum()
        if float(divisor) == 0.0:
            raise CannotComputeError("the weights sum to zero")
        return MergedTensor(total / divisor, gain / abs(float(divisor)))
    return MergedTensor(total, gain)


def _weighted_sum(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    stacked = torch.stack(list(tensors))
    summed: torch.Tensor = (stacked * _beside(weights, stacked)).sum(dim=0)
    return summed


def _beside(weights: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    return weights.reshape(-1, *[1] * (stacked.ndim - 1))


_TASK_VECTORS = {
    # Method: how entries of task vectors are dropped, whether the majority's sign decides, and whether the sum is
    # divided by the sum of the weights unless the recipe says otherwise.
    "task_arithmetic": ("", False, False),
    "ties": ("smallest", True, True),
    "breadcrumbs": ("outliers", False, False),
    "breadcrumbs_ties": ("outliers", True, False),
    "dare_linear": ("", False, False),
    "dare_ties": ("", True, False),
    "della": ("", True, True),
    "della_linear": ("", False, False),
}


def _of_task_vectors(
    inputs: MergeInputs,
    dropping: str,
    has_consensus: bool,
    normalizes: bool,
    factors: Sequence[float] | None = None,
) -> MergedTensor:
    base, others = inputs.base_tensor(), inputs.others
    if not others:
        return MergedTensor(base)
    deltas = torch.stack([_sparse(inputs, at, inputs.tensors[at] - base, dropping) for at in others])
    if factors is not None:
        deltas = deltas * _beside(torch.tensor(factors, dtype=deltas.dtype), deltas)
    weights = inputs.weights(others)
    gain = float(weights.double().abs().sum())
    weighted = deltas * _beside(weights, deltas)
    if has_consensus:
        mask = _majority(weighted)
        divisor = (_beside(weights, deltas) * mask).sum(dim=0)
        divisor[divisor == 0] = 1
    else:
        mask = torch.ones_like(weighted)
        divisor = weights.sum(dim=0)
        divisor = torch.ones_like(divisor) if float(divisor.abs()) < 1e-8 else divisor
    mixed = (weighted * mask).sum(dim=0)
    if inputs.shared("normalize", float(normalizes)):
        mixed, gain = mixed / divisor, gain / max(float(divisor.abs().min()), 1e-3)
    scale = inputs.shared("lambda", 1.0)
    return MergedTensor(base + mixed * scale, 1.0 + gain * abs(scale))


def _sparse(inputs: MergeInputs, at: int, delta: torch.Tensor, dropping: str) -> torch.Tensor:
    density = inputs.own(at, "density", 1.0)
    if density >= 1.0 or not dropping:
        return delta
    n = delta.numel()
    n_kept = int(density * n)
    n_top = int(inputs.own(at, "gamma", 0.01) * n) if dropping == "outliers" else 0
    n_low = n - n_kept - n_top
    if n_low < 0:
        n_top, n_low = n_top + n_low, 0
    order = delta.abs().flatten().float().argsort()
    mask = torch.zeros(n, dtype=delta.dtype)
    mask[order[n_low : n - n_top]] = 1
    sparse = delta * mask.reshape(delta.shape)
    if inputs.shared("rescale", 0.0):
        before, after = delta.abs().sum(), sparse.abs().sum()
        return sparse * (before / after) if min(float(before), float(after)) >= 1e-7 else sparse
    return sparse


def _majority(weighted: torch.Tensor) -> torch.Tensor:
    """Return a mask of the entries that have the sign of their sum, where zero counts as positive."""
    signs = (weighted.sum(dim=0) >= 0).to(weighted.dtype) * 2 - 1
    return (weighted.sign() == signs).to(weighted.dtype)


def _nearswap(inputs: MergeInputs) -> MergedTensor:
    inputs.expect(2)
    base, other = inputs.base_tensor(), inputs.tensors[inputs.others[0]]
    share = (inputs.shared("t", math.nan) / (base - other).abs().clamp(min=1e-6)).clamp(0, 1)
    return MergedTensor(share * other + (1 - share) * base)


def _sce(inputs: MergeInputs) -> MergedTensor:
    base = inputs.base_tensor()
    deltas = torch.stack([inputs.tensors[at] - base for at in inputs.others])
    density = inputs.shared("select_topk", 1.0)
    if density < 1.0:
        variances = deltas.var(dim=0, unbiased=False)
        n_kept = int(int(variances.count_nonzero()) * density)
        kept = torch.zeros(variances.numel(), dtype=deltas.dtype)
        kept[variances.flatten().topk(n_kept).indices] = 1
        deltas = deltas * kept.reshape(variances.shape)
    energy = deltas.square().flatten(1).mean(dim=1)
    total = float(energy.sum())
    weights = torch.full_like(energy, 1 / len(energy)) if total < 1e-6 else energy / total
    erased = _beside(weights, deltas) * _majority(deltas)
    mixed = (deltas * erased).sum(dim=0) / erased.sum(dim=0).clamp(min=1e-6)
    return MergedTensor(base + mixed, 3.0)  # a base and a mean of differences


def _slerp(inputs: MergeInputs) -> MergedTensor:
    inputs.expect(2)
    base, other = inputs.base_tensor().float(), inputs.tensors[inputs.others[0]].float()
    share = inputs.shared("t", math.nan)
    cosine = float((base.double() * other.double()).sum() / (base.double().norm() * other.double().norm()).clamp(1e-8))
    if abs(cosine) > _COLLINEAR:
        merged = (1 - share) * base + share * other
    else:
        merged = _on_arc(base, other, share, math.acos(cosine))
    return MergedTensor(merged.to(inputs.tensors[0].dtype))


def _on_arc(first: torch.Tensor, second: torch.Tensor, share: float, angle: float) -> torch.Tensor:
    sine = math.sin(angle)
    return math.sin((1 - share) * angle) / sine * first + math.sin(share * angle) / sine * second


def _nuslerp(inputs: MergeInputs) -> MergedTensor:
    if not inputs.shared("nuslerp_flatten", 1.0):
        raise CannotComputeError("nuslerp by rows or columns is not supported")
    chosen = inputs.others if inputs.base is not None else range(len(inputs.tensors))
    if len(chosen) != 2:
        raise CannotComputeError(f"nuslerp takes 2 models beside a base, and the recipe names {len(chosen)}")
    weights = [inputs.own(at, "weight", None) for at in chosen]
    share = 0.5 if abs(sum(weights)) < 1e-6 else weights[1] / sum(weights)
    origin = 0.0 if inputs.base is None else inputs.base_tensor()
    first, second = (inputs.tensors[at] - origin for at in chosen)
    norms = [vector.double().norm().clamp(min=1e-7) for vector in (first, second)]
    cosine = float((first.double() * second.double()).sum() / (norms[0] * norms[1]))
    angle = math.acos(min(1.0, max(-1.0, cosine)))
    flat = math.sin(angle) < 1e-8
    merged = (1 - share) * first + share * second if flat else _on_arc(first, second, share, angle)
    return MergedTensor(merged + origin, 2.0)


def _multislerp(inputs: MergeInputs) -> MergedTensor:
    chosen = inputs.others if inputs.base is not None else list(range(len(inputs.tensors)))
    origin = torch.zeros_like(inputs.tensors[0]) if inputs.base is None else inputs.base_tensor()
    vectors = torch.stack([inputs.tensors[at] - origin for at in chosen])
    weights = inputs.weights(chosen)
    if inputs.shared("normalize_weights", 1.0):
        weights = weights / weights.sum()
    flat = vectors.flatten(1)
    norms = flat.norm(dim=1, keepdim=True)
    units = flat / (norms + 1e-8)
    mean = (units * weights[:, None]).sum(dim=0)
    if float(mean.norm()) < 1e-8:
        raise CannotComputeError("the weighted sum of its models is zero")
    mean = mean / mean.norm()
    tangent = ((units - (units * mean).sum(dim=1, keepdim=True) * mean) * weights[:, None]).sum(dim=0)
    length = tangent.norm() + 1e-8
    merged = (mean * length.cos() + tangent * (length.sin() / length)) * (norms[:, 0] * weights).sum()
    return MergedTensor(merged.reshape(origin.shape) + origin, 2.0)


def _karcher(inputs: MergeInputs) -> MergedTensor:
    tolerance, n_steps = inputs.shared("tol", 1e-5), int(inputs.shared("max_iter", 10.0))
    dtype = inputs.tensors[0].dtype
    norms = [tensor.float().norm() for tensor in inputs.tensors]
    units = [
        (tensor / norm).to(dtype) for tensor, norm in zip(inputs.tensors, norms, strict=True) if float(norm) > tolerance
    ]
    scale = float(torch.stack(norms).mean())
    if not units:
        return MergedTensor(torch.zeros_like(inputs.tensors[0]))
    share = 1.0 / len(units)
    mean = torch.stack(units).float().mean(dim=0)
    centre = (mean / mean.norm()).to(dtype) if float(mean.norm()) >= tolerance else units[0]
    for _ in range(min(n_steps, 1000)):
        step = torch.zeros_like(centre)
        for unit in units:
            cosine = torch.dot(centre.flatten(), unit.flatten()).clamp(-1.0, 1.0)
            angle = float(cosine.arccos())
            if angle >= tolerance:
                step += share * (angle / math.sin(angle)) * (unit - cosine * centre)
        length = step.float().norm()
        if float(length) < tolerance:
            break
        centre = (length.cos() * centre + length.sin() * (step / length)).to(dtype)
        centre = (centre / centre.float().norm()).to(dtype)
    return MergedTensor(scale * centre)


def _model_stock(inputs: MergeInputs) -> MergedTensor:
    base, others = inputs.base_tensor(), [inputs.tensors[at] for at in inputs.others]
    if len(others) < 2:
        raise CannotComputeError(f"model_stock takes a base and at least 2 models, and the recipe names {len(others)}")
    by_rows = bool(inputs.shared("filter_wise", 0.0))
    shape = (-1, base.shape[-1]) if by_rows else (1, -1)
    offsets = [(other - base).reshape(shape) for other in others]
    cosines = [
        (one * another).sum(dim=1) / (one.norm(dim=1) * another.norm(dim=1)).clamp(min=1e-6)
        for at, one in enumerate(offsets)
        for another in offsets[at + 1 :]
    ]
    cosine = torch.stack([value.clamp(-1, 1) for value in cosines]).mean(dim=0)[:, None]
    share = len(others) * cosine / (1 + (len(others) - 1) * cosine)
    mean = sum(others[1:], start=others[0]) / len(others)
    merged = share * mean.reshape(shape) + (1 - share) * base.reshape(shape)
    return MergedTensor(merged.reshape(base.shape), 1.0 + 2.0 * float(share.abs().max()))


_METHODS: dict[str, Callable[[MergeInputs], MergedTensor]] = {
    "passthrough": _passthrough,
    "linear": _linear,
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "karcher": _karcher,
    "model_stock": _model_stock,
    "nearswap": _nearswap,
    "sce": _sce,
}
