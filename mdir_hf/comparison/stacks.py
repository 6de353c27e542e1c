"""Compares every stack of one model with every stack of the other, by a few neurons and their numbers.

A base that lies whole in another model as its talker, and a vision tower that two models share, are found so. Pairs
whose layers have other numbers of neurons cannot be compared by number and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mdir_hf.comparison.neuron_sample import DOWN_CHANNELS, NeuronSample, SampleDesign, take_neurons
from mdir_hf.comparison.neurons import LOOKS_AT_NEURONS, PLACE, compare_neurons
from mdir_hf.errors import AnatomyError, CheckpointError
from mdir_hf.model.inventory.records import LANGUAGE
from mdir_hf.model.inventory.views import StackView
from mdir_hf.report import LayerPair, Verdict
from mdir_hf.report.stacks import StackPair

FIRST_PLACE = PLACE + LOOKS_AT_NEURONS
"""Place of the first pair of stacks among the looks of a comparison; neurons of the language models come before."""


STOPPED_BEFORE_STACKS = (
    "Stacks beside the language models (towers, talkers) were not compared: the comparison was stopped first."
)


def stack_pairs(
    reference: object,
    candidate: object,
    *,
    alpha: float,
    seed: int,
    is_fresh: bool,
    device: str = "cpu",
    before: Callable[[str], None] = lambda caveat: None,
) -> tuple[StackPair, ...] | None:
    """Compare the stacks of two models; as :func:`compare_stacks`.

    Args:
        reference: One model.
        candidate: The other.
        alpha: Level of significance of the whole comparison.
        seed: Seed of the neurons that are read.
        is_fresh: Whether the seed was drawn from the entropy of the system after both models were open.
        device: torch device of the matrix products.
        before: Called with a caveat for a comparison that is stopped now, before neurons are read.

    Returns:
        The pairs; None if a model is known by sampled rows, or if neither has a stack beside its language model.
    """
    views = [getattr(model, "stacks", None) for model in (reference, candidate)]
    if views[0] is None or views[1] is None or max(map(len, views)) < 2:  # type: ignore[arg-type]
        return None
    before(STOPPED_BEFORE_STACKS)
    return compare_stacks(views[0], views[1], alpha=alpha, seed=seed, is_fresh=is_fresh, device=device)


MOST_STACKS = 8
"""Stacks of a model that are compared, the largest after its language model. Published models have four or five."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A stack, and neurons of it."""

    name: str
    neurons: NeuronSample


def compare_stacks(
    reference: Sequence[StackView],
    candidate: Sequence[StackView],
    *,
    alpha: float,
    seed: int,
    is_fresh: bool,
    device: str = "cpu",
) -> tuple[StackPair, ...]:
    """Compare all pairs of stacks, except the pair of language models, which the main comparison covers.

    Args:
        reference: The stacks of one model.
        candidate: Those of the other.
        alpha: Level of significance of the whole comparison.
        seed: Seed of the neurons that are read.
        is_fresh: Whether the seed was drawn from the entropy of the system; a chosen sample accuses no part.
        device: torch device of the matrix products.

    Returns:
        One record for each pair whose neurons can be compared. Pair number k is held to 1 / (s (s + 1)) of alpha, where
        s is :data:`FIRST_PLACE` plus k, so that all pairs together spend at most 1 / FIRST_PLACE of it. Cost: reads 128
        rows of gate and up (192 of up without a gate) and 12 channels of down of four layers of each stack.
    """
    if len(reference) < 2 and len(candidate) < 2:
        return ()
    mine, other = (_sampled(views[:MOST_STACKS], seed) for views in (reference, candidate))
    pairs = []
    place = FIRST_PLACE
    for first in mine:
        for second in other:
            if first.name == second.name == LANGUAGE:
                continue
            found = compare_neurons(first.neurons, second.neurons, alpha=alpha, device=device, place=place)
            place += 1
            if found is None:
                continue
            is_related = found.is_witness and found.log10_p < math.log10(alpha)
            related = Verdict.HOMOLOGOUS if is_fresh else Verdict.INCONCLUSIVE
            pairs.append(
                StackPair(
                    reference=first.name,
                    candidate=second.name,
                    verdict=related if is_related else Verdict.NO_EVIDENCE,
                    log10_p=found.log10_p,
                    layers=tuple(LayerPair(match.reference, match.candidate) for match in found.matches),
                )
            )
    return tuple(pairs)


def _sampled(views: Sequence[StackView], seed: int) -> list[_Sampled]:
    """Read neurons of each stack that has any; one that cannot be read is left out."""
    sampled = []
    for view in views:
        try:
            neurons = take_neurons(view, SampleDesign(seed=seed, n_down_channels=DOWN_CHANNELS))
        except (AnatomyError, CheckpointError):
            continue
        if neurons is not None:
            sampled.append(_Sampled(view.name, neurons))
    return sampled
