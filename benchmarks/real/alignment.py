"""Align hidden copies of a real model with it, and print residuals, shares, logits and seconds in Markdown."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from benchmarks.real.workshop import SMALL, Model, built
from benchmarks.runner import table
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.write import write_model

COPIES = ("hidden", "rescaled", "signed")
HEADER = (
    "copy | stream | residual of the embeddings | largest residual of a projection | matrices explained | logits | s"
)


def logits(folder: Path) -> torch.Tensor:
    """Return the logits of one sequence of random tokens, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(1000, 40_000, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values: torch.Tensor = model(tokens).logits
    return values


def aligned_row(base: Path, copy: Path) -> list[str]:
    """Align one copy, and return its row of the table."""
    reference, candidate = (NamedModel(str(folder)).open(Reading()) for folder in (base, copy))
    began = time.process_time()
    reconstruction = fit_reconstruction(reference, candidate)
    seconds = time.process_time() - began
    with tempfile.TemporaryDirectory() as place:
        written = write_model(candidate, reconstruction, Path(place) / "aligned", reference=reference)
        before, after = logits(copy), logits(Path(place) / "aligned")
    shares = [each.share for each in written.explained if each.share is not None and "norm" not in each.name]
    worst = max(value for layer in reconstruction.layers for value in layer.residuals.values())
    return [
        copy.name,
        reconstruction.stream.outer.kind,
        f"{reconstruction.stream.residual:.2g}",
        f"{worst:.2g}",
        f"{min(shares):.4f} to {max(shares):.6f}",
        f"{float((after - before).norm() / before.norm()):.2g}",
        f"{seconds:.0f}",
    ]


def print_alignments() -> None:
    """Print the table."""
    base = built(Model(SMALL))
    print(table(HEADER, [aligned_row(base, built(Model(SMALL, name))) for name in COPIES]))
