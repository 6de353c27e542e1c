"""MDIR as printed: Algorithms 1 to 3 of the paper in float64, without the additions of this project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, optional, read_embedding
from mdir_hf.comparison.tokens import common_tokens
from mdir_hf.method.paper import PaperMatch, algorithm_1, algorithm_2
from mdir_hf.method.significance import LN10
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role


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


class PlainMdir(Peer):
    """The smallest p of Algorithm 1 on all common tokens and of Algorithm 2 on V behind U_E.

    :mod:`mdir_hf.method.paper` lists the choices that the paper leaves open. p is only corrected by the factor L that
    Algorithms 2 and 3 print. Algorithm 3 does not change the score: it analyses layers that match.
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


def embedding_analysis(a: Weights, b: Weights) -> tuple[PaperMatch, torch.Tensor]:
    """Run Algorithm 1: match the embeddings on all common tokens, and return U_E ``(n', n)`` as well."""
    common, _ = common_tokens(a.model, b.model)
    if not len(common):
        raise CannotSayError("no token is common to both vocabularies")
    sides = ((a, common.reference_rows), (b, common.candidate_rows))
    e_a, e_b = (weights.embedding[torch.from_numpy(rows)] for weights, rows in sides)
    return algorithm_1([(e_a, e_b)])


def layer_correspondence(a: Weights, b: Weights, u: torch.Tensor) -> dict[tuple[int, int], float]:
    """Run Algorithm 2: return ln p of V for every pair of layers, with p times L; at most 0."""
    first, second = ({i: layer[Role.V] for i, layer in enumerate(side.layers) if Role.V in layer} for side in (a, b))
    if first and next(iter(first.values())).shape[0] != u.shape[1]:
        raise CannotSayError("the embedding is projected before the first layer")
    log_p = algorithm_2(list(first.values()), second.values(), u)
    return {(i, j): float(log_p[row, column]) for row, i in enumerate(first) for column, j in enumerate(second)}
