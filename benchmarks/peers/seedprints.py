"""SeedPrints: the output dimensions that a model is biased against, and whether they correlate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import special, stats

from benchmarks.peers.inference import loaded
from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from mdir_hf.method.significance import LN10

N_SEQUENCES = 512
N_TOKENS = 16
N_IDS = 1024
SHARE = 0.1
TEMPERATURE = 10.0


@dataclass(frozen=True)
class Outputs:
    """Hidden states of last tokens, float64 of shape (N_SEQUENCES, n), and the dimensions with the smallest mean."""

    states: npt.NDArray[np.float64]
    smallest: npt.NDArray[np.int64]


class SeedPrints(Peer):
    """Kendall's tau of the last hidden states on random tokens, over the dimensions that both models avoid.

    The method takes the tenth of dimensions with the smallest mean of each model, intersects them, applies a softmax at
    temperature 10, and compares the mean tau of the columns with N(0, 2(2n + 5) / 9n(n - 1) / k). The authors run 2,000
    to 10,000 sequences of 1,024 tokens with ids below 32,000; here there are 512 sequences of 16 tokens below 1,024.
    Score: -log10 p. Its p treats the k columns as independent, which they are not. The threshold p < 0.01 is the
    authors'.
    """

    name = "SeedPrints"
    source = "SeedPrints, ICLR 2026, arXiv:2509.26404"
    threshold = 2.0

    @torch.no_grad()
    def read(self, folder: Path, reads: Reads) -> Outputs:
        """Run the model on the random tokens that all models get."""
        with loaded(folder, reads) as (model, _):
            if model.get_input_embeddings().weight.shape[0] < N_IDS:
                raise CannotSayError(f"fewer than {N_IDS} tokens")
            ids = torch.randint(N_IDS, (N_SEQUENCES, N_TOKENS), generator=torch.Generator().manual_seed(0))
            states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, -1].double().numpy()
        n_kept = max(1, round(SHARE * states.shape[1]))
        return Outputs(states, np.sort(np.argsort(states.mean(0))[:n_kept]))

    def compare(self, a: Outputs, b: Outputs) -> PeerScore:
        """Return -log10 p, or 0 if fewer than two dimensions are avoided by both."""
        shared = np.intersect1d(a.smallest, b.smallest)
        k, n = len(shared), len(a.states)
        if k < 2:
            return PeerScore(0.0, log10_p=0.0)
        x, y = (special.softmax(side.states[:, shared] / TEMPERATURE, axis=1) for side in (a, b))
        taus = [stats.kendalltau(x[:, j], y[:, j]).statistic for j in range(k)]
        sigma = math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)) / k)
        log_p = math.log(2) + float(stats.norm.logsf(float(np.mean(taus)) / sigma))
        log10_p = min(0.0, log_p / LN10)
        return PeerScore(0.0 - log10_p, log10_p=log10_p)
