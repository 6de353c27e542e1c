"""Which matrices of two models are compared, and what reading them takes."""

from __future__ import annotations

from dataclasses import replace

from mdir_hf.comparison.exclusion import planned_layers_noise
from mdir_hf.comparison.layer_weights import n_neurons
from mdir_hf.comparison.plan import ReadPlan, make_plan
from mdir_hf.comparison.tokens import common_tokens
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.comparable import Comparable, matrix_spec
from mdir_hf.model.roles import WeightPart
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.report import Level

MatrixPair = tuple[WeightPart, WeightPart]
"""A matrix of the reference, and the same of the candidate."""


def plan_comparison(reference: Comparable, candidate: Comparable, level: Level, alpha: float) -> ReadPlan:
    """Say what a comparison would read and need; reads the tokenizers and headers, no weights.

    Args:
        reference: One model.
        candidate: The other.
        level: How far the comparison would go.
        alpha: Its level of significance.
    """
    pair = matrix_pairs(reference, candidate, level)["embedding"]
    return plan_matrix(reference, candidate, pair, common_tokens(reference, candidate)[0], level, alpha)


def plan_matrix(
    reference: Comparable, candidate: Comparable, pair: MatrixPair, common: CommonVocabulary, level: Level, alpha: float
) -> ReadPlan:
    """Plan the reads of one pair of matrices.

    Args:
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
        n_neurons=max(n_neurons(reference), n_neurons(candidate)) if level.analyses_all_layers else 0,
        alpha=alpha,
    )
    if not level.may_read_layers:
        return plan
    try:
        noise = planned_layers_noise(
            reference, candidate, n_looks=plan.n_looks, alpha=alpha, every=level.analyses_all_layers
        )
    except (AnatomyError, UnsupportedFormatError):
        return plan  # the comparison says why when it comes to the layers
    return replace(plan, excluded_layers_noise=noise)


def matrix_pairs(reference: Comparable, candidate: Comparable, level: Level) -> dict[str, MatrixPair]:
    """Name the matrices that are compared: the embeddings, and the unembeddings where they are a test of their own."""
    anatomies = (reference.anatomy, candidate.anatomy)
    pairs = {"embedding": (anatomies[0].embedding, anatomies[1].embedding)}
    # A tied head is the embedding once more. Where both models have one, the heads are no independent test.
    is_independent = not (_has_tied_head(reference) and _has_tied_head(candidate))
    first, second = (anatomy.unembedding for anatomy in anatomies)
    if not level.is_screen_only and first is not None and second is not None and is_independent:
        pairs["unembedding"] = (first, second)
    return pairs


def _has_tied_head(model: Comparable) -> bool:
    """Whether the head (``lm_head``) is the embedding, by the config or by its place in the file."""
    anatomy = model.anatomy
    if anatomy.declares_tied or anatomy.unembedding is None:
        return True
    # torch.save writes tied tensors once; safetensors cannot.
    embedding, head = (model.tensors.spec(part.tensor) for part in (anatomy.embedding, anatomy.unembedding))
    return (embedding.path, embedding.start, embedding.stop) == (head.path, head.start, head.stop)
