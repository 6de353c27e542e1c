"""Plan the search of an index: the bytes to read, and the noise that a negative result would rule out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.fingerprint import bytes_of_neurons, tokens_with_rows, without_rows
from mdir_hf.lineage.index.base_index import LEAST_ROWS, BaseIndex, usual_rows_of
from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.power import noise_of_few_rows
from mdir_hf.method.significance import log_n_matchings
from mdir_hf.model.comparable import embedding_spec
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import ModelSummary

TESTS_OF_A_BASE = 3
"""Channels in their own order, any matching of channels, and neuron numbers."""


@dataclass(frozen=True, slots=True)
class IdentificationPlan:
    """Reads of an index search for a model.

    Attributes:
        model: The model.
        n_rows: Number of embedding rows to read.
        n_bytes: Bytes of these rows, without gaps between them.
        n_bytes_of_neurons: Bytes of neurons of all layers, which are read if the rows show no relation.
        n_bases: Number of bases searched.
        n_of_width: Number of bases as wide as the model, as in :class:`~mdir_hf.lineage.index.identify.Identification`.
        excluded_noise: Noise up to which copies of these bases would be found; known before anything is read.
    """

    model: ModelSummary
    n_rows: int
    n_bytes: int
    n_bytes_of_neurons: int
    n_bases: int
    n_of_width: int
    excluded_noise: float | None


def plan_identification(
    model: NamedModel, index: BaseIndex, *, alpha: float = 1e-10, reading: Reading = Reading()
) -> IdentificationPlan:
    """Plan what :func:`~mdir_hf.lineage.index.identify.identify` would read for its search, without reading weights.

    The comparisons with the bases that the search finds read more; their size is not known in advance.

    Args:
        model: The model.
        index: The bases.
        alpha: Significance level for all bases together.
        reading: How repositories are opened.

    Raises:
        MdirError: If the model cannot be opened, or has neither tokenizer files nor neurons.
        InputError: If the index is empty.

    Cost: config, header and tokenizer of the model; O(r^3) per base of its width with r rows in the index.
    """
    if not len(index):
        raise InputError("the index holds no base models; add some with `mdir-hf index`")
    opened = model.open(reading)
    vocabulary = None if opened.anatomy.embedding is None else opened.vocabulary
    tokens = () if vocabulary is None else tokens_with_rows(vocabulary, opened.n_rows, index.tokens)
    n_bytes_of_neurons = bytes_of_neurons(opened, every=True)
    if not (tokens or n_bytes_of_neurons):
        raise without_rows(opened)
    spec = embedding_spec(opened) if tokens else None
    numbers_are_free = opened.anatomy.channel_numbers is None
    n_of_width, noise = what_is_excluded(index, opened.width, tokens, alpha, numbers_are_free=numbers_are_free)
    return IdentificationPlan(
        model=opened.summary(),
        n_rows=len(tokens),
        n_bytes=0 if spec is None else len(tokens) * spec.n_bytes // spec.shape[0],
        n_bytes_of_neurons=n_bytes_of_neurons,
        n_bases=len(index),
        n_of_width=n_of_width,
        excluded_noise=noise,
    )


def what_is_excluded(
    index: BaseIndex, width: int, tokens: Sequence[bytes], alpha: float, *, numbers_are_free: bool = True
) -> tuple[int, float | None]:
    """Return how many bases are as wide as a model, and the noise up to which a copy of any of them would be found.

    Args:
        index: The bases.
        width: Number of channels of the model.
        tokens: Tokens of the index that the model has rows for.
        alpha: Significance level for all bases together.
        numbers_are_free: Whether the numbers of the model's channels are arbitrary. If they have a meaning in the model
            or the base, a copy must be significant among all matchings of channels.
    """
    log_level = math.log(alpha / (TESTS_OF_A_BASE * len(index)))
    known = frozenset(tokens)
    noises = []
    for base in index.bases:
        if base.rows.shape[1] == width:
            rows, _ = usual_rows_of(base, known)
            if len(rows) >= LEAST_ROWS:
                is_free = numbers_are_free and base.channel_numbers is None
                paid = 0.0 if is_free else log_n_matchings(width, width, width) + math.log(TESTS_PER_MATRIX)
                noises.append(noise_of_few_rows(rows, log_level=log_level - paid))
    return len(noises), min(noises, default=None)
