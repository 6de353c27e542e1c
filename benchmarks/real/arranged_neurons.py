"""How far strangers get whose neurons somebody renumbered to agree: ``python -m benchmarks.real.arranged_neurons``.

Renumbering neurons is free and keeps what a model computes. The neurons of strangers of SmolLM2's sizes are renumbered

- by the best assignment and the best rotation in turn, six rounds (Git Re-Basin, over rotations);
- by somebody who knows which neurons are fitted on and which are tested: behind the fitted rotation each tested neuron
  gets the most similar of all others; then the fitted ones are chosen to agree with those, and so on, three rounds.

Printed are the own numbers of the tested neurons and how many are certain, beside copies. Then the most own numbers of
10,000 pairs of random layers, half of them with the same strong directions in both. A minute of one core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.real.workshop import SMALL, Model, built
from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.neurons import FITTED_ROWS, RUN, TESTED
from mdir_hf.method.neuron_numbers import OwnNumbers, own_numbers, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.roles import Role

FITTED = FITTED_ROWS // 2  # gate and up
LAYER = 10
STRANGERS = ("from-random", "distilled", "random")
COPIES = ("new-embeddings-plain-qr", "sliced", "gguf-q4_k", "bitnet", "noise-1", "noise-3")
N_PAIRS = 10_000

Layer = Sequence[torch.Tensor]


def main() -> None:
    """Print a line for each model and each arrangement, and one for the random pairs."""
    base = layer_of("base")
    n_neurons = len(base[0])
    numbers = torch.from_numpy(sample_neurons(n_neurons, FITTED + TESTED, run=RUN, seed=0))
    tested, fitted = numbers[:TESTED], numbers[TESTED:]
    for name in (*COPIES, *STRANGERS):
        other = layer_of(name)
        show(name, counted(base, other, fitted, tested))
        if name in STRANGERS:
            arranged, cosine = best_arrangement(base, other)
            show(f"{name}, best arrangement (mean cosine {cosine:.2f})", counted(base, arranged, fitted, tested))
            show(
                f"{name}, by who knows the rows",
                counted(base, known_rows(base, arranged, fitted, tested), fitted, tested),
            )
    most = max(random_pair(seed).own for seed in range(N_PAIRS))
    print(f"{N_PAIRS:,} random pairs of layers: at most {most} of {TESTED} under their own number", flush=True)


def layer_of(name: str) -> Layer:
    """Rows of gate and up of one layer of a model made from SmolLM2, of unit length."""
    model = NamedModel(str(built(Model(SMALL, name)))).open(Reading())
    return [RoleReader(model, role, (LAYER,)).read(LAYER, None).float() for role in (Role.GATE, Role.UP)]


def counted(reference: Layer, candidate: Layer, fitted: torch.Tensor, tested: torch.Tensor) -> OwnNumbers:
    """What the test counts, on these numbers of both."""
    order = torch.cat([fitted, tested])
    sides = [[rows[order] for rows in layer] for layer in (reference, candidate)]
    return own_numbers(*sides, n_fitted=len(fitted), n_neurons=len(reference[0]))


def show(name: str, found: OwnNumbers) -> None:
    """Print a line."""
    print(f"{name}: {found.own} of {TESTED} under their own number, {found.certain} certain", flush=True)


def best_arrangement(reference: Layer, candidate: Layer, n_rounds: int = 6) -> tuple[Layer, float]:
    """The candidate renumbered by the best assignment and the best rotation in turn, and the mean cosine reached."""
    rotation = torch.eye(reference[0].shape[1], candidate[0].shape[1])
    arranged = list(candidate)
    for _ in range(n_rounds):
        order = assignment(sum(x @ rotation @ y.T for x, y in zip(reference, candidate, strict=True)))
        arranged = [rows[order] for rows in candidate]
        left, _, right = torch.linalg.svd(sum(x.T @ y for x, y in zip(reference, arranged, strict=True)))
        rotation = left @ right
    cosines = [((x @ rotation) * y).sum(dim=1).mean() for x, y in zip(reference, arranged, strict=True)]
    return arranged, float(sum(cosines)) / len(cosines)


def known_rows(
    reference: Layer, candidate: Layer, fitted: torch.Tensor, tested: torch.Tensor, n_rounds: int = 3
) -> Layer:
    """The candidate renumbered so that the tested neurons agree behind the rotation that will be fitted."""
    for _ in range(n_rounds):
        x, y = (torch.cat([rows[fitted] for rows in layer]) for layer in (reference, candidate))
        candidate = put(candidate, tested, fitted, likeness(reference, candidate, tested, *polar(x.T @ y)))
        both = torch.cat([fitted, tested])
        x, y = (torch.cat([rows[both] for rows in layer]) for layer in (reference, candidate))
        before = candidate
        candidate = put(candidate, fitted, tested, likeness(reference, candidate, fitted, *polar(x.T @ y)))
    return before


def polar(cross: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Polar factor of its rank, and the projection onto its right side."""
    left, values, right = torch.linalg.svd(cross, full_matrices=False)
    rank = int((values > 1e-5 * values[0]).sum())
    return left[:, :rank] @ right[:rank], right[:rank].T


def likeness(
    reference: Layer, candidate: Layer, numbers: torch.Tensor, rotation: torch.Tensor, side: torch.Tensor
) -> torch.Tensor:
    """Cosines of these neurons of the reference with all of the candidate's, behind a rotation."""
    return sum(
        unit_rows(x[numbers] @ rotation) @ unit_rows(y @ side @ side.T).T
        for x, y in zip(reference, candidate, strict=True)
    )


def put(candidate: Layer, numbers: torch.Tensor, kept: torch.Tensor, score: torch.Tensor) -> Layer:
    """Give these numbers to the neurons that fit them best, and leave the kept ones where they are."""
    score = score.clone()
    score[:, kept] = -9.0
    chosen = assignment(score)
    order = torch.arange(len(candidate[0]))
    left = iter(sorted(set(order.tolist()) - set(chosen.tolist()) - set(kept.tolist())))
    place = dict(zip(numbers.tolist(), chosen.tolist(), strict=True))
    fixed = set(kept.tolist())
    order = torch.tensor([i if i in fixed else place[i] if i in place else next(left) for i in order.tolist()])
    return [rows[order] for rows in candidate]


def assignment(score: torch.Tensor) -> torch.Tensor:
    """The best column of each row, no column twice."""
    return torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1])


def random_pair(seed: int, width: int = 96) -> OwnNumbers:
    """Own numbers of two random layers; every second pair has a few strong directions in common."""
    rng = np.random.default_rng(seed)
    layers = rng.standard_normal((2, 2, FITTED + TESTED, width))
    if seed % 2:
        shared = 3.0 * rng.standard_normal((4, width))
        layers += rng.standard_normal((2, 2, FITTED + TESTED, 4)) @ shared
    sides = [[unit_rows(torch.from_numpy(rows).float()) for rows in layer] for layer in layers]
    return own_numbers(*sides, n_fitted=FITTED, n_neurons=4 * width)


if __name__ == "__main__":
    main()
