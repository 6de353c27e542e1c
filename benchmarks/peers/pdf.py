"""PDF, the intrinsic fingerprint that was used on Pangu: the spread of four matrices as a function of depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, read_layer
from mdir_hf.model.roles import Role

Curves = dict[Role, npt.NDArray[np.float64]]
ROLES = (Role.Q, Role.K, Role.V, Role.O)


class Pdf(Peer):
    """Standard deviation of all entries of q, k, v and o, layer by layer; Pearson's r of the two curves, averaged.

    The shorter curve is interpolated to the length of the longer. The score is (r_q + r_k + r_v + r_o + 4) / 8, in [0,
    1]. Four to six layers give curves of four to six points, while the papers' models give 28 and more.
    """

    name = "PDF"
    source = "Intrinsic Fingerprint of LLMs, arXiv:2507.03014; as in LeaFBench"

    def read(self, folder: Path, reads: Reads) -> Curves:
        """Return one curve of length L for each of four roles."""
        model = open_model(folder, reads)
        layers = [read_layer(model, layer, *ROLES) for layer in model.anatomy.layers]
        if len(layers) < 2:
            raise CannotSayError("a curve over depth needs two layers")
        return {role: np.array([float(weights[role].double().std()) for weights in layers]) for role in ROLES}

    def compare(self, a: Curves, b: Curves) -> PeerScore:
        """Average Pearson's r over the four roles."""
        return PeerScore((sum(_pearson(*_same_length(a[role], b[role])) for role in ROLES) + 4) / 8)


def _same_length(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    n = max(len(a), len(b))
    where = [np.interp(np.linspace(0, len(curve) - 1, n), np.arange(len(curve)), curve) for curve in (a, b)]
    return where[0], where[1]


def _pearson(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 0.0
