"""Finds the stacked experts that an adapter's ``target_parameters`` mean among the tensors of its base.

transformers 5 stacks experts in memory, and its files hold one matrix for each expert; other files hold the stack.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mdir_hf.model.files.adapters.names import BaseNames

Shape = tuple[int, ...]

_HALVES = {"gate_up_proj": (("gate_proj", "w1"), ("up_proj", "w3")), "down_proj": (("down_proj", "w2"),)}
"""The matrices one by one that a stacked parameter is made of, one below another."""

_MODULES = (("mlp.experts", "block_sparse_moe.experts"),)
"""Modules that files call otherwise than the model in memory."""

_NUMBERED = re.compile(r"(?P<module>.+)\.(?P<expert>\d{1,4})\.(?P<leaf>\w+)\.weight")


@dataclass(frozen=True)
class ExpertStack:
    """A parameter that stacks experts, as the base stores it.

    Attributes:
        parameter: Its name in the module.
        n_experts: How many experts it has.
        d_out: Rows of each expert's matrix; None if they could be the columns.
        d_in: Columns; None likewise.
        sides: The two sides as they are stored, for a stack.
        weights: Tensors of the base, each with the expert that it holds (None: all) and its first row in the stack.
        is_transposed: Whether the base stores ``(d_in, d_out)``; None if its shape does not tell.
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
    """Find the parameters of a module in the base.

    Args:
        module: Name of the module in memory.
        parameters: Names of its parameters that are changed.
        known: The names of the base.
        names: The same, to look through.
        shape_of: Gives the stored shape of a tensor.
    """
    found: list[ExpertStack] = []
    numbered: dict[str, dict[int, str]] | None = None
    for parameter in parameters:
        whole = known.find(f"{module}.{parameter}") or known.find(f"{module}.{parameter}.weight")
        if whole is not None:
            shape = shape_of(whole)
            n_experts = shape[0] if len(shape) == 3 else 1
            found.append(ExpertStack(parameter, n_experts, (shape[-2], shape[-1]), {whole: (None, 0)}))
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
        found.append(ExpertStack(parameter, n_experts, (first_row, width), weights, is_transposed=False))
    return found


def fitting_stack(stacks: Sequence[ExpertStack], a: Shape, b: Shape, rank: int) -> ExpertStack | None:
    """Return the stack that two factors change: A ``(rank * experts, d_in)``, B ``(d_out, rank * experts)``.

    If a stored stack is square, others of the module tell which way round it lies.
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
    """Tensors of the experts one by one in a module: leaf to expert to name."""
    modules = [module]
    for mine, other in _MODULES:
        if module.endswith(mine):
            modules.append(module.removesuffix(mine) + other)
    ends = [".".join(each.split(".")[-5:]) for each in modules]
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and any(match["module"] == end or match["module"].endswith(end) for end in [*modules, *ends]):
            found[match["leaf"]][int(match["expert"])] = name
    return dict(found)
