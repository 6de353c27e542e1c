"""Build the ledger of a comparison, which lists how each part of a model was treated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mdir_hf.comparison.stacks import name_of_experts
from mdir_hf.model.comparable import Comparable
from mdir_hf.model.inventory import ModelInventory, ModelPart, PartKind
from mdir_hf.model.inventory.records import LANGUAGE
from mdir_hf.model.roles import Layer, Role
from mdir_hf.report import HomologyReport, MatrixResult, ModuleRole, SettledBy, Verdict
from mdir_hf.report.parts import Coverage, PartCoverage, Treatment

Treated = tuple[Treatment, str | None]
"""How a part was treated, and an optional note on the extent or the reason."""

OTHER_STACK = "it was compared with no part of the other model"
IN_PLACE = "norms and biases scale its weights, and are not evidence in themselves"


@dataclass(frozen=True, slots=True)
class ReadOfModel:
    """The weights that a comparison read from one model. All layers belong to its language model.

    Attributes:
        neuron_layers: Layers whose neurons were compared.
        whole_layers: Layers in which the projections in ``whole_roles`` were compared whole.
        row_layers: Layers in which sampled rows of the projections in ``rows_of`` were compared.
        reads_keys: Whether keys of some heads were compared.
        other_stacks: Number of comparisons for each of the other stacks whose neurons were compared.
    """

    n_layers: int
    are_files_equal: bool = False
    embedding: MatrixResult | None = None
    unembedding: MatrixResult | None = None
    neuron_layers: frozenset[int] = frozenset()
    whole_layers: frozenset[int] = frozenset()
    whole_roles: tuple[ModuleRole, ...] = ()
    row_layers: frozenset[int] = frozenset()
    rows_of: tuple[ModuleRole, ...] = ()
    reads_keys: bool = False
    expert_row_layers: frozenset[int] = frozenset()
    reads_first_experts: bool = False
    expert_set_layers: frozenset[int] = frozenset()
    other_stacks: Mapping[str, int] = field(default_factory=dict)
    matching_parts: frozenset[str] = frozenset()


def _matching_parts(report: HomologyReport, side: str, *, has_experts: bool) -> frozenset[str]:
    """Return the names of the parts that hold copies of a part which the other model loads, or may load."""
    other_is_loaded = "candidate_is_loaded" if side == "reference" else "reference_is_loaded"
    pairs = [pair for pair in report.parts or () if pair.layers and getattr(pair, other_is_loaded) is not False]
    names = {f"experts of the {LANGUAGE}" if pair.experts is not None else getattr(pair, side) for pair in pairs}
    if report.neurons is not None and report.neurons.matches:
        names |= {LANGUAGE, f"experts of the {LANGUAGE}"} if has_experts else {LANGUAGE}
    tables = {"embedding": report.embedding, "unembedding": report.unembedding}
    is_homologous = report.verdict is Verdict.HOMOLOGOUS
    names |= {
        name
        for name, result in tables.items()
        if result is not None and (result.is_copied or (is_homologous and result.is_significant))
    }
    return frozenset(names)


def read_of(report: HomologyReport, side: str, layers_of_model: Sequence[Layer]) -> ReadOfModel:
    """Collect, from a report, the weights that were read from one model."""
    neurons, modules = report.neurons, report.modules or ()
    rows = [] if report.projections is None else [result for result in report.projections.results if result.rows]
    of_experts = [] if report.projections is None else [r for r in report.projections.results if r.experts]
    stored_roles = {layer.index: {role for role in layer.parts if not role.is_norm} for layer in layers_of_model}
    rows = [result for result in rows if Role(result.role.value) in stored_roles.get(getattr(result.layer, side), ())]
    mixtures = {layer.index for layer in layers_of_model if layer.experts}
    return ReadOfModel(
        n_layers=len(layers_of_model),
        are_files_equal=report.settled_by is SettledBy.IDENTICAL_FILES,
        embedding=report.embedding,
        unembedding=report.unembedding,
        neuron_layers=frozenset(() if neurons is None else getattr(neurons, f"{side}_layers")),
        whole_layers=frozenset(getattr(module.layer, side) for module in modules),
        whole_roles=tuple(role for role in ModuleRole if any(module.role is role for module in modules)),
        row_layers=frozenset(getattr(result.layer, side) for result in rows),
        rows_of=tuple(role for role in ModuleRole if any(result.role is role for result in rows)),
        reads_keys=report.excludes is not None and report.excludes.keys is not None,
        expert_row_layers=frozenset(getattr(result.layer, side) for result in of_experts) & mixtures,
        reads_first_experts=neurons is not None and any(layer.experts for layer in layers_of_model),
        expert_set_layers=frozenset(
            layer.index
            for layer in layers_of_model
            if any(getattr(pair, side) == name_of_experts(layer.index) for pair in report.parts or ())
        ),
        other_stacks=Counter(getattr(pair, side) for pair in report.parts or () if pair.experts is None),
        matching_parts=_matching_parts(report, side, has_experts=any(layer.experts for layer in layers_of_model)),
    )


def ledger_of(
    inventory: ModelInventory, reads: ReadOfModel, loaded: Mapping[str, bool | None] = MappingProxyType({})
) -> tuple[PartCoverage, ...]:
    """Return how each part of a model was treated, in the order of the inventory.

    ``loaded`` says of other stacks whether the model loads them.
    """
    treated = {part.name: _treated(part, reads) for part in inventory.parts}
    records = []
    for part in inventory.parts:
        treatment, reason = treated[part.name]
        if part.kind in (PartKind.STORAGE, PartKind.VECTORS) and part.owner in treated and not reads.are_files_equal:
            treatment, reason = _as_its_owner(part, treated[part.owner])
        records.append(
            PartCoverage(
                part=part.name,
                layers=len(part.layers),
                tensors=part.n_tensors,
                bytes=part.n_bytes,
                treatment=treatment,
                reason=reason,
                is_match=_is_match(part, treatment, reads),
                is_loaded=is_loaded(part, loaded),
            )
        )
    return tuple(records)


def is_loaded(part: ModelPart, loaded: Mapping[str, bool | None]) -> bool | None:
    """Return whether a model loads a part; ``loaded`` says so of the stacks beside the main one."""
    if part.kind is PartKind.UNPLACED:
        return None
    return loaded.get(part.name, loaded.get(part.owner or "", True))


def _is_match(part: ModelPart, treatment: Treatment, reads: ReadOfModel) -> bool | None:
    if treatment is Treatment.NOT_COMPARED:
        return None
    if reads.are_files_equal:
        return True
    is_follower = part.kind in (PartKind.STORAGE, PartKind.VECTORS)
    return (part.owner if is_follower and part.owner else part.name) in reads.matching_parts


def with_coverage(report: HomologyReport, reference: Comparable, candidate: Comparable) -> HomologyReport:
    """Add the ledger to a report if the inventories of both models are known."""
    sides: dict[str, tuple[PartCoverage, ...]] = {}
    for side, model in (("reference", reference), ("candidate", candidate)):
        inventory = model.known_inventory()
        if inventory is None:
            return report  # if only sampled rows are available, the files are unknown
        loaded = {stack.name: stack.is_loaded for stack in model.other_stacks or ()}
        sides[side] = ledger_of(inventory, read_of(report, side, model.anatomy.layers), loaded)
    return replace(report, coverage=Coverage(**sides))


def _treated(part: ModelPart, reads: ReadOfModel) -> Treated:
    if part.kind is PartKind.UNPLACED:
        return Treatment.NOT_COMPARED, part.reason
    if reads.are_files_equal:
        return Treatment.COMPARED, None
    if part.kind is PartKind.TABLE:
        return _table(part, reads)
    if part.kind is PartKind.AUXILIARY:
        return Treatment.NOT_COMPARED, "no test reads such matrices"
    if part.name == LANGUAGE:
        return _language(reads)
    if part.kind is PartKind.EXPERTS and part.owner == LANGUAGE:
        return _experts(reads)
    n_pairs = reads.other_stacks.get(part.name, 0)
    if n_pairs:
        return Treatment.SAMPLED, f"some neurons of a few layers, against {n_pairs} stack{'' if n_pairs == 1 else 's'}"
    return Treatment.NOT_COMPARED, OTHER_STACK


def _table(part: ModelPart, reads: ReadOfModel) -> Treated:
    if part.name not in ("embedding", "unembedding"):
        return Treatment.NOT_COMPARED, "no test looks at such a table"
    result = reads.embedding if part.name == "embedding" else reads.unembedding
    if result is None:
        return Treatment.NOT_COMPARED, "another part settled it first, or the other model has none"
    if result.rows_used >= result.common_tokens:
        return Treatment.COMPARED, f"{result.rows_used:,} rows of common tokens"
    return Treatment.SAMPLED, f"{result.rows_used:,} rows of {result.common_tokens:,} common tokens"


def _language(reads: ReadOfModel) -> Treated:
    n = reads.n_layers
    sampled = []
    if reads.neuron_layers:
        sampled.append(f"some neurons of {len(reads.neuron_layers)} of {n} layers")
    if reads.reads_keys:
        sampled.append("keys of some heads")
    if reads.row_layers:
        sampled.append(f"rows of {', '.join(reads.rows_of)} of {len(reads.row_layers)} of {n} layers")
    if reads.whole_layers:
        sampled.append(f"all of {', '.join(reads.whole_roles)} of {len(reads.whole_layers)} of {n} layers")
    if sampled:
        return Treatment.SAMPLED, "; ".join(sampled)
    return Treatment.NOT_COMPARED, "another part settled it first, or its layers cannot be compared"


def _experts(reads: ReadOfModel) -> Treated:
    n = reads.n_layers
    if reads.expert_row_layers:
        return Treatment.SAMPLED, f"rows of a few experts of {len(reads.expert_row_layers)} of {n} layers"
    if reads.expert_set_layers:
        return Treatment.SAMPLED, f"a few neurons of each expert in {len(reads.expert_set_layers)} of {n} layers"
    if reads.reads_first_experts and reads.neuron_layers:
        return Treatment.SAMPLED, f"some neurons of the first expert of {len(reads.neuron_layers)} of {n} layers"
    return Treatment.NOT_COMPARED, "no expert was read"


def _as_its_owner(part: ModelPart, owner: Treated) -> Treated:
    treatment, reason = owner
    if treatment is Treatment.NOT_COMPARED:
        return treatment, reason
    if part.kind is PartKind.STORAGE:
        return Treatment.REPRESENTED, f"the {part.owner} is read through it"
    return Treatment.REPRESENTED, f"{part.owner}: {IN_PLACE}"
