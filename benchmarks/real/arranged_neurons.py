"""How many neurons of a stranger have their own number after somebody arranged them.

    python -m benchmarks.real.arranged_neurons [--sweeps N]

Neurons can be renumbered, and the rows of up and the columns of down negated, without changing what a gated MLP
computes. For layers of strangers at the same depth, the arrangers are:

- *as it is*: nobody arranged anything.
- *channels and neurons*: assignments of neurons and of channels in turn (Git Re-Basin).
- *rotation and neurons*: the same with the best rotation in place of an order of channels.
- *mutual best*: the same, but neurons that are each other's best partner come first.
- *knows the tested*: knows which neurons are tested. Gives them the best of all neurons, behind the fitted rotation.
- *knows the fitted*: also knows which neurons fit the rotation, and assigns both in turn.
- *searches*: starts there, and replaces one fitted neuron after another as long as more of the tested are certain.

Each row shows the counts for the sample that the arranger knows, and the largest counts for ``FRESH`` samples that it
does not know. Where the stranger has more neurons than the reference, the arranger may keep the ones it likes best.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.real.workshop import MIDDLE, SMALL, Model, built
from benchmarks.zoo.build import cache_root
from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.neuron_sample import FITTED_ROWS, RUN, TESTED, NeuronSample
from mdir_hf.comparison.neurons import LEAST_SHARE_OF_NEURONS, compare_neurons
from mdir_hf.comparison.row_screen import spread
from mdir_hf.method.matching import CHANNEL_ALPHA, IntArray
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model as Opened
from mdir_hf.model.roles import Role

RESULTS = Path(__file__).parents[1] / "results" / "real-arranged-neurons.jsonl"
ALPHA = 1e-10
KNOWN_SEED = 0
FRESH = 20
N_LAYERS = 3
ROUNDS = 6
AIM = 18
"""Tested neurons that a search makes certain: of 32 that have their own number 16 must be."""
TRIED = 8
"""Neurons that a search tries in each place: those that promise most to first order."""

Rows = list[torch.Tensor]
"""Unit rows of gate and up, or of up alone, of the same neurons: each ``(neurons, width)``."""


class Chosen(NamedTuple):
    """Neurons of the stranger, in the order of the numbers that they get, and the signs of their rows of up."""

    neurons: IntArray
    signs: torch.Tensor

    def rows(self, pool: Rows) -> Rows:
        """Their rows."""
        *gates, up = (rows[self.neurons] for rows in pool)
        return [*gates, up * self.signs[:, None]]


class Directions(NamedTuple):
    """What carries rows of the reference, ``(width, r)``, and rows of the stranger into the fitted coordinates."""

    reference: torch.Tensor
    stranger: torch.Tensor


@dataclass(frozen=True, eq=False)
class Forger:
    """Chooses neurons of a stranger for the numbers of one known sample.

    Attributes:
        fitted: Rows of the reference that the rotation is fitted on.
        tested: Rows of the reference whose numbers are tested.
        pool: All neurons of a layer of the stranger.
        n_neurons: Neurons of the layer of the reference.
    """

    fitted: Rows
    tested: Rows
    pool: Rows
    n_neurons: int

    def directions(self, fitted: Chosen) -> Directions:
        """Fit the rotation, as :func:`mdir_hf.method.neuron_numbers.own_numbers` does."""
        (q_x, r_x), (q_y, r_y) = (torch.linalg.qr(torch.cat(x).T) for x in (self.fitted, fitted.rows(self.pool)))
        left, _, right = torch.linalg.svd(r_x @ r_y.T, full_matrices=False)
        return Directions(q_x @ left @ right, q_y)

    def deviations(self, fitted: Chosen, tested: Chosen) -> torch.Tensor:
        """How far the cosine of each tested pair is from that of random directions, in standard deviations."""
        behind = self.directions(fitted)
        cosines = sum(
            (unit_rows(x @ behind.reference) * unit_rows(y @ behind.stranger)).sum(dim=1)
            for x, y in zip(self.tested, tested.rows(self.pool), strict=True)
        )
        assert isinstance(cosines, torch.Tensor)
        return cosines / math.sqrt(len(self.pool) / behind.stranger.shape[1])

    @property
    def limit(self) -> float:
        """Deviations from which a tested neuron is certain."""
        return math.sqrt(2.0 * math.log(self.n_neurons**2 / CHANNEL_ALPHA))

    def goal(self, fitted: Chosen, tested: Chosen) -> float:
        """Deviations of the best :data:`AIM` tested neurons, each counted to a little beyond the limit."""
        return float(self.deviations(fitted, tested).topk(AIM).values.clamp(max=self.limit + 0.15).sum())

    def best_tested(self, fitted: Chosen) -> Chosen:
        """The neurons that resemble the tested ones most behind a rotation."""
        behind = self.directions(fitted)
        return assigned(
            [
                unit_rows(x @ behind.reference) @ unit_rows(y @ behind.stranger).T
                for x, y in zip(self.tested, self.pool, strict=True)
            ],
            without=fitted.neurons,
        )

    def promises(self, fitted: Chosen, tested: Chosen) -> Rows:
        """What each neuron of the pool adds to the best :data:`AIM` cosines in each fitted place, to first order.

        Rows of width much larger than their number are nearly orthogonal. Then the rotation maps fitted rows on fitted
        rows, and a tested cosine is a sum over fitted rows of products of two cosines.
        """
        behind = self.directions(fitted)
        aim = self.deviations(fitted, tested).topk(AIM).indices
        pairs = [
            (
                x[aim] / (x[aim] @ behind.reference).norm(dim=1, keepdim=True),
                y[aim] / (y[aim] @ behind.stranger).norm(dim=1, keepdim=True),
            )
            for x, y in zip(self.tested, tested.rows(self.pool), strict=True)
        ]
        return [
            torch.stack([(x @ mine.T).T @ (y @ theirs.T) for x, y in pairs]).sum(dim=0)
            for mine, theirs in zip(self.fitted, self.pool, strict=True)
        ]

    def first(self, seed: int) -> Chosen:
        """Random neurons for the fitted numbers."""
        order = np.random.default_rng(seed).permutation(len(self.pool[0]))[: len(self.fitted[0])]
        return Chosen(order, torch.ones(len(order)))

    def in_turn(self, seed: int) -> tuple[Chosen, Chosen]:
        """Assign fitted and tested neurons in turn, and keep the best round."""
        fitted = self.first(seed)
        rounds = []
        for _ in range(ROUNDS):
            tested = self.best_tested(fitted)
            rounds.append((fitted, tested))
            fitted = assigned(self.promises(fitted, tested), without=tested.neurons)
        return max(rounds, key=lambda both: self.goal(*both))

    def searched(self, fitted: Chosen, tested: Chosen, sweeps: int, seed: int) -> tuple[Chosen, Chosen]:
        """Replace fitted neurons one by one as long as that helps."""
        best, generator = self.goal(fitted, tested), np.random.default_rng(seed)
        for _ in range(sweeps):
            before = best
            again = self.best_tested(fitted)
            if self.goal(fitted, again) > best:
                tested, best = again, self.goal(fitted, again)
            promise, signs = signed(self.promises(fitted, tested))
            for place in generator.permutation(len(fitted.neurons)):
                used = {*fitted.neurons.tolist(), *tested.neurons.tolist()}
                ranked = promise[place].argsort(descending=True)[: TRIED + len(used)].tolist()
                for neuron in [each for each in ranked if each not in used][:TRIED]:
                    tried = Chosen(fitted.neurons.copy(), fitted.signs.clone())
                    tried.neurons[place], tried.signs[place] = neuron, signs[place, neuron]
                    goal = self.goal(tried, tested)
                    if goal > best:
                        fitted, best = tried, goal
            if best - before < 1e-3 or int((self.deviations(fitted, tested) > self.limit).sum()) >= AIM:
                break
        return fitted, tested


def signed(scores: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of gate and up with the better sign of up, which down undoes; without a gate no sign is free."""
    if len(scores) == 1:
        return scores[0], torch.ones_like(scores[0])
    gate, up = scores
    return gate + up.abs(), torch.where(up < 0.0, -1.0, 1.0)


def assigned(scores: Rows, without: IntArray | None = None, *, mutual: bool = False) -> Chosen:
    """The best assignment of the stranger's neurons.

    Args:
        scores: ``(numbers, neurons of the stranger)`` of each matrix.
        without: Neurons that are taken.
        mutual: Whether pairs that are each other's best come first.
    """
    score, signs = signed(scores)
    if without is not None:
        score[:, without] = -1e6  # less than any cosine; the assignment takes no infinity
    if mutual:
        is_best = (score == score.amax(dim=0)) & (score == score.amax(dim=1, keepdim=True))
        score = score + 1e3 * is_best
    rows, neurons = linear_sum_assignment(score.numpy(), maximize=True)
    return Chosen(neurons.astype(np.int64), signs[rows, neurons])


def arranged_unknowing(reference: Rows, pool: Rows, *, channels: bool = False, mutual: bool = False) -> Chosen:
    """Arrange all neurons without a look at which are sampled, by assignments in turn.

    Args:
        reference: All neurons of the reference.
        pool: All neurons of the stranger.
        channels: Whether an order of channels stands for the rotation.
        mutual: Whether the last assignment puts pairs that are each other's best first.
    """
    chosen = Chosen(
        np.random.default_rng(0).permutation(len(pool[0]))[: len(reference[0])], torch.ones(len(reference[0]))
    )
    scores: Rows = []
    for _ in range(ROUNDS):
        cross = torch.stack([x.T @ y for x, y in zip(reference, chosen.rows(pool), strict=True)]).sum(dim=0)
        if channels:
            carry = torch.zeros_like(cross)
            carry[linear_sum_assignment(cross.numpy(), maximize=True)] = 1.0
        else:
            left, _, right = torch.linalg.svd(cross, full_matrices=False)
            carry = left @ right
        scores = [x @ carry @ y.T for x, y in zip(reference, pool, strict=True)]
        chosen = assigned(scores)
    return assigned(scores, mutual=True) if mutual else chosen


def sampled_numbers(n_neurons: int, n_matrices: int, seed: int) -> tuple[IntArray, IntArray]:
    """Numbers of the fitted and of the tested neurons, as ``take_neurons`` draws them."""
    numbers = sample_neurons(n_neurons, FITTED_ROWS // n_matrices + TESTED, run=RUN, seed=seed)
    return np.sort(numbers[TESTED:]), np.sort(numbers[:TESTED])


def with_known(everywhere: Chosen, places: IntArray, chosen: Chosen) -> Chosen:
    """The arrangement of all neurons, with chosen ones in known places; those that they displace go where room is."""
    neurons, signs = everywhere.neurons.copy(), everywhere.signs.clone()
    neurons[places], signs[places] = chosen.neurons, chosen.signs
    others = np.setdiff1d(np.arange(len(neurons)), places)
    is_twice = np.isin(neurons[others], chosen.neurons)
    left = np.setdiff1d(everywhere.neurons, neurons)
    neurons[others[is_twice]] = left[: is_twice.sum()]
    return Chosen(neurons, signs)


def judged(reference: Rows, pool: Rows, arranged: Chosen, seed: int) -> dict[str, Any]:
    """What the package says of one sample of two layers."""
    n_neurons = len(reference[0])
    numbers = np.concatenate(sampled_numbers(n_neurons, len(reference), seed))
    n_fitted = len(numbers) - TESTED
    reference, candidate = (in_span([x[numbers] for x in side], n_fitted) for side in (reference, arranged.rows(pool)))
    samples = [NeuronSample((0,), n_neurons, n_fitted, torch.stack(side)[None]) for side in (reference, candidate)]
    found = compare_neurons(*samples, alpha=ALPHA)
    assert found is not None
    return {"own": found.own_number[0][0], "certain": found.certain[0][0], "matches": bool(found.matches)}


def arrangements(reference: Rows, pool: Rows, sweeps: int) -> Iterator[tuple[str, Chosen]]:
    """Every arranger's answer, the weakest first."""
    n = len(reference[0])
    if n <= len(pool[0]):
        yield "as it is", Chosen(np.arange(n), torch.ones(n))
    if reference[0].shape[1] == pool[0].shape[1]:
        yield "channels and neurons", arranged_unknowing(reference, pool, channels=True)
    unknowing = arranged_unknowing(reference, pool)
    yield "rotation and neurons", unknowing
    yield "mutual best", arranged_unknowing(reference, pool, mutual=True)
    fitted, tested = sampled_numbers(n, len(reference), KNOWN_SEED)
    places = np.concatenate([fitted, tested])
    forger = Forger([x[fitted] for x in reference], [x[tested] for x in reference], pool, n)

    def everywhere(*both: Chosen) -> Chosen:
        chosen = Chosen(np.concatenate([x.neurons for x in both]), torch.cat([x.signs for x in both]))
        return with_known(unknowing, places, chosen)

    as_they_are = Chosen(unknowing.neurons[fitted], unknowing.signs[fitted])
    yield "knows the tested", everywhere(as_they_are, forger.best_tested(as_they_are))
    both = max((forger.in_turn(seed) for seed in range(4)), key=lambda each: forger.goal(*each))
    yield "knows the fitted", everywhere(*both)
    yield "searches", everywhere(*forger.searched(*both, sweeps, seed=0))


def rows_of(folder: Path, n_layers: int) -> list[tuple[int, Rows]]:
    """All neurons of some layers, gains folded in, rows of one length."""
    model = Opened(open_repository(folder))
    places = spread(layers_with(model, Role.UP), n_layers)
    roles = [role for role in (Role.GATE, Role.UP) if set(places) <= set(layers_with(model, role))]
    readers = [RoleReader(model, role, places) for role in roles]
    return [(place, [reader.read(place, None).float() for reader in readers]) for place in places]


def pairs() -> Sequence[tuple[str, str, Path, Path]]:
    """Strangers: of one shape, of one recipe and other seeds with a gate and without, and of other makers."""
    zoo = cache_root() / "zoo-full-1"
    small = Model(SMALL)
    strangers = (Model(SMALL, "from-random"), Model(MIDDLE))
    real = [(small.name, other.name, built(small), built(other)) for other in strangers]
    return [
        *((f"zoo {kind}", "other seed", zoo / kind / "base", zoo / kind / "other-seed") for kind in ("llama", "gpt2")),
        *real,
    ]


def main() -> None:
    """Print and keep a line for each pair of layers and each arranger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=12, help="of the search over all fitted neurons")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []
    print(f"a match needs {TESTED * LEAST_SHARE_OF_NEURONS:.0f} of {TESTED} certain, and p below {ALPHA:g}")
    for a, b, *folders in pairs():
        for (i, reference), (j, pool) in zip(*(rows_of(folder, N_LAYERS) for folder in folders), strict=True):
            for name, chosen in arrangements(reference, pool, arguments.sweeps):
                known, *fresh = (judged(reference, pool, chosen, seed) for seed in range(KNOWN_SEED, FRESH + 1))
                row = {"a": a, "b": b, "layers": [i, j], "arranger": name, "known": known}
                row["fresh"] = {key: max(one[key] for one in fresh) for key in ("own", "certain", "matches")}
                lines.append(json.dumps(row) + "\n")
                print(lines[-1], end="", flush=True)
                arguments.results.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
