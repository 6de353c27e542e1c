"""AWM: match the channels of two embeddings, then test whether queries and keys agree on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, read_embedding, read_layer
from mdir_hf.model.roles import Role

STRANGERS_MEAN, STRANGERS_DEVIATION = 0.00375, 0.0028
"""Mean and standard deviation for z, from the authors' 90 unrelated pairs of models of 7B and 13B."""


@dataclass(frozen=True)
class Weights:
    """Embedding (V, n), row of each token's bytes, and (q, k) of each layer, each (d_out, n), in float32."""

    embedding: torch.Tensor
    row_of: Mapping[bytes, int]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class Awm(Peer):
    """Mean over layers of the unbiased linear CKA of the columns of Wq and Wk, on matched channels.

    Channels are assigned by the absolute cosine of the embedding's columns over common tokens, with their signs; if
    widths differ, the channels of the narrower model find partners. If depths differ, layers are assigned by the score.
    The authors state z = |s - 0.00375| / 0.0028; the threshold here is their z of 1.96 for unrelated pairs, as a score.
    """

    name = "AWM"
    source = "AWM, ICLR 2026, arXiv:2510.06738"
    threshold = STRANGERS_MEAN + 1.96 * STRANGERS_DEVIATION

    def read(self, folder: Path, reads: Reads) -> Weights:
        """Read embedding, queries and keys."""
        model = open_model(folder, reads)
        if model.vocabulary is None:
            raise CannotSayError("no tokenizer")
        layers = [read_layer(model, layer, Role.Q, Role.K) for layer in model.anatomy.layers]
        embedding = read_embedding(model)
        if not layers or embedding.shape[1] != model.anatomy.hidden_size:
            raise CannotSayError("no queries and keys on the channels of the embedding")
        return Weights(embedding, model.vocabulary.row_of, tuple((w[Role.Q], w[Role.K]) for w in layers))

    def compare(self, a: Weights, b: Weights) -> PeerScore:
        """Return the mean CKA: about 0 for unrelated models, 1 for a copy."""
        common = sorted(a.row_of.keys() & b.row_of.keys())
        rows = [(a.row_of[text], b.row_of[text]) for text in common]
        in_both = [(i, j) for i, j in rows if i < len(a.embedding) and j < len(b.embedding)]
        if len(in_both) < 2:
            raise CannotSayError("no common tokens")
        x, y = (side.embedding[torch.tensor(ids)] for side, ids in zip((a, b), zip(*in_both, strict=True), strict=True))
        x, y = x / x.norm(dim=0).clamp_min(1e-12), y / y.norm(dim=0).clamp_min(1e-12)
        cosine = (x.T @ y).double().numpy()
        order_a, order_b = linear_sum_assignment(-np.abs(cosine))
        signs = torch.from_numpy(np.sign(cosine[order_a, order_b])).float()
        first = [_grams([weight[:, torch.from_numpy(order_a)] * signs for weight in layer]) for layer in a.layers]
        second = [_grams([weight[:, torch.from_numpy(order_b)] for weight in layer]) for layer in b.layers]
        if len(first) == len(second):
            scores = [_agreement(p, q) for p, q in zip(first, second, strict=True)]
        else:
            table = np.array([[_agreement(p, q) for q in second] for p in first])
            scores = list(table[linear_sum_assignment(-table)])
        return PeerScore(float(np.mean(scores)))


def _agreement(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return sum(_cka(x, y) for x, y in zip(a, b, strict=True)) / len(a)


def _grams(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [_gram(weight.T) for weight in weights]


def _gram(x: torch.Tensor) -> torch.Tensor:
    """Return the Gram matrix of samples without its diagonal, centred as required by the U-statistic; float64."""
    x = x.double()
    k = x @ x.T
    k.fill_diagonal_(0)
    n = len(k)
    means = k.sum(0) / (n - 2)
    k = k - means[:, None] - means[None, :] + k.sum() / ((n - 1) * (n - 2))
    return k.fill_diagonal_(0)


def _cka(x: torch.Tensor, y: torch.Tensor) -> float:
    norm = float(x.norm() * y.norm())
    return float((x * y).sum()) / norm if norm else 0.0
