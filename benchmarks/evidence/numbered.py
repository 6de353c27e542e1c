"""The section on strangers of architectures that give the numbers of channels a meaning."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def numbered_section(results: Results, figures: dict[str, Figure]) -> str:
    """The largest statistic of strangers in their channels' own order, family by family."""
    pairs = [row for row in results["numbered-channels"] if "pair" in row]

    def group(row: Row) -> tuple[str, int, int]:
        return row["family"], row["width"], row["steps"]

    rows = []
    for (family, width, steps), some in groupby(sorted(pairs, key=group), group):
        of_group = list(some)
        largest = [max(-row[name] for row in of_group) for name in ("with_own_order", "without")]
        n_found = sum(row["verdict"] == "homologous" for row in of_group)
        rows.append(
            [family, str(width), f"{steps:,}", str(len(of_group)), *(f"{value:.1f}" for value in largest), str(n_found)]
        )
    return "\n\n".join(
        [
            "## Channels whose numbers mean something",
            "Strangers of one recipe and other seeds (`python -m benchmarks.numbered_channels`). Sinusoidal positions "
            "tie a channel to its number, so strangers may agree in their channels' own order. The test of that order "
            "is left out for such architectures. GPT-2 with learned positions is the control.",
            table(
                [
                    "family",
                    "width",
                    "steps",
                    "pairs",
                    "largest −log10 p with that test",
                    "largest without",
                    "called homologous",
                ],
                rows,
            ),
        ]
    )
