"""Section on losses: pairs that the checker misses, cheaper methods, and pairs that need more than embeddings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from benchmarks.evidence.costs import SETTLED_IN_PLACE, compared
from benchmarks.evidence.judged import of_checker, of_peer
from benchmarks.evidence.peers import above_every_stranger
from benchmarks.evidence.tables import Results
from benchmarks.peers.full_size import LLAMA_8B, weights_of_strangers, weights_read
from benchmarks.runner import Row


def losses_section(results: Results) -> str:
    """List the pairs and costs for which other methods are better than the checker."""
    checker_rows = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    missed = {key for key, row in checker_rows.items() if row["related"] and row["verdict"] != "homologous"}
    checker_method = of_checker(checker_rows)
    peers = [of_peer(row, checker_rows) for row in results["zoo-peers"]]
    checker, *others = compared([checker_method, *peers], checker_rows)
    faster = {each.method.name: each.times_seconds for each in others if each.times_seconds < 1}
    lighter = {each.method.name: times for each in others if (times := each.times_weights()) < 1}
    heavier = [each.method.name for each in others if each.times_weights(settled=False) >= 1]
    better = [
        f"{peer.name} {len(better_pairs)}" for peer in peers if (better_pairs := missed & above_every_stranger(peer))
    ]
    missing = [
        f"- {len(missed)} related pairs of [the zoo](../benchmarks/results/pages/the-zoo.md) are not found. Methods "
        f"that rank some of them above every unrelated pair: {', '.join(better) or 'none'}."
    ] * bool(missed)
    seconds = {is_settled: _median_s(checker_rows.values(), is_settled=is_settled) for is_settled in (True, False)}
    found = [row for row in checker_rows.values() if row["verdict"] == "homologous"]
    later = [row for row in found if row["settled_by"] not in SETTLED_IN_PLACE]
    strangers = weights_of_strangers(LLAMA_8B)
    read = {name: 2 * n_weights / strangers for name, (n_weights, _) in weights_read(LLAMA_8B).items()}
    of_strangers = {name: ratio for name, ratio in read.items() if ratio < 1}
    by_size = (
        " For two strangers as large as Llama-3.1-8B, these methods would read fewer bytes than the checker (ratio in "
        f"parentheses): {_told(of_strangers)}."
    ) * bool(of_strangers)
    told = "\n".join(
        [
            *missing,
            f"- A pair takes {checker.seconds:.2f} s on average. Faster methods, with their time relative to the "
            f"checker's on the pairs that they can score: {_told(faster)}. The "
            f"median time is {seconds[True]:.2f} s for pairs that neurons in place settle and {seconds[False]:.2f} s "
            "for the others, which are strangers and hidden relatives.",
            f"- {len(later)} related pairs are found only by later steps, which read more.",
            f"- The checker reads {checker.share_where(True):.0%} of the bytes of both models' weights for pairs that "
            f"neurons in place settle, and {checker.share_where(False):.0%} for the others (medians). For the others, "
            f"{', '.join(heavier) or 'no other method'} {'read' if len(heavier) > 1 else 'reads'} as much. These "
            "methods read fewer bytes than the checker over all pairs that they can score (ratio in parentheses): "
            f"{_told(lighter)}.{by_size}",
            "- The checker cannot tell a shared initialisation from shared training, and no verdict says which model "
            "came first.",
        ]
    )
    return f"## Where we lose\n\n{told}"


def _median_s(rows: Iterable[Row], *, is_settled: bool) -> float:
    """Return the median processor time of the pairs that neurons in place settle, or of the others."""
    seconds = [row["cpu_s"] for row in rows if (row["settled_by"] in SETTLED_IN_PLACE) == is_settled]
    return statistics.median(seconds) if seconds else math.nan


def _told(times: dict[str, float]) -> str:
    """Format names and ratios, the smallest first."""
    return (
        ", ".join(f"{name} ({ratio:.2g})" for name, ratio in sorted(times.items(), key=lambda each: each[1])) or "none"
    )
