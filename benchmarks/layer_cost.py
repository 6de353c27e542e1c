"""Measure the cost of the table of projections: sampled rows of all layers of both models.

    python -m benchmarks.layer_cost                          # shapes of 135M, 1B and 8B models
    python -m benchmarks.layer_cost --pair FOLDER FOLDER
    python -m benchmarks.layer_cost --shapes 1024x2816 --layers 2 4
    python -m benchmarks.layer_cost --http                   # requests and round trips, over a local Hub
    python -m benchmarks.layer_cost --gpu --shapes 8B        # two CPU threads and a GPU

Sampled rows of every projection are compared (tiers 1 and 2). The residual basis is given, so the cost of embeddings
and of the steps before it is not included. Models are Llamas of Gaussian weights, and a copy with noise of 30 % and
channels in order. Each measurement is a new process with one thread, and gives processor seconds, megabytes read, and
the growth of memory.

Models of 1B and 8B would fill the disk, so two small numbers of layers are measured. Seconds are a L + b L^2, because L
layers are read and L^2 pairs are compared; this gives the seconds for all layers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from mdir_hf.comparison.projections.analysis import analyse_layers
from mdir_hf.comparison.projections.samples import PROJECTION_ROLES, ProjectionReader, stacked
from mdir_hf.comparison.projections.tier_one import TierOne
from mdir_hf.comparison.reading import read_closely
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.row_agreement import compare_rows
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.opened import Model

HEAD_ROWS = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes:
        width: Channels of the stream.
        n_neurons: Neurons of an MLP.
        n_layers: Layers of the whole model.
        n_kv_heads: Heads of keys.
    """

    width: int
    n_neurons: int
    n_layers: int
    n_kv_heads: int = 8


SHAPES = {
    "135M": Shape(576, 1536, 30, 3),
    "1B": Shape(2048, 8192, 16),
    "8B": Shape(4096, 14336, 32),
}
"""SmolLM2-135M, Llama-3.2-1B and Llama-3.1-8B."""


@dataclass(frozen=True)
class Cost:
    """Cost of one analysis.

    Attributes:
        seconds: Processor seconds.
        read_mb: Megabytes read.
        memory_mb: Megabytes by which the memory of the process grew.
        began: ``time.monotonic()`` when the models were open.
        found: A summary of the result.
    """

    seconds: float
    read_mb: float
    memory_mb: float
    began: float
    found: str


def by_rows(reference: Model, candidate: Model, residual_map: ResidualBasisMap, device: str) -> str:
    """Analyse sampled rows, tiers 1 and 2."""
    analysis = analyse_layers(reference, candidate, (residual_map,), device=device)
    counts = {} if analysis is None else analysis.table.counts()
    return ", ".join(f"{n} {outcome.words}" for outcome, n in counts.items())


def measured(names: tuple[str, str], device: str = "cpu") -> Cost:
    """Open two models anew in a new process, and analyse their layers.

    Args:
        names: Folders or repositories.
        device: torch device.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (names, device))


def _measured(names: tuple[str, str], device: str) -> Cost:
    torch.set_num_threads(1)
    ledger = IoLedger()
    models = [Model(open_repository(name, RepositoryOptions(use_caches=False), ledger=ledger)) for name in names]
    residual_map = ResidualBasisMap.identity(models[0].anatomy.hidden_size)
    (torch.randn(1, 8, 8) @ torch.randn(1, 8, 8)).sum()  # the libraries allocate on first use
    before, started, began = _memory_mb("VmRSS"), time.process_time(), time.monotonic()
    n_bytes = ledger.bytes_read
    outcome = by_rows(models[0], models[1], residual_map, device)
    seconds = time.process_time() - started
    memory_mb = max(0.0, _memory_mb("VmHWM") - before)
    return Cost(seconds, (ledger.bytes_read - n_bytes) / 1e6, memory_mb, began, outcome)


def _memory_mb(name: str) -> float:
    """Return the resident memory of this process, now (VmRSS) or at its peak (VmHWM), in megabytes."""
    # ru_maxrss would begin with the memory of the parent process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def write_llama(
    folder: Path, shape: Shape, *, n_layers: int, noise_on: Path | None = None, device: str = "cpu"
) -> Path:
    """Write a Llama of Gaussian weights that are drawn on a device, or a copy of one with noise of 30 %."""
    folder.mkdir()
    width, n_neurons = shape.width, shape.n_neurons
    n_heads = max(1, width // HEAD_ROWS)
    n_kv = min(shape.n_kv_heads, n_heads)
    kv = n_kv * (width // n_heads)
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (n_neurons, width), "mlp.up_proj": (n_neurons, width),
        "mlp.down_proj": (width, n_neurons),
    }  # fmt: skip
    generator = torch.Generator(device).manual_seed(0)
    noise_generator = torch.Generator(device).manual_seed(1)
    embedding = torch.randn(64, width, generator=generator, device=device)
    tensors = {"model.embed_tokens.weight": embedding.bfloat16().cpu()}
    tensors["model.norm.weight"] = torch.ones(width).bfloat16()
    for layer in range(n_layers):
        for name, sizes in shapes.items():
            weight = torch.randn(sizes, generator=generator, device=device)
            if noise_on is not None:
                weight += 0.3 * torch.randn(sizes, generator=noise_generator, device=device)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight.bfloat16().cpu()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(width).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "vocab_size": 64,
        "intermediate_size": n_neurons, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def written(shape: Shape, n_layers: int, device: str = "cpu") -> Iterator[tuple[str, str]]:
    """Write a model and its noised copy, and delete them afterwards."""
    with tempfile.TemporaryDirectory() as name:
        base = write_llama(Path(name) / "base", shape, n_layers=n_layers, device=device)
        noised = write_llama(Path(name) / "noise", shape, n_layers=n_layers, noise_on=base, device=device)
        yield str(base), str(noised)


def of_all_layers(measurements: Sequence[tuple[int, float]], n_layers: int) -> float:
    """Return a L + b L^2 for L layers, from measurements at one or two numbers of layers.

    Args:
        measurements: Numbers of layers, and the cost at each; at most two.
        n_layers: L.
    """
    (first, cost), *further = measurements
    if not further:
        return cost * n_layers / first
    second, second_cost = further[0]
    square = max(0.0, (second_cost / second - cost / first) / (second - first))
    return n_layers * (cost / first - square * first) + square * n_layers**2


def print_shape(name: str, shape: Shape, options: argparse.Namespace) -> None:
    """Measure one shape and print its lines."""
    costs: list[tuple[int, Cost]] = []
    numbers = options.layers or ([shape.n_layers] if shape.width <= options.full_up_to else [2, 4])
    for n_layers in numbers:
        with written(shape, n_layers) as names:
            costs.append((n_layers, measured(names, options.device)))
        print(f"{name}: {n_layers} layers: {_line(costs[-1][1])}", flush=True)
    seconds, read, memory = (
        of_all_layers([(n, getattr(cost, key)) for n, cost in costs], shape.n_layers)
        for key in ("seconds", "read_mb", "memory_mb")
    )
    print(
        f"{name}, all {shape.n_layers} layers: {seconds:.1f} s, {read:.0f} MB read, memory {memory:.0f} MB", flush=True
    )


def _line(cost: Cost) -> str:
    return f"{cost.seconds:.1f} s, {cost.read_mb:.0f} MB read, memory {cost.memory_mb:.0f} MB; {cost.found}"


def print_devices(name: str, shape: Shape, n_layers: int) -> None:
    """Compare sampled rows on two threads and on a GPU: wall time of whole analyses, and the arithmetic of tier 1."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with written(shape, n_layers, "cuda") as names:
        models = [Model(open_repository(each, RepositoryOptions(use_caches=False))) for each in names]
        residual_map = ResidualBasisMap.identity(shape.width)
        outcomes, clock = {}, {}
        # The first run on each device reads the files and starts the libraries.
        for device in ("cpu", "cuda", "cpu", "cuda"):
            began = time.perf_counter()
            analysis = analyse_layers(models[0], models[1], (residual_map,), device=device)
            clock[device] = time.perf_counter() - began
            assert analysis is not None
            outcomes[device] = analysis
        tables = [outcomes[device].table for device in ("cpu", "cuda")]
        difference = _largest_difference(outcomes["cpu"].tier_one, outcomes["cuda"].tier_one)
        arithmetic = {device: _arithmetic_s(models[0], models[1], residual_map, device) for device in ("cpu", "cuda")}
    torch.set_num_threads(threads)
    is_equal = [result.outcome for result in tables[0].results] == [result.outcome for result in tables[1].results]
    print(
        f"{name}, {n_layers} layers, two threads and {torch.cuda.get_device_name()}: arithmetic of tier 1 "
        f"{arithmetic['cpu']:.3f} and {arithmetic['cuda']:.3f} s ({arithmetic['cpu'] / arithmetic['cuda']:.0f} times), "
        f"the analysis with its reads {clock['cpu']:.2f} and {clock['cuda']:.2f} s; outcomes "
        f"{'equal' if is_equal else 'DIFFERENT'}, relative difference of log p {difference:.1e}",
        flush=True,
    )


def _largest_difference(first: TierOne, second: TierOne) -> float:
    """Return the largest relative difference of significant values of log p in two runs."""
    differences = [0.0]
    for role, cells in first.cells.items():
        is_significant = cells.is_named & second.cells[role].is_named
        ratio = second.cells[role].log_p[is_significant] / cells.log_p[is_significant]
        differences.extend(np.abs(ratio - 1.0).tolist())
    return max(differences)


def _arithmetic_s(reference: Model, candidate: Model, residual_map: ResidualBasisMap, device: str) -> float:
    """Return the seconds to move sampled rows of all projections to a device, and to compare all pairs of layers.

    Rows are stacked on the way, like rows from files. The result is the minimum of five runs.
    """
    reader = ProjectionReader((read_closely(reference), read_closely(candidate)))
    samples = [sample for role in PROJECTION_ROLES if (sample := reader.sample(role, residual_map)) is not None]
    rows = [(sample.reference.unbind(), sample.candidate.unbind()) for sample in samples]
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        for reference_rows, candidate_rows in rows:
            compare_rows(stacked(reference_rows, device), stacked(candidate_rows, device))
        seconds.append(time.perf_counter() - began)  # the result is on the host, so the device has finished
    return min(seconds)


def print_requests(options: argparse.Namespace) -> None:
    """Compare sampled rows over a local Hub with a delay, and print requests and round trips."""
    from tests.loopback.hub import FullHub
    from tests.loopback.traffic import in_sequence

    n_layers = (options.layers or [4])[0]
    for name in options.shapes or ("135M", "1B"):
        with written(shape_of(name), n_layers) as names, FullHub() as hub, tempfile.TemporaryDirectory() as home:
            for repository, folder in zip(("a/base", "b/noise"), names, strict=True):
                hub.add_repository(repository, Path(folder))
            hub.network.round_trip_s = options.round_trip_ms / 1000
            os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1"}
            cost = measured(("a/base", "b/noise"))
            rows = [request for request in hub.requests if request.began >= cost.began]
            print(
                f"{name}, {n_layers} layer pairs: {len(rows)} requests for rows, {len(rows) / n_layers:.1f} a pair, "
                f"{in_sequence(rows)} round trips in sequence, {_line(cost)}",
                flush=True,
            )


def shape_of(text: str) -> Shape:
    """Return a named shape, or parse ``WIDTHxNEURONS`` or ``WIDTHxNEURONSxLAYERS``."""
    if text in SHAPES:
        return SHAPES[text]
    width, n_neurons, *n_layers = map(int, text.split("x"))
    return Shape(width, n_neurons, n_layers[0] if n_layers else 32)


def main() -> None:
    """Run the requested measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pair", nargs=2, metavar="FOLDER", help="measure only these two models, with all of their layers"
    )
    parser.add_argument("--shapes", nargs="*", default=[], metavar="SHAPE", help="135M, 1B, 8B or WIDTHxNEURONSxLAYERS")
    parser.add_argument("--layers", nargs="*", type=int, metavar="N", help="numbers of layers to measure, at most two")
    parser.add_argument("--full-up-to", type=int, default=576, help="largest width at which all layers are written")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gpu", action="store_true", help="compare two CPU threads with a GPU instead")
    parser.add_argument("--http", action="store_true", help="count requests to a local Hub instead")
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    options = parser.parse_args()
    if options.http:
        print_requests(options)
        return
    if options.gpu:
        for name in options.shapes or SHAPES:
            shape = shape_of(name)
            print_devices(name, shape, (options.layers or [shape.n_layers])[0])
        return
    if options.pair:
        print(_line(measured(tuple(options.pair), options.device)))
        return
    for name in options.shapes or SHAPES:
        print_shape(name, shape_of(name), options)


if __name__ == "__main__":
    main()
