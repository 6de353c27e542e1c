"""Compare every stack of one model with every stack of the other by a few neurons, paired by number.

This finds a base model used unchanged as the talker of another model, and a vision tower that two models share. Pairs
of stacks with different numbers of neurons per layer are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mdir_hf.comparison.expert_sets import EXPERTS_PLACE, LOOKS_AT_EXPERTS
from mdir_hf.comparison.neuron_sample import DOWN_CHANNELS, NeuronSample, SampleDesign, take_neurons
from mdir_hf.comparison.neurons import compare_neurons
from mdir_hf.errors import AnatomyError, CheckpointError
from mdir_hf.model.inventory.by_shape import StackView
from mdir_hf.model.inventory.records import LANGUAGE
from mdir_hf.report import LayerPair, Verdict
from mdir_hf.report.stacks import StackPair

FIRST_PLACE = EXPERTS_PLACE + LOOKS_AT_EXPERTS
"""Position of the first pair of stacks among the looks of a comparison; neurons and experts of the language models come
first."""


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
    """Compare the stacks of two models with :func:`compare_stacks`.

    Args:
        reference: One model.
        candidate: The other model.
        alpha: Significance level of the whole comparison.
        seed: Seed for choosing neurons.
        is_fresh: Whether the seed was drawn from system entropy after both models were open.
        device: torch device for matrix products.
        before: Called before neurons are read, with the caveat to report if the comparison stops there.

    Returns:
        The pairs. None if only sampled rows of a model are available, or if neither model has a stack besides its
        language model.
    """
    views = [getattr(model, "stacks", None) for model in (reference, candidate)]
    if views[0] is None or views[1] is None or max(map(len, views)) < 2:  # type: ignore[arg-type]
        return None
    before(STOPPED_BEFORE_STACKS)
    return compare_stacks(views[0], views[1], alpha=alpha, seed=seed, is_fresh=is_fresh, device=device)


MOST_STACKS = 8
"""Maximum number of stacks per model: the language model, then the largest. Published models have four or five."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A stack and a sample of its neurons."""

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
        candidate: The stacks of the other model.
        alpha: Significance level of the whole comparison.
        seed: Seed for choosing neurons.
        is_fresh: Whether the seed was drawn from system entropy. With a chosen seed no pair is reported as homologous.
        device: torch device for matrix products.

    Returns:
        One record for each pair whose neurons can be compared. Pair number k is tested at alpha / (s (s + 1)) with s =
        :data:`FIRST_PLACE` + k, so all pairs together use at most alpha / FIRST_PLACE. Reads 128 rows of gate and up
        (192 of up without a gate) and 12 channels of down of four layers per stack.
    """
    if len(reference) < 2 and len(candidate) < 2:
        return ()
    reference_stacks, candidate_stacks = (_sampled(views[:MOST_STACKS], seed) for views in (reference, candidate))
    pairs = []
    place = FIRST_PLACE
    for first in reference_stacks:
        for second in candidate_stacks:
            if first.name == second.name == LANGUAGE:
                continue
            counts = compare_neurons(first.neurons, second.neurons, alpha=alpha, device=device, place=place)
            place += 1
            if counts is None:
                continue
            is_related = counts.is_witness and counts.log10_p < math.log10(alpha)
            related = Verdict.HOMOLOGOUS if is_fresh else Verdict.INCONCLUSIVE
            pairs.append(
                StackPair(
                    reference=first.name,
                    candidate=second.name,
                    verdict=related if is_related else Verdict.NO_EVIDENCE,
                    log10_p=counts.log10_p,
                    layers=tuple(LayerPair(match.reference, match.candidate) for match in counts.matches),
                )
            )
    return tuple(pairs)


def _sampled(views: Sequence[StackView], seed: int) -> list[_Sampled]:
    """Sample neurons of each stack; skip stacks without neurons or that cannot be read."""
    sampled = []
    for view in views:
        try:
            neurons = take_neurons(view, SampleDesign(seed=seed, n_down_channels=DOWN_CHANNELS))
        except (AnatomyError, CheckpointError):
            continue
        if neurons is not None:
            sampled.append(_Sampled(view.name, neurons))
    return sampled
