"""The section on strangers of one recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATISTICS = {
    "log10_p": ("log10 p", min),
    "trace_over_rank": ("trace over rank", max),
    "channels_own_number": ("channels with their own number, of 192", max),
    "neurons_own_number": ("neurons with their own number, of 32 in a pair of layers", max),
    "layers_log10_p": ("log10 p of the layers", min),
}
"""Name of each, and which end of it shows more evidence."""


def strangers_section(results: Results, figures: dict[str, Figure]) -> str:
    """The largest statistic of any stranger beside the smallest of any relative, for each test."""
    del figures
    (made,) = results["strangers"]
    models, pairs = made["models"], made["pairs"]
    strangers = [pair for pair in pairs if not pair["related"]]
    relatives = [pair for pair in pairs if pair["related"]]
    wrong = [pair for pair in strangers if pair["verdict"] == "homologous"]
    return "\n\n".join(
        [
            "## Strangers of one recipe",
            f"Two models of each of three recipes, {len(models)} in all, with one tokenizer, width, text and order of "
            f"batches, and seeds of their own (`python -m benchmarks.strangers`: {made['steps']:,} steps of one "
            f"core each). All {len(strangers)} pairs of them, and each with a continuation of itself: **{len(wrong)} "
            f"strangers are called homologous**, and "
            f"{sum(pair['verdict'] == 'homologous' for pair in relatives)} of {len(relatives)} relatives. Larger "
            "models that write whole sentences need more than two cores and an hour; none was trained.",
            table(
                ["model", "parameters", "tokens", "first loss", "held-out loss", "it writes"],
                [
                    [
                        row["name"],
                        f"{row['parameters'] / 1e6:.1f} M",
                        f"{row['tokens'] / 1e6:.2f} M",
                        f"{row['first_loss']:.2f}",
                        f"{row['held_out_loss']:.2f}",
                        f"`{' '.join(row['writes'].replace('`', ' ').replace('|', ' ').split())[:90]}`",
                    ]
                    for row in models
                ],
            ),
            table(
                ["statistic", "most of any stranger", "least of any relative"],
                [
                    [name, _end(strangers, key, most), _end(relatives, key, min if most is max else max)]
                    for key, (name, most) in STATISTICS.items()
                ],
            ),
            "Models of two recipes that begin with one seed of torch share the numbers of some matrices, and are found "
            "by them, rightly: a shared seed is shared ancestry. So no two of these have one.",
        ]
    )


def _end(pairs: list[Row], key: str, end: Callable[..., Any]) -> str:
    values = [pair[key] for pair in pairs if pair[key] is not None and math.isfinite(pair[key])]
    return f"{end(values):,.3g}" if values else "not computed"
