"""The section on time and bytes: cost of each method for a pair, compared with the checker on the same pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.evidence.judged import Cost, Judged, named
from benchmarks.evidence.tables import Results, Row, table
from benchmarks.peers.full_size import LLAMA_8B, N_BYTES_PER_WEIGHT, weights_of_strangers, weights_read
from mdir_hf.comparison.plan import first_look_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Compared:
    """Cost of a method for the pairs that it answers, and of the checker for the same pairs.

    Attributes:
        method: The method.
        costs: Its costs.
        checker_costs: The checker's costs for the same pairs.
        settled: Whether the screen of the embeddings was conclusive for the checker, per pair.
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
        """Bytes of weights over the size of both models, median over pairs; ``which`` as in ``times_weights``."""
        return statistics.median(self.costs[i].weights / self.costs[i].size for i in self._where(settled))

    def times_weights(self, settled: bool | None = None) -> float:
        """Bytes of weights relative to the checker's: for all pairs, pairs settled by its screen, or the others."""
        places = self._where(settled)
        checker_weights = sum(self.checker_costs[i].weights for i in places)
        return sum(self.costs[i].weights for i in places) / checker_weights if checker_weights else math.nan

    def _where(self, settled: bool | None) -> list[int]:
        return [i for i, is_settled in enumerate(self.settled) if settled in (None, is_settled)]


def compared(judged: Sequence[Judged], checker_rows: dict[tuple[str, str], Row]) -> list[Compared]:
    """Compare every method with the checker, which comes first; ``checker_rows`` has its lines."""
    settled = {key: row["settled_by"] == "screen" for key, row in checker_rows.items()}
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
    """Two tables of the zoo, and the bytes that peers would read from a model of real size."""
    return "\n\n".join(
        [
            "### Time and bytes",
            "Of a pair that was not met before, over the pairs that a method answers, and against the checker on the "
            "same pairs. In a study of many models a fingerprint is made once, and another pair is then cheaper than "
            "the checker's (`mdir-hf survey`, which reads each model once, was not measured here).",
            "Seconds are of one core: for the checker opening, reading and comparing, for peers two fingerprints and a "
            "score. Imports are not counted. The checker's pairs and the peers' were run one after the other on one "
            "machine with other work, which moves processor times by up to two fifths.",
            table(
                ["method", "seconds for a new pair", "times the checker's", "seconds for one more pair"],
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
            "Bytes are of weight files, headers included. Each byte that a peer asks for counts once, and no gap "
            "between rows counts; a model that transformers loads counts whole, since it takes every tensor. Packages "
            "map files, so the kernel does not report their reads: the tensors that they take out of files count. "
            "Everything that the checker reads counts, twice if it is read twice. Its readers, which our "
            "peers use, too, ask for 100,000 bytes before they know how long a header is: a fiftieth of such a model, "
            "nothing of a large one. Tokenizers and configs stand apart, once for each model: at these sizes they are "
            "nearly as much as the weights that a screen reads, and at real sizes little. GGUF files hold them inside.",
            table(
                [
                    "method",
                    "MB of weights for a new pair",
                    "times the checker's",
                    "where its screen settles",
                    "where it does not",
                    "share of both models",
                    "kB beside weights",
                ],
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
            f"The checker reads {costs[0].share_where(True):.0%} of both models' weights if the embeddings' screen "
            f"settles a pair and {costs[0].share_where(False):.0%} otherwise (medians; more than all if "
            "layers are read for a second map, or parts of one tensor one by one).",
            full_size_text([each.method.name for each in costs[1:]]),
        ]
    )


def full_size_text(names: Sequence[str]) -> str:
    """Bytes that each method would fetch for a pair as large as Llama-3.1-8B, by the tensors that it needs."""
    whole = N_BYTES_PER_WEIGHT * LLAMA_8B.all
    read = weights_read(LLAMA_8B)
    look = 2 * N_BYTES_PER_WEIGHT * first_look_rows(LLAMA_8B.width) * LLAMA_8B.width
    strangers = N_BYTES_PER_WEIGHT * weights_of_strangers(LLAMA_8B)
    return "\n\n".join(
        [
            f"For a pair as large as Llama-3.1-8B ({2 * whole / 1e9:.1f} GB) they would have to fetch, by the tensors "
            "that they take (computed from shapes, `benchmarks/peers/full_size.py`; not run):",
            table(
                ["method", "what it takes of each model", "GB for a new pair", "share"],
                [
                    [name, read[name][1], f"{2 * N_BYTES_PER_WEIGHT * read[name][0] / 1e9:.2f}", f"{share:.0%}"]
                    for name in names
                    if (share := read[name][0] / LLAMA_8B.all)
                ],
            ),
            f"The checker's first look at such a pair takes {look / 1e6:.1f} MB of weights, which settles near copies. "
            f"A pair that nothing settles costs it {strangers / 1e9:.2f} GB, {strangers / (2 * whole):.1%}: some rows "
            "of the embeddings and unembeddings, rows of the keys and values of all layers, and some rows of the gate "
            "and up projections. "
            "`python -m benchmarks.llama_8b_bytes --stranger` measures both.",
        ]
    )


def _times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.2g}"


def growth_section(results: Results, figures: dict[str, Figure]) -> str:
    """Cost of a comparison by the size of the models."""
    rows = [
        [
            row["model"],
            row["candidate"],
            row["verdict"],
            f"{row['log10_p']:,.0f}",
            f"{row['n_bytes_read'] / 1e6:,.0f}",
            f"{100 * row['share']:.2g} %",
            f"{row['cpu_s']:.0f}",
        ]
        for row in results["cost-growth"]
    ]
    columns = ["shape of", "candidate", "verdict", "log10 p", "MB read", "share", "seconds of processor"]
    return (
        "## Cost, by size\n\nWeights in the shapes of published models are drawn when they are read "
        "(`python -m benchmarks.cost_growth`). A fine-tune has noise of 0.3 RMS on every matrix; a hidden relative is "
        "rotated, its heads and neurons in another order. Rows above 8B and rows of hidden relatives were measured "
        "before the second witness. It reads neurons: a copy of 8B cost 2 MB before and a stranger 418.\n\n"
        "![GB read and seconds of processor against billions of parameters](../benchmarks/results/cost-growth.png)\n\n"
        + table(columns, rows)
    )
