"""The full embedding test against the textbook program: time and peak memory, as ratios of one run.

The textbook reads all common rows into memory, converts, centres and normalises them in float32, multiplies with the
library's own matrix product, and calls LAPACK's SVD and scipy's assignment. Ours streams the same file in blocks. Each
runs in a process of its own, one after the other, on synthetic bfloat16 embeddings in a temporary file.

Memory is the peak resident set of the process above what it has after its imports, since torch alone is the same in
both; the ratio with the imports is printed beside it.

    python benchmarks/embedding_speed.py [--width 4096] [--tokens 128000] [--strangers] [--blas numpy] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.embedding import EmbeddingTest

LOG_ALPHA = math.log(1e-10)
SAMPLE_ROWS = 512
READ_ROWS = 2048


@dataclass(frozen=True)
class Embeddings:
    """Two bfloat16 matrices of the same tokens, one after the other in a file."""

    path: Path
    n_tokens: int
    width: int

    def rows(self, model: int, start: int, stop: int) -> torch.Tensor:
        """Read rows of one of the two models; plain reads, so that no mapped page counts as memory of ours."""
        buffer = bytearray((stop - start) * self.width * 2)
        with self.path.open("rb", buffering=0) as file:
            file.seek((model * self.n_tokens + start) * self.width * 2)
            view = memoryview(buffer)
            while view:
                view = view[file.readinto(view) :]
        return torch.frombuffer(buffer, dtype=torch.bfloat16).view(stop - start, self.width)

    @classmethod
    def write(cls, folder: Path, n_tokens: int, width: int, noise: float | None) -> Embeddings:
        """Write a model and a permuted relative of it with Gaussian noise on it, or a stranger (noise None)."""
        generator = torch.Generator().manual_seed(0)
        permutation = torch.randperm(width, generator=generator)
        mean = 0.3 * torch.randn(width, generator=generator)
        path = folder / "embeddings.bf16"
        with path.open("wb") as file:
            file.truncate(2 * n_tokens * width * 2)
            for start in range(0, n_tokens, 4096):
                e = torch.randn(min(4096, n_tokens - start), width, generator=generator)
                other = torch.randn(e.shape, generator=generator)
                f = other if noise is None else (e + noise * other)[:, permutation]
                for model, rows in enumerate((e + mean, f + mean)):
                    file.seek((model * n_tokens + start) * width * 2)
                    file.write(rows.bfloat16().view(torch.int16).numpy().tobytes())
        return cls(path, n_tokens, width)


def textbook(data: Embeddings, blas: str) -> tuple[float, float]:
    """Everything in memory; returns c and ln p."""

    def load(model: int) -> torch.Tensor:
        rows = data.rows(model, 0, data.n_tokens).float()
        rows -= rows.mean(dim=0)
        rows /= rows.norm(dim=1, keepdim=True)
        return rows

    e, f = load(0), load(1)
    if blas == "numpy":
        left, _, right_t = np.linalg.svd(e.numpy().T @ f.numpy())
        u = left @ right_t
    else:
        left_, _, right_t_ = torch.linalg.svd(e.T @ f)
        u = (left_ @ right_t_).numpy()
    rows, columns = linear_sum_assignment(u, maximize=True)
    c = float(u[rows, columns].sum(dtype=np.float64))
    return c, min(0.0, math.lgamma(data.width + 1) - c * c / 2)


def ours(data: Embeddings) -> tuple[float, float]:
    """A sample of rows for the means, then the stream; returns c and ln p."""
    test = EmbeddingTest(log_alpha=LOG_ALPHA, n_tests=1)
    test.screen(data.rows(0, 0, SAMPLE_ROWS), data.rows(1, 0, SAMPLE_ROWS))

    def blocks() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(0, data.n_tokens, READ_ROWS):
            stop = min(data.n_tokens, start + READ_ROWS)
            yield data.rows(0, start, stop), data.rows(1, start, stop)

    look = test.full(blocks())
    assert look.matching is not None
    return look.matching.trace, look.log_p


def measured(program: Callable[[], tuple[float, float]]) -> dict[str, float]:
    """Run a program and take its wall time, processor time and peak memory above what the process had before."""
    before = _peak_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    c, log_p = program()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = _peak_bytes()
    return {"c": c, "log_p": log_p, "wall_s": wall, "cpu_s": cpu, "extra": peak - before, "peak": peak}


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count what the parent held when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_a_process(script: Path, program: str, data: Embeddings, *options: str, threads: int) -> dict[str, float]:
    """Measure one program of a script in a fresh process."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    command = [sys.executable, str(script), "--program", program, "--file", str(data.path)]
    command += ["--width", str(data.width), "--tokens", str(data.n_tokens), *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def options() -> argparse.ArgumentParser:
    """Options that the speed benchmarks have in common."""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=128_000)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--strangers", action="store_true")
    parser.add_argument("--blas", choices=("torch", "numpy"), default="torch", help="whose product and LAPACK")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Print the ratios, or run one of the two programs."""
    parser = options()
    parser.description = __doc__
    args = parser.parse_args()
    if args.program:
        data = Embeddings(args.file, args.tokens, args.width)
        print(json.dumps(measured(lambda: ours(data) if args.program == "ours" else textbook(data, args.blas))))
        return
    with tempfile.TemporaryDirectory() as folder:
        noise = None if args.strangers else args.noise
        data = Embeddings.write(Path(folder), args.tokens, args.width, noise)
        script = Path(__file__)
        slow = in_a_process(script, "textbook", data, "--blas", args.blas, threads=args.threads)
        fast = in_a_process(script, "ours", data, threads=args.threads)
    what = "strangers" if args.strangers else f"relatives, noise {args.noise:g} RMS"
    print(f"full embedding test, n = {args.width}, {args.tokens} common tokens, {what}, {args.threads} threads")
    print(f"  textbook on {args.blas} / ours: {slow['wall_s'] / fast['wall_s']:.2f}x faster by the clock, ", end="")
    print(f"{slow['cpu_s'] / fast['cpu_s']:.2f}x in processor time")
    print(f"  peak memory, ours / textbook: 1/{slow['extra'] / fast['extra']:.1f} ", end="")
    print(f"(with imports: 1/{slow['peak'] / fast['peak']:.1f})")
    print(f"  c {fast['c']:.4f} against {slow['c']:.4f}; ln p {fast['log_p']:.1f} against {slow['log_p']:.1f}")


if __name__ == "__main__":
    main()
