"""Find a model's family: bases in an index, declared bases, and the layers that each shares with the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import count_neurons
from mdir_hf.comparison.progress import ByteCounter, Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.comparison.stacks import has_mixture
from mdir_hf.errors import (
    ByteBudgetError,
    GatedRepositoryError,
    InputError,
    MdirError,
    RepositoryNotFoundError,
    SeveralModelsError,
    StoppedError,
    VocabularyError,
    one_line,
)
from mdir_hf.lineage.cards.branches import hub_reference
from mdir_hf.lineage.cards.verify_lineage import MEASURED, LineageCheck, no_match_text, verify_lineage
from mdir_hf.lineage.fingerprints.fingerprint import neurons_of, take_fingerprint
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.identify import Ancestor, Identification, compared, identify_in_steps, judge_neurons
from mdir_hf.lineage.part_origins import PartOrigin, origins_of_parts
from mdir_hf.lineage.trees.aligning import AlignedRows, FloatArray, align_rows
from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree
from mdir_hf.lineage.verify_merge import STANDARD_ERRORS, LayerShares, shares_of
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.render.layer_words import layers_text
from mdir_hf.render.projection_words import drift_text
from mdir_hf.report import HomologyReport, LayerDrift, ModelFacts, NeuronNumbers, SettledBy, Verdict
from mdir_hf.report.words import counted

SCHEMA = "mdir-hf/family/1"

MIXTURE_SHARE_OF_NEAREST = 0.5
"""A model is considered a mixture if a weighted sum of bases leaves at most this fraction of the residual that the
nearest base alone leaves. A fine-tune of one base differs from it in directions that other bases do not explain."""

MOST_MAPPED = 4
"""Maximum number of relatives whose layers are matched, starting with the most certain."""


@dataclass(frozen=True, slots=True)
class Family:
    """The relatives found for a model.

    Attributes:
        not_searched: Reason why the search failed, or an empty string.
        declared: Comparisons with declared bases, or None if the card was not read.
        layers: Results of comparing neurons, keyed by relative; only relatives with matching layers.
        not_mapped: Reason why the layers or the tree are missing, or an empty string.
        tree: Tree of the model and the bases found in the index; None if there are fewer than two bases.
        apart: Models whose rows could be aligned, and the RMS differences between their rows, relative to the rows'
            RMS.
        mixture: Bases and their shares in the embedding rows, if a weighted sum of bases explains the rows better than
            the nearest base alone; else None.
        facts: Facts for a bill of materials, or None. Not in the JSON.
    """

    model: str
    found: Identification | None = None
    not_searched: str = ""
    declared: LineageCheck | None = None
    not_declared: str = ""
    layers: Mapping[str, NeuronNumbers] = field(default_factory=dict)
    not_mapped: str = ""
    tree: FamilyTree | None = None
    apart: tuple[tuple[str, ...], FloatArray] | None = None
    mixture: tuple[tuple[str, ...], LayerShares] | None = None
    facts: ModelFacts | None = None

    @property
    def reports(self) -> dict[str, HomologyReport]:
        """Reports on proposed and declared bases, keyed by base."""
        ancestors = () if self.found is None else self.found.ancestors
        checks = () if self.declared is None else self.declared.bases
        reports = {ancestor.base.repo: ancestor.report for ancestor in ancestors if ancestor.report is not None}
        return reports | {check.base: check.report for check in checks if check.report is not None}

    @property
    def drift(self) -> dict[str, tuple[LayerDrift, ...]]:
        """Agreement and drift of each layer, keyed by related base."""
        tables = {name: report.projections for name, report in self.reports.items()}
        return {name: table.drift() for name, table in tables.items() if table is not None}

    @property
    def parts(self) -> tuple[PartOrigin, ...]:
        """Origins of a composite model's parts; empty for other models."""
        return origins_of_parts(self.reports)

    @property
    def nearest(self) -> tuple[tuple[str, float], ...]:
        """Bases whose rows could be aligned, with their relative RMS differences from the model, nearest first."""
        if self.apart is None or self.model not in self.apart[0]:
            return ()
        names, distances = self.apart
        own_distances = distances[names.index(self.model)]
        apart = [(name, float(own_distances[at])) for at, name in enumerate(names) if name != self.model]
        return tuple(sorted(apart, key=lambda base_and_distance: base_and_distance[1]))

    @property
    def relatives(self) -> tuple[str, ...]:
        """Models with shared weight ancestry, those from the index first."""
        from_index = () if self.found is None else tuple(ancestor.base.repo for ancestor in self.found.found)
        checks = () if self.declared is None else self.declared.bases
        return tuple(
            dict.fromkeys((*from_index, *(ancestor.base for ancestor in checks if ancestor.outcome == "homologous")))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict that includes the results of ``identify``, ``verify`` and ``tree``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "relatives": list(self.relatives),
            "identification": None if self.found is None else self.found.to_dict(),
            "not_searched": self.not_searched or None,
            "lineage": None if self.declared is None else self.declared.to_dict(),
            "not_declared": self.not_declared or None,
            "layers": {name: asdict(neurons) for name, neurons in self.layers.items()},
            "drift": {name: [asdict(layer) for layer in drift] for name, drift in self.drift.items()},
            "not_mapped": self.not_mapped or None,
            "tree": None if self.tree is None else self.tree.to_dict(),
            "parts": [asdict(origin) for origin in self.parts],
            "nearest": [{"base": name, "difference": difference} for name, difference in self.nearest],
            "mixture": None
            if self.mixture is None
            else {
                "shares": dict(zip(self.mixture[0], self.mixture[1].shares or (), strict=True)),
                "left_over": self.mixture[1].left_over,
            },
        }

    def to_json(self) -> str:
        """Return a JSON object with the schema ``mdir-hf/family/1``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


MOST_COMPARED = 16
"""Largest number of bases with which a model is compared although the index does not propose them."""


def find_family(
    model: NamedModel,
    index: BaseIndex | None,
    *,
    verifies: bool = True,
    are_named: bool = False,
    settings: Settings = Settings(describes_relatives=True),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
    on_step: Callable[[Family], None] = lambda family: None,
) -> Family:
    """Find the family of a model.

    If ``verifies`` is true, the model is also compared with its declared bases. If ``are_named`` is true, the user
    named the bases, and a model without a finding is compared with up to :data:`MOST_COMPARED` of them. If
    ``settings.describes_relatives`` is true, its layers are matched with each relative, which reads a few dozen
    megabytes per relative. Alpha is shared across all bases in ``index`` but applies to each declared base separately.
    The byte limit covers all reads. ``on_step`` is called with each intermediate result.

    Raises:
        MdirError: If the model cannot be read, or if search and verification both fail.
        StoppedError: If a listener raises.
    """
    counter = ByteCounter(listeners)
    family = Family(str(model.repo_or_folder) if isinstance(model.repo_or_folder, (str, os.PathLike)) else "the model")
    errors: list[MdirError] = []

    def remaining_settings() -> Settings:
        return replace(settings, max_bytes=counter.left_of(settings.max_bytes))

    if index is not None:
        try:
            steps = identify_in_steps(
                model, index, settings=remaining_settings(), reading=reading, listeners=counter.listeners
            )
            try:
                for identification in steps:
                    on_step(replace(family, found=identification))
            except (InputError, VocabularyError):  # too few rows and neurons for a search
                if not (are_named and len(index)):
                    raise
                summary = model.open(reading, IoLedger(max_bytes=remaining_settings().max_bytes)).summary()
                identification = Identification(summary, (), len(index), settings.alpha, 0)
            for compared_so_far in _with_all_bases(
                identification, model, index, remaining_settings, reading, counter, are_named=are_named
            ):
                family = replace(family, found=compared_so_far)
                on_step(family)
        except (StoppedError, GatedRepositoryError, RepositoryNotFoundError, SeveralModelsError):
            raise
        except MdirError as exc:
            if model.bases:
                raise  # the user named the commit of the adapter's base
            errors.append(exc)
            family = replace(family, not_searched=one_line(exc))
    if verifies:
        try:
            check = verify_lineage(
                model,
                reading=reading,
                settings=replace(settings, max_bytes=None),
                listeners=counter.listeners,
                max_bytes=remaining_settings().max_bytes,
                on_step=lambda check: on_step(replace(family, declared=check)),
            )
            family = replace(family, declared=check)
        except StoppedError:
            raise
        except MdirError as exc:
            errors.append(exc)
            family = replace(family, not_declared=one_line(exc))
    if errors and family.found is None and family.declared is None:
        raise errors[0]
    if family.relatives and (settings.describes_relatives or index is not None):
        family = _looked_closer(family, model, index, remaining_settings, reading, counter.listeners)
    return family


def _looked_closer(
    family: Family,
    model: NamedModel,
    index: BaseIndex | None,
    remaining_settings: Callable[[], Settings],
    reading: Reading,
    listeners: Listeners,
) -> Family:
    layers: dict[str, NeuronNumbers] = {}
    tree = apart = own_neurons = mixture = None
    why = ""
    try:
        if remaining_settings().describes_relatives:
            ledger = IoLedger(max_bytes=remaining_settings().max_bytes)
            watch = Watch(ledger, listeners, from_start=True)
            with watch.listening():
                watch.enter("opening")
                own_neurons = neurons_of(model.open(reading, ledger), every=True)
        if family.found is not None and index is not None and own_neurons is not None:
            identification = _with_parents_of_layers(
                family.found, model, index, own_neurons, remaining_settings, reading, listeners
            )
            family = replace(family, found=identification)
        ledger = IoLedger(max_bytes=remaining_settings().max_bytes)
        watch = Watch(ledger, listeners, from_start=True)
        with watch.listening():
            bases = {ancestor.base.repo: ancestor for ancestor in (() if family.found is None else family.found.found)}
            if index is not None and len(bases) > 1:
                watch.enter("opening")
                rows = {base.base.repo: index.fingerprint(base.base) for base in bases.values()}
                rows[family.model] = take_fingerprint(model.open(reading, ledger), index.tokens, with_neurons=False)
                # An index has rows of 16 bits, and rounding alone would keep equal models apart.
                if any(one.rows.dtype is torch.bfloat16 for one in rows.values()):
                    rows = {name: replace(one, rows=one.rows.bfloat16()) for name, one in rows.items()}
                tree = grow_tree(rows)
                aligned = align_rows(rows)
                if len(aligned.names) > 1:
                    apart = aligned.names, aligned.relative_distances()
                    mixture = _mixture_of(aligned, family.model)
            watch.enter("layers")
            for name in family.relatives[:MOST_MAPPED] if own_neurons is not None else ():
                their_neurons = _neurons(name, bases.get(name), index, reading, ledger)
                numbers = (
                    None
                    if their_neurons is None or own_neurons is None
                    else count_neurons(their_neurons, own_neurons, SettledBy.EVERY, alpha=remaining_settings().alpha)
                )
                if numbers is not None and numbers.matches:
                    layers[name] = numbers
    except StoppedError:
        raise
    except MdirError as exc:
        why = one_line(exc)
    return replace(family, layers=layers, not_mapped=why, tree=tree, apart=apart, mixture=mixture)


def _mixture_of(aligned: AlignedRows, model: str) -> tuple[tuple[str, ...], LayerShares] | None:
    bases = tuple(name for name in aligned.names if name != model and aligned.is_unmoved(name))
    if model not in aligned.names or not aligned.is_unmoved(model) or len(bases) < 2:
        return None
    rows = aligned.rows[model]
    sources = [[aligned.rows[name]] for name in bases]
    shares = shares_of(0, [rows], sources)
    nearest = min(shares_of(0, [rows], [source]).left_over for source in sources)
    if shares.shares is None or shares.errors is None or shares.left_over > MIXTURE_SHARE_OF_NEAREST * nearest:
        return None
    is_told = [share > STANDARD_ERRORS * error for share, error in zip(shares.shares, shares.errors, strict=True)]
    return (bases, shares) if sum(is_told) > 1 else None


def _with_all_bases(
    identification: Identification,
    model: NamedModel,
    index: BaseIndex,
    remaining_settings: Callable[[], Settings],
    reading: Reading,
    counter: ByteCounter,
    *,
    are_named: bool,
) -> Iterator[Identification]:
    """Compare all bases, if they are few, and the model has several parts, or the bases were named and none was found.

    Yields the result before and after each comparison. An index knows main stacks only, and does not find copies with a
    rotated stream and renumbered neurons.
    """
    yield identification
    if len(index) > MOST_COMPARED:
        return
    if not are_named or identification.found:
        try:
            opened = model.open(reading, IoLedger(max_bytes=remaining_settings().max_bytes))
            has_parts = bool(opened.other_stacks) or has_mixture((opened,))
        except ByteBudgetError:  # the bases that were found stand without it
            return
        if not has_parts:
            return
    ancestors = {ancestor.base.repo: ancestor for ancestor in identification.ancestors}
    for base in index.bases:
        ancestor = ancestors.get(base.model.repo) or Ancestor(base.model, 0.0, 0, is_nominated=False)
        if ancestor.report is None and ancestor.error is None:
            settings = replace(remaining_settings(), alpha=identification.alpha / len(index))
            ancestors[base.model.repo] = compared(ancestor, model, settings, reading, counter.listeners)
            yield replace(identification, ancestors=tuple(ancestors.values()))


def _with_parents_of_layers(
    identification: Identification,
    model: NamedModel,
    index: BaseIndex,
    neurons: NeuronSample,
    remaining_settings: Callable[[], Settings],
    reading: Reading,
    listeners: Listeners,
) -> Identification:
    judged_ancestors = judge_neurons(
        index, neurons, top=MOST_MAPPED, alpha=identification.alpha, device=remaining_settings().device
    )
    compared_repos = {
        ancestor.base.repo
        for ancestor in identification.ancestors
        if ancestor.report is not None or ancestor.error is not None
    }
    new_ancestors = {}
    for ancestor in judged_ancestors:
        if ancestor.base.repo not in compared_repos:
            base_settings = replace(remaining_settings(), alpha=identification.alpha / len(index))
            new_ancestors[ancestor.base.repo] = compared(ancestor, model, base_settings, reading, listeners)
    others = (ancestor for ancestor in identification.ancestors if ancestor.base.repo not in new_ancestors)
    return replace(identification, ancestors=(*others, *new_ancestors.values()))


def _neurons(
    name: str, ancestor: Ancestor | None, index: BaseIndex | None, reading: Reading, ledger: IoLedger
) -> NeuronSample | None:
    base = (
        NamedModel(hub_reference(name))
        if ancestor is None
        else NamedModel(ancestor.base.repo, revision=ancestor.base.commit)
    )
    try:
        if ancestor is not None and ancestor.base.commit is None and not reading.allow_local:
            raise InputError("the index was made from a folder")
        return neurons_of(base.open(reading, ledger), every=True)
    except StoppedError:
        raise
    except MdirError:
        return None if ancestor is None or index is None else index.fingerprint(ancestor.base).neurons


def measured_text(report: HomologyReport) -> str:
    """Describe a comparison's verdict and, for related models, the strength of the evidence."""
    if report.verdict is not Verdict.HOMOLOGOUS:
        return MEASURED[report.verdict]
    rests_on = f" (rests on {report.assumption.value})" if report.p_is_bound and report.assumption is not None else ""
    return f"{MEASURED[report.verdict]}, {report.strength}{rests_on}{no_match_text(report)}"


def _lines(family: Family) -> list[str]:
    lines = [family.model]
    identification, drift = family.found, family.drift
    by_index = {} if identification is None else {ancestor.base.repo: ancestor for ancestor in identification.found}
    checks = {} if family.declared is None else {check.base: check for check in family.declared.bases}
    relation = None if family.declared is None else family.declared.declared.relation
    declared_as = f"declared by its card{f' as {relation}' if relation else ''}"
    for name in dict.fromkeys((*family.relatives, *checks)):
        ancestor, check = by_index.get(name), checks.get(name)
        lines.append(f"├─ {name}")
        if ancestor is not None and identification is not None:
            if ancestor.is_nominated:
                searched = counted(identification.n_bases, "base")
                lines.append(f"│    proposed among {searched} {ancestor.evidence}")
            if ancestor.report is not None:
                lines.append(f"│    compared: {measured_text(ancestor.report)}")
            elif ancestor.error is not None:
                lines.append(f"│    not compared: {ancestor.error}")
        if check is not None:
            result_text = (
                check.not_compared_text if check.report is None else f"measured: {measured_text(check.report)}"
            )
            lines.append(f"│    {declared_as}; {result_text}")
        elif family.declared is not None:
            lines.append("│    not declared by its card")
        if name in family.layers:
            lines.append(f"│    {layers_text(family.layers[name])}")
        if name in drift:
            lines.append(f"│    {drift_text(drift[name])}")
        report = (
            check.report if check is not None and check.report is not None else ancestor.report if ancestor else None
        )
        lines += [f"│    direction: {fact.evidence}" for fact in report.direction] if report is not None else []
    if len(lines) > 1:
        last = max(at for at, line in enumerate(lines) if line.startswith("├"))
        lines[last] = lines[last].replace("├", "└")
        lines[last + 1 :] = [line.replace("│", " ") for line in lines[last + 1 :]]
    if len(family.nearest) > 1:
        differences = "; ".join(f"{name} {difference:.2g}" for name, difference in family.nearest)
        lines.append(f"  embedding rows differ by these shares of their RMS, nearest base first: {differences}")
    if family.mixture is not None:
        bases, shares = family.mixture
        terms = " + ".join(f"{share:.2f} x {name}" for name, share in zip(bases, shares.shares or (), strict=True))
        text = f"embeddings depend linearly: {family.model} = {terms}, with {shares.left_over:.2g} left over"
        lines.append(f"  {text}; that gives these {len(bases) + 1} models no order")
    if family.parts:
        lines += ["  parts of the model and the bases that share weights with them:"]
        lines += [f"    {origin}" for origin in family.parts]
    if identification is not None and not identification.found:
        lines += [line for line in str(identification).splitlines()[1:] if line]
    if family.not_searched:
        lines.append(f"  the index was not searched: {family.not_searched}")
    if family.declared is not None and not checks:
        has_card = family.declared is not None and family.declared.declared.has_card
        lines.append(f"  {'its card declares no base model' if has_card else 'it has no card'}")
    if family.not_declared:
        lines.append(f"  its card was not read: {family.not_declared}")
    if family.not_mapped:
        lines.append(f"  not all layers were compared: {family.not_mapped}")
    if family.tree is not None and family.tree.newick is not None:
        lines.append(str(family.tree))
    return lines
