"""Plant copies into real embeddings with the noise that a "no" rules out; 99 of 100 must be found.

``python -m benchmarks.real_power FOLDER … [--plants 100] [--rows 512]`` takes folders with a ``model.safetensors``.
Rows of the embedding are drawn anew for every plant. The candidate consists of these rows with independent noise of the
stated strength and with channels in another order.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.zoo.run import read_lines
from mdir_hf.comparison.tokens import ROWS
from mdir_hf.method.embedding import TESTS_PER_MATRIX, look_at_rows
from mdir_hf.method.power import MatrixSizes, strongest_noise
from mdir_hf.processor import one_pool

ALPHA = 1e-10
RESULTS = Path(__file__).parent / "results" / "real-power.jsonl"


def embedding_of(folder: Path) -> torch.Tensor:
    """Read the embedding in float32, ``(V, n)``."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        (name,) = [name for name in file.keys() if name.endswith("embed_tokens.weight")]  # noqa: SIM118
        return file.get_tensor(name).float()


def planted(rows: torch.Tensor, noise: float, generator: torch.Generator) -> torch.Tensor:
    """Return rows with noise in units of their own RMS after centring, with channels in another order."""
    rms = (rows - rows.mean(0)).square().mean().sqrt()
    noisy = rows + noise * rms * torch.randn(rows.shape, generator=generator)
    return noisy[:, torch.randperm(rows.shape[1], generator=generator)]


def is_found(rows: torch.Tensor, noise: float, n_rows: int, seed: int) -> bool:
    """Return whether a plant is detected."""
    generator = torch.Generator().manual_seed(seed)
    drawn = rows[torch.randperm(len(rows), generator=generator)[:n_rows]]
    look = look_at_rows(drawn, planted(drawn, noise, generator), log_alpha=math.log(ALPHA))
    return look is not None and look.is_significant


def rows(folder: Path, n_rows: int, n_plants: int) -> Iterator[tuple[str, float, int]]:
    """Yield the plants, their noise, and the number found."""
    embedding = embedding_of(folder)
    n = embedding.shape[1]
    noise = strongest_noise(MatrixSizes(n, n, n_rows), log_level=math.log(ALPHA / TESTS_PER_MATRIX))
    for factor in (1.0, 2.0):
        n_found = sum(is_found(embedding, factor * noise, n_rows, seed) for seed in range(n_plants))
        yield f"embedding, {n_rows} rows of {n} channels", factor * noise, n_found


def main() -> None:
    """Run the experiment and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--plants", type=int, default=100)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument(
        "--write", action="store_true", help="store the rows; they replace earlier rows of these models"
    )
    arguments = parser.parse_args()
    print(f"{'planted into':60} {'noise, RMS':>10} {'found':>10}")
    written = []
    with one_pool():
        for folder in arguments.folders:
            for what, noise, n_found in rows(folder, arguments.rows, arguments.plants):
                row = {"model": folder.parent.name, "planted_into": what, "noise": round(noise, 2), "found": n_found}
                written.append({**row, "plants": arguments.plants})
                print(
                    f"{folder.parent.name + ': ' + what:60} {noise:10.2f} {n_found:5} of {arguments.plants}", flush=True
                )
    if arguments.write:
        judged = {folder.parent.name for folder in arguments.folders}
        earlier = [row for row in read_lines(RESULTS) if row["model"] not in judged]
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in [*earlier, *written]), encoding="utf-8")


if __name__ == "__main__":
    main()
