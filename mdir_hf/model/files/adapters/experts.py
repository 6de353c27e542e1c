"""Finds the tensors in the base for stacked experts that an adapter's ``target_parameters`` name.

transformers 5 stacks experts in memory. Files hold one matrix for each expert, or the stack.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mdir_hf.model.files.adapters.names import BaseNames

Shape = tuple[int, ...]

_HALVES = {"gate_up_proj": (("gate_proj", "w1"), ("up_proj", "w3")), "down_proj": (("down_proj", "w2"),)}
"""The matrices that make up a stacked parameter, one below the other."""

_MODULES = (("mlp.experts", "block_sparse_moe.experts"),)
"""Modules that have one name in memory and another in files."""

_NUMBERED = re.compile(r"(?P<module>.+)\.(?P<expert>\d{1,4})\.(?P<leaf>\w+)\.weight")


@dataclass(frozen=True)
class ExpertStack:
    """A parameter that stacks experts, as the base stores it.

    Attributes:
        parameter: Its name in the module.
        n_experts: Number of experts.
        sides: The two sides of each expert's matrix as stored.
        weights: Tensors of the base, each with its expert (None for all) and its first row in the stacked matrix.
        is_transposed: Whether the base stores ``(d_in, d_out)``; None for an ambiguous shape.
    """

    parameter: str
    n_experts: int
    sides: tuple[int, int]
    weights: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    is_transposed: bool | None = None


def stacked_experts(
    module: str,
    parameters: Sequence[str],
    known: BaseNames,
    names: Iterable[str],
    shape_of: Callable[[str], Shape],
) -> list[ExpertStack]:
    """Find the stacked parameters of a module in the base.

    Args:
        module: Name of the module in memory.
        parameters: Names of the changed parameters.
        known: Names in the base, for lookups.
        names: The same names, to iterate over.
        shape_of: Returns the stored shape of a tensor.
    """
    matches: list[ExpertStack] = []
    numbered: dict[str, dict[int, str]] | None = None
    for parameter in parameters:
        whole = known.find(f"{module}.{parameter}") or known.find(f"{module}.{parameter}.weight")
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


def fitting_stack(stacks: Sequence[ExpertStack], a: Shape, b: Shape, rank: int) -> ExpertStack | None:
    """Return the stack that fits two factors: A ``(rank * experts, d_in)``, B ``(d_out, rank * experts)``.

    Return None unless exactly one stack fits.
    """
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
    del rank
    return fits[0] if len(fits) == 1 else None


def _numbered(module: str, names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return names of separately stored experts: leaf to expert to name."""
    modules = [module]
    for in_memory, in_files in _MODULES:
        if module.endswith(in_memory):
            modules.append(module.removesuffix(in_memory) + in_files)
    ends = [".".join(each.split(".")[-5:]) for each in modules]
    matches: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and any(match["module"] == end or match["module"].endswith(end) for end in [*modules, *ends]):
            matches[match["leaf"]][int(match["expert"])] = name
    return dict(matches)
