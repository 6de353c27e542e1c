"""Pair the rows of two models that belong to the same token."""

from __future__ import annotations

import numpy as np

from mdir_hf.comparison.caveats import ROWS_PAIRED_BY_NUMBER, VOCABULARY_AS_ASKED
from mdir_hf.model.comparable import Comparable, n_rows, vocabularies_of
from mdir_hf.model.tokens import CommonVocabulary, common_vocabulary


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
