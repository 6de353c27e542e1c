"""Look for the second witness: compare more and more neurons until the result is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.neuron_reading import n_neurons_of, take_neurons, with_outputs
from mdir_hf.comparison.neuron_sample import (
    DOWN_CHANNELS,
    FITTED_ROWS,
    NEAR_COPY_FITTED_ROWS,
    SAMPLE_SEEDS,
    NeuronSample,
    at_layers,
)
from mdir_hf.comparison.neuron_search import same_places, search_neurons
from mdir_hf.comparison.neuron_strengths import neuron_role, with_mean_squares
from mdir_hf.comparison.neurons import PLACE, compare_neurons, doubtful_matches, nominated_pairs
from mdir_hf.comparison.reading import ReadOnce
from mdir_hf.comparison.results import LayersEvidence
from mdir_hf.method.calibration import log_p_of_axes
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import NeuronNumbers

NEAR_COPY_LAYERS = 2
"""Number of random layers in the first look at a near copy."""

LARGE_LAYER_VALUES = 1 << 24
"""If a matrix has more entries than this, the first look reads one layer instead of two, because a sample of one layer
already takes megabytes."""

ROWS_PER_CHANNEL = 4
"""Number of rows per residual channel used to fit a rotation to noisy weights."""

AXES_LEVEL = math.log(0.05)
"""Significance level of the test for privileged axes, as a natural log."""


class Witness:
    """Compares neurons in the layers of two models, one look at a time.

    ``is_fresh`` says whether ``seed`` was drawn from system entropy after both models were open.

    Attributes:
        counts: The strongest result so far, or None.
        by_number: Result of the last look that paired neurons by number.
        samples: Samples compared in the last such look, except by :meth:`ask_every_layer`.
        nominating_samples: Samples of up from every layer, or empty.
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
        keeps_rows: bool = True,
    ) -> None:
        self.seed, self.is_fresh = seed, is_fresh
        self.counts: NeuronNumbers | None = None
        self.by_number: NeuronNumbers | None = None
        self.samples: tuple[NeuronSample, ...] = ()
        self.nominating_samples: tuple[NeuronSample, ...] = ()
        self._given_models, self._keeps_rows = (reference, candidate), keeps_rows
        self._alpha, self._device = alpha, device
        self._n_looks = 0

    @cached_property
    def models(self) -> tuple[PlacedTensors, PlacedTensors]:
        """Both models, which keep each row once it has been read."""
        reference, candidate = self._given_models
        if not self._keeps_rows:
            return reference, candidate
        return ReadOnce(reference, keeps_rows=True), ReadOnce(candidate, keeps_rows=True)

    @property
    def was_asked(self) -> bool:
        """Whether neurons have been compared."""
        return self._n_looks > 0

    @property
    def is_convincing(self) -> bool:
        """Whether a pair of layers matches in gate, up and down."""
        return self.counts is not None and self.counts.is_witness

    def same_places(self, *, at_most: int = NEAR_COPY_LAYERS) -> list[tuple[int, int]]:
        """Draw pairs of layers; see :func:`~.neuron_search.same_places`."""
        return same_places(*self.models, at_most=at_most, seed=self.seed)

    def compare_given(self, reference: NeuronSample | None, candidate: NeuronSample | None) -> None:
        """Compare samples that were read earlier."""
        if reference is None or candidate is None or self.was_asked:
            return
        self._keep_by_number(self._counts((reference, candidate), self._next_place()), reference, candidate)

    def ask_near_copy(self) -> None:
        """Compare a few neurons of one or two random layers (4 MB for 8B models)."""
        pairs = self.same_places(at_most=NEAR_COPY_LAYERS)
        if pairs and self._n_values(pairs[0]) > LARGE_LAYER_VALUES:
            pairs = pairs[:1]
        if pairs:
            self._ask_pairs(pairs, n_fitted_rows=NEAR_COPY_FITTED_ROWS, n_down_channels=DOWN_CHANNELS)

    def ask_by_number(self, *, every: bool) -> None:
        """Compare gate and up in four layers, or in all, and then down in the layers that agree."""
        seed, place = self._seed_of_look, self._next_place()
        first, second = (take_neurons(model, seed=seed, every=every) for model in self.models)
        if first is not None and second is not None:
            self._keep_by_number(self._counts_with_down(first, second, seed, place), first, second)

    def ask_every_layer(self) -> None:
        """Compare up in all layers, then gate, up and down of other neurons in the layers that may match."""
        place = self._next_place()
        first, second = (take_neurons(model, seed=self.seed, every=True, nominates=True) for model in self.models)
        counts = None if first is None or second is None else self._counts((first, second), place)
        if first is None or second is None or counts is None:
            return
        self.nominating_samples = first, second
        pairs = nominated_pairs(counts)
        counts = replace(counts, matches=(), nominated=())  # up alone is not a witness
        if pairs:
            seed, place = self._seed_of_look, self._next_place()
            first, second = self._samples_of(pairs, seed, n_fitted_rows=FITTED_ROWS, n_down_channels=0)
            if first is not None and second is not None:
                n_pairs = len(counts.reference_layers) * len(counts.candidate_layers)
                confirmed = self._counts_with_down(first, second, seed, place, n_nominated_of=n_pairs)
                if confirmed is not None:
                    counts = replace(merged_counts(counts, confirmed), nominated=tuple(pairs))
        self.by_number = counts
        self._keep(counts)

    def ask_under_noise(self, pairs: Sequence[tuple[int, int]] | None = None) -> None:
        """Compare noisy neurons: fit the rotation to many rows, and read down whole.

        ``pairs`` defaults to layers at the same position.
        """
        pairs = self.same_places() if pairs is None else list(pairs)[:NEAR_COPY_LAYERS]
        n_neurons = [n_neurons_of(model) for model in self.models]
        pairs = [(i, j) for i, j in pairs if n_neurons[0].get(i, 0) == n_neurons[1].get(j, -1)]
        if not pairs:
            return
        n_rows = ROWS_PER_CHANNEL * max(model.anatomy.hidden_size for model in self.models)
        self._ask_pairs(pairs, n_fitted_rows=n_rows, n_down_channels=None)

    def ask_by_search(self, pairs: Sequence[tuple[int, int]], residual_map: ResidualBasisMap) -> None:
        """Find partners of reordered, removed or resized neurons, and compare them."""
        if not pairs:
            return
        place = self._next_place()
        counts = search_neurons(
            self.models, pairs, residual_map, seed=self.seed, alpha=self._alpha, place=place, device=self._device
        )
        self._keep(counts)

    def _ask_pairs(self, pairs: Sequence[tuple[int, int]], *, n_fitted_rows: int, n_down_channels: int | None) -> None:
        seed, place = self._seed_of_look, self._next_place()
        first, second = self._samples_of(pairs, seed, n_fitted_rows=n_fitted_rows, n_down_channels=n_down_channels)
        if first is not None and second is not None:
            self._keep_by_number(self._counts((first, second), place), first, second)

    def _samples_of(
        self, pairs: Sequence[tuple[int, int]], seed: int, *, n_fitted_rows: int, n_down_channels: int | None
    ) -> list[NeuronSample | None]:
        return [
            take_neurons(
                model,
                seed=seed,
                n_fitted_rows=n_fitted_rows,
                places=tuple(dict.fromkeys(pair[side] for pair in pairs)),
                n_down_channels=n_down_channels,
            )
            for side, model in enumerate(self.models)
        ]

    def _counts_with_down(
        self, first: NeuronSample, second: NeuronSample, seed: int, place: int, *, n_nominated_of: int | None = None
    ) -> NeuronNumbers | None:
        """Compare gate and up, then down in the layers that agree: first a few channels, then all."""
        of_all = counts = self._counts((first, second), place, n_nominated_of=n_nominated_of)
        if of_all is None or not of_all.matches:
            return of_all
        n_pairs = len(of_all.reference_layers) * len(of_all.candidate_layers)
        for n_channels in (DOWN_CHANNELS, None):
            samples = [
                with_outputs(
                    model,
                    at_layers(sample, sorted({match[side] for match in of_all.matches})),
                    seed=seed,
                    n_channels=n_channels,
                )
                for side, (model, sample) in enumerate(zip(self.models, (first, second), strict=True))
            ]
            by_down = self._counts((samples[0], samples[1]), place, n_nominated_of=n_nominated_of or n_pairs)
            counts = counts if by_down is None else merged_counts(of_all, by_down, log10_p=of_all.log10_p)
            if counts is not None and counts.is_witness:
                break
        return counts

    def _counts(
        self, samples: tuple[NeuronSample, NeuronSample], place: int, *, n_nominated_of: int | None = None
    ) -> NeuronNumbers | None:
        return compare_samples(
            self.models,
            samples,
            seed=self._seed_of_look,
            alpha=self._alpha,
            device=self._device,
            place=place,
            n_nominated_of=n_nominated_of,
        )

    def _keep_by_number(self, counts: NeuronNumbers | None, *samples: NeuronSample) -> None:
        if counts is not None:
            self.by_number, self.samples = counts, samples
            self._keep(counts)

    def _keep(self, counts: NeuronNumbers | None) -> None:
        """Replace the stored counts unless they are stronger; p decides only between counts of the same kind."""

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
        """Seed of the current look, so that each look draws its own neurons."""
        return (self.seed + self._n_looks) % SAMPLE_SEEDS

    def _n_values(self, pair: tuple[int, int]) -> int:
        if neuron_role(*self.models) is None:
            return 0
        n_neurons = [n_neurons_of(model).get(place, 0) for model, place in zip(self.models, pair, strict=True)]
        return max(n * model.anatomy.hidden_size for n, model in zip(n_neurons, self.models, strict=True))


def compare_samples(
    models: tuple[PlacedTensors, PlacedTensors],
    samples: tuple[NeuronSample, NeuronSample],
    *,
    seed: int,
    alpha: float,
    device: str,
    place: int,
    n_nominated_of: int | None = None,
) -> NeuronNumbers | None:
    """Compare neurons; if matches may be faint copies, measure the strengths of more neurons and compare again.

    ``seed`` selects these neurons and must be unpredictable; ``place`` is the position of this look.
    """
    counts = compare_neurons(*samples, alpha=alpha, device=device, place=place, n_nominated_of=n_nominated_of)
    if counts is None:
        return None
    can_read = all(neuron_role(model) is not None for model in models)  # a fingerprint has no further neurons
    doubtful = doubtful_matches(*samples, counts.matches, if_unknown=can_read)
    if not doubtful:
        return counts
    if not can_read:
        return replace(counts, matches=tuple(match for match in counts.matches if match not in doubtful))
    first, second = (
        with_mean_squares(model, sample, sorted({match[side] for match in doubtful}), seed=seed)
        for side, (model, sample) in enumerate(zip(models, samples, strict=True))
    )
    return compare_neurons(first, second, alpha=alpha, device=device, place=place, n_nominated_of=n_nominated_of)


def merged_counts(every: NeuronNumbers, confirmed: NeuronNumbers, *, log10_p: float | None = None) -> NeuronNumbers:
    """Return ``every`` with the counts of some layers replaced by their confirmed counts.

    ``log10_p`` defaults to the smaller of the two looks' values, because each look uses its own share of alpha.
    """
    at = (every.reference_layers, every.candidate_layers)
    own, certain = ([list(row) for row in counts] for counts in (every.own_number, every.certain))
    by_down = [[0] * len(at[1]) for _ in at[0]]
    for x, i in enumerate(confirmed.reference_layers):
        for y, j in enumerate(confirmed.candidate_layers):
            row, column = at[0].index(i), at[1].index(j)
            own[row][column], certain[row][column] = confirmed.own_number[x][y], confirmed.certain[x][y]
            if confirmed.own_number_by_down is not None:
                by_down[row][column] = confirmed.own_number_by_down[x][y]
    return NeuronNumbers(
        tested=confirmed.tested,
        fitted=confirmed.fitted,
        reference_layers=every.reference_layers,
        candidate_layers=every.candidate_layers,
        own_number=tuple(map(tuple, own)),
        certain=tuple(map(tuple, certain)),
        matches=confirmed.matches,
        log10_p=min(every.log10_p, confirmed.log10_p) if log10_p is None else log10_p,
        own_number_by_down=None if confirmed.own_number_by_down is None else tuple(map(tuple, by_down)),
        idle=confirmed.idle,
    )


def are_layers_invariant(
    reference: PlacedTensors, candidate: PlacedTensors, layers: LayersEvidence, *, seed: int
) -> bool:
    """Return whether at least one model has no privileged axes, as the layer map's null hypothesis requires.

    The axes of one matched layer per model are tested at 5%.
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
