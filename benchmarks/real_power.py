"""Plant copies into real weights with the noise that a "no" rules out; 99 of 100 must be found.

``python -m benchmarks.real_power FOLDER … [--plants 100] [--rows 2304]`` takes folders with a ``model.safetensors``.
Rows of the embedding are drawn anew for every plant. The candidate consists of these rows with independent noise of the
stated strength, with channels in another order or in their own. For layers, the values of one layer are planted, and
searched for among all layers.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from mdir_hf.method.layer_map import map_layers
from safetensors import safe_open

from benchmarks.zoo.run import read_lines
from mdir_hf.method.embedding import TESTS_PER_MATRIX, EmbeddingTest
from mdir_hf.method.power import MatrixSizes, noise_of_looks, strongest_noise
from mdir_hf.processor import one_pool

ALPHA = 1e-10
RESULTS = Path(__file__).parent / "results" / "real-power.jsonl"


def embedding_of(folder: Path) -> torch.Tensor:
    """Read the embedding in float32, ``(V, n)``."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        (name,) = [name for name in file.keys() if name.endswith("embed_tokens.weight")]  # noqa: SIM118
        return file.get_tensor(name).float()


def values_of(folder: Path) -> list[torch.Tensor]:
    """Read the values of every layer in float32, ``(m, n)``, with rows of equal length."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.endswith("self_attn.v_proj.weight")]  # noqa: SIM118
        layers = [
            file.get_tensor(name).float()
            for name in sorted(names, key=lambda n: int(n.split(".layers.")[1].split(".")[0]))
        ]
    return [layer / layer.norm(dim=1, keepdim=True) for layer in layers]


def planted(rows: torch.Tensor, noise: float, generator: torch.Generator, *, in_order: bool) -> torch.Tensor:
    """Return rows with noise in units of their own RMS after centring, with channels in their own or another order."""
    rms = (rows - rows.mean(0)).square().mean().sqrt()
    noisy = rows + noise * rms * torch.randn(rows.shape, generator=generator)
    return noisy if in_order else noisy[:, torch.randperm(rows.shape[1], generator=generator)]


def found_in_embedding(rows: torch.Tensor, noise: float, n_rows: int, seed: int, *, in_order: bool) -> bool:
    """Return whether a plant is detected."""
    generator = torch.Generator().manual_seed(seed)
    drawn = rows[torch.randperm(len(rows), generator=generator)[:n_rows]]
    test = EmbeddingTest(log_alpha=math.log(ALPHA), seed=seed)
    test.screen(drawn, planted(drawn, noise, generator, in_order=in_order), is_last=True)
    return test.is_significant


class Held:
    """A layer in memory, with the interface of a layer map."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.n_channels = weight, len(weight)

    def load(self, channels: torch.Tensor | None = None) -> torch.Tensor:
        """Return all rows, or the given ones."""
        return self.weight if channels is None else self.weight[channels]


def found_in_layers(layers: list[torch.Tensor], noise: float, seed: int) -> bool:
    """Return whether one planted layer among all of them is significant."""
    generator = torch.Generator().manual_seed(seed)
    at = int(torch.randint(len(layers), (1,), generator=generator))
    layer = layers[at]
    copy = layer + noise * layer.square().mean().sqrt() * torch.randn(layer.shape, generator=generator)
    copy = copy[torch.randperm(len(copy), generator=generator)]
    (layer_map,) = map_layers(
        [([Held(layer_rows) for layer_rows in layers], [Held(copy / copy.norm(dim=1, keepdim=True))])],
        log_alpha=math.log(ALPHA),
        refine="undecided",
        seed=seed,
        device="cpu",
    )
    return [(match.reference, match.candidate) for match in layer_map.matches] == [(at, 0)]


def rows(folder: Path, n_rows: int, n_plants: int) -> Iterator[tuple[str, float, int]]:
    """Return the plants, their noise, and the number found."""
    embedding = embedding_of(folder)
    n = embedding.shape[1]
    for in_order in (False, True):
        noise = noise_of_looks(
            MatrixSizes(n, n, n_rows), alpha=ALPHA, n_tests=TESTS_PER_MATRIX, n_looks=1, in_order=in_order
        )
        where = " in their own order" if in_order else ""
        for factor in (1.0, 2.0):
            n_found = sum(
                found_in_embedding(embedding, factor * noise, n_rows, seed, in_order=in_order)
                for seed in range(n_plants)
            )
            yield f"embedding, {n_rows} rows of {n} channels{where}", factor * noise, n_found
    layers = values_of(folder)
    m, width = layers[0].shape
    level = math.log(ALPHA) - math.log(len(layers))
    noise = strongest_noise(MatrixSizes(m, m, width + 1), log_level=level, must_be_robust=False)
    for factor in (1.0, 2.0):
        n_found = sum(found_in_layers(layers, factor * noise, seed) for seed in range(n_plants))
        yield f"values, {m} channels of width {width}, {len(layers)} layers", factor * noise, n_found


def main() -> None:
    """Run the experiment and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--plants", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2304)
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
