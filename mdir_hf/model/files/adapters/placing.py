"""Find the base tensor that each adapter tensor changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.adapters.config import AdapterConfig
from mdir_hf.model.files.adapters.names import (
    BaseNames,
    ModuleChange,
    components_of,
    fitting_stack,
    sort_by_slots,
    sort_names,
    stacked_experts,
)
from mdir_hf.model.files.adapters.row_changes import KINDS, SHARED_SLOTS, ExpertRows, ModuleRows, RowChange, rank_of
from mdir_hf.model.sources import TensorSource

_SORTED_AS_LORA = frozenset({"LORA", "TRAINABLE_TOKENS", "LN_TUNING"})
HEAD = "lm_head.weight"
"""Name of a head that is no longer tied to the embedding."""

_OF_CONVOLUTIONS = frozenset({"hada_t1", "hada_t2", "lokr_t2"})


@dataclass(frozen=True, slots=True)
class LoraChange:
    """A change that adds ``scaling * B A``, or its transpose, to a matrix."""

    a: str
    b: str
    magnitude: str | None
    is_embedding: bool
    scaling: float
    transposed: bool


class Placement:
    """An adapter's tensors, keyed by the base tensor that they change.

    Attributes:
        biases: Tensors to add to biases, each with its scaling.
        bias_factors: Factors that scale biases (IA3).
        head: Name of the base's embedding, if the adapter saves a whole embedding and no head, so that PEFT leaves a
            tied head as it was. None otherwise.
        token_rows: Name of an adapter tensor, and a mapping from replaced rows of the base to rows of that tensor.
        blocked: Reasons why weights cannot be read.
    """

    def __init__(
        self, base: TensorSource, adapter: TensorSource, config: AdapterConfig, doubts: Mapping[str, str]
    ) -> None:
        self._doubts = doubts
        self._base, self._adapter, self._config = base, adapter, config
        self.changes: dict[str, LoraChange] = {}
        self.biases: dict[str, tuple[str, float]] = {}
        self.bias_factors: dict[str, str] = {}
        self.token_rows: dict[str, tuple[str, dict[int, int]]] = {}
        self.replaced: dict[str, str] = {}
        self.row_changes: dict[str, RowChange] = {}
        self.blocked: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.head: str | None = None
        if not config.changes_weights:
            return
        if config.kind in _SORTED_AS_LORA:
            self._place()
        elif config.kind in KINDS:
            self._place_kind()
        else:
            self._block_targets()

    def _place(self) -> None:
        config = self._config
        names = sort_names(self._adapter.names(), label=self._adapter.label, has_parameters=bool(config.parameters))
        base_names = self._replace(names.replaced)
        changes = [(module, change) for module, change in names.modules.items()]
        for module, wrapped in names.parameters.items():
            self._place_parameters(module, wrapped, base_names)
        for module, change in changes:
            weight = base_names.find(f"{module}.weight")
            if weight is None and config.parameters and change.a is not None:
                self._place_parameters(module, (change,), base_names)
                continue
            if weight is None:
                weight = self._tied_to(change, names.modules, base_names)
                if weight is None:
                    raise self._no_such_weight(module)
                self.owners |= dict.fromkeys(change.names, weight)
                continue
            self.owners |= dict.fromkeys(change.names, weight)
            why = config.not_applied or self._doubts.get(module)
            if why is not None:
                self._block(weight, why)
                continue
            if change.tokens is not None:
                self.token_rows[weight] = (change.tokens, self._rows_of(module))
            if change.a is not None and change.b is not None:
                self.changes[weight] = self._pair(module, change.a, change.b, change)
                bias = base_names.find(f"{module}.bias")
                if change.bias is not None and bias is not None:
                    self.biases[bias] = (change.bias, self.changes[weight].scaling)
        if self.head in (*self.changes, *self.token_rows, *self.blocked):
            self.head = None  # a merge changes both uses of the tied weight

    def _tied_to(self, change: ModuleChange, modules: Mapping[str, ModuleChange], base_names: BaseNames) -> str | None:
        """Return the weight whose token rows PEFT saved a second time, for a module that is tied to it, or None."""
        if change.tokens is None or change.a is not None:
            return None
        rows = self._adapter.read(change.tokens)
        for module, other in modules.items():
            weight = None if other.tokens in (None, change.tokens) else base_names.find(f"{module}.weight")
            if weight is not None and other.tokens is not None and torch.equal(rows, self._adapter.read(other.tokens)):
                return weight
        return None

    def _replace(self, whole: Mapping[str, str]) -> BaseNames:
        base = BaseNames(self._base.names())
        for name, stored in whole.items():
            replaced = base.find(name) or name
            if replaced in self.replaced:
                raise self._corrupt(f"the adapter holds two tensors for {replaced!r}")
            self.replaced[replaced] = stored
        names = {*self._base.names(), *self.replaced}
        if not self._config.ties_weights and not any(name.endswith(HEAD) for name in names):
            self.head = next((name for name in self.replaced if self._leaves_head(name)), None)
        return BaseNames({*self._base.names(), *self.replaced}) if self.replaced else base

    def _leaves_head(self, name: str) -> bool:
        if not name.endswith("embed_tokens.weight") or name not in self._base.names():
            return False
        return self._base.spec(name).shape == self._adapter.spec(self.replaced[name]).shape

    def _no_such_weight(self, module: str) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"the adapter changes {module!r}, but its base {self._base.label} has no weight with a matching name: "
            "its files are laid out differently from the model in memory; merge the adapter "
            "(`model.merge_and_unload()`) and compare the result",
            subject=self._adapter.label,
        )

    def _place_parameters(self, module: str, wrapped: Sequence[ModuleChange], base_names: BaseNames) -> None:
        config = self._config
        parameters = [name.rpartition(".")[2] for name in config.parameters if _ends_module(name, module)]
        stacks = stacked_experts(
            module, parameters, base_names, self._base.names(), lambda name: self._base.spec(name).shape
        )
        for change in wrapped:
            if change.a is None or change.b is None:
                raise self._corrupt(f"the adapter lacks a factor of a parameter of {module!r}")
            a, b = (self._adapter.spec(name).shape for name in (change.a, change.b))
            fitting = fitting_stack(stacks, a, b)
            if fitting is None:
                raise self._no_such_weight(f"{module} ({', '.join(parameters) or 'a parameter'})")
            scaling = config.scaling(f"{module}.{fitting.parameter}", a[0] // fitting.n_experts)
            for weight, place in fitting.weights.items():
                self.owners.setdefault(change.a, weight)
                self.owners.setdefault(change.b, weight)
                if config.not_applied is not None or fitting.is_transposed is None:
                    why = config.not_applied or "changes square matrices of experts, which could be stored either way"
                    self._block(weight, why)
                    continue
                self.row_changes[weight] = ExpertRows(
                    change.a,
                    change.b,
                    fitting.n_experts,
                    scaling,
                    is_transposed=fitting.is_transposed,
                    expert=place[0],
                    first_row=place[1],
                )

    def _place_kind(self) -> None:
        config = self._config
        kind = KINDS[config.kind]
        shared = SHARED_SLOTS.get(config.kind, ())
        modules, whole = sort_by_slots(self._adapter.names(), kind.slots, shared)
        base_names = self._replace(whole)
        for module, slots in modules.items():
            weight = base_names.find(f"{module}.weight")
            if weight is None:
                raise self._no_such_weight(module)
            self.owners |= dict.fromkeys(slots.values(), weight)
            shapes = {slot: self._adapter.spec(name).shape for slot, name in slots.items()}
            rank = rank_of(shapes) or (None if config.ranks else config.rank)
            is_whole = any(slots.keys() >= needed for needed in kind.needed)
            if config.not_applied is None and is_whole and rank is not None and not slots.keys() & _OF_CONVOLUTIONS:
                self.row_changes[weight] = ModuleRows(config.kind, slots, config.settings, config.scaling(module, rank))
                bias = base_names.find(f"{module}.bias")
                if bias is not None and shapes.get("ia3_l", (0,))[0] > 1:  # IA3 then scales outputs, including biases
                    self.bias_factors[bias] = slots["ia3_l"]
                continue
            self._block(weight, config.not_applied or f"lacks tensors of {config.method} that its files do not hold")

    def _block_targets(self) -> None:
        why = self._config.not_applied
        assert why is not None
        base_names = BaseNames(self._base.names())
        for name in self._adapter.names():
            parts = components_of(name)
            ends = (".".join(parts[:stop]) for stop in range(len(parts), 0, -1))
            weight = next((match for end in ends if (match := base_names.find(f"{end}.weight")) is not None), None)
            if weight is None:
                raise UnsupportedFormatError(
                    f"this adapter on {self._config.base!r} {why}; it is unknown which weights its tensor {name!r} "
                    "changes",
                    subject=self._adapter.label,
                )
            self.owners[name] = weight
            self._block(weight, why)

    def _block(self, weight: str, why: str) -> None:
        self.blocked[weight] = f"it is changed by an adapter that {why}"

    def _pair(self, module: str, a_name: str, b_name: str, change: ModuleChange) -> LoraChange:
        a, b = self._adapter.spec(a_name).shape, self._adapter.spec(b_name).shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or 0 in (*a, *b):
            raise self._corrupt(
                f"the factors of {module!r} do not form a product: A has shape {a} and B {b}, expected (r, d_in) and "
                "(d_out, r)"
            )
        config = self._config
        if a[0] != config.rank and a[0] not in config.ranks:
            raise self._corrupt(
                f"the factors of {module!r} have rank {a[0]}, but the config says {config.rank}"
                + (f" or {', '.join(map(str, sorted(config.ranks)))}" if config.ranks else "")
            )
        if config.has_magnitudes and change.magnitude is None:
            raise self._corrupt(f"the adapter lacks the magnitudes of {module!r} (DoRA)")
        scaling = config.scaling(module, a[0])
        transposed = change.is_embedding or (config.is_transposed and a[1] == b[0])
        return LoraChange(a_name, b_name, change.magnitude, change.is_embedding, scaling, transposed)

    def _rows_of(self, module: str) -> dict[int, int]:
        for pattern, numbers in self._config.token_rows.items():
            if pattern in ("", module) or module.endswith("." + pattern):
                return {row: at for at, row in enumerate(numbers)}
        raise self._corrupt(f"the adapter holds rows of {module!r}, but its config does not say which")

    def _corrupt(self, message: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(message, subject=self._adapter.label)


def _ends_module(parameter: str, module: str) -> bool:
    owner = parameter.rpartition(".")[0]
    return not owner or module == owner or module.endswith("." + owner)
