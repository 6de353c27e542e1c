"""Map names in an adapter to names in its base.

PEFT names factors after modules in memory. The base's files may use another prefix, so an unambiguous suffix is enough
for a match. Experts that are stacked in memory may be separate tensors in the files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from mdir_hf.errors import CorruptCheckpointError

_PREFIX = "base_model.model."
_FACTORS = {
    "lora_A": "a",
    "lora_B": "b",
    "lora_embedding_A": "a",
    "lora_embedding_B": "b",
    "lora_magnitude_vector": "magnitude",
}
_OF_TRAINING = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"}
"""Components that compilers and trainers insert into names."""

_WRAPPERS = ("modules_to_save", "ln_tuning_layers", "base_layer", "original_module")
"""Name components of tensors that were saved whole, in order of preference if there are several copies."""

_TOKENS = "trainable_tokens_delta"
_TOKENS_FORMERLY = "trainable_tokens_original"


@dataclass
class ModuleChange:
    """Names of an adapter's tensors for one module: A, B, B's bias, DoRA's magnitudes and token rows.

    Attributes:
        depth: Number of wrappers around the module, one for each changed parameter.
    """

    a: str | None = None
    b: str | None = None
    bias: str | None = None
    magnitude: str | None = None
    tokens: str | None = None
    is_embedding: bool = False
    depth: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the module's tensors in the adapter."""
        slots = (self.a, self.b, self.bias, self.magnitude, self.tokens)
        return tuple(name for name in slots if name is not None)


@dataclass(frozen=True)
class AdapterNames:
    """An adapter's tensors: changes grouped by module or parameter, and tensors saved whole.

    Attributes:
        replaced: Names in the adapter of tensors saved whole, keyed by their names in the model.
    """

    modules: Mapping[str, ModuleChange] = field(default_factory=dict)
    parameters: Mapping[str, tuple[ModuleChange, ...]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)


def sort_names(names: Iterable[str], *, label: str, has_parameters: bool = False) -> AdapterNames:
    """Group the tensors of an adapter by purpose.

    If ``has_parameters``, a module may be wrapped several times.

    Raises:
        CorruptCheckpointError: If a factor is duplicated or unpaired.
    """
    nested: dict[tuple[str, int], ModuleChange] = {}
    copies: dict[str, list[str]] = {}
    for name in names:
        parts = components_of(name)
        at = next((i for i, part in enumerate(parts) if part in _FACTORS or part == _TOKENS), None)
        if at is None:
            if parts[-1] != _TOKENS_FORMERLY:
                copies.setdefault(".".join(_without_wrappers(parts)), []).append(name)
            continue
        module = ".".join(_without_wrappers(parts[:at]))
        depth = parts[:at].count("base_layer") if has_parameters else 0
        change = nested.setdefault((module, depth), ModuleChange(depth=depth))
        # Names end with the factor, or with `weight` or `bias` after it. Older files put the adapter's name in between.
        is_bias = parts[-1] == "bias" and at < len(parts) - 1
        slot = "tokens" if parts[at] == _TOKENS else "bias" if is_bias else _FACTORS[parts[at]]
        if getattr(change, slot) is not None or len(parts) - at > 3:
            raise CorruptCheckpointError(f"the adapter holds two tensors for {parts[at]} of {module!r}", subject=label)
        setattr(change, slot, name)
        change.is_embedding |= parts[at].startswith("lora_embedding")
    for (module, _), change in nested.items():
        if (change.a is None) != (change.b is None) or (change.magnitude is not None and change.a is None):
            missing_factor = "A" if change.a is None else "B"
            raise CorruptCheckpointError(f"the adapter lacks the factor {missing_factor} of {module!r}", subject=label)
    several = {module for module, depth in nested if depth}
    modules = {module: change for (module, _), change in nested.items() if module not in several}
    parameters = {
        module: tuple(change for (owner, _), change in sorted(nested.items()) if owner == module) for module in several
    }
    return AdapterNames(
        modules, parameters, {name: _trained_copy(name, matches, label) for name, matches in copies.items()}
    )


def components_of(name: str) -> list[str]:
    """Split a name into components, omitting those added by compilers, trainers and PEFT."""
    parts = [part for part in name.split(".") if part not in _OF_TRAINING]
    return ".".join(parts).removeprefix(_PREFIX).split(".")


def sort_by_slots(
    names: Iterable[str], slots: Set[str], shared: Iterable[str] = ()
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Group an adapter's tensors by module, for methods whose tensor names contain one of ``slots``.

    Tensors in ``shared`` slots belong to all modules. Tensors saved whole are returned separately.
    """
    modules: dict[str, dict[str, str]] = {}
    common: dict[str, str] = {}
    whole: dict[str, str] = {}
    for name in names:
        parts = components_of(name)
        is_common = next((part for part in parts if part in shared), None)
        at = next((i for i, part in enumerate(parts) if part in slots), None)
        if is_common is not None:
            common[is_common] = name
        elif at is None:
            whole[".".join(_without_wrappers(parts))] = name
        else:
            modules.setdefault(".".join(_without_wrappers(parts[:at])), {})[parts[at]] = name
    return {module: {**tensors, **common} for module, tensors in modules.items()}, whole


def _trained_copy(name: str, copies: list[str], label: str) -> str:
    for wrapper in ("", *_WRAPPERS):
        matches = [copy for copy in copies if wrapper == next((w for w in _WRAPPERS if w in copy.split(".")), "")]
        if len(matches) > 1:
            raise CorruptCheckpointError(f"the adapter holds two tensors for {name!r}", subject=label)
        if matches:
            return matches[0]
    raise AssertionError("every copy has one of the wrappers, or none")


def _without_wrappers(parts: list[str]) -> list[str]:
    # Older files have the name of the adapter after `modules_to_save`.
    is_copy = "modules_to_save" in parts and parts[parts.index("modules_to_save") + 1 :][:1] == ["default"]
    at = parts.index("modules_to_save") + 1 if is_copy else -1
    return [part for i, part in enumerate(parts) if part not in (*_WRAPPERS, "token_adapter") and i != at]


class BaseNames:
    """Matches names in memory with names in a base's files."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._by_end: dict[str, list[str]] | None = None

    def find(self, name: str) -> str | None:
        """Return the base's only matching tensor, or None.

        A match must have the same layer number, preceded by the same word and followed by the same components. The
        longest common suffix wins; other common components break ties.
        """
        if name in self._names:
            return name
        parts = name.split(".")
        last_start = next((i - 1 for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
        for start in range(min(last_start, len(parts) - 2) + 1):
            end = ".".join(parts[start:])
            if end in self._names:
                return end
            matches = self._ends().get(end, [])
            if matches:
                return _most_alike(matches, parts[:start])
        return None

    def _ends(self) -> dict[str, list[str]]:
        if self._by_end is None:
            self._by_end = {}
            for name in self._names:
                for at in [0, *(match.end() for match in re.finditer(r"\.", name))]:
                    self._by_end.setdefault(name[at:], []).append(name)
        return self._by_end


def _most_alike(names: list[str], front: list[str]) -> str | None:
    alike = sorted(((len(set(front) & set(name.split("."))), name) for name in names), reverse=True)
    return None if len(alike) > 1 and alike[0][0] == alike[1][0] else alike[0][1]


Shape = tuple[int, ...]

_HALVES = {"gate_up_proj": (("gate_proj", "w1"), ("up_proj", "w3")), "down_proj": (("down_proj", "w2"),)}
"""Names of the matrices stacked in each parameter, from top to bottom."""

_MODULES = (("mlp.experts", "block_sparse_moe.experts"),)
"""Names in memory and in files, for modules whose names differ."""

_NUMBERED = re.compile(r"(?P<module>.+)\.(?P<expert>\d{1,4})\.(?P<leaf>\w+)\.weight")


@dataclass(frozen=True)
class ExpertStack:
    """A parameter that stacks experts, and how the base stores it.

    Attributes:
        weights: Tensors in the base, each with its expert (None if it contains all) and its first row in the stack.
        is_transposed: Whether the base stores ``(d_in, d_out)``; None if the shape is ambiguous.
    """

    parameter: str
    n_experts: int
    sides: tuple[int, int]
    weights: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    is_transposed: bool | None = None


def stacked_experts(
    module: str,
    parameters: Sequence[str],
    base_names: BaseNames,
    names: Iterable[str],
    shape_of: Callable[[str], Shape],
) -> list[ExpertStack]:
    """Find out how the base stores a module's stacked ``parameters``."""
    matches: list[ExpertStack] = []
    numbered: dict[str, dict[int, str]] | None = None
    for parameter in parameters:
        whole = base_names.find(f"{module}.{parameter}") or base_names.find(f"{module}.{parameter}.weight")
        if whole is not None:
            shape = shape_of(whole)
            n_experts = shape[0] if len(shape) == 3 else 1
            matches.append(ExpertStack(parameter, n_experts, (shape[-2], shape[-1]), {whole: (None, 0)}))
            continue
        if numbered is None:
            numbered = _numbered(module, names)
        leaves = [next((leaf for leaf in half if leaf in numbered), None) for half in _HALVES.get(parameter, ())]
        if not leaves or None in leaves:
            continue
        weights: dict[str, tuple[int | None, int]] = {}
        first_row, width, n_experts = 0, 0, 0
        for leaf in leaves:
            assert leaf is not None
            of_leaf = numbered[leaf]
            rows, width = shape_of(next(iter(of_leaf.values())))
            weights |= {name: (expert, first_row) for expert, name in of_leaf.items()}
            first_row, n_experts = first_row + rows, max(n_experts, len(of_leaf))
        matches.append(ExpertStack(parameter, n_experts, (first_row, width), weights, is_transposed=False))
    return matches


def fitting_stack(stacks: Sequence[ExpertStack], a: Shape, b: Shape) -> ExpertStack | None:
    """Return the only stack that matches A ``(rank * experts, d_in)`` and B ``(d_out, rank * experts)``, or None."""
    fits: list[ExpertStack] = []
    for stack in stacks:
        d_out, d_in = b[0], a[1]
        if a[0] % stack.n_experts or a[0] != b[1]:
            continue
        if sorted((d_out, d_in)) != sorted(stack.sides):
            continue
        is_transposed = stack.is_transposed
        if is_transposed is None and d_out != d_in:
            is_transposed = stack.sides == (d_in, d_out)
        if is_transposed is False and stack.sides != (d_out, d_in):
            continue
        fits.append(ExpertStack(stack.parameter, stack.n_experts, stack.sides, stack.weights, is_transposed))
    return fits[0] if len(fits) == 1 else None


def _numbered(module: str, names: Iterable[str]) -> dict[str, dict[int, str]]:
    modules = [module]
    for in_memory, in_files in _MODULES:
        if module.endswith(in_memory):
            modules.append(module.removesuffix(in_memory) + in_files)
    ends = [".".join(module.split(".")[-5:]) for module in modules]
    matches: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and any(match["module"] == end or match["module"].endswith(end) for end in [*modules, *ends]):
            matches[match["leaf"]][int(match["expert"])] = name
    return dict(matches)
