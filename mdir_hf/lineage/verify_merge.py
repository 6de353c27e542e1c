"""Test whether a recipe gives a merge, and estimate each parent's share in every layer.

Merges keep the order of channels, so a layer is close to a weighted sum of the parents' layers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import CardError, MdirError, StoppedError, one_line
from mdir_hf.lineage.cards.branches import are_same
from mdir_hf.lineage.check_recipe import TensorCheck, TensorOutcome, check_tensors
from mdir_hf.lineage.entries import choose_entries, matrix_shape, placed_matrices
from mdir_hf.lineage.policy import Condition, Failure, NotCompared, is_unread
from mdir_hf.lineage.recipe import FILE, MAX_N_BYTES, LayerSource, MergeRecipe, read_recipe, read_recipe_file
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.report.terms import Term
from mdir_hf.report.words import counted

SAME = 1e-5
"""Parents whose relative difference is smaller than this are treated as equal."""


@dataclass(frozen=True, slots=True)
class LayerShares:
    """The share of each source in one layer of a merge.

    Attributes:
        shares: The shares, which sum to 1 if there are several sources; None if the sources are equal.
        errors: Standard errors of the shares, or None.
        left_over: Norm of the residual, relative to the norm of the layer; 0 for a linear merge. A single source must
            have the share 1.
    """

    layer: int
    shares: tuple[float, ...] | None
    errors: tuple[float, ...] | None
    left_over: float


def shares_of(layer: int, merged: Sequence[torch.Tensor], sources: Sequence[Sequence[torch.Tensor]]) -> LayerShares:
    """Fit a layer of a merge as a weighted sum of its parents' layers. Weights of several parents sum to 1.

    ``merged`` and ``sources`` contain the same entries of the same weights. Each is scaled to give all
    merged weights the same RMS.
    """
    scales = [float(weight.double().square().mean().sqrt()) or 1.0 for weight in merged]

    def flat(weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([w.double().reshape(-1) / scale for w, scale in zip(weights, scales, strict=True)])

    y, (first, *others) = flat(merged), [flat(weights) for weights in sources]
    size = float(y.norm()) or 1.0
    if not others:
        squares = float(first.square().sum()) or 1.0
        share = float(y @ first) / squares
        error = float((y - share * first).norm()) / math.sqrt(max(1, len(y) - 1) * squares)
        return LayerShares(layer, (share,), (error,), float((y - first).norm()) / size)
    design = torch.stack([other_vector - first for other_vector in others], dim=1)
    left, sizes, right = torch.linalg.svd(design, full_matrices=False)
    if float(sizes[-1]) < SAME * size:
        fitted = left @ (left.T @ (y - first)) if float(sizes[0]) >= SAME * size else torch.zeros_like(y)
        return LayerShares(layer, None, None, float((y - first - fitted).norm()) / size)
    weights = right.T @ ((left.T @ (y - first)) / sizes)
    residual = y - first - design @ weights
    covariance = (right.T / sizes.square()) @ right * float(residual.square().sum()) / max(1, len(y) - len(others))
    ones = torch.ones(len(others), dtype=torch.float64)
    variances = torch.cat([(ones @ covariance @ ones)[None], covariance.diagonal()]).clamp_min(0)
    shares = torch.cat([1 - weights.sum()[None], weights])
    return LayerShares(layer, tuple(shares.tolist()), tuple(variances.sqrt().tolist()), float(residual.norm()) / size)


SCHEMA = "mdir-hf/merge/1"
LEAST_SHARE = 0.01
STANDARD_ERRORS = 6.0
"""A share is significant if it exceeds :data:`LEAST_SHARE` and this many standard errors."""


@dataclass(frozen=True, slots=True)
class ParentCheck:
    """A parent named in a recipe, and its measured share.

    Attributes:
        share: Mean share over the layers that the recipe takes from the parent; None if unknown.
        layers_with_share: Number of these layers in which the share is significant.
        layers_told: Number of these layers in which the share could be determined.
    """

    parent: str
    report: HomologyReport | None
    why_not: str | None
    share: float | None
    layers_with_share: int
    layers_told: int
    not_compared: NotCompared = NotCompared.NOT_MEASURED

    @property
    def outcome(self) -> str:
        """The verdict; ``no_share`` if the parent is related, but without a share; or why there is no verdict."""
        if self.report is None:
            return str(self.not_compared)
        has_share = self.layers_with_share or not self.layers_told
        return self.report.verdict.value if has_share or self.report.verdict is not Verdict.HOMOLOGOUS else "no_share"


class RecipeOutcome(Term):
    """Whether the recipe gives the merge."""

    CONFIRMED = "confirmed", "confirmed"
    CONTRADICTED = "contradicted", "contradicted"
    CANNOT_TELL = "cannot_tell", "cannot tell"


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """A merge compared with its recipe: its tensors, the parents, and the sources and shares of each layer."""

    model: str
    recipe: MergeRecipe
    parents: tuple[ParentCheck, ...]
    layers: tuple[tuple[tuple[LayerSource, ...], LayerShares], ...]
    tensors: tuple[TensorCheck, ...]

    @property
    def outcome(self) -> RecipeOutcome:
        """Contradicted if a tensor differs; confirmed if all tensors of layers were tested and hold."""
        outcomes = {check.outcome for check in self.tensors}
        if TensorOutcome.DIFFERS in outcomes:
            return RecipeOutcome.CONTRADICTED
        of_layers = {check.outcome for check in self.tensors if check.layer is not None}
        return RecipeOutcome.CONFIRMED if of_layers == {TensorOutcome.HOLDS} else RecipeOutcome.CANNOT_TELL

    def failures(self, required: Set[Condition] = frozenset()) -> tuple[Failure, ...]:
        """Return the statements of the recipe that break a policy.

        Without ``required``, these are a recipe that is contradicted, a merge as its own parent, and parents that the
        Hub's failure kept from being read.
        """
        return tuple(_failures(self, required))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        fields = ("parent", "outcome", "why_not", "share", "layers_with_share", "layers_told")
        parents = [
            {
                **{name: getattr(parent, name) for name in fields},
                "report": None if parent.report is None else parent.report.to_dict(),
            }
            for parent in self.parents
        ]
        layers = [
            {
                **asdict(shares),
                "sources": [{"parent": source.parent, "layer": source.layer} for source in sources],
            }
            for sources, shares in self.layers
        ]
        tensors = [{**asdict(check), "outcome": check.outcome.value} for check in self.tensors]
        return {
            "schema": SCHEMA, "model": self.model, "method": self.recipe.method, "base": self.recipe.base,
            "outcome": self.outcome.value, "parents": parents, "layers": layers, "tensors": tensors,
        }  # fmt: skip

    def __str__(self) -> str:
        kind = f"{self.recipe.method or 'a merge'} of {counted(len(self.parents), 'model')}, by its recipe"
        lines = [f"{self.model}: {kind}: {self.outcome.words}", *_tensor_lines(self.tensors)]
        for number, parent in enumerate(self.parents, start=1):
            lines.append(f"  [{number}] {parent.parent}: {_OUTCOMES[parent.outcome]}{_measured(parent)}")
        if not self.layers:
            return "\n".join(lines)
        width = max(6, *(len(f"[{n}]") for n in range(1, len(self.parents) + 1)))
        head = "".join(f"  {f'[{n}]':>{width}}" for n in range(1, len(self.parents) + 1))
        lines += ["", "  share of each parent in each layer, and the residual that no weighted sum of them explains"]
        lines.append(f"  layer{head}  left over")
        for sources, layer in self.layers:
            shares = dict(zip((source.parent for source in sources), layer.shares or (), strict=False))
            cells = (_cell(parent.parent, sources, layer, shares) for parent in self.parents)
            line = "".join(f"  {cell:>{width}}" for cell in cells)
            lines.append(f"  {layer.layer:>5}{line}  {layer.left_over:>9.2%}")
        return "\n".join(lines)


_OUTCOMES = {
    "homologous": "related",
    "no_share": "related, but without a share in any layer",
    "no_evidence": "no evidence of shared weight ancestry found",
    "inconclusive": "inconclusive",
    "not_measured": "not measured",
    "not_read": "not read",
    "own_base": "not measured",
}


def _failures(check: MergeCheck, required: Set[Condition]) -> Iterator[Failure]:
    is_required = Condition.BASES in required
    if check.outcome is RecipeOutcome.CONTRADICTED or (is_required and check.outcome is not RecipeOutcome.CONFIRMED):
        yield Failure(Condition.BASES, f"{check.model}: its recipe: {check.outcome.words}")
    if is_required and not check.parents:
        yield Failure(Condition.BASES, f"{check.model}: its recipe names no parent")
    for parent in check.parents:
        unread = parent.report is None and parent.not_compared is NotCompared.NOT_READ
        if unread or (is_required and parent.outcome != Verdict.HOMOLOGOUS.value):
            text = f"{_OUTCOMES[parent.outcome]}{_measured(parent)}"
            yield Failure(Condition.BASES, f"{check.model}: parent {parent.parent}: {text}", unread)


def verify_merge(
    model: NamedModel,
    recipe_file: Path | None = None,
    *,
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    listeners: Listeners = Listeners(),
) -> MergeCheck:
    """Test whether a mergekit recipe gives a merge, and measure each parent's share in every layer.

    The recipe defaults to the merge's ``mergekit_config.yml``. Parents that cannot be read are reported, and layers
    that use them are left out. Reads 64 rows of every weight, or whole weights if the method needs them.

    Raises:
        CardError: If the recipe is missing or invalid.
        MdirError: If the merge itself cannot be read.
    """
    merged = model.open(reading)
    recipe, may_be_local = _recipe_of(merged, recipe_file)
    reports: dict[str, HomologyReport] = {}
    reasons: dict[str, tuple[NotCompared, str]] = {}
    parent_models: dict[str, Model] = {}
    own: dict[str, Model] = {}
    for parent in recipe.parents:
        try:
            parent_model = NamedModel(parent)
            beside = reading if may_be_local else replace(reading, allow_local=False)
            opened = parent_model.open(beside)
            if are_same(opened.repository, merged.repository):
                reasons[parent] = (NotCompared.OWN_BASE, "the recipe names the merge itself")
                own[parent] = opened
                continue
            parent_models[parent] = opened
            reports[parent] = compare(parent_model, model, reading=beside, settings=settings, listeners=listeners)
        except (StoppedError, KeyboardInterrupt):
            raise
        except MdirError as exc:
            reasons[parent] = (NotCompared.NOT_READ if is_unread(exc) else NotCompared.NOT_MEASURED, one_line(exc))
    layers = tuple(_layers(merged, recipe, parent_models))
    parents = tuple(_parent(name, reports.get(name), reasons.get(name), layers) for name in recipe.parents)
    tensors = tuple(check_tensors(merged, recipe, parent_models | own, seed=settings.sample_seed, own_names=own.keys()))
    return MergeCheck(merged.label, recipe, parents, layers, tensors)


def _recipe_of(merged: Model, file: Path | None) -> tuple[MergeRecipe, bool]:
    if file is not None:
        return read_recipe_file(file), True
    repository = merged.repository
    if FILE not in repository.files:
        raise CardError(f"holds no {FILE}; name the recipe: --mergekit FILE", subject=merged.label)
    data = repository.read(FILE, max_bytes=MAX_N_BYTES)
    return read_recipe(data, subject=f"{merged.label}:{FILE}"), repository.is_local and repository.commit is None


def _layers(
    merged: Model, recipe: MergeRecipe, parent_models: Mapping[str, Model]
) -> Iterator[tuple[tuple[LayerSource, ...], LayerShares]]:
    places: dict[int, list[str]] = defaultdict(list)
    merged_parts = placed_matrices(merged)
    source_parts = {name: placed_matrices(model) for name, model in parent_models.items()}
    for layer, role in merged_parts:
        if layer is not None:
            places[layer].append(role)
    for layer, roles in sorted(places.items()):
        made = recipe.layer(layer, merged.anatomy.n_layers)
        sources = () if made is None else made.sources
        if not sources or any(source.parent not in parent_models for source in sources):
            continue
        weights: list[torch.Tensor] = []
        samples: list[list[torch.Tensor]] = [[] for _ in sources]
        for role in roles:
            part = merged_parts[layer, role]
            parts = [source_parts[source.parent].get((source.layer, role)) for source in sources]
            models = [parent_models[source.parent] for source in sources]
            shape = matrix_shape(merged, part)
            if any(p is None or matrix_shape(m, p) != shape for m, p in zip(models, parts, strict=True)):
                continue
            entries = choose_entries(merged, (layer, role), part)
            weights.append(entries.read(merged))
            for sample, model, source_part in zip(samples, models, parts, strict=True):
                assert source_part is not None
                sample.append(entries.of(source_part).read(model))
        if weights:
            yield sources, shares_of(layer, weights, samples)


_MOST_NAMED = 4


def _tensor_lines(checks: Sequence[TensorCheck]) -> Iterator[str]:
    n_holding = sum(check.outcome is TensorOutcome.HOLDS for check in checks)
    yield f"  {n_holding:,} of {len(checks):,} tensors are what the recipe gives, by sampled entries and up to rounding"
    differing = [f"{check.tensor} ({check.why})" for check in checks if check.outcome is TensorOutcome.DIFFERS]
    if differing:
        yield f"  differ: {_first_of(differing)}"
    untested: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        if check.outcome is TensorOutcome.NOT_TESTED:
            untested[check.why].append(check.tensor)
    for why, names in untested.items():
        yield f"  not tested: {_first_of(names)}: {why}"


def _first_of(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _parent(
    name: str,
    report: HomologyReport | None,
    reason: tuple[NotCompared, str] | None,
    layers: tuple[tuple[tuple[LayerSource, ...], LayerShares], ...],
) -> ParentCheck:
    shares = [
        (share, error)
        for sources, layer in layers
        if layer.shares is not None and layer.errors is not None
        for source, share, error in zip(sources, layer.shares, layer.errors, strict=True)
        if source.parent == name
    ]
    return ParentCheck(
        parent=name,
        report=report,
        why_not=None if reason is None else reason[1],
        share=sum(share for share, _ in shares) / len(shares) if shares else None,
        layers_with_share=sum(abs(share) > max(LEAST_SHARE, STANDARD_ERRORS * error) for share, error in shares),
        layers_told=len(shares),
        not_compared=NotCompared.NOT_MEASURED if reason is None else reason[0],
    )


def _measured(parent: ParentCheck) -> str:
    if parent.report is None:
        return f": {parent.why_not}"
    text = f", {parent.report.strength}" if parent.report.strength else ""
    if parent.share is not None:
        text += f", mean share {_share(parent.share)}, in {parent.layers_with_share} of {parent.layers_told} layers"
    return text


def _cell(parent: str, sources: tuple[LayerSource, ...], layer: LayerShares, shares: Mapping[str, float]) -> str:
    if parent not in {source.parent for source in sources}:
        return "-"
    return _share(shares[parent]) if layer.shares is not None else "same"


def _share(share: float) -> str:
    return f"{round(share, 2) + 0.0:.2f}"  # no minus sign before zero
