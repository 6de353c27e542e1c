"""Pair the rows of tokens that two models have in common, and choose the matrix whose rows are compared."""

from __future__ import annotations

import numpy as np

from mdir_hf.comparison.caveats import ROWS_PAIRED_BY_NUMBER, VOCABULARY_AS_ASKED
from mdir_hf.errors import VocabularyError
from mdir_hf.model.comparable import Comparable, head_of, n_rows, vocabularies_of
from mdir_hf.model.roles import WeightPart
from mdir_hf.model.roles.layer_names import is_in_layer
from mdir_hf.model.tokens import CommonVocabulary, common_vocabulary

ROWS = 512
"""Number of tokens whose rows are compared. Near copies need a tenth of that; more rows would change no verdict,
because embeddings decide none."""

MatrixPair = tuple[WeightPart, WeightPart]
"""A matrix of the reference, and the corresponding matrix of the candidate."""


def matrix_pair(reference: Comparable, candidate: Comparable) -> tuple[str, MatrixPair] | None:
    """Return the embeddings with their name or, if a model has none, the unembeddings; None if either has neither."""
    models = (reference, candidate)
    first, second = (model.anatomy.embedding for model in models)
    if first is not None and second is not None:
        return "embedding", (first, second)
    first, second = (head_of(model) for model in models)
    return None if first is None or second is None else ("unembedding", (first, second))


def common_tokens(reference: Comparable, candidate: Comparable) -> tuple[CommonVocabulary, tuple[str, ...]]:
    """Pair the models' rows by token, or by number if a vocabulary is unknown. Also return caveats."""
    models = (reference, candidate)
    caveats = tuple(
        VOCABULARY_AS_ASKED.format(model=model.label, place=model.vocabulary_from)
        for model in models
        if model.vocabulary_from is not None
    )
    vocabularies = vocabularies_of(reference, candidate)
    rows_of_models = (n_rows(reference), n_rows(candidate))
    if vocabularies[0] is not None and vocabularies[1] is not None:
        try:
            common = common_vocabulary(
                vocabularies[0], vocabularies[1], n_reference_rows=rows_of_models[0], n_candidate_rows=rows_of_models[1]
            )
        except VocabularyError as exc:
            for model, vocabulary in zip(models, vocabularies, strict=True):
                _refuse_shared_rows(model, max(vocabulary.row_of.values(), default=0), exc)  # type: ignore[union-attr]
            raise
        return common, caveats
    without = " and ".join(model.label for model, v in zip(models, vocabularies, strict=True) if v is None)
    vocabulary = next((v for v in vocabularies if v is not None), None)
    n_common = min(rows_of_models)
    if vocabulary is None:
        rows = np.arange(n_common, dtype=np.int64)
    else:
        rows = np.array(sorted(row for row in vocabulary.row_of.values() if row < n_common), dtype=np.int64)
    by_number = ROWS_PAIRED_BY_NUMBER.format(models=without)
    return CommonVocabulary(rows, rows, 0, 0), (*caveats, by_number)


def _refuse_shared_rows(model: Comparable, last_id: int, error: VocabularyError) -> None:
    """Raise an error if a tensor maps tokens to fewer rows, as in model2vec."""
    if n_rows(model) > last_id:
        return
    for name in model.tensors.names():
        if not is_in_layer(name):
            shape = model.tensors.spec(name).shape
            if len(shape) == 1 and shape[0] > last_id:
                raise VocabularyError(
                    f"its embedding has {n_rows(model)} rows, which {shape[0]} tokens share, as tensor {name!r} tells; "
                    "such a mapping is not supported",
                    subject=model.label,
                ) from error
