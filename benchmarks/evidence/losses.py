"""The section on losses: what the checker misses, what is cheaper, and where it needs more than embeddings."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.evidence.peers import above_every_stranger, of_checker, of_peer
from benchmarks.evidence.tables import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def losses_section(results: Results, figures: dict[str, Figure]) -> str:
    """Where we lose, in one place."""
    del figures
    ours = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    missed = {key for key, row in ours.items() if row["related"] and row["verdict"] != "homologous"}
    own = of_checker(ours)
    peers = [of_peer(row, ours) for row in results["zoo-peers"]]
    faster = sorted((peer for peer in peers if peer.seconds < own.seconds), key=lambda peer: peer.seconds)
    better = [f"{peer.name} {len(found)}" for peer in peers if (found := missed & above_every_stranger(peer))]
    seconds = {
        settled: statistics.median(row["cpu_s"] for row in ours.values() if (row["settled_by"] == "screen") == settled)
        for settled in (True, False)
    }
    most = min(row["log10_p"] for row in ours.values())
    hidden = [row for row in ours.values() if row["related"] and row["settled_by"] == "body"]
    told = "\n".join(
        [
            f"- {len(missed)} related pairs of the zoo are not found (above). Methods that rank some of them above "
            f"every unrelated pair: {', '.join(better) or 'none'}.",
            f"- A pair costs {own.seconds:.2f} s on average; "
            f"{', '.join(f'{peer.name} ({peer.seconds:.2f} s)' for peer in faster)} are cheaper. A pair that the "
            f"screen settles takes {seconds[True]:.2f} s, one that it does not {seconds[False]:.2f} s (medians): it "
            "is strangers and hidden relatives that cost.",
            f"- {len(hidden)} related pairs are found by their layers alone; the embeddings are silent in them. "
            f"Their evidence is thinner: the weakest has log10 p {max(row['log10_p'] for row in hidden):.0f}, where "
            f"embeddings reach {most:,.0f}.",
            "- A shared initialisation cannot be told from shared training, and no verdict says who came first.",
        ]
    )
    return f"## Where we lose\n\n{told}"
