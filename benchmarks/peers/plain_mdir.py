"""MDIR as printed: Algorithms 1 to 3 of the paper in float64, without the additions of this project."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, optional, read_embedding
from mdir_hf.comparison.plan import common_tokens
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role

P_0 = math.log(1e-10)
"""ln of the paper's threshold p_0, set to alpha of all comparisons here."""

LN10 = math.log(10.0)


@dataclass(frozen=True)
class Weights:
    """The weights of a model that the algorithms use; X of a layer is ``(n, D_X)``, as in the paper.

    Attributes:
        model: The opened model, for its tokens.
        embedding: E, ``(V, n)``.
        layers: Q, K, V and Up of each layer, if it has them.
    """

    model: Model
    embedding: torch.Tensor
    layers: tuple[dict[Role, torch.Tensor], ...]


@dataclass(frozen=True)
class Match:
    """P, its trace and the natural logarithm of its p."""

    permutation: torch.Tensor
    trace: float
    log_p: float


class PlainMdir(Peer):
    """The smallest p of Algorithm 1 on all common tokens and of Algorithm 2 on V behind U_E.

    Gains are not folded, rows keep their lengths, signs are not free, and p is only corrected by the factor L that
    Algorithms 2 and 3 print. The paper leaves two choices open. If widths differ, D in the formula is the larger one.
    If a product has no full rank (Up has more rows than the model has channels), its orthogonal part is cut to the
    rank, as the odd polynomials of the paper's appendix do. Algorithm 3 does not change the score: it analyses layers
    that match (:func:`layer_analysis`).
    """

    name = "MDIR, as printed"
    source = "MDIR, arXiv:2508.06309, Algorithms 1 to 3"

    def read(self, folder: Path, reads: Reads) -> Weights:
        """Read the embedding, and Q, K, V and Up of every layer."""
        model = open_model(folder, reads)
        embedding = read_embedding(model)
        layers = tuple(optional(model, layer, Role.Q, Role.K, Role.V, Role.UP) for layer in model.anatomy.layers)
        return Weights(model, embedding, tuple({role: w.T for role, w in layer.items()} for layer in layers))

    def compare(self, a: Weights, b: Weights) -> PeerScore:
        """Return -log10 p; the score is symmetric up to rounding, although not by definition."""
        embedding, u = embedding_analysis(a, b)
        layers = layer_correspondence(a, b, u)
        log_p = min([embedding.log_p, *layers.values()])
        log10_p = min(0.0, log_p) / LN10
        return PeerScore(-log10_p, log10_p)


def ortho(matrix: torch.Tensor) -> torch.Tensor:
    """Return Ortho(A) = A (A^T A)^(-1/2), cut to the rank of A."""
    left, scale, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    rank = int((scale > 1e-12 * scale[0]).sum()) if len(scale) and float(scale[0]) > 0 else 0
    return left[:, :rank] @ right[:rank]


def best_match(u: torch.Tensor) -> Match:
    """Return P = argmax Tr(P U^T) by the Hungarian algorithm, and p = d! exp(-Tr(P U^T)^2 / 2)."""
    rows, columns = linear_sum_assignment(u.numpy(), maximize=True)
    permutation = torch.zeros_like(u)
    permutation[rows, columns] = 1.0
    trace = float((permutation * u).sum())
    return Match(permutation, trace, math.lgamma(max(u.shape) + 1) - max(0.0, trace) ** 2 / 2)


def embedding_analysis(a: Weights, b: Weights) -> tuple[Match, torch.Tensor]:
    """Run Algorithm 1: match the embeddings on all common tokens, and return U_E ``(n', n)`` as well.

    The text of the paper (Equation 1) takes E'^T E, and Algorithm 1 prints its transpose. U_E^T in Algorithms 2 and 3
    fits the text.
    """
    common, _ = common_tokens(a.model, b.model)
    if not len(common):
        raise CannotSayError("no token is common to both vocabularies")
    e_a, e_b = (
        weights.embedding[torch.from_numpy(rows)].double()
        for weights, rows in ((a, common.reference_rows), (b, common.candidate_rows))
    )
    u = ortho(e_b.T @ e_a)
    match = best_match(u)
    return match, match.permutation if match.log_p < P_0 else u


def layer_correspondence(a: Weights, b: Weights, u: torch.Tensor) -> dict[tuple[int, int], float]:
    """Run Algorithm 2: return ln p of V for every pair of layers, with p times L."""
    log_l = math.log(max(1, len(a.layers)))
    carried = {i: u @ layer[Role.V].double() for i, layer in enumerate(a.layers) if Role.V in layer}
    if carried and carried[min(carried)].shape[0] != u.shape[0]:
        raise CannotSayError("the embedding is projected before the first layer")
    return {
        (i, j): log_l + best_match(ortho(x.T @ layer[Role.V].double())).log_p
        for i, x in carried.items()
        for j, layer in enumerate(b.layers)
        if Role.V in layer
    }


def layer_analysis(a: Weights, b: Weights, u: torch.Tensor, pair: tuple[int, int]) -> dict[Role, float]:
    """Run Algorithm 3: return ln p of Q, K, V and Up of one pair of layers, with p times L."""
    log_l = math.log(max(1, len(a.layers)))
    first, second = a.layers[pair[0]], b.layers[pair[1]]
    return {
        role: log_l + best_match(ortho((u @ first[role].double()).T @ second[role].double())).log_p
        for role in (Role.Q, Role.K, Role.V, Role.UP)
        if role in first and role in second
    }
