"""Test whether the tensors of a merge are what its recipe gives.

Each tensor is computed again from the parents, on a fresh sample of entries, or whole if the method needs it.
"""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.errors import MdirError, StoppedError, one_line
from mdir_hf.lineage.entries import COLUMNS, ROWS
from mdir_hf.lineage.merge_methods import (
    BY_SIZE,
    ON_SPHERE,
    CannotComputeError,
    MergedTensor,
    MergeInputs,
    RandomMerge,
    merge_tensors,
    needs_whole_tensors,
    random_merge,
    weights_on_sphere,
)
from mdir_hf.lineage.recipe import MergeRecipe, RecipeLayer
from mdir_hf.model.opened import Model
from mdir_hf.reconstruction.places import BUFFERS
from mdir_hf.report.terms import Term

MOST_VALUES = 1 << 26
"""Largest tensor that is held whole, if the method needs whole tensors: 256 MB in float32. Products of larger tensors
are added up from blocks of this size; their largest entries are not found."""

ROUNDINGS = 6.0
"""Most roundings of a value in a weighted sum: of the source, the weight, the product, the sum, the sum of the weights,
and their ratio."""

FEW = 0.005
"""Share of entries that may lie outside of the limit. If a method keeps the largest changes, 16-bit changes are
often equal, and the choice among equal ones is arbitrary."""

FEW_BY_SIZE = 0.02
"""The same for methods that keep the largest changes."""

STANDARD_ERRORS = 6.0
"""A measured weight differs from the recipe's if it does by more than this many standard errors and the rounding."""

ROUGH_WEIGHT, FAIR_WEIGHT = 0.05, 1e-4
"""Limits on the difference of a weight that depends on an angle, which was computed in 16 or in 32 bits."""

MOST_OF_QUANTISATION = 0.5
"""Largest error of quantisation, relative to the values: codes of 2 bits are off by a third, of 4 bits by a tenth."""

FEWEST_TELLING = 100
"""Minimum number of entries that tell which change a random method kept, to test how many it keeps."""

MOST_FITTED = 1 << 16
"""Maximum number of entries of a whole tensor that are compared."""

DTYPES = {
    **dict.fromkeys(("BF16", "bfloat16", "bf16"), torch.bfloat16),
    **dict.fromkeys(("F16", "float16", "fp16", "half"), torch.float16),
    **dict.fromkeys(("F32", "float32", "fp32", "float"), torch.float32),
    **dict.fromkeys(("F64", "float64", "double"), torch.float64),
}


class TensorOutcome(Term):
    """Outcome of the test of one tensor."""

    HOLDS = "holds", "is what the recipe gives"
    DIFFERS = "differs", "is not what the recipe gives"
    NOT_TESTED = "not_tested", "was not tested"


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """A tensor of a merge, tested against its recipe.

    Attributes:
        layer: Number of the layer, or None.
        difference: RMS of the difference from the recipe's values, relative to their RMS; None if not measured.
        limit: RMS of the difference that rounding can explain, relative in the same way; None if not measured.
        why: Why the tensor differs or was not tested; empty if it holds.
    """

    tensor: str
    layer: int | None
    outcome: TensorOutcome
    why: str = ""
    difference: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class _OneTensor:
    """A tensor of a merge, the recipe that applies to it, and the names of the parents' tensors."""

    name: str
    layer: int | None
    recipe: RecipeLayer
    source_names: tuple[str, ...]

    def inputs(self, tensors: Sequence[torch.Tensor]) -> MergeInputs:
        sources = self.recipe.sources
        base = next((at for at, source in enumerate(sources) if source.parent == self.recipe.base), None)

        def shared(name: str, default: float) -> float:
            return _number(name, self.recipe.parameter(name, self.name), default)

        def own(at: int, name: str, default: float | None) -> float:
            return _number(name, self.recipe.parameter(name, self.source_names[at], sources[at]), default)

        return MergeInputs(tensors, base, shared, own)


def check_tensors(
    merged: Model,
    recipe: MergeRecipe,
    parents: Mapping[str, Model],
    *,
    seed: int | None = None,
    own_names: Collection[str] = (),
) -> Iterator[TensorCheck]:
    """Test every tensor of a merge. Reads 64 rows of each, or all of it if the method needs whole tensors.

    Args:
        merged: The merge.
        recipe: Its recipe.
        parents: The parents that could be opened, by the recipe's names.
        seed: Seed of the sample; by default it is drawn afresh, so that the sample cannot be foreseen.
        own_names: The recipe's names for the merge itself. Tensors that the recipe takes from it are not tested.
    """
    seed = secrets.randbits(62) if seed is None else seed
    prefix = _prefix_of_layers(merged)
    prefixes = {name: _prefix_of_layers(model) for name, model in parents.items()}
    n_layers = merged.anatomy.n_layers
    n_by_recipe = recipe.n_layers or min((model.anatomy.n_layers for model in parents.values()), default=n_layers)
    for number in range(n_layers, n_by_recipe):
        yield TensorCheck(f"layer {number}", number, TensorOutcome.DIFFERS, "the merge lacks this layer of the recipe")
    for name, layer in _missing(merged, recipe, parents, prefix, prefixes, min(n_layers, n_by_recipe)):
        yield TensorCheck(name, layer, TensorOutcome.DIFFERS, "the merge lacks this tensor of the recipe")
    loaded = {layer.index for layer in merged.anatomy.layers}
    for name in sorted(merged.tensors.names(), key=lambda name: (_layer_of(name, prefix) or 0, name)):
        layer = _layer_of(name, prefix)
        if layer is not None and layer not in loaded:
            yield TensorCheck(name, None, TensorOutcome.NOT_TESTED, "the model does not load this layer")
            continue
        if layer is None:
            made: RecipeLayer | None = recipe.outside_layers(is_output=not _is_embedding(merged, name))
        else:
            made = recipe.layer(layer, n_by_recipe)
        if made is None:
            yield TensorCheck(name, layer, TensorOutcome.DIFFERS, "the recipe has no such layer")
            continue
        unread = [source.parent for source in made.sources if source.parent not in parents]
        if unread:
            why = f"a parent could not be read: {', '.join(unread)}"
            yield TensorCheck(name, layer, TensorOutcome.NOT_TESTED, why)
            continue
        rest = name if layer is None else name.removeprefix(f"{prefix}{layer}.")
        names = tuple(
            rest if source.layer is None else f"{prefixes[source.parent]}{source.layer}.{rest}"
            for source in made.sources
        )
        tensor = _OneTensor(name, layer, made, names)
        try:
            check = _check(merged, recipe, [parents[source.parent] for source in made.sources], tensor, seed)
            if check.outcome is TensorOutcome.HOLDS and any(source.parent in own_names for source in made.sources):
                check = replace(
                    check, outcome=TensorOutcome.NOT_TESTED, why="the recipe takes it from the merge itself"
                )
            yield check
        except StoppedError:
            raise
        except CannotComputeError as exc:
            yield TensorCheck(name, layer, TensorOutcome.NOT_TESTED, str(exc))
        except MdirError as exc:
            yield TensorCheck(name, layer, TensorOutcome.NOT_TESTED, one_line(exc))


def _missing(
    merged: Model,
    recipe: MergeRecipe,
    parents: Mapping[str, Model],
    prefix: str | None,
    prefixes: Mapping[str, str | None],
    n_layers: int,
) -> Iterator[tuple[str, int | None]]:
    """Yield names, and layers, of tensors of the language model that all sources have and the merge lacks."""
    is_gguf = bool(merged.tensors.description.metadata)
    if prefix is None or any(bool(parent.tensors.description.metadata) != is_gguf for parent in parents.values()):
        return  # the names cannot be compared
    stored = set(merged.tensors.names())
    made: list[tuple[int | None, RecipeLayer]] = [(None, recipe.outside_layers(is_output=True))]
    made += [(number, layer) for number in range(n_layers) if (layer := recipe.layer(number, n_layers)) is not None]
    for number, layer in made:
        if any(source.parent not in parents for source in layer.sources):
            continue
        of_sources = [
            _outside_names(parents[source.parent], prefixes[source.parent])
            if source.layer is None
            else _layer_names(parents[source.parent], f"{prefixes[source.parent]}{source.layer}.")
            for source in layer.sources
        ]
        before = "" if number is None else f"{prefix}{number}."
        for rest in sorted(set.intersection(*of_sources)) if of_sources else ():
            name = before + rest
            is_place = number is None and rest in EDGES
            is_there = getattr(merged.anatomy, rest) is not None if is_place else name in stored
            if rest == "unembedding" and all(_is_tied(parents[source.parent]) for source in layer.sources):
                continue
            if not is_there:
                part = getattr(parents[layer.sources[0].parent].anatomy, rest).tensor if is_place else name
                yield part, number


EDGES = ("embedding", "unembedding", "final_norm")
"""Attributes of the anatomy with tensors outside of layers, which may have other names in other models."""


def _outside_names(model: Model, prefix: str | None) -> set[str]:
    """Return the attributes of stored edges, and the names of other tensors in the language model outside of layers."""
    names = {name for name in model.anatomy.unplaced if _layer_of(name, prefix) is None}
    return _without_buffers(names) | {edge for edge in EDGES if getattr(model.anatomy, edge) is not None}


def _layer_names(model: Model, before: str) -> set[str]:
    return _without_buffers({name.removeprefix(before) for name in model.tensors.names() if name.startswith(before)})


def _without_buffers(names: set[str]) -> set[str]:
    return {name for name in names if not name.endswith(BUFFERS) and "rotary_emb." not in name}


def _is_tied(model: Model) -> bool:
    """Return whether the output head is the embedding, even if both are stored."""
    embedding, head = model.anatomy.embedding, model.anatomy.unembedding
    if head is None or embedding is None or model.config.get("tie_word_embeddings") is True:
        return head is None or embedding is not None
    specs = [model.tensors.spec(part.tensor) for part in (embedding, head)]
    if specs[0].shape != specs[1].shape:
        return False
    rows = np.sort(np.random.default_rng().permutation(specs[0].shape[0])[:ROWS]).astype(np.int64)
    return torch.equal(*(model.tensors.read_rows(spec.name, rows) for spec in specs))


def _prefix_of_layers(model: Model) -> str | None:
    """Return the part of the names of layer tensors before the number of the layer."""
    for layer in model.anatomy.layers:
        for _, part in layer.all_parts():
            before, number, _ = f".{part.tensor}".partition(f".{layer.index}.")
            if number:
                return f"{before}."[1:]
    return None


def _layer_of(name: str, prefix: str | None) -> int | None:
    if prefix is None or not name.startswith(prefix):
        return None
    number = name.removeprefix(prefix).partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 6 else None


def _is_embedding(model: Model, name: str) -> bool:
    embedding = model.anatomy.embedding
    return embedding is not None and name == embedding.tensor


def _check(merged: Model, recipe: MergeRecipe, models: Sequence[Model], tensor: _OneTensor, seed: int) -> TensorCheck:
    sources = list(zip(models, tensor.source_names, strict=True))
    for model, name in sources:
        if name not in model.tensors.names():
            raise CannotComputeError(f"{model.label} has no tensor of this name")
    shape = merged.tensors.spec(tensor.name).shape
    if any(model.tensors.spec(name).shape != shape for model, name in sources):
        if tensor.layer is None:
            raise CannotComputeError("its parents have other shapes, as vocabularies of other sizes have")
        return TensorCheck(tensor.name, tensor.layer, TensorOutcome.DIFFERS, "the recipe gives another shape")
    quantised = [model.label for model in (merged, *models) if model.tensors.description.quantization is not None]
    stored, *of_sources = (_stored_dtype(model, name) for model, name in ((merged, tensor.name), *sources))
    own = max(of_sources, key=_step)
    dtype = _named_dtype(recipe.dtype) or own
    dtypes = (dtype, _named_dtype(recipe.out_dtype) or dtype, stored)
    inputs = tensor.inputs([torch.empty(0)] * len(sources))
    is_whole = needs_whole_tensors(recipe.method, inputs)
    weights = None
    if is_whole and math.prod(shape) > MOST_VALUES:
        if recipe.method not in ON_SPHERE or inputs.shared("filter_wise", 0.0):
            why = f"{recipe.method} needs the largest entries of whole tensors, and it has more than {MOST_VALUES:,}"
            raise CannotComputeError(why)
        weights, is_whole = weights_on_sphere(recipe.method, inputs, _products(sources, shape, dtype)), False
    sample = _Sample(shape, is_whole, np.random.default_rng([seed, zlib.crc32(tensor.name.encode())]))
    tensors = [sample.read(model, name).to(dtype) for model, name in sources]
    values = sample.few(sample.read(merged, tensor.name))
    random = random_merge(recipe.method, tensor.inputs(tensors))
    if random is None:
        if weights is None:
            expected = merge_tensors(recipe.method, tensor.inputs(tensors))
        else:
            total = sum(w * source.double() for w, source in zip(weights.tolist(), tensors, strict=True))
            assert isinstance(total, torch.Tensor)
            expected = MergedTensor(total, float(weights.abs().sum()))
        few = sample.few(expected.tensor), [sample.few(source) for source in tensors]
        fit = _fit(values, *few, recipe.method, expected.gain, dtypes)
    else:
        fit = _fit_random(values, random, dtypes, is_vector=len(shape) < 2)
    outcome, why = TensorOutcome.HOLDS, ""
    if quantised and fit.difference < MOST_OF_QUANTISATION:
        why = f"{quantised[0]} is quantised, with an unknown step"
        return TensorCheck(tensor.name, tensor.layer, TensorOutcome.NOT_TESTED, why, fit.difference)
    if fit.why and tensor.layer is None and recipe.changes_tokens:
        outcome, why = TensorOutcome.NOT_TESTED, "the recipe chooses a tokenizer, which may move rows"
    elif fit.why:
        outcome, why = TensorOutcome.DIFFERS, fit.why
    return TensorCheck(tensor.name, tensor.layer, outcome, why, fit.difference, fit.limit)


def _products(sources: Sequence[tuple[Model, str]], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the products of whole tensors, ``(k, k)``, read in blocks of rows."""
    n_rows, width = math.prod(shape[:-1]), shape[-1]
    products = torch.zeros((len(sources), len(sources)), dtype=torch.float64)
    step = max(1, MOST_VALUES // (8 * width * len(sources)))
    for start in range(0, n_rows, step):
        rows = np.arange(start, min(start + step, n_rows))
        block = torch.stack([model.tensors.read_rows(name, rows).to(dtype).flatten() for model, name in sources])
        products += block.double() @ block.double().T
    return products


class _Sample:
    """The same entries of tensors of one shape: all, or 512 columns of 64 rows."""

    def __init__(self, shape: tuple[int, ...], is_whole: bool, draw: np.random.Generator) -> None:
        self._is_whole = is_whole or len(shape) < 2
        n = math.prod(shape)
        self._few = draw.choice(n, MOST_FITTED, replace=False) if self._is_whole and n > MOST_FITTED else None
        if not self._is_whole:
            sizes = ((math.prod(shape[:-1]), ROWS), (shape[-1], COLUMNS))
            self._rows, self._columns = (np.sort(draw.choice(n, min(n, most), replace=False)) for n, most in sizes)

    def read(self, model: Model, name: str) -> torch.Tensor:
        if self._is_whole:
            return model.tensors.read(name)
        return model.tensors.read_rows(name, self._rows)[:, torch.from_numpy(self._columns)]

    def few(self, values: torch.Tensor) -> torch.Tensor:
        """Return the entries that are compared, flat and in float64."""
        flat = values.flatten()
        return (flat if self._few is None else flat[torch.from_numpy(self._few)]).double()


@dataclass(frozen=True, slots=True)
class _Fit:
    difference: float
    limit: float
    why: str


def _fit(
    values: torch.Tensor,
    expected: torch.Tensor,
    sources: Sequence[torch.Tensor],
    method: str,
    gain: float,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> _Fit:
    """Compare flat entries of a merge with the recipe's: entry by entry, and by the weights that fit best."""
    dtype, out_dtype, stored = dtypes
    coarsest = max(dtypes, key=_step)
    is_exact = method == "passthrough" and gain == 1.0 and stored in (out_dtype, coarsest)
    largest = torch.stack([source.abs() for source in sources]).amax(dim=0)
    apart = torch.stack([source - sources[0] for source in sources])
    n_roundings = 0.0 if is_exact else 1.0 if method == "passthrough" else ROUNDINGS
    slack = n_roundings * gain * _step(dtype)
    limits = torch.zeros_like(values)
    if is_exact:
        expected = expected.to(dtype).to(out_dtype).to(stored).double()
    else:
        expected = expected.to(out_dtype).double()
        limits = slack * largest + (_step(out_dtype) + _step(stored)) * expected.abs()
        limits += torch.finfo(coarsest).smallest_normal * _step(coarsest) * 2
    if method in ON_SPHERE:
        is_rough = method != "slerp" and _step(dtype) > 1e-5  # slerp always computes in 32 bits
        slack = max(slack, ROUGH_WEIGHT if is_rough else FAIR_WEIGHT)
        limits += slack * apart.abs().amax(dim=0)
    residual = values - expected
    size = float(expected.square().mean().sqrt()) or 1.0
    difference, limit = (float(entries.square().mean().sqrt()) / size for entries in (residual, limits))
    n_outside = int((residual.abs() > limits).sum())
    most = 0.0 if is_exact else (FEW_BY_SIZE if method in BY_SIZE else FEW) * len(values)
    if method == "passthrough" and 4 * int(expected.sort().values.diff().count_nonzero()) > len(expected):
        slack = 0.0  # rounding goes up as often as down if values are various
    text = f"differs by {difference:.3g} times its size; rounding explains {limit:.2g}"
    if n_outside > most:
        few = f"{n_outside:,} of {len(values):,} compared entries differ by more than rounding explains"
        return _Fit(difference, limit, text if difference > limit else few)
    columns = torch.stack([expected, *apart[1:]], dim=1)
    left, sizes, right = torch.linalg.svd(columns, full_matrices=False)
    inverse = torch.where(sizes > 1e-12 * sizes[0], 1 / sizes, 0.0)
    weights = right.T @ (inverse * (left.T @ residual))
    noise = float((residual - columns @ weights).square().sum()) / max(1, len(values) - len(weights))
    errors = ((right.T * inverse).square().sum(dim=1) * noise).sqrt()
    if bool((weights.abs() > slack + STANDARD_ERRORS * errors + 1e-6).any()):
        return _Fit(difference, limit, "its values follow other weights than the recipe's: " + text)
    return _Fit(difference, limit, "")


def _fit_random(
    values: torch.Tensor,
    random: RandomMerge,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    *,
    is_vector: bool,
) -> _Fit:
    """Test that each entry is one of the values that a random method allows, and that it keeps the stated share.

    Which changes were kept is not tested, because a recipe does not say it.
    """
    allowed = random.tensors.flatten(1).double()
    base = allowed[0]  # no random change is kept
    n_random = len(random.densities)
    alone = (allowed - base)[2 ** torch.arange(n_random).flip(0)].abs()  # the choices that keep one change
    limits = (random.spread + ROUNDINGS * _step(dtypes[0])) * (random.kept.double() @ alone)
    limits = limits + (_step(dtypes[0]) + sum(map(_step, dtypes))) * allowed.abs() + 1e-30
    nearest = ((values - allowed).abs() / limits).argmin(dim=0)
    at = nearest, torch.arange(len(values))
    residual, size = values - allowed[at], float(allowed.square().mean().sqrt()) or 1.0
    difference, limit = (float(entries.square().mean().sqrt()) / size for entries in (residual, limits[at]))
    if int((residual.abs() > limits[at]).sum()) > FEW * len(values):
        text = (
            f"differs by {difference:.3g} times its size; rounding and the factor of kept changes explain {limit:.2g}"
        )
        return _Fit(difference, limit, text)
    gaps = (allowed[:, None] - allowed[None]).abs() - limits[:, None] - limits[None]
    gaps[torch.eye(len(allowed), dtype=torch.bool)] = math.inf
    is_telling = (gaps > 0).all(dim=0).all(dim=0)
    n_telling = int(is_telling.sum())
    if n_telling < FEWEST_TELLING:
        if is_vector:  # norms change little, and are no test of a recipe by themselves
            return _Fit(difference, limit, "")
        raise CannotComputeError("its changes are too small, beside rounding, to tell which of them were kept")
    kept = random.kept[nearest[is_telling]].double().mean(dim=0)
    errors = (random.densities * (1 - random.densities) / n_telling).sqrt()
    for share, density, error in zip(kept.tolist(), random.densities.tolist(), errors.tolist(), strict=True):
        if abs(share - density) > STANDARD_ERRORS * error + random.spread * density:
            return _Fit(difference, limit, f"keeps {share:.1%} of the changes, and the recipe says {density:.1%}")
    return _Fit(difference, limit, "")


def _number(name: str, value: object, default: float | None) -> float:
    value = default if value is None else value
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise CannotComputeError(f"the recipe gives no number for the parameter {name}")


def _stored_dtype(model: Model, name: str) -> torch.dtype:
    dtype = model.tensors.spec(name).dtype
    if model.tensors.description.quantization is None and dtype not in DTYPES:
        raise CannotComputeError(f"{model.label} stores it as {dtype}, with an unknown step")
    return DTYPES.get(dtype, torch.float32)


def _named_dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    if name.removeprefix("torch.") not in DTYPES:
        raise CannotComputeError(f"the dtype {name!r:.40} is not known")
    return DTYPES[name.removeprefix("torch.")]


def _step(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding to a dtype."""
    return torch.finfo(dtype).eps / 2
