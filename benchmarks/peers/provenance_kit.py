"""Model Provenance Kit: a metadata gate followed by five weight signals."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, optional, read_embedding
from mdir_hf.model.roles import Role, read_part

WEIGHTS = {"eas": 0.36, "nlf": 0.08, "lep": 0.16, "end": 0.19, "wvc": 0.21}
N_ANCHORS, N_BINS, N_SAMPLED = 64, 20, 4096
ROLES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Inputs of the signals.

    Attributes:
        architecture: Digest of the config's sizes.
        family: Digest of model type, attention, activation, norm, tokenizer and rotary base.
        sizes: Width and depth.
        similarity: Cosines between anchor tokens, the upper triangle.
        gains: Gains of all norms, concatenated; empty without norms.
        energies: Frobenius norm of all matrices of each layer.
        lengths: Shares of embedding rows in 20 bins of length, relative to the mean.
        samples: 4096 evenly spaced entries of the matrices of each layer.
    """

    architecture: str
    family: str
    sizes: tuple[int, int]
    similarity: Array
    gains: Array
    energies: Array
    lengths: Array
    samples: tuple[Array, ...]


class ProvenanceKitSignals(Peer):
    """The weighted mean of the kit's five weight signals, without its gate.

    EAS: Pearson's r of the cosines among 64 anchor tokens, as (r + 1) / 2; NLF: cosine of all norm gains; LEP: r of the
    layers' energies, as (r + 1) / 2; END: cosine of histograms of embedding lengths; WVC: mean cosine of 4096 evenly
    spaced weights per layer, over common layers. Signals that are not comparable for two models are left out. The kit's
    anchors are words and digits, completed at random; here they are the 64 shortest tokens of letters and digits, which
    most tokenizers share. The threshold is the kit's, fitted by its authors to their 111 pairs.
    """

    name = "Provenance Kit, signals"
    source = "cisco-ai-defense/model-provenance-kit 1.0, docs"
    threshold = 0.75

    def read(self, folder: Path, reads: Reads) -> Features:
        """Read every weight once."""
        model = open_model(folder, reads)
        embedding = read_embedding(model).double()
        row_of = {} if model.vocabulary is None else model.vocabulary.row_of
        anchors = sorted((text for text in row_of if row_of[text] < len(embedding)), key=lambda text: (len(text), text))
        printable = [text for text in anchors if text.isascii() and text.isalnum()][:N_ANCHORS]
        lengths = embedding.norm(dim=1)
        similarity = np.zeros(0)
        if len(printable) >= 8:
            rows = embedding[[row_of[text] for text in printable]]
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
            similarity = (rows @ rows.T).numpy()[np.triu_indices(len(rows), 1)]
        gains, energies, samples = [], [], []
        for layer in model.anatomy.layers:
            norms = [role for role in (Role.ATTENTION_NORM, Role.MLP_NORM) if role in layer.parts]
            gains += [read_part(model.tensors, layer.parts[role]).double() for role in norms]
            weights = torch.cat([w.flatten() for w in optional(model, layer, *ROLES).values()]).double()
            energies.append(float(weights.norm()))
            samples.append(weights[np.linspace(0, len(weights) - 1, N_SAMPLED).astype(np.int64)].numpy())
        if model.anatomy.final_norm is not None:
            gains.append(read_part(model.tensors, model.anatomy.final_norm).double())
        config, tokenizer = _config(folder, reads), _tokenizer(folder, reads)
        shares = np.histogram((lengths / lengths.mean()).numpy(), bins=N_BINS, range=(0.0, 2.0))[0] / len(lengths)
        return Features(
            architecture=_digest([config.get(key) for key in _ARCHITECTURE]),
            family=_digest([[config.get(key) for key in _FAMILY], config.get("rope_parameters"), tokenizer]),
            sizes=(model.width, len(model.anatomy.layers)),
            similarity=similarity,
            gains=torch.cat(gains).numpy() if gains else np.zeros(0),
            energies=np.array(energies),
            lengths=shares,
            samples=tuple(samples),
        )

    def compare(self, a: Features, b: Features) -> PeerScore:
        """Return the identity score, in [0, 1]."""
        signals = {
            "eas": _as_share(_pearson(a.similarity, b.similarity)),
            "nlf": _cosine(a.gains, b.gains),
            "lep": _as_share(_pearson(*_interpolated(a.energies, b.energies))),
            "end": _cosine(a.lengths, b.lengths),
            "wvc": _mean_cosine(a.samples, b.samples),
        }
        known = {name: value for name, value in signals.items() if value is not None}
        if not known:
            return PeerScore(0.5)
        return PeerScore(sum(WEIGHTS[name] * value for name, value in known.items()) / sum(map(WEIGHTS.get, known)))


class ProvenanceKit(ProvenanceKitSignals):
    """The weight signals behind the kit's gate: equal sizes in two configs give 1.0, equal families of equal size 0.9.

    In both cases weights are ignored.
    """

    name = "Provenance Kit"

    def compare(self, a: Features, b: Features) -> PeerScore:
        """Return the pipeline score, in [0, 1]."""
        if a.architecture == b.architecture:
            return PeerScore(1.0)
        if a.family == b.family and a.sizes == b.sizes:
            return PeerScore(0.9)
        return super().compare(a, b)


_ARCHITECTURE = (
    "model_type",
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_FAMILY = ("model_type", "num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps", "layer_norm_eps")


def _config(folder: Path, reads: Reads) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CannotSayError("no config.json, and the kit identifies models by theirs")
    reads.add(path)
    return json.loads(path.read_text(encoding="utf-8"))


def _tokenizer(folder: Path, reads: Reads) -> str:
    files = [folder / name for name in ("tokenizer.json", "tokenizer.model", "vocab.json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return ""
    reads.add(file)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(fields: list[Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _interpolated(a: Array, b: Array) -> tuple[Array, Array]:
    n = max(len(a), len(b))
    x, y = (np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(c)), c) if len(c) else c for c in (a, b))
    return x, y


def _pearson(a: Array, b: Array) -> float | None:
    if len(a) != len(b) or len(a) < 2 or min(a.std(), b.std()) < 1e-8:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _as_share(r: float | None) -> float | None:
    return None if r is None else (r + 1) / 2


def _cosine(a: Array, b: Array) -> float | None:
    length = math.sqrt(float(a @ a) * float(b @ b))
    return max(0.0, float(a @ b) / length) if len(a) == len(b) and length else None


def _mean_cosine(a: tuple[Array, ...], b: tuple[Array, ...]) -> float | None:
    cosines = [_cosine(x, y) for x, y in zip(a, b, strict=False)]
    known = [cosine for cosine in cosines if cosine is not None]
    return sum(known) / len(known) if len(known) >= 2 else None
