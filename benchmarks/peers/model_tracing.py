"""Model tracing (Independence Tests for Language Models), by the order of MLP neurons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.peers.inference import loaded, statements
from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.tails import fisher_log_p, spearman_log_p
from benchmarks.peers.weights import open_model, optional
from mdir_hf.method.significance import LN10
from mdir_hf.model.roles import Role, WeightPart

N_SEQUENCES = 4
N_TOKENS = 64

_SOURCE = "Independence Tests for Language Models, ICML 2025, arXiv:2502.12292"


class Csu(Peer):
    """Match the rows of up_proj by cosine, layer by layer, and test whether the matching is the identity (Spearman).

    Layers are combined by Fisher's method. This is the constrained test: it requires equal shapes and an unchanged
    order. Score: -log10 p. The authors publish p-values and no level.
    """

    name = "model-tracing CSU"
    source = _SOURCE

    def read(self, folder: Path, reads: Reads) -> list[torch.Tensor]:
        """Return rows of up_proj of each layer, scaled to length 1; float32 of shape (neurons, n)."""
        model = open_model(folder, reads)
        ups = [optional(model, layer, Role.UP).get(Role.UP) for layer in model.anatomy.layers]
        if not ups or any(up is None for up in ups):
            raise CannotSayError("not every layer has an MLP")
        return [up / up.norm(dim=1, keepdim=True).clamp_min(1e-12) for up in ups if up is not None]

    def compare(self, a: list[torch.Tensor], b: list[torch.Tensor]) -> PeerScore:
        """Combine p over layers by Fisher's method."""
        if [up.shape for up in a] != [up.shape for up in b]:
            raise CannotSayError("different shapes: the test compares layers of equal size, one by one")
        log_p = [spearman_log_p(_assign(-(x @ y.T))) for x, y in zip(a, b, strict=True)]
        return _score(fisher_log_p(log_p))


@dataclass(frozen=True)
class Activations:
    """Token ids, and the outputs of gate and up in each layer, (tokens, neurons) float32."""

    ids: tuple[int, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class Match(Peer):
    """Match neurons by the outputs of gate_proj, and again by up_proj, and test whether the two matchings agree.

    The test uses 256 tokens of text shipped with Python (the authors use WikiText). Layers of models with equal depth
    are compared one by one and combined by Fisher's method. Otherwise every layer of the shallower model finds its best
    partner in the deeper one, with p multiplied by the number of candidates. Requires gated MLPs and the same token
    ids. Score: -log10 p; the threshold is the level at which the authors call layers matched, 1e-6.
    """

    name = "model-tracing MATCH"
    source = _SOURCE
    threshold = 6.0

    @torch.no_grad()
    def read(self, folder: Path, reads: Reads) -> Activations:
        """Run the model once."""
        anatomy = open_model(folder, reads).anatomy
        parts = [(layer.parts.get(Role.GATE), layer.parts.get(Role.UP)) for layer in anatomy.layers]
        if not parts or any(gate is None or up is None for gate, up in parts):
            raise CannotSayError("not every layer has one gated MLP")
        outputs: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Any:
            def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
                outputs[name] = output.flatten(0, -2).float()

            return hook

        with loaded(folder, reads) as (model, tokenizer):
            text = " ".join(statements()[:100])
            ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"][: N_SEQUENCES * N_TOKENS])
            for name in {part.tensor for pair in parts for part in pair}:
                try:
                    model.get_submodule(name.removesuffix(".weight")).register_forward_hook(keep(name))
                except AttributeError as exc:
                    raise CannotSayError(f"transformers has no module for {name}") from exc
            model.base_model(input_ids=ids.reshape(N_SEQUENCES, -1), use_cache=False)
        layers = tuple((_taken(outputs, gate), _taken(outputs, up)) for gate, up in parts)
        return Activations(tuple(ids.tolist()), layers)

    def compare(self, a: Activations, b: Activations) -> PeerScore:
        """Combine p over layers by Fisher's method."""
        if a.ids != b.ids:
            raise CannotSayError("different tokenizers: the text gives different tokens")
        few, many = sorted((a.layers, b.layers), key=len)
        if len(few) == len(many):
            log_p = [_agreement(x, y) for x, y in zip(few, many, strict=True)]
        else:
            log_n = float(np.log(len(many)))
            log_p = [min(0.0, min(_agreement(x, y) for y in many) + log_n) for x in few]
        return _score(fisher_log_p(log_p))


def _agreement(x: tuple[torch.Tensor, torch.Tensor], y: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the natural log of p under independence of the matchings of gates and ups."""
    if x[0].shape[1] > y[0].shape[1]:
        x, y = y, x
    gate, up = (_assign(torch.cdist(p.T, q.T)) for p, q in zip(x, y, strict=True))
    return spearman_log_p(up[np.argsort(gate)])


def _assign(cost: torch.Tensor) -> npt.NDArray[np.int64]:
    """Return the column of each row in the assignment of least cost."""
    return linear_sum_assignment(cost.double().numpy())[1].astype(np.int64)


def _taken(outputs: dict[str, torch.Tensor], part: WeightPart) -> torch.Tensor:
    output = outputs[part.tensor]
    return output[:, torch.from_numpy(part.rows_of(output.shape[1]))]


def _score(log_p: float) -> PeerScore:
    log10_p = min(0.0, log_p / LN10)
    return PeerScore(0.0 - log10_p, log10_p=log10_p)
