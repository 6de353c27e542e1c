"""Plan a comparison from file headers: the bytes that each step may read, and the memory."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass

from mdir_hf.comparison.keys import most_key_values
from mdir_hf.comparison.layer_weights import layers_with, stored_n_bytes
from mdir_hf.comparison.neuron_layers import GATE_OF, n_neurons_of, neuron_layers, neuron_role, with_first_experts
from mdir_hf.comparison.neuron_sample import (
    FEW_LAYERS,
    LARGE_LAYER_VALUES,
    NEAR_FITTED_ROWS,
    NEAR_LAYERS,
    planned_n_bytes,
)
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.stacks import expert_sets, has_mixture
from mdir_hf.comparison.tokens import ROWS, matrix_pair
from mdir_hf.errors import AnatomyError, MemoryBudgetError, UnsupportedFormatError
from mdir_hf.model.comparable import Comparable, PlacedTensors, matrix_spec
from mdir_hf.model.roles import Role
from mdir_hf.report import Level, n_bytes_text
from mdir_hf.report.words import range_text

BASE_MEMORY_BYTES = 420 << 20
"""Memory for Python, torch, two vocabularies of 128,000 tokens, and the names of 90,000 tensors (measured)."""

GAPS = 2
"""Reads of sampled rows, including the gaps between them, are at most this many times as large as the rows."""

LARGEST_GAPS = 6
"""The same for the rows of tokens, whose gaps differ between two vocabularies."""

NOISE_ROWS_PER_CHANNEL = 5
"""Number of rows per residual channel to which the noise step fits a rotation."""

SEARCHES = 4
"""Maximum number of searches, and each reads one whole gate: two behind a map of keys, two behind one of the
embeddings."""


LOOK_MATRICES = 8
"""Number of square float32 matrices that a matching of channels takes: 6 of 8,192 channels were measured."""

BYTES_PER_KEY = 7
"""Memory for each key value, as stored and in float32, with the holes that freed rows leave: 2.15 GB were measured
where at most 302 million values are read."""

NOISE_AFTER_KEYS = "noise after keys"
"""Key of the memory of the noise step if keys were compared before."""

HOLES_BYTES = 640 << 20
"""Freed memory that the allocator does not return to the system before that step. Measured: 0.5 GB at 2,048 channels,
0.4 GB at 3,072, and less at 896, 4,096 and 5,120."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Planned reads of a comparison.

    Attributes:
        steps: Upper bounds on the bytes that each step reads, in order, keyed by name. A step runs only if the steps
            before it do not settle the question, except for those that the level requires.
        opening_bytes: Bytes of both models' headers and configs.
        least_memory_bytes: Estimated memory of the steps that cannot be left out.
        memory: Estimated memory of the other steps, keyed by name.
        level: Level of the comparison.
    """

    steps: tuple[tuple[str, int], ...]
    bytes_of_weights: int
    least_memory_bytes: int
    memory: tuple[tuple[str, int], ...]
    level: Level
    opening_bytes: int = 0

    @property
    def peak_memory_bytes(self) -> int:
        """Estimated memory if no step is left out."""
        return max(self.least_memory_bytes, *dict(self.memory).values())

    @property
    def n_bytes(self) -> tuple[int, int]:
        """Minimum and maximum number of bytes read."""
        sizes = dict(self.steps)
        return self.opening_bytes + sizes.get("near", 0) // GAPS, self.opening_bytes + sum(sizes.values())

    def __str__(self) -> str:
        steps = ", ".join(f"{name} {n_bytes_text(n_bytes)}" for name, n_bytes in self.steps)
        return (
            f"plan: {range_text(*map(n_bytes_text, self.n_bytes))} of {n_bytes_text(self.bytes_of_weights)} of "
            f"weights; peak memory about {n_bytes_text(self.peak_memory_bytes)}\n"
            f"      at most, until the question is settled: {steps}"
        )


def plan_comparison(reference: Comparable, candidate: Comparable, settings: Settings) -> ReadPlan:
    """Plan a comparison from file headers."""
    models, level = (reference, candidate), settings.level
    by_model = [reads_of(model) for model in models]
    steps = {name: sum(reads[name] for reads in by_model) for name in by_model[0]}
    steps["embeddings"] = _bytes_of_embeddings(reference, candidate)
    bytes_of_weights = sum(model.tensors.n_bytes for model in models)
    if level.describes_layers:
        steps["layers"] = bytes_of_weights
    if level.runs_paper:
        steps["paper"] = bytes_of_weights
    return ReadPlan(
        steps=tuple((name, n_bytes) for name, n_bytes in steps.items() if n_bytes),
        bytes_of_weights=bytes_of_weights,
        least_memory_bytes=BASE_MEMORY_BYTES + (_memory_of_paper(models) if level.runs_paper else 0),
        memory=tuple(
            (name, BASE_MEMORY_BYTES + n_bytes)
            for name, n_bytes in _memory_of_steps(models).items()
            if name != "embeddings" or steps[name]
        ),
        level=level,
    )


def reads_of(model: Comparable) -> dict[str, int]:
    """Return upper bounds on the bytes that each step reads of one model, keyed by step."""
    reads = dict.fromkeys(("near", "number", "parts", "keys", "every", "noise", "searches"), 0)
    with suppress(AnatomyError, UnsupportedFormatError):
        places = neuron_layers(model)
        n_sampled = max(1, min(FEW_LAYERS, len(places)))
        per_layer = planned_n_bytes(model) // n_sampled
        is_large = bool(places) and n_neurons_of(model)[places[0]] * model.anatomy.hidden_size > LARGE_LAYER_VALUES
        n_near = 1 if is_large else min(NEAR_LAYERS, len(places))
        reads["near"] = GAPS * n_near * planned_n_bytes(model, n_fitted_rows=NEAR_FITTED_ROWS) // n_sampled
        reads["number"] = GAPS * min(FEW_LAYERS, len(places)) * per_layer
        reads["every"] = GAPS * (len(places) + FEW_LAYERS) * per_layer
        matrices = _bytes_of_neurons(model, places)
        reads["noise"] = 2 * matrices
        reads["searches"] = SEARCHES * matrices
    with suppress(AnatomyError, UnsupportedFormatError):
        places = layers_with(model, Role.K)
        keys = stored_n_bytes(model, places[0], Role.K) if places else 0
        reads["keys"] = 2 * max(FEW_LAYERS * keys, len(places) * keys // max(1, model.anatomy.n_kv_heads or 1))
    parts: list[PlacedTensors] = [*(model.other_stacks or ())]
    if has_mixture((model,)):
        parts += expert_sets(model)
    for part in parts:
        with suppress(AnatomyError, UnsupportedFormatError):
            reads["parts"] += GAPS * planned_n_bytes(part, every=True)
    return reads


def _bytes_of_neurons(model: PlacedTensors, places: tuple[int, ...]) -> int:
    """Return the stored size of gate and up in one layer."""
    up = neuron_role(model)
    if up is None or not places:
        return 0
    adapted = with_first_experts(model)
    parts = adapted.anatomy.layers[places[0]].parts
    return sum(stored_n_bytes(adapted, places[0], role) for role in (up, GATE_OF[up]) if role in parts)


def _bytes_of_embeddings(reference: Comparable, candidate: Comparable) -> int:
    with suppress(AnatomyError, UnsupportedFormatError):
        named_pair = matrix_pair(reference, candidate)
        if named_pair is not None:
            specs = [
                matrix_spec(model, part) for model, part in zip((reference, candidate), named_pair[1], strict=True)
            ]
            return LARGEST_GAPS * ROWS * sum(spec.n_bytes // spec.shape[0] for spec in specs)
    return 0


def _memory_of_steps(models: tuple[Comparable, Comparable]) -> dict[str, int]:
    """Return the memory of the steps that can be left out, keyed by name."""
    square = 4 * max(model.anatomy.hidden_size for model in models) ** 2
    keys, gate, n_layers = 0, 0, 1
    with suppress(AnatomyError, UnsupportedFormatError):
        keys = BYTES_PER_KEY * most_key_values(models)
    with suppress(AnatomyError, UnsupportedFormatError):
        # Gates of both layers as float32 unit rows, and one as stored.
        n_gate_values = max(_n_gate_values(model) for model in models)
        gate, n_layers = 3 * 4 * n_gate_values, 1 if n_gate_values > LARGE_LAYER_VALUES else NEAR_LAYERS
    look, search = LOOK_MATRICES * square, gate + 2 * square
    # Fitted rows of one or two layers of both models in float32, one model's rows while they are read, and about 17
    # square matrices for whitening, or for the cosines of a search: a comparison at the width of DeepSeek-V3 took 6.9
    # GB.
    noise = max(((2 * n_layers + 1) * NOISE_ROWS_PER_CHANNEL + 17) * square, search)
    # Freed keys leave holes that larger matrices do not fit.
    return {
        "noise": noise,
        "keys": keys + max(look, search),
        "embeddings": keys + look,
        NOISE_AFTER_KEYS: HOLES_BYTES + keys + noise,
        "search": keys + search,
    }


def _n_gate_values(model: Comparable) -> int:
    """Return the number of values of one layer's gate."""
    places = neuron_layers(model)
    return n_neurons_of(model)[places[0]] * model.anatomy.hidden_size if places else 0


def _memory_of_paper(models: tuple[Comparable, ...]) -> int:
    """Return the size of whole matrices in float64, with the copies that LAPACK makes."""
    width = max(model.anatomy.hidden_size for model in models)
    matrices = [model.tensors.spec(name).shape for model in models for name in _largest(model)]
    return 8 * 9 * width * width + 2 * 8 * max((math.prod(shape) for shape in matrices), default=0)


def _largest(model: Comparable) -> list[str]:
    names = [part.tensor for layer in model.anatomy.layers[:1] for part in layer.parts.values() if part.tensors]
    return [name for name in names if name in model.tensors.names()]


def steps_without_room(plan: ReadPlan, max_memory_bytes: int | None) -> dict[str, int]:
    """Return the steps that do not fit in memory, with the bytes that they need. None allows the machine's memory.

    Raises:
        MemoryBudgetError: If not even the steps that cannot be left out fit.
    """
    allowed = max_memory_bytes if max_memory_bytes is not None else _machine_memory_bytes()
    if allowed is None:
        return {}
    if plan.least_memory_bytes > allowed:
        raise MemoryBudgetError(
            f"this comparison needs about {n_bytes_text(plan.least_memory_bytes)} of memory, and "
            f"{n_bytes_text(allowed)} are allowed; use level 'auto', or a machine with more memory"
        )
    return {name: n_bytes for name, n_bytes in plan.memory if n_bytes > allowed}


def _machine_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return None
