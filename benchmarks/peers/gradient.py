"""Two methods with the same name: statistics of a model's gradients as its fingerprint."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers.inference import encode, loaded, statements
from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, optional
from mdir_hf.model.roles import Role

N_STATEMENTS = 20
N_TOKENS = 32
PARTS = {"attention": ("attn", "attention"), "mlp": ("mlp", "ffn", "feed_forward"), "embedding": ("embed", "wte")}

ROLES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN)
N_SAMPLED_LAYERS = 10
N_INPUTS = 32
FGSM_STEP = 0.1


class LeafBenchGradient(Peer):
    """Fourteen statistics of the gradient of the language-model loss on 20 statements; Pearson's r as (r + 1) / 2.

    The statistics are mean, standard deviation, norm, mean |g| / std and var / mean |g|^2 over all weights, and the
    first three over attention, MLPs and embeddings. Statements come from text shipped with Python, because there is no
    network.
    """

    name = "Gradient (LeaFBench)"
    source = "the baseline called Gradient in LeaFBench"

    def read(self, folder: Path, reads: Reads) -> torch.Tensor:
        """Return the statistics, float64 of shape (14,)."""
        with loaded(folder, reads) as (model, tokenizer):
            ids, lengths = encode(tokenizer, statements()[:N_STATEMENTS], n_tokens=N_TOKENS)
            labels = ids.masked_fill(torch.arange(N_TOKENS) >= lengths[:, None], -100)
            model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
            gradients = {name: p.grad.double().flatten() for name, p in model.named_parameters() if p.grad is not None}
        features = _moments(list(gradients.values()))
        for words in PARTS.values():
            features += _moments([g for name, g in gradients.items() if any(word in name for word in words)])[:3]
        return torch.tensor(features, dtype=torch.float64)

    def compare(self, a: torch.Tensor, b: torch.Tensor) -> PeerScore:
        """Return (r + 1) / 2, in [0, 1]."""
        return PeerScore((float(torch.corrcoef(torch.stack([a, b]))[0, 1]) + 1) / 2)


class TensorGuard(Peer):
    """Moments of the gradient of ||x W'|| with respect to W, for inputs x perturbed in four ways.

    The method uses up to ten layers spread over the depth. For each matrix, standard normal inputs are perturbed by
    Gaussian noise, a step of fast gradient sign, and low and high frequencies. The features are mean, standard
    deviation, norm, skewness and kurtosis, averaged over layers. The authors standardise features by a set of known
    models and cluster. A pair has no such set, so each feature's difference is taken relative to its size. Score: minus
    the root mean square of the differences.
    """

    name = "TensorGuard"
    source = "TensorGuard, arXiv:2506.01631"

    def read(self, folder: Path, reads: Reads) -> dict[Role, torch.Tensor]:
        """Return float64 of shape (4 perturbations, 5 moments) for each role of the model."""
        model = open_model(folder, reads)
        layers = model.anatomy.layers
        chosen = sorted({round(i * (len(layers) - 1) / (N_SAMPLED_LAYERS - 1)) for i in range(N_SAMPLED_LAYERS)})
        moments_of: dict[Role, list[torch.Tensor]] = {}
        for position in chosen if layers else ():
            for role, weight in optional(model, layers[position], *ROLES).items():
                moments_of.setdefault(role, []).append(_gradient_moments(weight))
        if not moments_of:
            raise CannotSayError("no layer has readable matrices")
        return {role: torch.stack(moments).mean(0) for role, moments in moments_of.items()}

    def compare(self, a: dict[Role, torch.Tensor], b: dict[Role, torch.Tensor]) -> PeerScore:
        """Return the score, at most 0; a copy has 0."""
        roles = [role for role in ROLES if role in a and role in b]
        if not roles:
            raise CannotSayError("the models have no role in common")
        x, y = (torch.stack([side[role] for role in roles]) for side in (a, b))
        relative = (x - y) / (x.abs() + y.abs()).clamp_min(1e-12)
        return PeerScore(-float(relative.square().mean().sqrt()))


def _gradient_moments(weight: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    weight = weight.double()
    x = torch.randn(N_INPUTS, weight.shape[1], generator=generator, dtype=torch.float64)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    wave = torch.linspace(0, 1, weight.shape[1], dtype=torch.float64) * 2 * torch.pi
    y = x @ weight.T
    # d ||x W'|| / dx = y W / ||y||, and d ||x W'|| / dW = y' x / ||y||.
    inputs = (
        x + FGSM_STEP * noise,
        x + FGSM_STEP * torch.sign(y @ weight),
        x + FGSM_STEP * torch.sin(wave),
        x + FGSM_STEP * torch.sin(wave * weight.shape[1] / 4),
    )
    moments = []
    for perturbed in inputs:
        y = perturbed @ weight.T
        g = (y.T @ perturbed / y.norm()).flatten()
        mean, std = g.mean(), g.std()
        centred = (g - mean) / std
        moments.append(torch.stack([mean, std, g.norm(), centred.pow(3).mean(), centred.pow(4).mean()]))
    return torch.stack(moments)


def _moments(gradients: list[torch.Tensor]) -> list[float]:
    if not gradients:
        return [0.0] * 5
    g = torch.cat(gradients)
    mean, std, mean_size = float(g.mean()), float(g.std()), float(g.abs().mean())
    return [mean, std, float(g.norm()), mean_size / std if std else 0.0, std**2 / mean_size**2 if mean_size else 0.0]
