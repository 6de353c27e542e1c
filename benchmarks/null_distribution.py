"""Show ln p of unrelated models before it is capped at 0.

The script prints two tables. The first draws independent Gaussian pairs of many shapes and shows how conservative the
bound is. The second draws unrelated models that share common properties (tokens, frequencies, norms, duplicates), and
unrelated models with privileged axes, at one width. It shows which of them break the null without trimming. The
n/2-trimmed p holds except if both models have the same features on the same axes, which no test of this kind can
distinguish.

python benchmarks/null_distribution.py [--pairs 300] [--width 256] [--draws 10]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.polar import PolarFactor, polar_factor_of_rows, row_factors
from mdir_hf.method.rows import pair_rows
from mdir_hf.method.significance import log_n_matchings, log_p_matching

Rows = npt.NDArray[np.float64]
Pair = tuple[Rows, Rows]
ALPHA = 1e-3

SHAPES = [  # n_reference, n_candidate, tokens
    (8, 8, 40),
    (16, 16, 60),
    (32, 32, 100),
    (64, 64, 200),
    (128, 128, 400),
    (256, 256, 800),
    (64, 64, 20),
    (128, 128, 64),
    (256, 256, 100),
    (16, 48, 120),
    (48, 16, 120),
    (64, 256, 500),
    (64, 256, 40),
]


def uncut(matching: Matching, factor: PolarFactor, *, drop: int = 0) -> float:
    """Return the bound of a matching without its ``drop`` best channels, not capped at 0."""
    u = factor.matrix.double().numpy()
    keep = np.argsort(matching.entries, kind="stable")[: len(matching.entries) - drop]
    rows = float((u[matching.reference[keep]] ** 2).sum())
    columns = float((u[:, matching.candidate[keep]] ** 2).sum())
    n_narrow, n_wide = sorted(u.shape)
    narrow, wide = (rows, columns) if u.shape[0] == n_narrow else (columns, rows)
    return log_p_matching(
        float(matching.entries[keep].sum()),
        sizes=(n_narrow, n_wide),
        energies=(narrow, wide),
        n_matched=len(keep),
        signed=matching.signed,
        is_cut=False,
    )


def threshold(matching: Matching, factor: PolarFactor) -> float:
    """Return the trace at which p of a full matching would be 0.1 %, before corrections."""
    n_narrow, n_wide = sorted(factor.matrix.shape)
    log_n = log_n_matchings(n_narrow, n_wide, n_narrow, signed=matching.signed)
    exponent = (log_n - uncut(matching, factor)) / matching.trace**2
    return math.sqrt((log_n - math.log(ALPHA)) / exponent)


def tests_of(pair: Pair) -> Iterator[tuple[str, bool, PolarFactor, Matching]]:
    """Yield every view and gauge group of one pair for which a matching is searched."""
    rows = pair_rows(torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
    x, y = row_factors(rows.reference), row_factors(rows.candidate)
    for view in ("centred", "whitened"):
        factor = polar_factor_of_rows(x, y, whitened=view == "whitened")
        for signed in (False, True):
            matching = best_matching(factor.matrix, signed=signed)
            assert matching is not None
            yield view, signed, factor, matching


def gaussian_pairs(n_pairs: int, rng: np.random.Generator) -> None:
    """Print the first table."""
    each = math.ceil(n_pairs / len(SHAPES))
    print(
        f"independent Gaussian pairs: {each} of each shape, {each * len(SHAPES)} in all; ln p before it is capped at 0"
    )
    print(
        f"{'shape':>14} {'tokens':>6} | {'min':>8} {'5 %':>8} {'median':>8} {'max':>8} | c/thr signed min whitened min"
    )
    smallest = math.inf
    for n_reference, n_candidate, n_tokens in SHAPES:
        bounds: dict[tuple[str, bool], list[float]] = {}
        ratios = []
        for _ in range(each):
            pair = rng.standard_normal((n_tokens, n_reference)), rng.standard_normal((n_tokens, n_candidate))
            for view, signed, factor, matching in tests_of(pair):
                bounds.setdefault((view, signed), []).append(uncut(matching, factor))
                if (view, signed) == ("centred", False):
                    ratios.append(matching.trace / threshold(matching, factor))
        plain = np.array(bounds["centred", False])
        smallest = min(smallest, *(min(b) for b in bounds.values()))
        low, five, middle, high = plain.min(), *np.quantile(plain, (0.05, 0.5)), plain.max()
        print(
            f"{n_reference:>6} x {n_candidate:<5} {n_tokens:>6} | {low:8.1f} {five:8.1f} {middle:8.1f} {high:8.1f} | "
            f"{np.mean(ratios):.3f} {min(bounds['centred', True]):9.1f} {min(bounds['whitened', False]):12.1f}"
        )
    print(f"smallest of all {4 * each * len(SHAPES)} tests: ln p = {smallest:.2f} (ln 0.001 = {math.log(ALPHA):.2f})\n")


def language(n: int, rng: np.random.Generator) -> tuple[Rows, Callable[[], Rows]]:
    """Return shared latents, and a generator of models that each read them in other directions."""
    n_tokens, n_latents = 8 * n, 4 * n
    spectrum = (1.0 + np.arange(n_latents)) ** -0.5
    latents = rng.standard_t(5, (n_tokens, n_latents)) * spectrum
    norms = np.exp(0.3 * rng.standard_normal((n_tokens, 1)))

    def model() -> Rows:
        rows: Rows = norms * (latents @ rng.standard_normal((n_latents, n)) / math.sqrt(n_latents))
        return rows + 0.3 * rows.std() * rng.standard_normal(rows.shape)

    return latents, model


def families(n: int, rng: np.random.Generator) -> dict[str, Callable[[], Pair]]:
    """Pairs of unrelated models by shared properties and axes."""
    latents, model = language(n, rng)
    n_tokens = len(latents)

    def on_axes(count: int, correlation: float, both: bool) -> Pair:
        """Let ``count`` channels carry one latent each, either the same in both models or different ones."""
        pair = []
        chosen = rng.permutation(latents.shape[1])
        for k in range(2):
            e = model()
            which = chosen[:count] if both or k == 0 else chosen[count : 2 * count]
            z = latents[:, which] / latents[:, which].std(axis=0)
            e[:, :count] = e.std() * (correlation * z + math.sqrt(1 - correlation**2) * e[:, :count] / e.std())
            pair.append(e)
        return pair[0], pair[1]

    def outliers(count: int, models: int, shared: bool) -> Pair:
        pair = [model(), model()]
        z = latents[:, :count] / latents[:, :count].std(axis=0)
        for e in pair[:models]:
            size = 30.0 * e.std()
            e[:, :count] = size * (z if shared else rng.standard_normal((n_tokens, count)))
        return pair[0], pair[1]

    def sparse(share: float, models: int) -> Pair:
        pair = []
        for k in range(2):
            shape = (latents.shape[1], n)
            loadings = rng.standard_normal(shape)
            if k < models:
                loadings *= rng.uniform(size=shape) < share
            e = latents @ loadings
            pair.append(e + 0.1 * e.std() * rng.standard_normal(e.shape))
        return pair[0], pair[1]

    def duplicates() -> Pair:
        pair = model(), model()
        for e in pair:
            e[: n_tokens // 3] = e[n_tokens // 3 : 2 * (n_tokens // 3)]
        return pair

    def scaled(draw: Callable[[], Rows]) -> Pair:
        return model() * draw(), model() * draw()

    def mean_on_ones() -> Pair:
        return tuple(e + 5.0 * e.std() for e in (model(), model()))  # type: ignore[return-value]

    return {
        "shared tokens, spectrum, norms": lambda: (model(), model()),
        "a third of the rows twice": duplicates,
        "mean along all-ones in both": mean_on_ones,
        "lognormal(1) column scales": lambda: scaled(lambda: np.exp(rng.standard_normal(n))),
        "4 outlier channels x30, one model": lambda: outliers(4, 1, False),
        "4 outlier channels x30, both": lambda: outliers(4, 2, False),
        "16 outlier channels x30, both": lambda: outliers(16, 2, False),
        "16 outliers, the same content": lambda: outliers(16, 2, True),
        "sparse loadings 1 %, one model": lambda: sparse(0.01, 1),
        "sparse loadings 5 %, both": lambda: sparse(0.05, 2),
        "sparse loadings 1 %, both": lambda: sparse(0.01, 2),
        "25 % of channels share features .9": lambda: on_axes(n // 4, 0.9, True),
        "all channels share features .5": lambda: on_axes(n, 0.5, True),
    }


def structured_pairs(n: int, n_draws: int, rng: np.random.Generator) -> None:
    """Print the second table."""
    print(
        f"strangers with structure: width {n}, {8 * n} tokens, {n_draws} draws; smallest of four searches of each pair"
    )
    print(
        f"{'family':>36} | {'c/thr':>6} {'worst':>6} | {'smallest ln p before the cap':>38} | "
        f"{f'pairs with p < {ALPHA}':>26}"
    )
    print(
        f"{'':>36} | {'':>6} {'':>6} | {'all':>8} {'n/16':>9} {'n/4':>9} {'n/2':>9} | {'all':>8} {'n/4':>8} {'n/2':>8}"
    )
    for name, draw in families(n, rng).items():
        ratios: list[float] = []
        smallest = []
        for _ in range(n_draws):
            bounds = []
            for view, signed, factor, matching in tests_of(draw()):
                if (view, signed) == ("centred", False):
                    ratios.append(matching.trace / threshold(matching, factor))
                bounds.append([uncut(matching, factor, drop=k) for k in (0, n // 16, n // 4, n // 2)])
            smallest.append(np.min(bounds, axis=0))
        low = np.min(smallest, axis=0)
        # The package corrects p for these four tests and for the two with channels in their own order.
        hits = (np.array(smallest) + math.log(TESTS_PER_MATRIX) < math.log(ALPHA)).sum(axis=0)
        print(
            f"{name:>36} | {np.mean(ratios):6.3f} {max(ratios):6.3f} | {low[0]:8.0f} {low[1]:9.0f} {low[2]:9.0f} "
            f"{low[3]:9.0f} | {hits[0]:>8} {hits[2]:>8} {hits[3]:>8}"
        )


def main() -> None:
    """Read the options and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=312)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(args.seed)
    gaussian_pairs(args.pairs, rng)
    structured_pairs(args.width, args.draws, rng)


if __name__ == "__main__":
    main()
