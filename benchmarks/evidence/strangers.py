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


AT_33_MILLION = [
    ["two seeds of Llama, one text in one order, 157 M tokens each", "0", "0.129", "0 to 1"],
    ["two seeds of GPT-2, 66 M tokens each", "0", "0.129", "0"],
    ["strangers of two architectures, or trained on or on other text", "0", "0.128", "0 to 1"],
    ["a Llama after 10 % of its training, and at its end", "-1,165", "0.634", "512"],
    ["a Llama, and itself trained on manuals: 5 % of its tokens again", "-1,165", "0.944", "512"],
    ["20 % again", "-1,165", "0.780", "512"],
    ["50 % again", "-1,165", "0.610", "512"],
    ["100 % again (loss on code 1.2 to 6.7)", "-1,165", "0.479", "512"],
    ["one seed, other text, 66 M tokens", "-1,165", "0.440", "512"],
]
"""Rows measured outside the project; ``benchmarks.strangers`` makes smaller models."""


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
            "models, which write whole functions, are below.",
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
            "### At 33 million parameters",
            "These figures were measured outside this project's benchmarks, on one H100, with the version before the "
            "second witness: Llama 512 wide with 8 layers and an untied vocabulary of 8,192 (33 M parameters), and "
            "GPT-2 of the same width and depth, trained on 66 to 157 million tokens of code. The loss of the Llama "
            "on code is 1.18.",
            table(["pair", "log10 p", "trace over rank", "channels with their own number, of 512"], AT_33_MILLION),
            "The same training as long again, on other text and at the full rate, leaves half of the trace and every "
            "number.",
        ]
    )


def _end(pairs: list[Row], key: str, end: Callable[..., Any]) -> str:
    values = [pair[key] for pair in pairs if pair[key] is not None and math.isfinite(pair[key])]
    return f"{end(values):,.3g}" if values else "not computed"
