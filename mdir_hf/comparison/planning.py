"""Pairs the tokens of two models, chooses the matrices to compare, and plans their reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mdir_hf.comparison.caveats import ROWS_PAIRED_BY_NUMBER, VOCABULARY_AS_ASKED
from mdir_hf.comparison.exclusion import planned_layers_noise
from mdir_hf.comparison.layer_weights import layers_with, n_neurons
from mdir_hf.comparison.layers import representatives
from mdir_hf.comparison.neuron_sample import planned_n_bytes
from mdir_hf.comparison.plan import ReadPlan, make_plan
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.comparable import Comparable, head_of, matrix_spec, n_rows, vocabularies_of
from mdir_hf.model.roles import WeightPart
from mdir_hf.model.tokens import CommonVocabulary, common_vocabulary
from mdir_hf.report import Level


def common_tokens(reference: Comparable, candidate: Comparable) -> tuple[CommonVocabulary, tuple[str, ...]]:
    """Pair the rows of the same tokens.

    Args:
        reference: One model.
        candidate: The other model.

    Returns:
        The paired rows and the caveats about them. Rows are paired by token if both vocabularies are known, otherwise
        by number.
    """
    models = (reference, candidate)
    caveats = tuple(
        VOCABULARY_AS_ASKED.format(model=model.label, place=model.vocabulary_from)
        for model in models
        if model.vocabulary_from is not None
    )
    vocabularies = vocabularies_of(reference, candidate)
    rows_of_models = (n_rows(reference), n_rows(candidate))
    if vocabularies[0] is not None and vocabularies[1] is not None:
        common = common_vocabulary(
            vocabularies[0], vocabularies[1], n_reference_rows=rows_of_models[0], n_candidate_rows=rows_of_models[1]
        )
        return common, caveats
    without = " and ".join(model.label for model, v in zip(models, vocabularies, strict=True) if v is None)
    known = next((v for v in vocabularies if v is not None), None)
    n_common = min(rows_of_models)
    if known is None:
        rows = np.arange(n_common, dtype=np.int64)
    else:
        rows = np.array(sorted(row for row in known.row_of.values() if row < n_common), dtype=np.int64)
    by_number = ROWS_PAIRED_BY_NUMBER.format(models=without)
    return CommonVocabulary(rows, rows, 0, 0, is_by_number=True), (*caveats, by_number)


MatrixPair = tuple[WeightPart, WeightPart]
"""A matrix of the reference, and the same of the candidate."""

NO_TOKENS = CommonVocabulary(np.arange(0), np.arange(0), 0, 0, is_by_number=False)


def plan_comparison(reference: Comparable, candidate: Comparable, level: Level, alpha: float) -> ReadPlan:
    """Return the plan of a comparison; reads the tokenizers and headers, no weights.

    Args:
        reference: One model.
        candidate: The other.
        level: How far the comparison would go.
        alpha: Its level of significance.

    Raises:
        AnatomyError: If the models have neither a matrix of tokens nor one of layers in common.
    """
    pairs = matrix_pairs(reference, candidate, level)
    name, pair = next(iter(pairs.items()), ("layer", None))
    common = NO_TOKENS if pair is None else common_tokens(reference, candidate)[0]
    return plan_matrix(name, reference, candidate, pair or _first_of_layers(reference, candidate), common, level, alpha)


def plan_matrix(
    name: str,
    reference: Comparable,
    candidate: Comparable,
    pair: MatrixPair,
    common: CommonVocabulary,
    level: Level,
    alpha: float,
) -> ReadPlan:
    """Plan the reads of one pair of matrices.

    Args:
        name: ``embedding``, ``unembedding`` or ``layer``.
        reference: One model.
        candidate: The other.
        pair: The matrices.
        common: Rows of the same tokens.
        level: How far the comparison goes.
        alpha: Its level of significance.
    """
    plan = make_plan(
        matrix_spec(reference, pair[0]),
        matrix_spec(candidate, pair[1]),
        common_tokens=len(common),
        bytes_of_weights=reference.tensors.n_bytes + candidate.tensors.n_bytes,
        level=level,
        n_neurons=max(n_neurons(reference), n_neurons(candidate)) if level.tests_whole_layers else 0,
        alpha=alpha,
    )
    plan = replace(plan, rows_of=f"{name}s", neuron_bytes=_neuron_bytes(reference) + _neuron_bytes(candidate))
    if not level.may_read_layers:
        return plan
    try:
        noise = planned_layers_noise(
            reference, candidate, n_looks=plan.n_looks, alpha=alpha, every=level.tests_whole_layers
        )
    except (AnatomyError, UnsupportedFormatError):
        return plan  # the comparison says why when it comes to the layers
    return replace(plan, excluded_layers_noise=noise)


def _neuron_bytes(model: Comparable) -> int:
    """Estimate the bytes of the first neurons that are compared; 0 if the model has none that can be read."""
    try:
        return planned_n_bytes(model)
    except (AnatomyError, UnsupportedFormatError):
        return 0


def matrix_pairs(reference: Comparable, candidate: Comparable, level: Level) -> dict[str, MatrixPair]:
    """Name the matrices that are compared: the embeddings, and the unembeddings if they are a test of their own.

    A model without an embedding is compared by its unembedding; a head that is tied to the embedding counts then.
    """
    models = (reference, candidate)
    first, second = (model.anatomy.embedding for model in models)
    if first is None or second is None:
        heads = (head_of(reference), head_of(candidate))
        return {} if heads[0] is None or heads[1] is None else {"unembedding": (heads[0], heads[1])}
    pairs = {"embedding": (first, second)}
    # A tied head is the embedding once more. If both models have one, the heads are no independent test.
    is_independent = not all(map(_has_tied_head, models, (first, second)))
    first, second = (model.anatomy.unembedding for model in models)
    if not level.is_screen_only and first is not None and second is not None and is_independent:
        pairs["unembedding"] = (first, second)
    return pairs


def _first_of_layers(reference: Comparable, candidate: Comparable) -> MatrixPair:
    """The first matrix of a layer that both models have, which is compared if no matrix of tokens is."""
    for role in representatives(reference, candidate):
        parts = [model.anatomy.layers[layers_with(model, role)[0]].parts.get(role) for model in (reference, candidate)]
        if isinstance(parts[0], WeightPart) and isinstance(parts[1], WeightPart):
            return parts[0], parts[1]
    raise AnatomyError(
        f"{reference.label} and {candidate.label} have no matrix in common: one has no embedding, and neither heads "
        "nor layers of both can be compared"
    )


def _has_tied_head(model: Comparable, embedding: WeightPart) -> bool:
    """Whether the head (``lm_head``) is the embedding, by the config or by its place in the file."""
    anatomy = model.anatomy
    if anatomy.declares_tied or anatomy.unembedding is None:
        return True
    # torch.save writes tied tensors once; safetensors cannot.
    of_embedding, of_head = (model.tensors.spec(part.tensor) for part in (embedding, anatomy.unembedding))
    return (of_embedding.path, of_embedding.start, of_embedding.stop) == (of_head.path, of_head.start, of_head.stop)
