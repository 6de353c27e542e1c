"""Section on time and bytes: cost of each method per pair, relative to the checker on the same pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.evidence.judged import Cost, Judged, named
from benchmarks.evidence.tables import Results
from benchmarks.peers.full_size import LLAMA_8B, N_BYTES_PER_WEIGHT, first_sample, weights_of_strangers, weights_read
from benchmarks.runner import Row, table

SETTLED_IN_PLACE = ("near", "number")
"""Steps that compare neurons of a few layers by number, before anything else is read."""


@dataclass(frozen=True)
class Compared:
    """Cost of a method for the pairs that it can score, and of the checker for the same pairs.

    Attributes:
        method: The method.
        costs: Its costs.
        checker_costs: The checker's costs for the same pairs.
        settled: Whether neurons in place were conclusive for the checker, for each pair.
    """

    method: Judged
    costs: list[Cost]
    checker_costs: list[Cost]
    settled: list[bool]

    @property
    def seconds(self) -> float:
        """Mean processor time of a new pair."""
        return statistics.mean(cost.seconds for cost in self.costs)

    @property
    def times_seconds(self) -> float:
        """Mean processor time of a new pair, relative to the checker's."""
        return self.seconds / statistics.mean(cost.seconds for cost in self.checker_costs)

    @property
    def weights(self) -> float:
        """Mean bytes of weights of a new pair."""
        return statistics.mean(cost.weights for cost in self.costs)

    def share_where(self, settled: bool | None = None) -> float:
        """Median share of both models' weight bytes; ``settled`` as in ``times_weights``."""
        shares = [self.costs[i].weights / self.costs[i].size for i in self._where(settled)]
        return statistics.median(shares) if shares else math.nan

    def times_weights(self, settled: bool | None = None) -> float:
        """Bytes of weights relative to the checker's; ``settled`` selects pairs that neurons in place settle or not."""
        places = self._where(settled)
        checker_weights = sum(self.checker_costs[i].weights for i in places)
        return sum(self.costs[i].weights for i in places) / checker_weights if checker_weights else math.nan

    def _where(self, settled: bool | None) -> list[int]:
        return [i for i, is_settled in enumerate(self.settled) if settled in (None, is_settled)]


def compared(judged: Sequence[Judged], checker_rows: dict[tuple[str, str], Row]) -> list[Compared]:
    """Compare every method with the checker, which is the first one; ``checker_rows`` are its results."""
    settled = {key: row["settled_by"] in SETTLED_IN_PLACE for key, row in checker_rows.items()}
    checker = dict(zip(judged[0].pairs, judged[0].costs, strict=True))
    compared_methods = []
    for method in judged:
        told = zip(method.pairs, method.scores, method.costs, strict=True)
        costs = [(key, cost) for key, score, cost in told if score is not None]
        compared_methods.append(
            Compared(
                method,
                [cost for _, cost in costs],
                [checker[key] for key, _ in costs],
                [settled[key] for key, _ in costs],
            )
        )
    return compared_methods


def costs_text(costs: Sequence[Compared]) -> str:
    """Tabulate seconds and bytes on the zoo, and bytes for a pair of real size."""
    return "\n\n".join(
        [
            "### Time and bytes",
            "The tables show costs of a new pair, averaged over the pairs that a method can score, and relative to the "
            "checker on the same pairs. A study of many models computes each fingerprint once; another pair then costs "
            "less than the checker needs (`mdir-hf survey`, which reads each model once, was not measured here).",
            "Seconds are processor time of one core. They include opening, reading and comparing for the checker, and "
            "two fingerprints and a score for peers, but no imports. The checker and the peers ran one after the other "
            "on a machine with other work, which changes processor times by up to two fifths.",
            table(
                "method | seconds for a new pair | times the checker's | seconds with cached fingerprints",
                [
                    [
                        named(each.method),
                        f"{each.seconds:.2f}",
                        f"{each.times_seconds:.2g}",
                        f"{statistics.mean(cost.score_seconds for cost in each.costs):.3f}",
                    ]
                    for each in costs
                ],
            ),
            "Bytes are read from weight files, including headers. Each byte that a peer requests counts once, and gaps "
            "between rows do not count. A model that transformers loads counts in full, because transformers reads "
            "every tensor. Packages map files into memory, so the kernel does not report their reads; the tensors that "
            "they load count instead. For the checker, all reads count, including repeated ones. The checker's "
            "readers, which our peers also use, request 100,000 bytes before they know the length of a header: a "
            "fiftieth of a small model here, and a negligible part of a large one. Tokenizers and configs are listed "
            "separately, once for each model: they are nearly as large as the weights that a settled comparison reads "
            "here, and negligible for large models. GGUF files contain them.",
            table(
                "method | MB of weights for a new pair | times the checker's | if neurons in place are conclusive | "
                "otherwise | share of both models | kB of tokenizers and configs",
                [
                    [
                        named(each.method),
                        f"{each.weights / 1e6:.2f}",
                        *(_times(each.times_weights(which)) for which in (None, True, False)),
                        f"{each.share_where():.0%}",
                        f"{statistics.mean(cost.beside for cost in each.costs) / 1e3:.0f}",
                    ]
                    for each in costs
                ],
            ),
            f"The checker reads {costs[0].share_where(True):.0%} of both models' weights if neurons in place settle a "
            f"pair, and {costs[0].share_where(False):.0%} otherwise (medians). The share exceeds 100% if the checker "
            "reads layers again for another step, or parts of one tensor one by one.",
            full_size_text([each.method.name for each in costs[1:]]),
        ]
    )


def full_size_text(names: Sequence[str]) -> str:
    """Tabulate the bytes that each method would fetch for a pair as large as Llama-3.1-8B."""
    whole = N_BYTES_PER_WEIGHT * LLAMA_8B.all
    read = weights_read(LLAMA_8B)
    first = N_BYTES_PER_WEIGHT * first_sample(LLAMA_8B)
    strangers = N_BYTES_PER_WEIGHT * weights_of_strangers(LLAMA_8B)
    return "\n\n".join(
        [
            f"For a pair as large as Llama-3.1-8B ({2 * whole / 1e9:.1f} GB), the methods would fetch these bytes "
            "(computed from the shapes of the tensors that they read, `benchmarks/peers/full_size.py`; not run):",
            table(
                "method | tensors read from each model | GB for a new pair | share",
                [
                    [name, read[name][1], f"{2 * N_BYTES_PER_WEIGHT * read[name][0] / 1e9:.2f}", f"{share:.0%}"]
                    for name in names
                    if (share := read[name][0] / LLAMA_8B.all)
                ],
            ),
            f"The checker's first sample of such a pair is {first / 1e6:.1f} MB of weights, which settles near copies. "
            f"For a pair of strangers it reads {strangers / 1e9:.2f} GB, {strangers / (2 * whole):.1%}: rows of gate "
            "and up of a few layers, some keys and rows of up of all layers, and some rows of the embeddings. `python "
            "-m benchmarks cost-growth` measures both.",
        ]
    )


def _times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.2g}"


def growth_section(results: Results) -> str:
    """Tabulate the cost of a comparison by the size of the models."""
    rows = [
        [
            row["model"],
            row["candidate"],
            row["verdict"],
            "none" if row["log10_p"] is None else f"{row['log10_p']:,.0f}",
            f"{row['n_bytes_read'] / 1e6:,.1f}",
            f"{100 * row['share']:.2g} %",
            f"{row['cpu_s']:.0f}",
        ]
        for row in sorted(results["cost-growth"], key=lambda row: row["billions"])
    ]
    columns = ["shape of", "candidate", "verdict", "log10 p", "MB read", "share", "processor seconds"]
    return (
        "## Cost, by size\n\nThe weights have the shapes of published models and are drawn when they are read (`python "
        "-m benchmarks cost-growth`). A fine-tune has noise of 0.3 RMS on every matrix. A hidden relative is rotated, "
        "and its heads and neurons are reordered. The noise step, which none of these candidates needs, takes 35 GB of "
        "memory for Llama-3.1-405B, and was left out on this machine with 25 GB.\n\n![GB read and processor seconds "
        "against billions of parameters](../benchmarks/results/cost-growth.png)\n\n" + table(columns, rows)
    )
