"""Run Algorithm 3: test each projection of a matched pair of layers, and find its inner transformation.

For each projection, the polar factor ``U_X = Ortho(X U_E X'^T)`` is computed on the head or neuron side and truncated
to its rank (n if there are m > n rows, so ``ln p <= ln m! - c^2 m / 2n``). It is tested for the inner transformations
that the projection allows. All p-values assume :data:`~mdir_hf.method.gauge.LEFT_INVARIANCE`.

Rows are normalised first: one by one for permutations, otherwise per plane, head or neuron if rescaling is allowed.
Without this, the polar factor would mainly match long rows with long rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from mdir_hf.method.blocks import HeadPattern, IntArray, best_head_map, block_pattern, log_p_head_map
from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.heads import (
    SUBSPACE_NULL,
    HeadMap,
    HeadTransformation,
    canonical_heads,
    find_head_map,
    solve_heads,
    unit_heads,
)
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.neurons import MlpWeights, NeuronMatching, inner_polar, match_neurons, unit_rows
from mdir_hf.method.planes import (
    FREQUENCY_NULL,
    LAYOUTS,
    PlanePairing,
    PlaneTransformation,
    frequency_pattern,
    normalise_planes,
    plane_pattern,
    plane_rows,
    solve_planes,
)

Projection = Literal["q", "k", "v", "o", "gate", "up", "down"]
Test = Literal[
    "permutation", "signed_permutation", "blocks", "planes", "frequencies", "subspaces", "neurons", "channels"
]
ModuleMap = Matching | HeadTransformation | PlaneTransformation | NeuronMatching

READING: tuple[Projection, ...] = ("q", "k", "v", "gate", "up")
"""Projections that read the residual stream; the others, o and down, write to it."""

PROJECTIONS: tuple[Projection, ...] = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one layer, each ``(d_out, d_in)`` with ``y = W x``, or None if missing.

    q is ``(H d, n)``, k ``(G d, n)``, v ``(G d_v, n)``, o ``(n, H d_v)``, gate and up ``(m, n)``, down ``(n, m)``. If
    an MLP has no gate, its first matrix is up.

    Attributes:
        n_heads: H, number of query heads.
        n_kv_heads: G, number of key and value heads.
        rope: Pairing of rotary rows. If ``unknown``, both layouts are tried; ``none`` means no rotary positions.
        rotary_dim: Number of leading rows that are rotated in each head; None means all.
        qk_norm: Whether q and k are normalised per head with gains.
        attention_gain: ``(n,)`` gain of the norm before q, k, v.
        mlp_gain: ``(n,)`` gain of the norm before gate and up.
    """

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    o: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    up: torch.Tensor | None = None
    down: torch.Tensor | None = None
    n_heads: int = 1
    n_kv_heads: int = 1
    rope: Literal["half", "interleaved", "unknown", "none"] = "half"
    rotary_dim: int | None = None
    qk_norm: bool = False
    attention_gain: torch.Tensor | None = None
    mlp_gain: torch.Tensor | None = None

    def folded(self, *, plus_one: bool = False, dtype: torch.dtype = torch.float64) -> LayerWeights:
        """Fold the gains into q, k, v, gate and up, and convert all weights to one dtype.

        If ``plus_one``, the norms multiply by ``1 + g`` (Gemma).
        """
        changes: dict[str, torch.Tensor | None] = {"attention_gain": None, "mlp_gain": None}
        for role in PROJECTIONS:
            weight = self.weight(role)
            if weight is None:
                continue
            gain = {"o": None, "down": None, "gate": self.mlp_gain, "up": self.mlp_gain}.get(role, self.attention_gain)
            changes[role] = fold_gain(weight.to(dtype), gain, plus_one=plus_one)
        return replace(self, **changes)  # type: ignore[arg-type]

    def weight(self, role: Projection) -> torch.Tensor | None:
        """Return the weight of a projection, or None if it is missing."""
        weight: torch.Tensor | None = getattr(self, role)
        return weight

    def inner_rows(self, role: Projection, residual_map: ResidualBasisMap | None = None) -> torch.Tensor | None:
        """Return a weight as ``(m, n)`` with heads or neurons as rows, transformed by ``residual_map`` if given."""
        weight = self.weight(role)
        if weight is None:
            return None
        rows = weight if role in READING else weight.T
        return rows if residual_map is None else residual_map.carry_in(rows)

    @property
    def mlp(self) -> MlpWeights | None:
        """The MLP, or None if up or down is missing."""
        return None if self.up is None or self.down is None else MlpWeights(self.up, self.down, self.gate)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleEvidence:
    """The result of one test on one projection.

    Attributes:
        role: The projection tested; ``mlp`` is gate, up and down together, and ``mixer`` is a state-space mixer.
        statistic: The trace c, or the pattern energy T.
        normalized: Statistic divided by its maximum; 1 for a copy.
        log_p: Natural log of the bound, at most 0, for this test alone.
        scale: ``|X'|_F / |X|_F``, the paper's lambda and mu.
        transformation: The inner transformation, significant or not.
    """

    role: Literal["q", "k", "v", "o", "gate", "up", "down", "mlp", "mixer"]
    test: Test
    statistic: float
    normalized: float
    log_p: float
    scale: float
    transformation: ModuleMap | None
    null: str


def analyse_layer(
    reference: LayerWeights,
    candidate: LayerWeights,
    residual_map: ResidualBasisMap,
    *,
    roles: Sequence[Projection] = PROJECTIONS,
    log_alpha: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> list[ModuleEvidence]:
    """Run Algorithm 3 on a matched pair of layers, testing every inner transformation that each projection allows.

    - every projection: permutation and signed permutation of its rows;
    - v and o: rotations per head (``blocks``), and any invertible map per head (``subspaces``);
    - q and k: rotations and scales per frequency plane, or signs with QK-norm (``planes``, and ``frequencies`` under a
      weaker null); ``blocks`` and ``subspaces`` if there are no rotary positions;
    - gate, up and down: one joint permutation with signs and scales (``neurons``).

    All head tests share one map of KV groups and query heads. Gains of ``1 + g`` must be folded beforehand.

    Returns:
        Evidence in the order of ``roles``, uncorrected. Takes O(m^2 n) time per role, and at worst O(m^3) for its
        assignments; float32 halves memory and time.

    Raises:
        ValueError: If a weight's shape does not fit the residual map or the head counts.
    """
    first, second = reference.folded(dtype=dtype), candidate.folded(dtype=dtype)
    evidence = list(_permutations(first, second, residual_map, roles, log_alpha))
    evidence += _attention(first, second, residual_map, roles)
    if {"gate", "up", "down"} & set(roles) and first.mlp is not None and second.mlp is not None:
        evidence.append(_joint("mlp", "neurons", first.mlp, second.mlp, residual_map))
    return evidence


def analyse_mixer(reference: MlpWeights, candidate: MlpWeights, residual_map: ResidualBasisMap) -> ModuleEvidence:
    """Test a state-space mixer, with gains folded in, for a joint permutation of its channels.

    Its input, gate and output share channels just as up, gate and down share neurons.
    """
    return _joint("mixer", "channels", reference, candidate, residual_map)


def _joint(
    role: Literal["mlp", "mixer"],
    test: Test,
    reference: MlpWeights,
    candidate: MlpWeights,
    residual_map: ResidualBasisMap,
) -> ModuleEvidence:
    carried = reference.carried(residual_map)
    matching = match_neurons(carried, candidate)
    scale = _scale(carried.up, candidate.up)
    return ModuleEvidence(
        role, test, matching.trace, matching.normalized_trace, matching.log_p, scale, matching, residual_map.null
    )


def _permutations(
    reference: LayerWeights,
    candidate: LayerWeights,
    residual_map: ResidualBasisMap,
    roles: Sequence[Projection],
    log_alpha: float | None,
) -> Iterator[ModuleEvidence]:
    for role in roles:
        x, y = reference.inner_rows(role, residual_map), candidate.inner_rows(role)
        if x is None or y is None:
            continue
        polar = inner_polar(unit_rows(x), unit_rows(y))
        for signed in (False, True):
            matching = best_matching(polar, signed=signed, log_alpha=log_alpha)
            if matching is None:
                continue
            largest = min(*polar.shape, x.shape[1])
            test: Test = "signed_permutation" if signed else "permutation"
            yield ModuleEvidence(
                role,
                test,
                matching.trace,
                matching.trace / largest,
                matching.log_p,
                _scale(x, y),
                matching,
                residual_map.null,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _HeadTest:
    role: Projection
    test: Test
    pattern: HeadPattern
    rows: torch.Tensor
    other_rows: torch.Tensor
    solve: Callable[[IntArray, IntArray], HeadTransformation | PlaneTransformation]
    log_n_layouts: float = 0.0


def _attention(
    reference: LayerWeights, candidate: LayerWeights, residual_map: ResidualBasisMap, roles: Sequence[Projection]
) -> list[ModuleEvidence]:
    tests: list[_HeadTest] = []
    for role in roles:
        x, y = reference.inner_rows(role, residual_map), candidate.inner_rows(role)
        if role in ("gate", "up", "down") or x is None or y is None:
            continue
        heads = (_n_heads(reference, role), _n_heads(candidate, role))
        if x.shape[0] % heads[0] or y.shape[0] % heads[1]:
            raise ValueError(f"{role}: {x.shape[0]} and {y.shape[0]} rows do not divide into {heads} heads")
        if role in ("v", "o") or "none" in (reference.rope, candidate.rope):
            solve = partial(solve_heads, x, y, n_heads=heads)
            level = inner_polar(unit_heads(x, heads[0]), unit_heads(y, heads[1]))
            tests.append(_HeadTest(role, "blocks", block_pattern(level, *heads), x, y, solve))
            canonical = inner_polar(canonical_heads(x, heads[0]), canonical_heads(y, heads[1]))
            tests.append(_HeadTest(role, "subspaces", block_pattern(canonical, *heads), x, y, solve))
        elif x.shape[0] // heads[0] == y.shape[0] // heads[1] and reference.rotary_dim == candidate.rotary_dim:
            tests += _planes(role, x, y, reference, candidate)
    if not tests:
        return []
    q_tests = [t for t in tests if t.role in ("q", "o")]
    kv_tests = [t for t in tests if t.role in ("k", "v")]
    head_map = find_head_map(
        [t.pattern for t in kv_tests],
        [t.pattern for t in q_tests],
        n_kv_heads=(reference.n_kv_heads, candidate.n_kv_heads),
        n_heads=(reference.n_heads, candidate.n_heads),
    )
    return [_evaluate(t, head_map, residual_map) for t in tests]


def _planes(
    role: Projection, x: torch.Tensor, y: torch.Tensor, reference: LayerWeights, candidate: LayerWeights
) -> list[_HeadTest]:
    """Test each possible pair of layouts and keep the best; p is corrected for all pairs."""
    tests_by_layout: list[tuple[float, list[_HeadTest]]] = []
    pairs = [(a, b) for a in _layouts(reference) for b in _layouts(candidate)]
    signs_only = reference.qk_norm and candidate.qk_norm
    log_n_layouts = math.log(len(pairs))
    for pair in pairs:
        rows = plane_rows(len(x), _n_heads(reference, role), pair[0], rotary_dim=reference.rotary_dim)
        columns = plane_rows(len(y), _n_heads(candidate, role), pair[1], rotary_dim=candidate.rotary_dim)
        level, other_level = normalise_planes(x, rows[0]), normalise_planes(y, columns[0])
        pattern = plane_pattern(inner_polar(level, other_level), rows, columns, signs_only=signs_only)
        by_frequency = frequency_pattern(level, other_level, rows[0], columns[0], signs_only=signs_only)
        _, log_p = log_p_head_map(pattern, *best_head_map(pattern))
        solve = partial(solve_planes, x, y, planes=(rows[0], columns[0]), layouts=pair, signs_only=signs_only)
        tests = [
            _HeadTest(role, "planes", pattern, x, y, solve, log_n_layouts),
            _HeadTest(role, "frequencies", by_frequency, x, y, solve, log_n_layouts),
        ]
        tests_by_layout.append((log_p, tests))
    return min(tests_by_layout, key=lambda t: t[0])[1]


def _evaluate(test: _HeadTest, head_map: HeadMap, residual_map: ResidualBasisMap) -> ModuleEvidence:
    if test.role in ("q", "o"):
        heads, other_heads, log_n_maps = head_map.q_reference, head_map.q_candidate, head_map.log_n_q_maps
    else:
        heads, other_heads, log_n_maps = head_map.kv_reference, head_map.kv_candidate, head_map.log_n_kv_maps
    statistic, log_p = log_p_head_map(test.pattern, heads, other_heads, log_n_maps)
    # The factors of single frequencies have full rank; a joint factor's rank is at most the residual width.
    sides = (test.rows, test.other_rows)
    largest = min(len(side) if test.test == "frequencies" else min(side.shape) for side in sides)
    narrower = {"subspaces": SUBSPACE_NULL, "frequencies": FREQUENCY_NULL}.get(test.test)
    return ModuleEvidence(
        role=test.role,
        test=test.test,
        statistic=statistic,
        normalized=statistic / largest,
        log_p=min(0.0, log_p + test.log_n_layouts),
        scale=_scale(test.rows, test.other_rows),
        transformation=test.solve(heads, other_heads),
        null=residual_map.null if narrower is None else f"{residual_map.null} {narrower}",
    )


def _layouts(layer: LayerWeights) -> tuple[PlanePairing, ...]:
    return (layer.rope,) if layer.rope in ("half", "interleaved") else LAYOUTS


def _n_heads(layer: LayerWeights, role: Projection) -> int:
    return layer.n_kv_heads if role in ("k", "v") else layer.n_heads


def _scale(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    return float(candidate.norm() / reference.norm().clamp(min=torch.finfo(reference.dtype).tiny))
