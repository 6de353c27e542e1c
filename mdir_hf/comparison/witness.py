"""Run the second witness: choose neurons to read until the result is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.neuron_reading import (
    FEW_LAYERS,
    SampleDesign,
    mlp_roles,
    n_neurons_of,
    take_neurons,
    with_mean_squares,
    with_outputs,
)
from mdir_hf.comparison.neuron_sample import (
    DOWN_CHANNELS,
    FEW_FITTED_ROWS,
    FITTED_ROWS,
    NEAR_COPY_FITTED_ROWS,
    SAMPLE_SEEDS,
    NeuronSample,
    at_layers,
)
from mdir_hf.comparison.neuron_search import same_places, search_neurons
from mdir_hf.comparison.neurons import PLACE, compare_neurons, doubtful_matches
from mdir_hf.comparison.results import LayersEvidence
from mdir_hf.method.calibration import log_p_of_axes
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import NeuronNumbers

NEAR_COPY_LAYERS = 2
"""Number of randomly drawn layers in the first look at a near copy."""

LARGE_LAYER_VALUES = 1 << 24
"""If a matrix has more entries than this, the first look takes one layer, because a sample of it already takes
megabytes."""

ROWS_PER_CHANNEL = 4
"""Rows per residual channel for fitting a rotation under noise."""

AXES_LEVEL = math.log(0.05)
"""Natural log of the level for the test of privileged axes."""


class Witness:
    """The second witness of one comparison: neurons in the layers of both models.

    Args:
        reference: One model.
        candidate: The other model.
        seed: Seed of all samples.
        is_fresh: Whether it came from system entropy after both models were open.
        alpha: Significance level.
        device: torch device.

    Attributes:
        counts: The strongest counts so far, or None.
        by_number: Counts of the last look by number.
        samples: Samples of that look.
    """

    def __init__(
        self,
        reference: PlacedTensors,
        candidate: PlacedTensors,
        *,
        seed: int,
        is_fresh: bool,
        alpha: float,
        device: str = "cpu",
    ) -> None:
        self.seed, self.is_fresh = seed, is_fresh
        self.counts: NeuronNumbers | None = None
        self.by_number: NeuronNumbers | None = None
        self.samples: tuple[NeuronSample, ...] = ()
        self._models = (reference, candidate)
        self._alpha, self._device = alpha, device
        self._n_looks = 0

    @property
    def was_asked(self) -> bool:
        """Whether neurons have been compared."""
        return self._n_looks > 0

    @property
    def is_convincing(self) -> bool:
        """Whether a pair of layers matches by gate, up and down."""
        return self.counts is not None and self.counts.is_witness

    def same_places(self, *, at_most: int = NEAR_COPY_LAYERS) -> list[tuple[int, int]]:
        """Draw layers at the same position; none if the depths differ."""
        return same_places(*self._models, at_most=at_most, seed=self.seed)

    def compare_given(self, reference: NeuronSample | None, candidate: NeuronSample | None) -> None:
        """Compare samples that were read earlier."""
        if reference is None or candidate is None or self.was_asked:
            return
        self._compare(reference, candidate)

    def ask_near_copy(self) -> None:
        """Compare one or two random layers by few neurons (4 MB for 8B models)."""
        pairs = self.same_places(at_most=NEAR_COPY_LAYERS)
        if pairs and self._n_values(pairs[0]) > LARGE_LAYER_VALUES:
            pairs = pairs[:1]
        if pairs:
            self._ask_pairs(pairs, n_fitted_rows=NEAR_COPY_FITTED_ROWS, n_down_channels=DOWN_CHANNELS)

    def ask_by_number(self, *, every: bool) -> None:
        """Compare neurons of four layers, or of all, then down of layers that agree."""
        self._ask_all(every=every, n_fitted_rows=FITTED_ROWS)

    def ask_every_layer(self) -> None:
        """Compare neurons of all layers, with fewer fitted neurons."""
        self._ask_all(every=True, n_fitted_rows=FEW_FITTED_ROWS)

    def ask_under_noise(self, pairs: Sequence[tuple[int, int]] | None = None) -> None:
        """Fit the rotation on many neurons, and read down whole; ``pairs`` None: layers at the same position."""
        pairs = self.same_places() if pairs is None else list(pairs)[:NEAR_COPY_LAYERS]
        n_neurons = [n_neurons_of(model) for model in self._models]
        pairs = [(i, j) for i, j in pairs if n_neurons[0].get(i, 0) == n_neurons[1].get(j, -1)]
        if not pairs:
            return
        n_rows = ROWS_PER_CHANNEL * max(model.anatomy.hidden_size for model in self._models)
        self._ask_pairs(pairs, n_fitted_rows=n_rows, n_down_channels=None)

    def ask_by_search(self, pairs: Sequence[tuple[int, int]], residual_map: ResidualBasisMap) -> None:
        """Search the partners of neurons that were reordered, removed or resized."""
        if not pairs:
            return
        place = self._next_place()
        counts = search_neurons(
            self._models, pairs, residual_map, seed=self.seed, alpha=self._alpha, place=place, device=self._device
        )
        self._keep(counts)

    def _ask_pairs(self, pairs: Sequence[tuple[int, int]], *, n_fitted_rows: int, n_down_channels: int | None) -> None:
        samples = [
            take_neurons(
                model,
                SampleDesign(
                    seed=self._seed_of_look,
                    n_fitted_rows=n_fitted_rows,
                    places=tuple(dict.fromkeys(pair[side] for pair in pairs)),
                    n_down_channels=n_down_channels,
                ),
            )
            for side, model in enumerate(self._models)
        ]
        if samples[0] is not None and samples[1] is not None:
            self._compare(samples[0], samples[1])
        else:
            self._n_looks += 1

    def _ask_all(self, *, every: bool, n_fitted_rows: int) -> None:
        design = SampleDesign(seed=self._seed_of_look, n_fitted_rows=n_fitted_rows, every=every)
        first, second = (take_neurons(model, design) for model in self._models)
        if first is None or second is None:
            self._n_looks += 1
            return
        by_gate_and_up = self._compare(first, second)
        if by_gate_and_up is None or not by_gate_and_up.matches:
            return
        # Down of the agreeing layers is read by a few channels first, then whole.
        matches = by_gate_and_up.matches if every else by_gate_and_up.matches[:FEW_LAYERS]
        for n_channels in (DOWN_CHANNELS, None):
            counts = self._with_down(first, second, matches, design.seed, n_channels)
            if counts is not None and counts.is_witness:
                break

    def _with_down(
        self,
        reference: NeuronSample,
        candidate: NeuronSample,
        matches: Sequence[tuple[int, int]],
        seed: int,
        n_channels: int | None,
    ) -> NeuronNumbers | None:
        """Read down of the layers that agree by gate and up, and add it to the counts."""
        assert self.by_number is not None
        first, second = (
            with_outputs(
                model,
                at_layers(sample, sorted({match[side] for match in matches})),
                seed=seed,
                n_channels=n_channels,
            )
            for side, (model, sample) in enumerate(zip(self._models, (reference, candidate), strict=True))
        )
        counts = self._counts((first, second), PLACE + self._n_looks - 1)
        if counts is None:
            return None
        merged = merged_counts(self.by_number, counts)
        self._keep(merged)
        return merged

    def _compare(self, reference: NeuronSample, candidate: NeuronSample) -> NeuronNumbers | None:
        place = self._next_place()
        counts = self._counts((reference, candidate), place)
        if counts is not None:
            self.by_number, self.samples = counts, (reference, candidate)
        self._keep(counts)
        return counts

    def _counts(self, samples: tuple[NeuronSample, NeuronSample], place: int) -> NeuronNumbers | None:
        return compare_samples(
            self._models, samples, seed=self._seed_of_look, alpha=self._alpha, device=self._device, place=place
        )

    def _keep(self, counts: NeuronNumbers | None) -> None:
        """Keep the strongest counts: a witness first, then idle copies, then the smaller p."""

        def strength(neurons: NeuronNumbers) -> tuple[bool, bool, bool, bool]:
            has_down = neurons.own_number_by_down is not None
            return neurons.is_witness, bool(neurons.idle), bool(neurons.matches) and has_down, not neurons.is_searched

        if counts is None:
            return
        if self.counts is None or (strength(counts), -counts.log10_p) >= (strength(self.counts), -self.counts.log10_p):
            self.counts = counts

    def _next_place(self) -> int:
        self._n_looks += 1
        return PLACE + self._n_looks - 1

    @property
    def _seed_of_look(self) -> int:
        """Each look draws its own neurons."""
        return (self.seed + self._n_looks) % SAMPLE_SEEDS

    def _n_values(self, pair: tuple[int, int]) -> int:
        roles = mlp_roles(*self._models)
        if roles is None:
            return 0
        n_neurons = [n_neurons_of(model).get(place, 0) for model, place in zip(self._models, pair, strict=True)]
        return max(n * model.anatomy.hidden_size for n, model in zip(n_neurons, self._models, strict=True))


def compare_samples(
    models: tuple[PlacedTensors, PlacedTensors],
    samples: tuple[NeuronSample, NeuronSample],
    *,
    seed: int,
    alpha: float,
    device: str,
    place: int,
) -> NeuronNumbers | None:
    """Compare neurons like :func:`compare_neurons`; read the strengths of more neurons if the samples are doubtful.

    ``seed`` chooses further neurons and must not be foreseeable; ``place`` is the position of this look.
    """
    counts = compare_neurons(*samples, alpha=alpha, device=device, place=place)
    if counts is None:
        return None
    can_read = all(mlp_roles(model) is not None for model in models)  # a fingerprint has no further neurons
    doubtful = doubtful_matches(*samples, counts.matches, if_unknown=can_read)
    if not doubtful:
        return counts
    if not can_read:
        return replace(counts, matches=tuple(match for match in counts.matches if match not in doubtful))
    first, second = (
        with_mean_squares(model, sample, sorted({match[side] for match in doubtful}), seed=seed)
        for side, (model, sample) in enumerate(zip(models, samples, strict=True))
    )
    return compare_neurons(first, second, alpha=alpha, device=device, place=place)


def merged_counts(every: NeuronNumbers, confirmed: NeuronNumbers) -> NeuronNumbers:
    """Merge counts by down of some layers into those by gate and up of all."""
    at = (every.reference_layers, every.candidate_layers)
    by_down = [[0] * len(at[1]) for _ in at[0]]
    for i, row in zip(confirmed.reference_layers, confirmed.own_number_by_down or (), strict=True):
        for j, n_own in zip(confirmed.candidate_layers, row, strict=True):
            by_down[at[0].index(i)][at[1].index(j)] = n_own
    return NeuronNumbers(
        tested=every.tested,
        fitted=every.fitted,
        reference_layers=every.reference_layers,
        candidate_layers=every.candidate_layers,
        own_number=every.own_number,
        certain=every.certain,
        matches=tuple(match for match in every.matches if match in confirmed.matches),
        log10_p=every.log10_p,
        own_number_by_down=tuple(map(tuple, by_down)),
        idle=confirmed.idle,
    )


def are_layers_invariant(
    reference: PlacedTensors, candidate: PlacedTensors, layers: LayersEvidence, *, seed: int
) -> bool:
    """Return whether privileged axes, which break the null of the layer map, do not stand out in at least one model.

    The axes of matched layers are tested at 5 %.
    """
    matches = layers.layer_map.matches
    if not matches or layers.role is Role.KV_LATENT:
        return False
    generator = torch.Generator().manual_seed(seed)
    for side, model in enumerate((reference, candidate)):
        places = [layers.positions[side][(match.reference, match.candidate)[side]] for match in matches]
        reader = RoleReader(model, layers.role, places[:1])
        if log_p_of_axes(reader.read(places[0], None).float(), generator=generator) > AXES_LEVEL:
            return True
    return False
