"""How much faster the layer map is than testing every pair of layers by SVD and assignment, at the same decisions.

A depth-upscaled candidate is planted in noise: first 3/4 and last 3/4 of the reference's layers, every layer's output
channels permuted, with noise from a tenth of the weights' size to what even the full test barely sees; every eighth
layer is a stranger's instead. The naive reference is float32 LAPACK SVD and scipy's assignment for each of the L x L'
cells; it is timed on a random sample of cells, on all planted ones besides, and scaled to all cells.

    python benchmarks/layer_map_speed.py                      # 32 x 48 at d = 1024, n = 4096: about two minutes
    python benchmarks/layer_map_speed.py --channels 256 --width 1024 --layers 12
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from mdir_hf.method.layer_map import LayerMap, map_layers
from mdir_hf.method.layer_screen import SCREEN_CHANNELS, cross_product

LOG_ALPHA = -10.0 * math.log(10.0)


def plant(n_layers: int, channels: int, width: int, loudest: float) -> tuple[list, list, dict[int, int], dict]:
    """Return reference layers, candidate layers, the ancestor of each candidate layer, and its noise."""
    generator = torch.Generator().manual_seed(7)
    reference = [torch.randn(channels, width, generator=generator) for _ in range(n_layers)]
    kept = 3 * n_layers // 4
    order = [*range(kept), *range(n_layers - kept, n_layers)]
    loudness = np.geomspace(0.1, loudest, len(order))[np.random.default_rng(7).permutation(len(order))]
    candidate, ancestors, noises = [], {}, {}
    for j, i in enumerate(order):
        layer = torch.randn(channels, width, generator=generator)
        if j % 8 != 7:
            layer.mul_(float(loudness[j])).add_(reference[i][torch.randperm(channels, generator=generator)])
            ancestors[j], noises[j] = i, float(loudness[j])
        candidate.append(layer)
    return reference, candidate, ancestors, noises


def naive_log_p(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """The paper's Algorithm 2 for one cell, as anybody would write it."""
    left, _, right = scipy.linalg.svd(reference.numpy() @ candidate.numpy().T, full_matrices=False)
    polar = left @ right
    trace = float(polar[linear_sum_assignment(polar, maximize=True)].sum())
    return min(0.0, float(gammaln(len(polar) + 1)) - trace * trace / 2.0)


def measure_peak() -> float:
    """Flops per second of CPU time: the best of several products of the screen's own kind."""
    a, b = torch.randn(2048, 4096), torch.randn(1024, 4096)
    best = math.inf
    for _ in range(10):
        start = time.process_time()
        cross_product(a.T, b.T)
        best = min(best, time.process_time() - start)
    return 2.0 * 2048 * 4096 * 1024 / best


def clock() -> np.ndarray:
    """Wall time and CPU time of this process, in seconds: on a shared machine only the second is its own."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--channels", type=int, default=1024)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--loudest", type=float, default=8.0, help="noise of the faintest planted layer")
    parser.add_argument("--sample", type=int, default=48, help="random cells on which the naive reference is timed")
    arguments = parser.parse_args()
    reference, candidate, ancestors, noises = plant(
        arguments.layers, arguments.channels, arguments.width, arguments.loudest
    )
    shape = (len(reference), len(candidate))
    n_cells = shape[0] * shape[1]
    print(
        f"{shape[0]} x {shape[1]} layers, d = {arguments.channels}, n = {arguments.width}, "
        f"{torch.get_num_threads()} threads; {len(ancestors)} planted, noise 0.1 to {arguments.loudest}"
    )

    picked = np.random.default_rng(1).choice(n_cells, size=min(arguments.sample, n_cells), replace=False)
    sample = [(int(c // shape[1]), int(c % shape[1])) for c in picked]
    naive: dict[tuple[int, int], float] = {}
    start = clock()
    for i, j in sample:
        naive[i, j] = naive_log_p(reference[i], candidate[j])
    naive_s = (clock() - start) / len(sample) * n_cells
    print(
        f"naive: {naive_s[0]:.0f} s ({naive_s[1]:.0f} s of CPU) for all {n_cells} cells, "
        f"scaled from {len(sample)} random ones"
    )
    for j, i in ancestors.items():
        naive[i, j] = naive_log_p(reference[i], candidate[j])

    peak = measure_peak()
    limit_s = 2.0 * n_cells * SCREEN_CHANNELS * arguments.channels * arguments.width / peak
    for refine in ("hits", "undecided"):
        start = clock()
        (found,) = map_layers([(reference, candidate)], log_alpha=LOG_ALPHA, refine=refine)  # type: ignore[arg-type]
        seconds = clock() - start
        print(
            f'refine="{refine}": {seconds[0]:.1f} s ({seconds[1]:.1f} s of CPU), '
            f"{naive_s[0] / seconds[0]:.0f} times faster ({naive_s[1] / seconds[1]:.0f} in CPU time); "
            f"{int(found.is_full.sum())} cells in full; the screen's products alone take {limit_s:.1f} s of CPU "
            f"at the measured peak of {peak / 1e9:.0f} Gflop/s and thread ({100 * limit_s / seconds[1]:.0f} % of it)"
        )
        report(found, naive, ancestors, noises)


def report(found: LayerMap, naive: dict[tuple[int, int], float], ancestors: dict[int, int], noises: dict) -> None:
    """Print whether the decisions agree, and the faintest layer that was found."""
    correction = math.log(found.multiplicity)
    differing = [
        (cell, round(log_p), round(float(found.log_p[cell])))
        for cell, log_p in naive.items()
        if (log_p + correction < LOG_ALPHA) != (found.log_p[cell] + correction < LOG_ALPHA)
    ]
    matched = {match.candidate: match.reference for match in found.matches}
    significant = {j: i for j, i in ancestors.items() if naive[i, j] + correction < LOG_ALPHA}
    worst = max((abs(found.log_p[c] - naive[c]) / -naive[c] for c in naive if found.is_full[c] and naive[c]), default=0)
    print(
        f"  decisions: {len(differing)} of {len(naive)} cells differ {differing or ''}; "
        f"map {'equals' if matched == significant else 'DIFFERS from'} the naive one on planted layers "
        f"({len(significant)} of {len(ancestors)} significant, faintest at noise "
        f"{max((noises[j] for j in significant), default=0.0):.1f}); pattern {found.pattern}; "
        f"ln p of full cells within {100 * worst:.2f} %"
    )


if __name__ == "__main__":
    main()
