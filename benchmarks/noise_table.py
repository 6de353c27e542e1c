"""The paper's noise table on synthetic embeddings of the same sizes, beside the paper's numbers.

E' = E + s RMS(E) N. The signal of a model of width n has the spectrum k^-a; the trace lost is, to first order,

    n - c ~ s^2 / (2 V) sum_ij lbar / (l_i + l_j),     l the eigenvalues of E^T E / V, lbar their mean,

n^2 s^2 / (4 V) for a flat spectrum and more for a steeper one, so that the losses of the paper tell the spectrum of
its models. With --reduce R both V and s^2 are divided by R, which leaves the law as it is and costs R times less; the
sampled spectrum is wider than that of k^-a by n R / V, though, and the losses with it, so the law is printed for the
sampled spectrum as well.

Nothing is standardised here: the paper's Algorithm 1 takes the polar factor of the raw product, and the trace of the
package's centred, row-normalised view is printed in a column of its own.

    python benchmarks/noise_table.py [--width 1024] [--reduce 1] [--spectrum 0 0.2 0.3]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from mdir_hf.homology.matching import best_matching
from mdir_hf.homology.polar import polar_factor
from mdir_hf.homology.products import cross_product
from mdir_hf.homology.rows import pair_rows

NOISE = (0.0, 0.1, 0.3, 1.0, 3.0)
PAPER = {  # width: model, vocabulary, traces of the paper
    1024: ("Qwen3-0.6B-Base", 151_936, (1024.0, 1023.98, 1023.82, 1021.96, 1005.6)),
    3072: ("Llama-3.2-3B", 128_256, (3072.0, 3071.77, 3069.88, 3048.44, 2859.64)),
}


def first_order_loss(eigenvalues: np.ndarray, n_tokens: int, noise: float) -> float:
    """Return n - c to first order in the noise's variance."""
    mean = eigenvalues.mean()
    total = sum(float((mean / (one + eigenvalues)).sum()) for one in eigenvalues)
    return noise**2 / (2 * n_tokens) * total


def simulate(
    width: int, n_tokens: int, exponent: float, noises: list[float], seed: int
) -> tuple[list[float], list[float], np.ndarray]:
    """Return traces of the raw product and of the package's view, one per noise level, and the sampled eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    amplitude = torch.from_numpy(spectrum(width, exponent)).float().sqrt()
    q, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    mixing = (amplitude[:, None] * q).contiguous()
    raw = [torch.zeros(width, width) for _ in noises]
    view = [torch.zeros(width, width) for _ in noises]
    for start in range(0, n_tokens, 4096):
        z = torch.randn(min(4096, n_tokens - start), width, generator=generator)
        e = cross_product(z.t().contiguous(), mixing)
        random = torch.randn(e.shape, generator=generator)
        for k, noise in enumerate(noises):
            f = e + noise * random  # the mean eigenvalue is 1, and so is RMS(E)
            raw[k] += cross_product(e, f)
            rows = pair_rows(e, f, dtype=torch.float32)
            view[k] += cross_product(rows.reference, rows.candidate)

    def trace(cross: torch.Tensor) -> float:
        matching = best_matching(polar_factor(cross).matrix, signed=False)
        assert matching is not None
        return matching.trace

    sampled = torch.linalg.eigvalsh(raw[0].double()).numpy() / n_tokens  # the first noise level is 0: this is E^T E
    return [trace(m) for m in raw], [trace(m) for m in view], sampled


def spectrum(width: int, exponent: float) -> np.ndarray:
    """Eigenvalues of E^T E / V with mean 1, for singular values k^-exponent."""
    eigenvalues = (1.0 + np.arange(width)) ** (-2.0 * exponent)
    return eigenvalues / eigenvalues.mean()


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, choices=sorted(PAPER), default=1024)
    parser.add_argument("--reduce", type=int, default=1, help="divide the vocabulary and the noise variance by this")
    parser.add_argument("--spectrum", type=float, nargs="+", default=[0.0, 0.2, 0.3], help="exponents a of k^-a")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, vocabulary, paper = PAPER[args.width]
    n_tokens = vocabulary // args.reduce
    noises = [noise / args.reduce**0.5 for noise in NOISE]
    print(f"n = {args.width}, V = {vocabulary}" + (f", simulated at V / {args.reduce}" if args.reduce > 1 else ""))
    print(f"{'noise / RMS':>34} " + " ".join(f"{noise:>9g}" for noise in NOISE))
    print(f"{'paper, ' + model:>34} " + " ".join(f"{c:9.2f}" for c in paper))
    for exponent in args.spectrum:
        eigenvalues = spectrum(args.width, exponent)
        law = [args.width - first_order_loss(eigenvalues, n_tokens, noise) for noise in noises]
        print(f"{f'first-order law, k^-{exponent:g}':>34} " + " ".join(f"{c:9.2f}" for c in law))
        raw, view, sampled = simulate(args.width, n_tokens, exponent, noises, args.seed)
        law = [args.width - first_order_loss(sampled, n_tokens, noise) for noise in noises]
        print(f"{'the same on the sampled spectrum':>34} " + " ".join(f"{c:9.2f}" for c in law))
        print(f"{f'simulated, k^-{exponent:g}':>34} " + " ".join(f"{c:9.2f}" for c in raw))
        print(f"{'centred and row-normalised':>34} " + " ".join(f"{c:9.2f}" for c in view), flush=True)
    grid = np.linspace(0.0, 0.5, 51)
    losses = [first_order_loss(spectrum(args.width, a), vocabulary, 1.0) for a in grid]
    fitting = float(np.interp(args.width - paper[3], losses, grid))
    print(f"spectrum whose law has the paper's loss at noise 1: k^-{fitting:.2f}")


if __name__ == "__main__":
    main()
