"""The noise that a "no" by neurons excludes, and resemblances of neurons that no basis changes."""

from __future__ import annotations

import math
from bisect import bisect_left

import torch

from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import LEAST_SHARE_OF_NEURONS, PLACE, TESTS
from mdir_hf.method.neuron_numbers import in_span, log_p_own_numbers, own_numbers
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import log_cost_of_look

PLANTED = 5
"""Copies that are planted in each layer for what a "no" excludes."""

NOISES = tuple(0.125 * 1.25**step for step in range(20))
"""Noise of the planted copies, up to 8.7 times the weights."""


def excluded_noise(*samples: NeuronSample, alpha: float) -> float:
    """Find the noise under which a copy of any of some models would count, in whatever basis, its neurons in order.

    Args:
        samples: Samples of both models, from :func:`take_neurons`.
        alpha: Level of significance.

    Returns:
        Noise in units of the root mean square of each row; 0 if even the least of :data:`NOISES` hides a copy. Copies
        of these neurons are planted: all were found under noise a quarter stronger. Cost: 40 fits for each of four
        steps.
    """
    log_paid = math.log(math.prod(len(sample.layers) for sample in samples)) + log_cost_of_look(PLACE) + math.log(TESTS)
    log_level = math.log(alpha) - log_paid

    def is_found(noise: float) -> bool:
        return all(
            any(_counts(layer, noise, seed, sample, log_level) for layer in sample.whole)
            for sample in samples
            if sample.whole is not None
            for seed in range(PLANTED)
        )

    n_found = bisect_left(NOISES, True, key=lambda noise: not is_found(noise))
    return NOISES[n_found - 1] / NOISES[1] * NOISES[0] if n_found else 0.0


def _counts(layer: torch.Tensor, noise: float, seed: int, sample: NeuronSample, log_level: float) -> bool:
    """Whether a copy of a layer under noise would be matched with it."""
    generator = torch.Generator().manual_seed(seed)
    more = noise * layer.shape[-1] ** -0.5 * torch.randn(layer.shape, generator=generator)
    planted = torch.nn.functional.normalize(layer + more, dim=-1)
    sides = (in_span(list(rows), sample.n_fitted) for rows in (layer, planted))
    found = own_numbers(*sides, n_fitted=sample.n_fitted, n_neurons=sample.n_neurons)
    return found.certain >= LEAST_SHARE_OF_NEURONS * sample.n_tested and log_p_own_numbers(found.own) < log_level


def resemblances(sample: NeuronSample) -> torch.Tensor:
    """How the tested neurons of each layer resemble each other, whatever the basis.

    Args:
        sample: Neurons of a model.

    Returns:
        Cosines of all pairs, centred and of unit length together, ``(layers, matrices * pairs)``, float32. Their inner
        product between two layers is their correlation over pairs of neurons of the same numbers.
    """
    tested = torch.nn.functional.normalize(sample.rows[:, :, sample.n_fitted :].float(), dim=-1)
    n = tested.shape[2]
    above = torch.triu_indices(n, n, 1)
    cosines = (tested @ tested.transpose(2, 3))[:, :, above[0], above[1]]
    return unit_rows((cosines - cosines.mean(dim=2, keepdim=True)).flatten(1))
