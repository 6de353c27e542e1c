"""The screen against the textbook program: how much sooner a relative is settled, as a ratio of one run.

The textbook is the one of embedding_speed.py: all common rows, float32, LAPACK, assignment. The screen reads few rows,
looks, and doubles them until it is settled; its reading and converting count.

    python benchmarks/screen_speed.py [--width 4096] [--tokens 128000] [--noise 1] [--blas numpy] [--threads 2]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from embedding_speed import LOG_ALPHA, Embeddings, in_a_process, measured, options

from mdir_hf.comparison.plan import first_look_rows
from mdir_hf.method.embedding import FEW_ROWS, TESTS_PER_MATRIX, EmbeddingTest

RUN = 16
"""Rows are read in runs of neighbouring ids spread over the vocabulary, as the package does."""


def rows_spread(data: Embeddings, model: int, n_rows: int) -> torch.Tensor:
    """Read runs of neighbouring rows, evenly spread."""
    step = data.n_tokens * RUN // n_rows
    return torch.cat([data.rows(model, k, k + RUN) for k in range(0, data.n_tokens - RUN + 1, step)])


def screen(data: Embeddings) -> tuple[float, float]:
    """Look at more and more rows until settled, as the package does; returns the rows used and ln p."""
    test = EmbeddingTest(log_alpha=LOG_ALPHA, n_tests=TESTS_PER_MATRIX)
    n_rows = first_look_rows(data.width)
    while n_rows <= min(8 * FEW_ROWS, data.n_tokens):
        test.screen(rows_spread(data, 0, n_rows), rows_spread(data, 1, n_rows))
        if test.is_settled:
            break
        n_rows *= 2
    return float(n_rows), test.log_p


def main() -> None:
    """Print the ratio, or run one of the two programs."""
    parser = options()
    parser.description = __doc__
    args = parser.parse_args()
    if args.program:
        data = Embeddings(args.file, args.tokens, args.width)
        print(json.dumps(measured(lambda: screen(data))))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Embeddings.write(Path(folder), args.tokens, args.width, args.noise)
        textbook = Path(__file__).with_name("embedding_speed.py")
        slow = in_a_process(textbook, "textbook", data, "--blas", args.blas, threads=args.threads)
        fast = in_a_process(Path(__file__), "ours", data, threads=args.threads)
    print(f"screen, n = {args.width}, {args.tokens} common tokens, noise {args.noise:g} RMS, {args.threads} threads")
    print(f"  textbook on {args.blas} / screen: {slow['wall_s'] / fast['wall_s']:.0f}x sooner by the clock, ", end="")
    print(f"{slow['cpu_s'] / fast['cpu_s']:.0f}x in processor time")
    print(f"  settled on {fast['c']:.0f} rows, {fast['c'] / args.tokens:.2%} of the common tokens, ", end="")
    print(f"ln p {fast['log_p']:.1f}; the textbook's on all rows {slow['log_p']:.1f}")


if __name__ == "__main__":
    main()
