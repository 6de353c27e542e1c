"""The steps of a comparison. Each is a function from measurements to measurements.

Steps never pair layers by depth, rows by token or neurons by number, unless they test that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mdir_hf.comparison import caveats
from mdir_hf.comparison.embeddings import look_at_matrices
from mdir_hf.comparison.keys import compare_heads, head_keys, map_of_heads
from mdir_hf.comparison.measurements import Measurements
from mdir_hf.comparison.neuron_layers import n_neurons_of
from mdir_hf.comparison.neuron_sample import (
    FITTED_ROWS,
    LARGE_LAYER_VALUES,
    NEAR_FITTED_ROWS,
    NEAR_LAYERS,
    SAMPLE_SEEDS,
    NeuronSample,
    has_neurons,
    spread,
    take_pair,
)
from mdir_hf.comparison.neuron_search import search_neurons
from mdir_hf.comparison.neurons import STEPS, count_neurons, nominated_pairs
from mdir_hf.comparison.plan import NOISE_AFTER_KEYS, NOISE_ROWS_PER_CHANNEL
from mdir_hf.comparison.stacks import compare_expert_sets, has_mixture, stack_pairs
from mdir_hf.comparison.tokens import common_tokens, matrix_pair
from mdir_hf.errors import AnatomyError, ByteBudgetError, MdirError, UnsupportedFormatError, VocabularyError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.significance import log_cost_of_look
from mdir_hf.report import NeuronNumbers, SettledBy
from mdir_hf.thresholds import MOST_SEARCHED

Pair = tuple[int, int]


def compare_files(measurements: Measurements) -> Measurements:
    """Check whether the weight files are equal."""
    reference, candidate = (model.identities() for model in measurements.models)
    if reference is None or candidate is None:
        return measurements
    if reference == candidate:
        return replace(measurements, files_are_equal=True)
    n_same = len(reference & candidate)
    return with_notes(measurements, caveats.of_equal_files(n_same)) if n_same else measurements


def compare_near(measurements: Measurements) -> Measurements:
    """Compare a few neurons of one or two random layers at the same place."""
    pairs = _same_places(measurements, NEAR_LAYERS)
    if pairs and _n_values(measurements, pairs[0]) > LARGE_LAYER_VALUES:
        pairs = pairs[:1]
    return _compare_pairs(measurements, SettledBy.NEAR, pairs, n_fitted_rows=NEAR_FITTED_ROWS)


def compare_numbers(measurements: Measurements) -> Measurements:
    """Compare neurons of four layers of each model by number, every layer with every layer."""
    seed = _seed_of(measurements, SettledBy.NUMBER)
    samples = take_pair(measurements.tensors, seed=seed)
    if samples is None:
        have_neurons = all(has_neurons(model) for model in measurements.tensors)
        return _with_other_shapes(measurements) if have_neurons else measurements
    return count_sampled(measurements, *samples)


def count_sampled(measurements: Measurements, first: NeuronSample | None, second: NeuronSample | None) -> Measurements:
    """Compare sampled neurons of a few layers of each model by number; None for a model without comparable neurons."""
    if first is None or second is None:
        return measurements
    counts = _count(measurements, SettledBy.NUMBER, first, second)
    if counts is None:
        return _with_other_shapes(measurements)
    return _with(replace(_having_read(measurements, first, second), samples=(first, second)), counts)


def _with_other_shapes(measurements: Measurements) -> Measurements:
    return with_notes(replace(measurements, have_other_shapes=True), caveats.NEURONS_OF_OTHER_SIZES)


def _having_read(measurements: Measurements, *samples: NeuronSample) -> Measurements:
    """Note that layers were compared, unless all sampled rows of a model are zero."""
    has_rows = all(bool(sample.rows.any()) for sample in samples)
    return replace(measurements, has_read_layers=measurements.has_read_layers or has_rows)


def compare_parts(measurements: Measurements) -> Measurements:
    """Compare experts as sets, unless the question is settled, and then the stacks beside the language models."""
    settings, (reference, candidate) = measurements.settings, measurements.models
    common = {
        "alpha": settings.alpha,
        "seed": measurements.sample_seed,
        "is_fresh": measurements.is_sample_fresh,
        "device": settings.device,
    }
    experts = (
        ()
        if measurements.is_settled or _is_sampled(measurements)
        else compare_expert_sets(reference, candidate, measurements.residual_maps, **common)  # type: ignore[arg-type]
    )
    stacks = stack_pairs(reference, candidate, **common)  # type: ignore[arg-type]
    return replace(measurements, parts=(*experts, *(stacks or ())))


def compare_experts_behind_maps(measurements: Measurements) -> Measurements:
    """Compare experts as sets again, behind the maps that keys and embeddings suggest."""
    maps = [residual_map for residual_map in measurements.residual_maps if residual_map.is_fitted]
    if not maps or _is_sampled(measurements) or not has_mixture(measurements.models):
        return measurements
    experts = compare_expert_sets(
        *measurements.models,
        maps,
        alpha=measurements.settings.alpha,
        seed=measurements.sample_seed,
        is_fresh=measurements.is_sample_fresh,
        is_second=True,
        device=measurements.settings.device,
    )
    return replace(measurements, parts=(*(measurements.parts or ()), *experts)) if experts else measurements


def compare_keys(measurements: Measurements) -> Measurements:
    """Compare heads of every layer with every layer by their keys, then search neurons of the layers that stand out."""
    settings = measurements.settings
    keys = head_keys(measurements.tensors)
    heads = None if keys is None else compare_heads(measurements.tensors, seed=measurements.sample_seed, keys=keys)
    if heads is None:
        return measurements
    has_read_layers = measurements.has_read_layers or bool(heads.resemblance.any())
    measurements = replace(measurements, heads=heads, has_read_layers=has_read_layers)
    pairs = [(i, j) for i, j, _ in heads.pairs]
    if not pairs:
        return measurements
    residual_map = map_of_heads(measurements.tensors, pairs, seed=settings.seed, device=settings.device, keys=keys)
    widths = [model.anatomy.hidden_size for model in measurements.models]
    if residual_map is None and widths[0] != widths[1]:
        return measurements
    measurements = replace(measurements, map_of_heads=residual_map)
    return _search(measurements, SettledBy.KEYS, pairs, (residual_map or ResidualBasisMap.identity(widths[0]),))


def compare_every_layer(measurements: Measurements) -> Measurements:
    """Compare up in all layers, then gate and up of other neurons in the layers that stand out."""
    seed = _seed_of(measurements, SettledBy.EVERY)
    samples = take_pair(measurements.tensors, seed=seed, every=True, nominates=True)
    counts = None if samples is None else _count(measurements, SettledBy.EVERY, *samples)
    if samples is None or counts is None:
        return measurements
    measurements = replace(_having_read(measurements, *samples), nominating_samples=samples)
    pairs = nominated_pairs(counts)
    n_pairs = len(counts.reference_layers) * len(counts.candidate_layers)
    return _compare_pairs(measurements, SettledBy.EVERY, pairs, n_nominated_of=n_pairs)


def look_at_embeddings(measurements: Measurements) -> Measurements:
    """Compare rows of the embeddings or, if a model has none, of the unembeddings."""
    named_pair = matrix_pair(*measurements.models)
    if named_pair is None:
        return with_notes(measurements, caveats.NO_COMMON_MATRIX)
    try:
        common, notes = common_tokens(*measurements.models)
    except VocabularyError as exc:
        if any(model.vocabulary_from is not None for model in measurements.models):
            raise  # the user named this tokenizer
        return with_notes(measurements, caveats.of_unusable_tokenizer(exc))
    matrix = look_at_matrices(named_pair[0], measurements.models, named_pair[1], common, measurements.settings)
    measurements = replace(measurements, matrices={named_pair[0]: matrix})
    return with_notes(measurements, *notes)


def compare_numbers_under_noise(measurements: Measurements) -> Measurements:
    """Look closer at layers in which remarkably many neurons kept their number, although few are certain."""
    by_number = next((neurons for neurons in measurements.neurons if neurons.step is SettledBy.NUMBER), None)
    if by_number is None:
        return measurements
    n_pairs = len(by_number.reference_layers) * len(by_number.candidate_layers)
    return _compare_under_noise(measurements, nominated_pairs(by_number), n_nominated_of=n_pairs)


def compare_under_noise(measurements: Measurements) -> Measurements:
    """Look closer at layers whose heads resemble each other or, failing that, layers at the same place."""
    if was_noise_compared(measurements):
        return measurements
    return _compare_under_noise(measurements, _pairs_to_search(measurements))


def was_noise_compared(measurements: Measurements) -> bool:
    """Return whether the noise step has compared neurons."""
    return any(neurons.step is SettledBy.NOISE for neurons in measurements.neurons)


def _compare_under_noise(
    measurements: Measurements, pairs: Sequence[Pair], *, n_nominated_of: int | None = None
) -> Measurements:
    """Fit the rotation to many whitened rows, in one or two pairs of layers."""
    if any(_n_values(measurements, pair) > LARGE_LAYER_VALUES for pair in pairs[:NEAR_LAYERS]):
        pairs = pairs[:1]  # the rows of one large layer take gigabytes
    n_rows = NOISE_ROWS_PER_CHANNEL * max(model.anatomy.hidden_size for model in measurements.models)
    return _compare_pairs(
        measurements,
        SettledBy.NOISE,
        pairs[:NEAR_LAYERS],
        n_fitted_rows=n_rows,
        n_nominated_of=n_nominated_of,
        is_whitened=True,
    )


def search_behind_embeddings(measurements: Measurements) -> Measurements:
    """Search neurons behind the maps that the embeddings suggest."""
    maps = tuple(residual_map for matrix in measurements.matrices.values() for residual_map in matrix.residual_maps)
    return _search(measurements, SettledBy.EMBEDDINGS, _pairs_to_search(measurements), maps)


def agrees_elsewhere(measurements: Measurements) -> bool:
    """Return whether keys or embeddings agree, so that neurons deserve a closer look."""
    has_heads = measurements.heads is not None and bool(measurements.heads.pairs)
    return has_heads or any(matrix.result.is_significant for matrix in measurements.matrices.values())


def without_unreadable(measurements: Measurements, error: MdirError) -> Measurements:
    """Return the measurements with a note on weights that a step could not read.

    Raises:
        MdirError: If the error is of another kind, or the limit on bytes was reached before the question was settled.
    """
    if isinstance(error, AnatomyError | UnsupportedFormatError):
        return with_notes(measurements, caveats.of_failed_layers(error))
    if isinstance(error, ByteBudgetError) and measurements.is_settled:
        return with_notes(measurements, caveats.of_spent_budget(error))
    raise error


def with_notes(measurements: Measurements, *notes: str) -> Measurements:
    """Return the measurements with further notes."""
    return replace(measurements, notes=tuple(dict.fromkeys((*measurements.notes, *notes))))


def _is_sampled(measurements: Measurements) -> bool:
    """Return whether only sampled rows of a model are available."""
    return any(model.other_stacks is None for model in measurements.models)


def _seed_of(measurements: Measurements, step: SettledBy) -> int:
    """Return the seed of a step, so that each step draws its own neurons."""
    return (measurements.sample_seed + STEPS.index(step)) % SAMPLE_SEEDS


def _count(
    measurements: Measurements,
    step: SettledBy,
    first: NeuronSample,
    second: NeuronSample,
    *,
    pairs: Sequence[Pair] | None = None,
    n_nominated_of: int | None = None,
    is_searched: bool = False,
    is_whitened: bool = False,
) -> NeuronNumbers | None:
    settings = measurements.settings
    return count_neurons(
        first,
        second,
        step,
        alpha=settings.alpha,
        pairs=pairs,
        n_nominated_of=n_nominated_of,
        log_cost=None if is_searched else log_cost_of_look(STEPS.index(step) + 1) + measurements.log_n_readings,
        is_searched=is_searched,
        is_whitened=is_whitened,
        device=settings.device,
    )


def _with(measurements: Measurements, counts: NeuronNumbers | None) -> Measurements:
    return measurements if counts is None else replace(measurements, neurons=(*measurements.neurons, counts))


def _compare_pairs(
    measurements: Measurements,
    step: SettledBy,
    pairs: Sequence[Pair],
    *,
    n_fitted_rows: int = FITTED_ROWS,
    n_nominated_of: int | None = None,
    is_whitened: bool = False,
) -> Measurements:
    """Compare neurons of chosen pairs of layers by number, in gate and up."""
    if not pairs:
        return measurements
    seed = _seed_of(measurements, step) if n_nominated_of is None else _second_seed_of(measurements, step)
    samples = take_pair(measurements.tensors, seed=seed, n_fitted_rows=n_fitted_rows, pairs=pairs)
    if samples is None:
        return measurements
    first, second = samples
    measurements = _having_read(measurements, first, second)
    pairs = [(i, j) for i, j in pairs if i in first.layers and j in second.layers]
    if not pairs:
        return measurements
    counts = _count(
        measurements, step, first, second, pairs=pairs, n_nominated_of=n_nominated_of, is_whitened=is_whitened
    )
    return _with(measurements, counts)


def _second_seed_of(measurements: Measurements, step: SettledBy) -> int:
    return (_seed_of(measurements, step) + len(STEPS)) % SAMPLE_SEEDS


def _search(
    measurements: Measurements, step: SettledBy, pairs: Sequence[Pair], residual_maps: Sequence[ResidualBasisMap]
) -> Measurements:
    """Search partners of sampled neurons behind each map, in at most two pairs of layers, until a pair matches.

    If none matches, the first pair is searched again, and the rotation is fitted to more rows, if they fit in memory.
    """
    n_many = NOISE_ROWS_PER_CHANNEL * max(model.anatomy.hidden_size for model in measurements.models)
    for residual_map in residual_maps:
        for pair, n_rows in [
            *((pair, FITTED_ROWS) for pair in pairs[:MOST_SEARCHED]),
            *((p, n_many) for p in pairs[:1] if NOISE_AFTER_KEYS not in measurements.left_out),
        ]:
            samples = search_neurons(
                measurements.tensors,
                pair,
                residual_map,
                seed=measurements.sample_seed,
                n_fitted_rows=n_rows,
                device=measurements.settings.device,
            )
            if samples is None:
                continue
            measurements = _having_read(measurements, *samples)
            measurements = _with(measurements, _count(measurements, step, *samples, is_searched=True))
            if measurements.is_settled:
                return measurements
    return measurements


def _same_places(measurements: Measurements, most: int) -> list[Pair]:
    """Draw pairs of layers at the same position; return an empty list if the depths differ."""
    places = [list(n_neurons_of(model)) for model in measurements.tensors]
    if len(places[0]) != len(places[1]):
        return []
    at = np.random.default_rng([measurements.sample_seed, 4]).permutation(len(places[0]))[:most]
    return sorted((places[0][k], places[1][k]) for k in at.tolist())


def _pairs_to_search(measurements: Measurements) -> list[Pair]:
    """Return the pairs of layers whose heads resemble each other or, failing that, pairs at the same relative depth."""
    if measurements.heads is not None and measurements.heads.pairs:
        return [(i, j) for i, j, _ in measurements.heads.pairs]
    same = _same_places(measurements, MOST_SEARCHED)
    places = [tuple(n_neurons_of(model)) for model in measurements.tensors]
    return same or list(zip(*(spread(of_model, MOST_SEARCHED) for of_model in places), strict=False))


def _n_values(measurements: Measurements, pair: Pair) -> int:
    """Return the number of entries of the larger up of a pair of layers."""
    return max(
        n_neurons_of(model).get(place, 0) * model.anatomy.hidden_size
        for model, place in zip(measurements.tensors, pair, strict=True)
    )
