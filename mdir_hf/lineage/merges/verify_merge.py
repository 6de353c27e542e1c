"""Verifies a merge against the parents that its recipe names, and estimates their shares in every layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import CardError, InputError, MdirError, StoppedError
from mdir_hf.lineage.entries import choose_entries, matrix_shape, placed_matrices
from mdir_hf.lineage.merges.recipe import FILE, MAX_N_BYTES, LayerSource, MergeRecipe, read_recipe
from mdir_hf.lineage.merges.shares import LayerShares, shares_of
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.report import HomologyReport, Verdict

SCHEMA = "mdir-hf/merge/1"
LEAST_SHARE = 0.01
STANDARD_ERRORS = 6.0
"""A share counts where it is larger than :data:`LEAST_SHARE` and than so many of its standard errors."""


@dataclass(frozen=True, slots=True)
class ParentCheck:
    """One declared parent and what was measured.

    Attributes:
        parent: As the recipe names it.
        report: The comparison with the merge, None where there was none.
        why_not: Why there was none.
        share: Its mean share over the layers that it is declared for; None where no layer tells.
        layers_with_share: In how many of them its share counts.
        layers_told: In how many of them a share could be told.
    """

    parent: str
    report: HomologyReport | None
    why_not: str | None
    share: float | None
    layers_with_share: int
    layers_told: int

    @property
    def outcome(self) -> str:
        """``confirmed``: related, with a share; ``no_share``: related, and no layer has a share of it; or the verdict.

        Where no layer tells shares, a relation confirms.
        """
        if self.report is None:
            return "not_measured"
        if self.report.verdict is not Verdict.HOMOLOGOUS:
            return str(self.report.verdict.value)
        return "confirmed" if self.layers_with_share or not self.layers_told else "no_share"


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """A merge beside its recipe.

    Attributes:
        model: The merge, as a report names it.
        recipe: What it says.
        parents: One entry for each parent, in order.
        layers: What was measured of each layer, with its sources in the order of the recipe.
    """

    model: str
    recipe: MergeRecipe
    parents: tuple[ParentCheck, ...]
    layers: tuple[tuple[tuple[LayerSource, ...], LayerShares], ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain containers, for JSON."""
        fields = ("parent", "outcome", "why_not", "share", "layers_with_share", "layers_told")
        parents = [
            {
                **{name: getattr(one, name) for name in fields},
                "report": None if one.report is None else one.report.to_dict(),
            }
            for one in self.parents
        ]
        layers = [
            {**asdict(found), "sources": [asdict(source) for source in sources]} for sources, found in self.layers
        ]
        return {
            "schema": SCHEMA, "model": self.model, "method": self.recipe.method, "base": self.recipe.base,
            "parents": parents, "layers": layers,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.recipe.method or 'a merge'} of {len(self.parents)} models, by its recipe"]
        for number, one in enumerate(self.parents, start=1):
            lines.append(f"  [{number}] {one.parent}: {_OUTCOMES[one.outcome]}{_measured(one)}")
        if not self.layers:
            return "\n".join(lines)
        width = max(6, *(len(f"[{n}]") for n in range(1, len(self.parents) + 1)))
        head = "".join(f"  {f'[{n}]':>{width}}" for n in range(1, len(self.parents) + 1))
        lines += ["", "  share of each parent in each layer, and what no weighted sum of them explains"]
        lines.append(f"  layer{head}  left over")
        for sources, found in self.layers:
            shares = dict(zip((source.parent for source in sources), found.shares or (), strict=False))
            cells = (_cell(one.parent, sources, found, shares) for one in self.parents)
            line = "".join(f"  {cell:>{width}}" for cell in cells)
            lines.append(f"  {found.layer:>5}{line}  {found.left_over:>9.2%}")
        return "\n".join(lines)


_OUTCOMES = {
    "confirmed": "confirmed",
    "no_share": "related, and no layer holds a share of it",
    "no_evidence": "no evidence of shared weight ancestry found",
    "inconclusive": "inconclusive",
    "not_measured": "not measured",
}


def verify_merge(
    model: NamedModel,
    recipe_file: Path | None = None,
    *,
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    listeners: Listeners = Listeners(),
) -> MergeCheck:
    """Compare a merge with every parent that its mergekit recipe names, and measure the share of each in every layer.

    Args:
        model: The merge.
        recipe_file: The recipe; None: the ``mergekit_config.yml`` beside the merge.
        reading: How repositories are opened.
        settings: Of every comparison, by itself.
        listeners: Who is told of each comparison.

    Returns:
        A parent that is missing or unreadable is an entry that says so, and layers that it is declared for are left
        out. Shares cost 64 rows of every weight of every model.

    Raises:
        CardError: If there is no recipe, or it is invalid.
        MdirError: If the merge itself cannot be read.
    """
    merged = model.open(reading)
    recipe, may_be_local = _recipe_of(merged, recipe_file)
    reports: dict[str, HomologyReport | str] = {}
    opened: dict[str, Model] = {}
    for parent in recipe.parents:
        try:
            named = NamedModel(parent)
            beside = reading if may_be_local else replace(reading, allow_local=False)
            opened[parent] = named.open(beside)
            reports[parent] = compare(named, model, reading=beside, settings=settings, listeners=listeners)
        except (StoppedError, KeyboardInterrupt):
            raise
        except MdirError as exc:
            reports[parent] = " ".join(str(exc).split())
    layers = tuple(_layers(merged, recipe, opened))
    return MergeCheck(
        merged.label, recipe, tuple(_parent(name, reports[name], layers) for name in recipe.parents), layers
    )


def _recipe_of(merged: Model, file: Path | None) -> tuple[MergeRecipe, bool]:
    """The recipe, and whether its names may be folders here: not where it came from the Hub."""
    if file is not None:
        try:
            data = file.read_bytes()
        except OSError as exc:
            raise InputError(f"cannot read the recipe: {exc.strerror}", subject=str(file)) from exc
        return read_recipe(data, subject=str(file)), True
    repository = merged.repository
    if FILE not in repository.files:
        raise CardError(f"holds no {FILE}; name the recipe: --mergekit FILE", subject=merged.label)
    data = repository.read(FILE, max_bytes=MAX_N_BYTES)
    return read_recipe(data, subject=f"{merged.label}:{FILE}"), repository.is_local and repository.commit is None


def _layers(
    merged: Model, recipe: MergeRecipe, opened: Mapping[str, Model]
) -> Iterator[tuple[tuple[LayerSource, ...], LayerShares]]:
    """Measure every layer whose sources can all be read, at the weights that have one shape in all of them."""
    places: dict[int, list[str]] = defaultdict(list)
    mine = placed_matrices(merged)
    theirs = {name: placed_matrices(model) for name, model in opened.items()}
    for layer, role in mine:
        if layer is not None:
            places[layer].append(role)
    for layer, roles in sorted(places.items()):
        sources = recipe.sources_of(layer)
        if not sources or any(source.parent not in opened for source in sources):
            continue
        weights: list[torch.Tensor] = []
        samples: list[list[torch.Tensor]] = [[] for _ in sources]
        for role in roles:
            part = mine[layer, role]
            parts = [theirs[source.parent].get((source.layer, role)) for source in sources]
            models = [opened[source.parent] for source in sources]
            shape = matrix_shape(merged, part)
            if any(p is None or matrix_shape(m, p) != shape for m, p in zip(models, parts, strict=True)):
                continue
            entries = choose_entries(merged, (layer, role), part)
            weights.append(entries.read(merged))
            for sample, model, other in zip(samples, models, parts, strict=True):
                assert other is not None
                sample.append(entries.of(other).read(model))
        if weights:
            yield sources, shares_of(layer, weights, samples)


def _parent(
    name: str, found: HomologyReport | str, layers: tuple[tuple[tuple[LayerSource, ...], LayerShares], ...]
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
        report=None if isinstance(found, str) else found,
        why_not=found if isinstance(found, str) else None,
        share=sum(share for share, _ in shares) / len(shares) if shares else None,
        layers_with_share=sum(abs(share) > max(LEAST_SHARE, STANDARD_ERRORS * error) for share, error in shares),
        layers_told=len(shares),
    )


def _measured(one: ParentCheck) -> str:
    if one.report is None:
        return f": {one.why_not}"
    said = f", {one.report.strength}"
    if one.share is not None:
        said += f", mean share {_share(one.share)}, in {one.layers_with_share} of {one.layers_told} layers"
    return said


def _cell(parent: str, sources: tuple[LayerSource, ...], found: LayerShares, shares: Mapping[str, float]) -> str:
    if parent not in {source.parent for source in sources}:
        return "-"
    return _share(shares[parent]) if found.shares is not None else "same"


def _share(share: float) -> str:
    return f"{round(share, 2) + 0.0:.2f}"  # no minus in front of a zero
