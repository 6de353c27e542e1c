"""Align hidden copies of a real model with it, and measure residuals, shares, logits and seconds."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.real.workshop import SMALL, Model, built
from benchmarks.runner import Benchmark, Case, Row
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.write import write_model

COPIES = ("hidden", "rescaled", "signed")


def logits(folder: Path) -> torch.Tensor:
    """Return the logits of one sequence of random tokens, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(1000, 40_000, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values: torch.Tensor = model(tokens).logits
    return values


def aligned_row(name: str) -> Row:
    """Align one copy."""
    base, copy = built(Model(SMALL)), built(Model(SMALL, name))
    reference, candidate = (NamedModel(str(folder)).open(Reading()) for folder in (base, copy))
    began = time.process_time()
    reconstruction = fit_reconstruction(reference, candidate)
    seconds = time.process_time() - began
    with tempfile.TemporaryDirectory() as place:
        written = write_model(candidate, reconstruction, Path(place) / "aligned", reference=reference)
        of_base, of_copy, aligned = (logits(folder) for folder in (base, copy, Path(place) / "aligned"))
    shares = [each.share for each in written.explained if each.share is not None and "norm" not in each.name]
    return {
        "copy": name,
        "stream": reconstruction.stream.outer.kind,
        "layers": [sum(layer.reference is not None for layer in reconstruction.layers), len(reconstruction.layers)],
        "residual_of_embeddings": reconstruction.stream.residual,
        "worst_residual": max(value for layer in reconstruction.layers for value in layer.residuals.values()),
        "explained": [min(shares), max(shares)],
        "logits_of_copy": float((of_copy - of_base).norm() / of_base.norm()),
        "logits_of_aligned": float((aligned - of_copy).norm() / of_copy.norm()),
        "cpu_s": round(seconds, 1),
    }


ALIGNMENT = Benchmark(
    "real-alignment",
    "hidden copies of a real model, aligned with it",
    ("copy",),
    lambda: (Case((name,), partial(aligned_row, name)) for name in COPIES),
)
