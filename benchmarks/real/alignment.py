"""Align hidden copies of a real model with it, and print residuals, shares, logits and seconds in Markdown.

python -m benchmarks.real.alignment FOLDER hidden rescaled signed   # copies beside FOLDER/base
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.evidence.tables import table
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.write import write_model

HEADER = (
    "copy",
    "stream",
    "residual of the embeddings",
    "largest residual of a projection",
    "matrices explained",
    "logits",
    "s",
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


def main() -> None:
    """Print the table."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("copies", nargs="+")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    rows = [aligned_row(arguments.folder / "base", arguments.folder / name) for name in arguments.copies]
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
