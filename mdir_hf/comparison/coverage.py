"""Build the ledger of a comparison, which lists how each part of a model was treated."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mdir_hf.comparison.neuron_layers import GATE_OF
from mdir_hf.comparison.neuron_sample import FEW_LAYERS
from mdir_hf.comparison.stacks import name_of_experts
from mdir_hf.errors import MdirError
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.inventory import ModelInventory, ModelPart, PartKind
from mdir_hf.model.inventory.records import BEYOND, EXTRA_EXPERTS, LANGUAGE
from mdir_hf.model.roles import Layer, Role, part_shape
from mdir_hf.report import HomologyReport, MatrixResult, ModuleRole, Outcome, SettledBy, Verdict
from mdir_hf.report.parts import Coverage, ExpertOrigin, PartCoverage, StackPair, Treatment
from mdir_hf.report.words import counted
from mdir_hf.thresholds import MOST_EXPERT_PAIRS

Treated = tuple[Treatment, str | None]
"""How a part was treated, and an optional note on the extent or the reason."""

SizeOf = Callable[[Layer, Role], int]
"""Function that returns the number of weights of a role in a layer."""

LEAST_DIVIDED = 1e-3
"""Smallest share of a part's weights that has an entry of its own."""

EXPERTS = f"experts of the {LANGUAGE}"
_OTHER_SIDE = {"reference": "candidate", "candidate": "reference"}
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
        stack_layers: Layers of each stack with copies in a stack beside the main ones.
        shares: For parts that match only in part, the shares of the compared weights that match, and that match
            nothing. The rest was not compared.
        shares_read: Shares of the weights of parts whose roles were compared, if not all were. A sample of neurons
            speaks for gate and up, and not for attention.
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
    first_expert_layers: frozenset[int] = frozenset()
    expert_set_layers: frozenset[int] = frozenset()
    other_stacks: Mapping[str, int] = field(default_factory=dict)
    matching_parts: frozenset[str] = frozenset()
    stack_layers: Mapping[str, Collection[int]] = field(default_factory=dict)
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shares_read: Mapping[str, float] = field(default_factory=dict)

    def share_of(self, part: ModelPart) -> tuple[float, float]:
        """Return the shares of a part's weights that match, and that match nothing, if it was compared."""
        is_follower = part.kind in (PartKind.STORAGE, PartKind.VECTORS)
        name = part.owner if is_follower and part.owner else part.name
        is_match = name in self.matching_parts
        matching, unmatched = self.shares.get(name, (float(is_match), float(not is_match)))
        if name not in self.shares and is_match and name in self.stack_layers and part.layers:
            matching = min(1.0, len(self.stack_layers[name]) / min(len(part.layers), FEW_LAYERS))
        share_read = self.shares_read.get(name, 1.0)
        return matching * share_read, unmatched * share_read


def _related_parts(report: HomologyReport, side: str) -> list[StackPair]:
    """Return the pairs of parts with copies, except copies of the main stack that the other model does not load."""
    other = f"{_OTHER_SIDE[side]}_is_loaded"
    return [
        pair
        for pair in report.parts or ()
        if pair.layers and (getattr(pair, other) is not False or getattr(pair, side) != LANGUAGE)
    ]


def _matching_parts(report: HomologyReport, side: str, mixtures: Mapping[int, int]) -> frozenset[str]:
    """Return the names of the parts that hold copies."""
    pairs = _related_parts(report, side)
    names = {getattr(pair, side) for pair in pairs if pair.experts is None}
    names |= {
        EXPERTS if isinstance(getattr(origin, side), int) else LANGUAGE
        for pair in pairs
        for origin in pair.experts or ()
    }
    for match in () if report.neurons is None else report.neurons.matches:
        names.add(EXPERTS if getattr(match, side) in mixtures else LANGUAGE)
    tables = {"embedding": report.embedding, "unembedding": report.unembedding}
    is_homologous = report.verdict is Verdict.HOMOLOGOUS
    names |= {
        name
        for name, result in tables.items()
        if result is not None and (result.is_copied or (is_homologous and result.is_significant))
    }
    return frozenset(names)


def _mixtures(layers: Sequence[Layer]) -> dict[int, int]:
    """Return the number of routed experts in each layer that has no MLP besides its experts."""
    return {layer.index: len(layer.experts) for layer in layers if layer.experts and Role.UP not in layer.parts}


def _share_of_experts(report: HomologyReport, side: str, mixtures: Mapping[int, int]) -> tuple[float, float] | None:
    """Return the shares of the routed experts that match, and that match nothing, by the look with most matches."""
    looks: list[list[tuple[int, int, int]]] = [[], [], []]  # matching, compared, all
    of_layer: dict[int, list[ExpertOrigin]] = defaultdict(list)
    names = {name_of_experts(index): index for index in mixtures}
    for pair in report.parts or ():
        if pair.experts is not None and getattr(pair, side) in names:
            of_layer[names[getattr(pair, side)]] += [e for e in pair.experts if isinstance(getattr(e, side), int)]
    for layer, origins in of_layer.items():
        own, others = ({getattr(origin, name) for origin in origins} for name in (side, _OTHER_SIDE[side]))
        # Only the most similar pairs are tested, and of experts that are alike, only the best partner is named.
        are_all_known = 2 * len(origins) < MOST_EXPERT_PAIRS and len(others) <= len(own)
        looks[0].append((len(own), mixtures[layer] if are_all_known else len(own), mixtures[layer]))
    for result in () if report.projections is None else report.projections.results:
        layer = getattr(result.layer, side)
        if result.role is ModuleRole.UP and result.experts is not None and layer in mixtures:
            partners = (getattr(expert, side) for expert in result.experts if expert.cosine is not None)
            matching = {expert for expert in partners if isinstance(expert, int)}
            # An expert without a partner may match one that was not read.
            n_compared = mixtures[layer] if result.unread_experts == (0, 0) else len(matching)
            looks[1].append((len(matching), n_compared if result.rows else 0, mixtures[layer]))
    if report.neurons is not None:
        matching_layers = {getattr(match, side) for match in report.neurons.matches}
        first = mixtures.keys() & set(getattr(report.neurons, f"{side}_layers"))
        # A searched layer was chosen because it resembles another, and does not stand for others.
        counted_layers = mixtures.keys() if report.neurons.is_searched and first else first
        looks[2] = [(int(at in matching_layers), int(at in first), mixtures[at]) for at in counted_layers]
    totals = [[sum(column) for column in zip(*look, strict=True)] for look in looks if look]
    if not totals:
        return None
    n_matching, n_compared, n_all = max(totals, key=lambda total: (total[0] / total[2], total[1] / total[2]))
    return n_matching / n_all, (n_compared - n_matching) / n_all


_AGREES = frozenset(Outcome) - {Outcome.REPLACED, Outcome.NO_AGREEMENT, Outcome.NOT_COMPARED}


def _share_of_layers(
    report: HomologyReport, side: str, layers: Sequence[Layer], size_of: SizeOf
) -> tuple[float, float] | None:
    """Return the shares of the compared weights of layers that match, and that match nothing."""
    mixtures = _mixtures(layers)
    if report.projections is None:
        return _share_of_sampled_layers(report, side, layers, mixtures)
    layers = [_with_shared_expert(layer) for layer in layers]
    sizes = {(layer.index, role): size_of(layer, role) for layer in layers for role in layer.parts if not role.is_norm}
    shares: dict[tuple[int, Role], float] = {}
    for result in report.projections.results:
        if not result.rows:
            continue
        source = result.source if side == "reference" else None
        layer: int = getattr(result.layer, side) if source is None else source
        agreeing = float(result.outcome in _AGREES)
        if result.outcome is Outcome.KEPT_IN_PART and result.share is not None:
            agreeing = result.share
        if result.experts is not None:
            experts = [e for e in result.experts if not isinstance(getattr(e, side), int)]
            if layer in mixtures and all(getattr(expert, side) is None for expert in experts):
                continue  # the layer has no shared expert, or it was not read
            agreeing = float(any(expert.cosine is not None for expert in experts))
        key = (layer, Role(result.role.value))
        shares[key] = max(agreeing, shares.get(key, 0.0))
    dense = [pair for pair in report.parts or () if any(getattr(origin, side) is None for origin in pair.experts or ())]
    matches = [match for pair in dense for match in pair.layers]
    for match in (*matches, *(() if report.neurons is None else report.neurons.matches)):
        if getattr(match, side) not in mixtures:  # there, neurons belong to an expert
            shares |= dict.fromkeys(((getattr(match, side), role) for role in (Role.GATE, Role.UP)), 1.0)
    total = sum(sizes.values())
    compared = {key: sizes[key] for key in shares.keys() & sizes.keys()}
    if not total or not compared:
        return None
    matching = sum(size * shares[key] for key, size in compared.items()) / total
    return matching, sum(compared.values()) / total - matching


def _share_of_sampled_layers(
    report: HomologyReport, side: str, layers: Sequence[Layer], mixtures: Collection[int]
) -> tuple[float, float] | None:
    # A sampled layer without a match may match a layer that was not sampled, so that nothing is said of it.
    neurons = report.neurons
    matching = {getattr(match, side) for match in (() if neurons is None else neurons.matches)} - set(mixtures)
    sampled = set(() if neurons is None else getattr(neurons, f"{side}_layers")) - set(mixtures)
    if neurons is not None and neurons.is_searched:  # only layers whose heads or rows resemble each other were read
        sampled = {layer.index for layer in layers} - set(mixtures)
    if not matching:
        of_experts = [pair for pair in report.parts or () if pair.experts is not None]
        kept = [p for p in of_experts if any(not isinstance(getattr(e, side), int) for e in p.experts or ())]
        matching = {getattr(layer, side) for pair in kept for layer in pair.layers}
        names = {getattr(pair, side) for pair in of_experts}
        sampled = {layer.index for layer in layers if name_of_experts(layer.index) in names}
    return (len(matching) / len(sampled), 0.0) if matching else None


def _with_shared_expert(layer: Layer) -> Layer:
    """Return a layer whose shared expert, which belongs to its stack, is its MLP."""
    if Role.UP in layer.parts or not layer.shared_experts:
        return layer
    return replace(layer, parts={**layer.parts, **layer.shared_experts[0]})


def _shares_read(
    report: HomologyReport,
    side: str,
    layers: Sequence[Layer],
    layers_of_stacks: Mapping[str, Sequence[Layer]],
    size_of: SizeOf,
    roles_of_other: Collection[Role],
) -> dict[str, float]:
    """Return the share of each part's weights in the roles that were compared; parts with all roles are left out."""
    compared = {getattr(pair, side) for pair in report.parts or ()}
    shares = {
        name: _share_of_roles(of_stack, _neuron_roles(of_stack) & set(roles_of_other), size_of)
        for name, of_stack in layers_of_stacks.items()
        if name in compared
    }
    if report.projections is not None:
        return shares
    first_experts = [replace(layer, parts=layer.experts[0]) for layer in layers if layer.experts]
    are_neurons_read = report.neurons is not None or LANGUAGE in compared
    roles = _neuron_roles(layers) & set(roles_of_other) if are_neurons_read else set()
    are_sets_compared = any(pair.experts is not None for pair in report.parts or ())
    if report.excludes is not None and report.excludes.keys is not None:
        roles = {*roles, Role.K}
    return {
        **shares,
        LANGUAGE: _share_of_roles(layers, roles, size_of, counts_shared=are_sets_compared),
        EXPERTS: _share_of_roles(first_experts, _neuron_roles(first_experts) & set(roles_of_other), size_of),
    }


def _neuron_roles(layers: Sequence[Layer]) -> set[Role]:
    up = next((role for role in GATE_OF if any(role in layer.parts for layer in layers)), None)
    return set() if up is None else {up, GATE_OF[up]}


def _share_of_roles(
    layers: Sequence[Layer], roles: Collection[Role], size_of: SizeOf, *, counts_shared: bool = False
) -> float:
    """Return the share of weights in some roles, and of shared experts if ``counts_shared``."""
    n_read = n_all = 0
    for layer in layers:
        whole = _with_shared_expert(layer)
        for role in whole.parts:
            size = 0 if role.is_norm else size_of(whole, role)
            is_read = role in roles if role in layer.parts else counts_shared and role in (Role.GATE, Role.UP)
            n_read, n_all = n_read + size * is_read, n_all + size
    return n_read / max(1, n_all)


def read_of(
    report: HomologyReport,
    side: str,
    layers_of_model: Sequence[Layer],
    size_of: SizeOf = lambda layer, role: 1,
    layers_of_stacks: Mapping[str, Sequence[Layer]] = MappingProxyType({}),
    roles_of_other: Collection[Role] = frozenset(Role),
) -> ReadOfModel:
    """Collect, from a report, the weights that were read from one model.

    ``layers_of_stacks`` are its other stacks. Without a gate in the other model, only up is compared.
    """
    neurons, modules = report.neurons, report.modules or ()
    rows = [] if report.projections is None else [result for result in report.projections.results if result.rows]
    of_experts = [] if report.projections is None else [r for r in report.projections.results if r.experts]
    stored_roles = {layer.index: {role for role in layer.parts if not role.is_norm} for layer in layers_of_model}
    rows = [result for result in rows if Role(result.role.value) in stored_roles.get(getattr(result.layer, side), ())]
    mixtures = _mixtures(layers_of_model)
    known = {
        LANGUAGE: _share_of_layers(report, side, layers_of_model, size_of),
        EXPERTS: _share_of_experts(report, side, mixtures),
    }
    stack_layers: dict[str, set[int]] = defaultdict(set)
    for pair in _related_parts(report, side):
        if pair.experts is None:
            stack_layers[getattr(pair, side)] |= {getattr(layer, side) for layer in pair.layers}
    shares = {name: share for name, share in known.items() if share is not None and name not in stack_layers}
    neuron_layers = frozenset(() if neurons is None else getattr(neurons, f"{side}_layers"))
    matching_parts = _matching_parts(report, side, mixtures) - shares.keys()
    return ReadOfModel(
        n_layers=len(layers_of_model),
        are_files_equal=report.settled_by is SettledBy.IDENTICAL_FILES,
        embedding=report.embedding,
        unembedding=report.unembedding,
        neuron_layers=neuron_layers - mixtures.keys(),
        whole_layers=frozenset(getattr(module.layer, side) for module in modules),
        whole_roles=tuple(role for role in ModuleRole if any(module.role is role for module in modules)),
        row_layers=frozenset(getattr(result.layer, side) for result in rows),
        rows_of=tuple(role for role in ModuleRole if any(result.role is role for result in rows)),
        reads_keys=report.excludes is not None and report.excludes.keys is not None,
        expert_row_layers=frozenset(getattr(result.layer, side) for result in of_experts) & mixtures.keys(),
        first_expert_layers=neuron_layers & mixtures.keys(),
        expert_set_layers=frozenset(
            layer.index
            for layer in layers_of_model
            if any(getattr(pair, side) == name_of_experts(layer.index) for pair in report.parts or ())
        ),
        other_stacks=Counter(getattr(pair, side) for pair in report.parts or () if pair.experts is None),
        matching_parts=matching_parts | {name for name, (matching, _) in shares.items() if matching},
        stack_layers=stack_layers,
        shares=shares,
        shares_read=_shares_read(report, side, layers_of_model, layers_of_stacks, size_of, roles_of_other),
    )


def ledger_of(
    inventory: ModelInventory, reads: ReadOfModel, loaded: Mapping[str, bool | None] = MappingProxyType({})
) -> tuple[PartCoverage, ...]:
    """Return how each part of a model was treated, in the order of the inventory.

    ``loaded`` says of other stacks whether the model loads them.
    """
    treated = {part.name: _treated(part, reads) for part in inventory.parts}
    records: list[PartCoverage] = []
    for part in inventory.parts:
        treatment, reason = treated[part.name]
        if part.kind in (PartKind.STORAGE, PartKind.VECTORS) and part.owner in treated and not reads.are_files_equal:
            treatment, reason = _as_its_owner(part, treated[part.owner])
        entry = PartCoverage(
            part=part.name,
            layers=len(part.layers),
            tensors=part.n_tensors,
            bytes=part.n_bytes,
            treatment=treatment,
            reason=reason,
            is_match=_is_match(part, treatment, reads),
            is_loaded=is_loaded(part, loaded),
        )
        records += [entry] if entry.is_match is None or reads.are_files_equal else _divided(entry, reads.share_of(part))
    return tuple(records)


def _divided(entry: PartCoverage, shares: tuple[float, float]) -> Iterator[PartCoverage]:
    """Divide a part that matches only in part by the shares that match, match nothing, and were not compared."""
    matching, unmatched = shares
    n_bytes, n_tensors = entry.bytes, entry.tensors
    stops = (matching, matching + unmatched, 1.0)
    start = 0.0
    for is_match, stop in zip((True, False, None), stops, strict=True):
        if stop - start > LEAST_DIVIDED:
            yield replace(
                entry,
                tensors=round(stop * n_tensors) - round(start * n_tensors),
                bytes=None if n_bytes is None else round(stop * n_bytes) - round(start * n_bytes),
                treatment=Treatment.NOT_COMPARED if is_match is None else entry.treatment,
                reason="not in the sample" if is_match is None else entry.reason,
                is_match=is_match,
            )
            start = stop


def is_loaded(part: ModelPart, loaded: Mapping[str, bool | None]) -> bool | None:
    """Return whether a model loads a part; ``loaded`` says so of the stacks beside the main one."""
    if part.kind is PartKind.UNPLACED:
        return None
    name = part.owner if part.owner and part.name not in loaded else part.name
    if name in (BEYOND, EXTRA_EXPERTS):
        return False
    is_other_stack = part.kind is PartKind.STACK and part.name != LANGUAGE
    return loaded.get(name, None if is_other_stack else True)


def _is_match(part: ModelPart, treatment: Treatment, reads: ReadOfModel) -> bool | None:
    if treatment is Treatment.NOT_COMPARED:
        return None
    return reads.are_files_equal or reads.share_of(part)[0] > 0


def _size_in(model: Comparable) -> SizeOf:
    def size_of(layer: Layer, role: Role) -> int:
        try:
            return math.prod(part_shape(layer.parts[role], lambda name: model.tensors.spec(name).shape))
        except MdirError:
            return 0  # listed as unplaced, because it cannot be read

    return size_of


def with_coverage(report: HomologyReport, reference: Comparable, candidate: Comparable) -> HomologyReport:
    """Add the ledger to a report if the inventories of both models are known."""
    sides: dict[str, tuple[PartCoverage, ...]] = {}
    for side, model in (("reference", reference), ("candidate", candidate)):
        inventory = model.known_inventory()
        if inventory is None:
            return report  # if only sampled rows are available, the files are unknown
        stacks = model.other_stacks or ()
        loaded = {stack.name: stack.is_loaded for stack in stacks}
        layers_of_stacks = {stack.name: stack.anatomy.layers for stack in stacks}
        other = candidate if side == "reference" else reference
        views: list[PlacedTensors] = [other, *(other.other_stacks or ())]
        layers_of_other = [layer for view in views for layer in view.anatomy.layers]
        roles_of_other = {role for layer in layers_of_other for role, _ in layer.all_parts()}
        reads = read_of(report, side, model.anatomy.layers, _size_in(model), layers_of_stacks, roles_of_other)
        sides[side] = ledger_of(inventory, reads, loaded)
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
        return Treatment.SAMPLED, _against_stacks(n_pairs)
    return Treatment.NOT_COMPARED, OTHER_STACK


def _against_stacks(n_stacks: int) -> str:
    return f"some neurons of a few layers, against {counted(n_stacks, 'stack')}"


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
    if not sampled and LANGUAGE in reads.other_stacks:
        sampled.append(_against_stacks(reads.other_stacks[LANGUAGE]))
    if sampled:
        return Treatment.SAMPLED, "; ".join(sampled)
    return Treatment.NOT_COMPARED, "another part settled it first, or its layers cannot be compared"


def _experts(reads: ReadOfModel) -> Treated:
    n = reads.n_layers
    if reads.expert_row_layers:
        return Treatment.SAMPLED, f"rows of a few experts of {len(reads.expert_row_layers)} of {n} layers"
    if reads.expert_set_layers:
        return Treatment.SAMPLED, f"a few neurons of each expert in {len(reads.expert_set_layers)} of {n} layers"
    if reads.first_expert_layers:
        return Treatment.SAMPLED, f"some neurons of the first expert of {len(reads.first_expert_layers)} of {n} layers"
    return Treatment.NOT_COMPARED, "no expert was read"


def _as_its_owner(part: ModelPart, owner: Treated) -> Treated:
    treatment, reason = owner
    if treatment is Treatment.NOT_COMPARED:
        return treatment, reason
    if part.kind is PartKind.STORAGE:
        return Treatment.REPRESENTED, f"the {part.owner} is read through it"
    return Treatment.REPRESENTED, f"{part.owner}: {IN_PLACE}"
