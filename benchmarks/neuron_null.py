"""Count neurons with equal numbers in 100,000 pairs of independent layers, beside the bound.

64 neurons are tested after a rotation fitted on 128 other rows. Where weights are drawn, half of the pairs have a gate:

- *random*: normal weights.
- *shared features*: each neuron reads a mix of 8 directions that both models share, plus a small individual part.
- *falling scale*: the same, but the individual part falls from 3 to 0.03 with the neuron's number.
- *heavy tails*: entries of Student's t with 2 degrees of freedom; both models share the sizes of channels.
- *outliers*: three channels that both models share are 30 times as large, and one neuron in 50.
- *orthogonal*: orthonormal rows, as of an orthogonal initialisation.
- *deterministic*: rows of one cosine transform, the same in all models, in each model's own order and with noise.
- *trained*: trained by Adam on one teacher and the same batches, each from its own initialisation. All pairs of
  100 such MLPs with a gate and of 100 without are tested; pairs share MLPs, but the numbering of each is independent.
- *real*: pairs of different layers of SmolLM2-135M, Qwen2.5-Coder-0.5B and Qwen2.5-Coder-1.5B, of one or two models, as
  read from the packages of ``benchmarks.real``. Three samples of each pair, from the first 1,536 neurons.
- *noisy copies*: the positive control, with noise of half the size of the weights; not included in the count.

The bound allows 100,000 / k! pairs with k or more equal numbers. The script takes 15 minutes on one core. Without the
packages, the stored row of real models is kept.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from benchmarks.real.bases import base_folder
from benchmarks.runner import Benchmark, Case
from mdir_hf.comparison.neuron_sample import FITTED_ROWS, n_tested_of
from mdir_hf.method.neuron_numbers import OwnNumbers, in_span, log_p_own_numbers, match_neurons_by_number
from mdir_hf.method.neurons import unit_rows
from mdir_hf.thresholds import LEAST_CERTAIN_SHARE

WIDTH, N_NEURONS = 64, 192
TESTED = n_tested_of(N_NEURONS)
N_FEATURES, OWN_PART = 8, 0.3
N_MLPS = 100
"""They form 4,950 pairs."""
STEPS, BATCH_SIZE, LEARNING_RATE = 300, 64, 3e-3
REAL = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
N_REAL_NEURONS, N_REAL_SAMPLES = 1536, 3
LOG_ALPHA = math.log(1e-10)

Rows = list[torch.Tensor]
Pairs = Iterator[tuple[Rows, Rows]]
"""Two layers as rows of gate and up, or of up alone, each ``(neurons, width)``."""


def pairs_of(draw: Callable[[torch.Generator, torch.Tensor], torch.Tensor], n_pairs: int) -> Callable[[], Pairs]:
    """Draws pairs of independent MLPs, given a seed for the shared part."""

    def pairs() -> Pairs:
        generator = torch.Generator().manual_seed(0)
        for i in range(n_pairs):
            shared = torch.randn(N_FEATURES, WIDTH, generator=generator)
            mlps = [[draw(generator, shared) for _ in range(1 + i % 2)] for _ in range(2)]
            yield mlps[0], mlps[1]

    return pairs


def random(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Normal rows."""
    del shared
    return torch.randn(N_NEURONS, WIDTH, generator=generator)


def with_features(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw rows near a subspace that both models share."""
    mix = torch.randn(N_NEURONS, N_FEATURES, generator=generator) / math.sqrt(N_FEATURES)
    return mix @ shared + OWN_PART * random(generator, shared)


def with_falling_scale(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw rows near a shared subspace, nearer for neurons with large numbers."""
    mix = torch.randn(N_NEURONS, N_FEATURES, generator=generator) / math.sqrt(N_FEATURES)
    return mix @ shared + torch.logspace(math.log10(3.0), math.log10(0.03), N_NEURONS)[:, None] * random(
        generator, shared
    )


def heavy_tailed(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw rows of Student's t; both models share the sizes of channels."""
    square = torch.randn(2, N_NEURONS, WIDTH, generator=generator).square().mean(dim=0)
    return random(generator, shared) / square.sqrt() * shared[0].exp()


def with_outliers(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw rows with three large channels, which both models share, and some large neurons."""
    rows = random(generator, shared)
    rows[:, shared[0].topk(3).indices] *= 30.0
    rows[torch.rand(N_NEURONS, generator=generator) < 0.02] *= 30.0
    return rows


def orthogonal(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw three orthonormal bases."""
    del shared
    bases = torch.linalg.qr(torch.randn(N_NEURONS // WIDTH, WIDTH, WIDTH, generator=generator)).Q
    return bases.flatten(0, 1)


def deterministic(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw an order of the rows of a cosine transform, and add noise of a tenth."""
    angles = (torch.arange(N_NEURONS)[:, None] + 0.5) * torch.arange(WIDTH) * (math.pi / N_NEURONS)
    rows: torch.Tensor = angles.cos()[torch.randperm(N_NEURONS, generator=generator)]
    return rows + 0.1 * random(generator, shared)


def trained() -> Pairs:
    """Yield pairs of MLPs trained on the same task and batches."""
    for is_gated in (True, False):
        mlps = train_mlps(is_gated=is_gated)
        for i, j in itertools.combinations(range(N_MLPS), 2):
            yield [rows[i] for rows in mlps], [rows[j] for rows in mlps]


def train_mlps(*, is_gated: bool) -> Rows:
    """Train MLPs side by side, their weights stacked.

    Returns:
        Rows of gate and up, or of up alone, each ``(N_MLPS, N_NEURONS, WIDTH)``.
    """
    generator = torch.Generator().manual_seed(int(is_gated))

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])

    readers = [drawn(N_MLPS, N_NEURONS, WIDTH).requires_grad_() for _ in range(1 + is_gated)]
    down = drawn(N_MLPS, WIDTH, N_NEURONS).requires_grad_()
    teacher, answer, sizes = 3.0 * drawn(48, WIDTH), drawn(WIDTH, 48), drawn(WIDTH).abs() * math.sqrt(WIDTH)
    adam = torch.optim.Adam([*readers, down], lr=LEARNING_RATE)
    for _ in range(STEPS):
        x = torch.randn(BATCH_SIZE, WIDTH, generator=generator) * sizes
        goal = torch.relu(x @ teacher.T) @ answer.T
        hidden = [x @ rows.mT for rows in readers]
        active = torch.nn.functional.silu(hidden[0]) * (hidden[1] if is_gated else 1.0)
        loss = (active @ down.mT - goal).square().mean(dim=(1, 2)).sum()
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return [rows.detach() for rows in readers]


def noisy_copies() -> Pairs:
    """Yield noisy copies, the positive control."""
    generator = torch.Generator().manual_seed(1)
    for i in range(100):
        mlp = [random(generator, torch.empty(0)) for _ in range(1 + i % 2)]
        yield mlp, [rows + 0.5 * random(generator, torch.empty(0)) for rows in mlp]


def real() -> Pairs:
    """Yield pairs of different layers of real models, three samples of each.

    Raises:
        UnavailableError: If a package is neither stored nor on the index.
    """
    for seed in range(N_REAL_SAMPLES):
        numbers = np.random.default_rng(seed).permutation(N_REAL_NEURONS)[:N_NEURONS]
        layers = [rows for name in REAL for rows in gated_rows(base_folder(name), torch.from_numpy(numbers))]
        yield from itertools.combinations(layers, 2)


def gated_rows(folder: Path, numbers: torch.Tensor) -> Iterator[Rows]:
    """Yield chosen rows of gate and up of each layer, with the gain of the norm before them."""
    n_layers = json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for i in range(n_layers):
            gain = file.get_tensor(f"model.layers.{i}.post_attention_layernorm.weight").float()
            matrices = (file.get_tensor(f"model.layers.{i}.mlp.{role}_proj.weight") for role in ("gate", "up"))
            yield [matrix[numbers].float() * gain for matrix in matrices]


KINDS: dict[str, Callable[[], Pairs]] = {
    "random": pairs_of(random, 15_000),
    "shared features": pairs_of(with_features, 15_000),
    "falling scale": pairs_of(with_falling_scale, 10_137),
    "heavy tails": pairs_of(heavy_tailed, 15_000),
    "outliers": pairs_of(with_outliers, 15_000),
    "orthogonal": pairs_of(orthogonal, 5_000),
    "deterministic": pairs_of(deterministic, 5_000),
    "trained": trained,
    "real": real,
    "noisy copies": noisy_copies,
}
"""Real models have 82 layers, which form 3,321 pairs; all kinds together have 100,000."""


def counted(reference: Rows, candidate: Rows, seed: int) -> OwnNumbers:
    """Count neurons of one pair with equal numbers."""
    numbers = torch.from_numpy(np.random.default_rng(seed).permutation(len(reference[0])))
    n_fitted = FITTED_ROWS // len(reference)
    sides = [
        in_span([unit_rows(rows[numbers[: n_fitted + TESTED]]) for rows in mlp], n_fitted)
        for mlp in (reference, candidate)
    ]
    return match_neurons_by_number(*sides, n_fitted=n_fitted, n_neurons=TESTED).counts


def row_of(kind: str, pairs: Callable[[], Pairs]) -> dict[str, Any]:
    """Results of one kind."""
    counts = [counted(*mlps, seed) for seed, mlps in enumerate(pairs())]
    own_numbers = np.array([each.own for each in counts])
    return {
        "kind": kind,
        "pairs": len(counts),
        "own": np.bincount(own_numbers).tolist(),
        "most_own": int(own_numbers.max()),
        "most_certain": max(each.certain for each in counts),
        "below_alpha": sum(log_p_own_numbers(int(k)) < LOG_ALPHA for k in own_numbers),
        "matches": sum(
            each.certain >= LEAST_CERTAIN_SHARE * TESTED and log_p_own_numbers(each.own) < LOG_ALPHA for each in counts
        ),
    }


NEURON_NULL = Benchmark(
    "neuron-null",
    "neurons with equal numbers in 100,000 pairs of independent layers",
    ("kind",),
    lambda: (Case((kind,), partial(row_of, kind, pairs)) for kind, pairs in KINDS.items()),
)
