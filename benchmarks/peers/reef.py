"""REEF: test whether two models represent differences between statements in the same way."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers.inference import encode, loaded, statements
from benchmarks.peers.interface import Peer, PeerScore
from benchmarks.peers.reads import Reads

N_STATEMENTS = 200
N_TOKENS = 48
DEPTH = 18 / 32
"""The method reads layer 18 of models with 32 layers."""


class Reef(Peer):
    """Linear CKA of the hidden states of the last token of 200 statements, at 18/32 of the depth.

    Statements come from text shipped with Python instead of TruthfulQA, because there is no network. Each model reads
    them through its own tokenizer, cut to 48 tokens. Width and tokenizer may differ.
    """

    name = "REEF"
    source = "REEF, ICLR 2025, arXiv:2410.14273"

    @torch.no_grad()
    def read(self, folder: Path, reads: Reads) -> torch.Tensor:
        """Return hidden states of the last tokens, float64 of shape (N_STATEMENTS, n)."""
        with loaded(folder, reads) as (model, tokenizer):
            ids, lengths = encode(tokenizer, statements()[:N_STATEMENTS], n_tokens=N_TOKENS)
            states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        layer = max(1, round(DEPTH * (len(states) - 1)))
        # Padding follows the last token; a causal model does not see it.
        return states[layer][torch.arange(len(ids)), lengths - 1].double()

    def compare(self, a: torch.Tensor, b: torch.Tensor) -> PeerScore:
        """Return linear CKA, in [0, 1]."""
        return PeerScore(linear_cka(a, b))


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the linear centred kernel alignment of two sets of features of the same n samples.

    Args:
        x: (n, d_x).
        y: (n, d_y).

    Returns:
        HSIC(XX', YY') / sqrt(HSIC(XX', XX') HSIC(YY', YY')), in [0, 1]; the biased estimate, as in the method.
    """
    x, y = x - x.mean(0), y - y.mean(0)
    shared = (x.T @ y).square().sum()
    return float(shared / ((x.T @ x).norm() * (y.T @ y).norm()))
