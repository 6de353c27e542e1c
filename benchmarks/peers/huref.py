"""HuRef: products of weights and embeddings that are invariant under changes of basis inside a head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.peers.inference import load_tokenizer, statements
from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import head_counts, open_model, optional, read_layer
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role

N_TOKENS = 512
N_LAYERS = 2


class HuRef(Peer):
    """Cosine of the standardised invariant terms of the last two layers (the method's ICS).

    X are the embeddings of the rarest tokens that the model's own tokenizer produces on a text. The terms are X Wq' Wk
    X', X Wv' Wo' X' and, for the MLP, X (Wg' * Wu') Wd' X' (X Wu' Wd' X' without a gate). The method uses 4096 of about
    32,000 tokens from its own corpus; here 512 tokens come from text shipped with Python. If there are fewer key heads
    than query heads, each key head is repeated for its queries, as in attention. Different tokenizers give different
    tokens, as in the original.
    """

    name = "HuRef"
    source = "HuRef, NeurIPS 2024, arXiv:2312.04828"

    def read(self, folder: Path, reads: Reads) -> torch.Tensor:
        """Return six standardised matrices, float32 of shape (6, N_TOKENS, N_TOKENS), with total norm 1."""
        model = open_model(folder, reads)
        rows = _rarest_rows(folder, model, reads)
        x = model.tensors.read_rows(model.anatomy.embedding.tensor, rows).float()
        if x.shape[1] != model.anatomy.hidden_size:
            raise CannotSayError("the embedding is projected before the first layer")
        terms = []
        for layer in model.anatomy.layers[-N_LAYERS:]:
            weights = read_layer(model, layer, Role.Q, Role.K, Role.V, Role.O, Role.UP, Role.DOWN)
            n_heads, n_kv_heads = head_counts(model, layer)
            q, o = weights[Role.Q], weights[Role.O]
            k, v = (_repeated(weights[role], n_kv_heads, n_heads) for role in (Role.K, Role.V))
            if k.shape != q.shape or v.shape[0] != o.shape[1]:
                raise CannotSayError(f"layer {layer.index} has heads of different widths")
            up, gate = weights[Role.UP], optional(model, layer, Role.GATE).get(Role.GATE)
            mlp = up if gate is None else gate * up
            terms += [(x @ q.T) @ (k @ x.T), (x @ v.T) @ (o.T @ x.T), (x @ mlp.T) @ (weights[Role.DOWN].T @ x.T)]
        standard = torch.stack([(term - term.mean()) / term.std() for term in (term.double() for term in terms)])
        return (standard / standard.norm()).float()

    def compare(self, a: torch.Tensor, b: torch.Tensor) -> PeerScore:
        """Return the cosine of the two stacks, in [-1, 1]."""
        if a.shape != b.shape:
            raise CannotSayError(f"invariant terms of shapes {tuple(a.shape)} and {tuple(b.shape)}")
        return PeerScore(float(a.double().flatten() @ b.double().flatten()))


def _repeated(weight: torch.Tensor, n_kv_heads: int, n_heads: int) -> torch.Tensor:
    """Repeat each key/value head once for every query head of its group; (n_heads * d, n)."""
    heads = weight.reshape(n_kv_heads, -1, weight.shape[1])
    return heads.repeat_interleave(n_heads // n_kv_heads, dim=0).flatten(0, 1)


def _rarest_rows(folder: Path, model: Model, reads: Reads) -> npt.NDArray[np.int64]:
    """Return the embedding rows that occur least often in a text, rarest last; ties by id."""
    tokenizer = load_tokenizer(folder, reads)
    ids = tokenizer(" ".join(statements()[:2000]), add_special_tokens=False, verbose=False)["input_ids"]
    n_rows = min(model.n_rows, len(tokenizer))
    if n_rows < N_TOKENS:
        raise CannotSayError(f"{n_rows} tokens; this version of the method needs {N_TOKENS}")
    counts = torch.bincount(torch.tensor(ids), minlength=n_rows)[:n_rows]
    return counts.argsort(descending=True, stable=True)[-N_TOKENS:].numpy()
