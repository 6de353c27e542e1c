"""Count neurons with equal numbers in ten thousand pairs of independent MLPs.

python -m benchmarks.neuron_null [--results FILE]

2,500 pairs of each kind, half of them with a gate. 64 neurons are tested after a rotation fitted on 128 other rows:

- *random*: normal weights.
- *shared features*: each neuron reads a mix of 8 directions that both models share, plus a small individual part.
- *heavy tails*: entries of Student's t with 2 degrees of freedom; both models share the sizes of channels.
- *trained*: trained by Adam on one teacher and the same batches, each from its own initialisation. All pairs of 71
  such MLPs with a gate and of 71 without are tested; pairs share MLPs, but the numbering of each is independent.
- *noisy copies*: the positive control, with noise of half the size of the weights; not included in the count.

The bound allows 10,000 / k! pairs with k or more equal numbers. The script takes a minute on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdir_hf.comparison.neuron_sample import FITTED_ROWS, n_tested_of
from mdir_hf.method.neuron_numbers import OwnNumbers, in_span, log_p_own_numbers, match_neurons_by_number
from mdir_hf.method.neurons import unit_rows
from mdir_hf.thresholds import LEAST_CERTAIN_SHARE

RESULTS = Path(__file__).parent / "results" / "neuron-null.json"
N_PAIRS = 2500
WIDTH, N_NEURONS = 64, 192
TESTED = n_tested_of(N_NEURONS)
N_FEATURES, OWN_PART = 8, 0.3
N_MLPS = 51
"""They form 1,275 pairs."""
STEPS, BATCH_SIZE, LEARNING_RATE = 300, 64, 3e-3
LOG_ALPHA = math.log(1e-10)

Rows = list[torch.Tensor]
Pairs = Iterator[tuple[Rows, Rows]]
"""Two MLPs as rows of gate and up, or of up alone, each ``(N_NEURONS, WIDTH)``."""


def pairs_of(draw: Callable[[torch.Generator, torch.Tensor], torch.Tensor]) -> Callable[[], Pairs]:
    """Draws pairs of independent MLPs, given a seed for the shared part."""

    def pairs() -> Pairs:
        generator = torch.Generator().manual_seed(0)
        for i in range(N_PAIRS):
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


def heavy_tailed(generator: torch.Generator, shared: torch.Tensor) -> torch.Tensor:
    """Draw rows of Student's t; both models share the sizes of channels."""
    square = torch.randn(2, N_NEURONS, WIDTH, generator=generator).square().mean(dim=0)
    return random(generator, shared) / square.sqrt() * shared[0].exp()


def trained() -> Pairs:
    """Yield pairs of MLPs trained on the same task and batches."""
    for is_gated in (True, False):
        mlps = train_mlps(is_gated=is_gated)
        for i, j in itertools.islice(itertools.combinations(range(N_MLPS), 2), N_PAIRS // 2):
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


KINDS: dict[str, Callable[[], Pairs]] = {
    "random": pairs_of(random),
    "shared features": pairs_of(with_features),
    "heavy tails": pairs_of(heavy_tailed),
    "trained": trained,
}


def counted(reference: Rows, candidate: Rows, seed: int) -> OwnNumbers:
    """Count neurons of one pair with equal numbers."""
    numbers = torch.from_numpy(np.random.default_rng(seed).permutation(N_NEURONS))
    n_fitted = FITTED_ROWS // len(reference)
    sides = [
        in_span([unit_rows(rows[numbers[: n_fitted + TESTED]]) for rows in mlp], n_fitted)
        for mlp in (reference, candidate)
    ]
    return match_neurons_by_number(*sides, n_fitted=n_fitted, n_neurons=N_NEURONS).counts


def row_of(kind: str, pairs: Pairs) -> dict[str, Any]:
    """Results of one kind."""
    counts = [counted(*mlps, seed) for seed, mlps in enumerate(pairs)]
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


def main() -> None:
    """Count every kind, print and store a line for each, and compare the counts with the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row_of(kind, pairs()) for kind, pairs in KINDS.items()]
    copies = row_of("noisy copies", noisy_copies())
    for row in (*rows, copies):
        print(json.dumps(row))
    n_pairs = sum(row["pairs"] for row in rows)
    print(f"{n_pairs:,} pairs, largest k {max(row['most_own'] for row in rows)}")
    for k in range(1, 9):
        n = sum(sum(row["own"][k:]) for row in rows)
        print(f"k >= {k}: {n:6,} pairs, the bound allows {n_pairs / math.factorial(k):9,.1f}")
    arguments.results.write_text(json.dumps([*rows, copies], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
