"""Compute the noise that a "no" by neurons rules out, and similarities of neurons that do not depend on the basis."""

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
"""Number of copies planted in each layer."""

NOISES = tuple(0.125 * 1.25**step for step in range(20))
"""Noise levels of the planted copies, up to 8.7 times the weights."""


def excluded_noise(*samples: NeuronSample, alpha: float) -> float:
    """Find the noise up to which a copy of either model, in any basis and with its neurons in order, would be detected.

    Args:
        samples: Samples of both models, from :func:`take_neurons`.
        alpha: Significance level.

    Returns:
        Noise in units of the root mean square of each row, or 0 if the smallest of :data:`NOISES` already hides a copy.
        Copies of these neurons are planted; all of them were detected at a noise level a quarter higher. Cost: 40 fits
        for each of four steps.
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
    """Return whether a noisy copy of a layer would be matched with it."""
    generator = torch.Generator().manual_seed(seed)
    added_noise = noise * layer.shape[-1] ** -0.5 * torch.randn(layer.shape, generator=generator)
    planted = torch.nn.functional.normalize(layer + added_noise, dim=-1)
    sides = (in_span(list(rows), sample.n_fitted) for rows in (layer, planted))
    counts = own_numbers(*sides, n_fitted=sample.n_fitted, n_neurons=sample.n_neurons)
    return counts.certain >= LEAST_SHARE_OF_NEURONS * sample.n_tested and log_p_own_numbers(counts.own) < log_level


def resemblances(sample: NeuronSample) -> torch.Tensor:
    """Compute the similarities between the tested neurons of each layer, in any basis.

    Args:
        sample: Neurons of a model.

    Returns:
        Cosines of all pairs of neurons, ``(layers, matrices * pairs)`` float32; each row is centred and normalized. The
        inner product of two rows is the correlation of two layers over pairs of neurons with the same numbers.
    """
    tested = torch.nn.functional.normalize(sample.rows[:, :, sample.n_fitted :].float(), dim=-1)
    n = tested.shape[2]
    above = torch.triu_indices(n, n, 1)
    cosines = (tested @ tested.transpose(2, 3))[:, :, above[0], above[1]]
    return unit_rows((cosines - cosines.mean(dim=2, keepdim=True)).flatten(1))
