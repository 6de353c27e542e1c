"""The evidence on one page: five tables, each with a figure and a link to all rows."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from benchmarks.evidence.forgery import attack_rows
from benchmarks.evidence.judged import of_checker, of_peer
from benchmarks.evidence.peers import above_every_stranger, decision_row
from benchmarks.evidence.real import peer_row, peers_in_order, rows_of_peers
from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table
from mdir_hf.render.figures.sheet import HEAD, SMALL_SIZE, add_axes, drawing, new_sheet
from mdir_hf.render.figures.theme import theme_of
from mdir_hf.thresholds import LEAST_CERTAIN_SHARE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "third party": "made by other people",
    "copy": "repackaged",
    "format": "another format, quantised",
    "training": "trained further",
    "edit": "edited: reordered, pruned, merged, noise",
    "attack": "disguised or damaged on purpose",
    "stranger": "*strangers*",
}
PREPARATIONS = {
    "rotat|channels, their signs": "rotated or renumbered by a fit to the victim's tokens, neurons or all weights",
    "student": "student of logits, also of hidden states or embeddings",
    "trained under a random mask": "trained under a random mask that keeps 10 or 30 %, also the victim",
    "[12]0% of the neurons": "10 or 20 % of the neurons replaced by copies that work",
    "[34]0% of the neurons": "30 or 40 % of the neurons replaced by copies that work",
    "[5-9]0% of the neurons": "50 to 90 % of the neurons replaced by copies that work",
    "soup of (50|33)%": "soup of 33 or 50 % of the victim and a stranger",
    "soup of (25|17|12|8)%": "soup of 8 to 25 % of the victim and a stranger",
}
"""Preparations that share a row, by the beginning of their descriptions."""
NEEDS = ("real-pairs", "real-models", "real-forgery", "real-peers", "framing", "cost-growth", "zoo-pairs", "zoo-peers")


def front_sections(results: Results, pages: str) -> list[str]:
    """Return five sections; ``pages`` is the folder of the pages with all rows."""
    return [
        _real(results, pages),
        _hiding(results, pages),
        _framing(results["framing"], pages),
        _costs(results["cost-growth"], pages),
        _others(results, pages),
    ]


def _real(results: Results, pages: str) -> str:
    rows = results["real-pairs"]
    body = []
    for kind, words in KINDS.items():
        verdicts = Counter(row["verdict"] for row in rows if row["kind"] == kind)
        cells = (verdicts[name] for name in ("homologous", "inconclusive", "no_evidence"))
        body.append([words, str(verdicts.total()), *map(str, cells)])
    n_related, n_found = (
        sum(row["related"] and row["verdict"] in which for row in rows)
        for which in (("homologous", "inconclusive", "no_evidence"), ("homologous",))
    )
    return "\n\n".join(
        [
            "## Real models",
            f"{n_found} of {n_related} related pairs are found, and none of "
            f"{sum(not row['related'] for row in rows)} pairs of strangers. The models were trained for a long time by "
            "others and read from packages (GGUF files as BF16, ONNX files as F32), or made from such models. "
            f"[All pairs]({pages}/real-models.md), [published methods]({pages}/what-published-methods-leave.md).",
            "![p of every pair of real models by kind, and the scores of other methods on the same pairs]"
            "(images/evidence.png)",
            table("how the second model was made | pairs | homologous | inconclusive | no_evidence", body),
        ]
    )


def _hiding(results: Results, pages: str) -> str:
    rows, base, _ = attack_rows(results)
    chosen = [row for row in rows if float(row[1]) < base + 0.05 or row[2] != "homologous"]
    return "\n\n".join(
        [
            "## Hiding a relative, and the price",
            f"SmolLM2-135M-Instruct has {base:.2f} nats per token. The table has all disguises that cost nothing, and "
            f"all changes that were not found. [All changes]({pages}/what-evading-costs-and-what-forging-takes.md), "
            f"[power]({pages}/which-relatives-are-found.md).",
            "![Share of relatives found, by noise, by share of neurons, and by steps of training]"
            "(images/evidence-power.png)",
            table("change | nats per token | verdict | log10 p | found by", chosen),
        ]
    )


def _framing(rows: list[Row], pages: str) -> str:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["copied"] != "nothing"):
        words = next((words for start, words in PREPARATIONS.items() if re.match(start, row["done"])), row["done"])
        groups.setdefault((words, row["copied"]), []).append(row)
    body = []
    for (done, copied), framed in groups.items():
        verdicts = sum((Counter(row["verdicts"]) for row in framed), Counter[str]())
        most = max(row["most_certain"] for row in framed)
        told = ", ".join(f"{name} {n}" for name, n in verdicts.most_common())
        body.append([done, copied, str(len(framed)), str(most), told])
    return "\n\n".join(
        [
            "## Framing",
            "Models were prepared to look like relatives of a victim; each was compared with ten fresh samples. A "
            "match needs 32 certain neurons of 64. Counts are of the step by number; soups below 32 were found by a "
            "step that reads more rows. A copied row counts as a copy, whatever it does. "
            f"[All models]({pages}/what-framing-takes.md).",
            "![Largest count of certain neurons of each framed model](images/evidence-framing.png)",
            table("preparation | copied | models | most certain neurons of 64 | verdicts", body),
        ]
    )


def draw_framing(results: Results) -> Figure:
    """Draw the largest count of certain neurons of each framed model, by the copied parts."""
    theme = theme_of(dark=False)
    groups = {
        "nothing copied": [row for row in results["framing"] if not row["related"]],
        "shared weights": [row for row in results["framing"] if row["copied"] == "shared weights"],
        "copied rows": [row for row in results["framing"] if row["related"] and row["copied"] != "shared weights"],
    }
    with drawing():
        figure = new_sheet(
            theme,
            HEAD + 1.9,
            "Largest count of certain neurons of each framed model",
            "Each mark is a model, with the largest count by number in ten samples; the line is the limit of a match.\n"
            "Rings were not called homologous. Discs below the line were found by a step that reads more rows.",
            width=9.6,
        )
        axes = add_axes(figure, theme, 1.4, 0.5, 8.0, 1.2)
        for at, rows in enumerate(groups.values()):
            for number, row in enumerate(rows):
                color = theme.observed if "homologous" in row["verdicts"] else theme.paper
                axes.plot(
                    row["most_certain"],
                    at + (number % 7 - 3) / 12,
                    "o",
                    markersize=5,
                    color=color,
                    markeredgecolor=theme.observed,
                )
        axes.axvline(64 * LEAST_CERTAIN_SHARE, color=theme.null, linewidth=1.0)
        axes.set_yticks(range(len(groups)), [f"{name} ({len(rows)})" for name, rows in groups.items()])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(-1, 65)
        axes.set_xlabel("certain neurons of 64", color=theme.ink, fontsize=SMALL_SIZE)
        axes.grid(visible=True, axis="x", color=theme.grid, linewidth=0.6)
    figure.set_label("Largest count of certain neurons of each framed model")
    return figure


def _costs(rows: list[Row], pages: str) -> str:
    body = []
    by_size = sorted(rows, key=lambda row: row["billions"])
    for model, of_model in groupby(by_size, key=lambda row: row["model"]):
        of_candidate = {row["candidate"]: row for row in of_model}
        cells = [_cost(of_candidate.get(candidate)) for candidate in ("fine-tune", "hidden", "stranger")]
        body.append([model, *cells])
    return "\n\n".join(
        [
            "## Cost of a comparison",
            "MB read, requests, and seconds of one core, on weights in the shapes of published models that are drawn "
            "when they are read. "
            f"[All rows]({pages}/cost-by-size.md).",
            "![GB read and processor seconds against billions of parameters](../benchmarks/results/cost-growth.png)",
            table("shape of | fine-tune | rotated, heads and neurons reordered | stranger", body),
        ]
    )


def _cost(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['n_bytes_read'] / 1e6:,.1f} MB, {row['reads']:,}, {row['cpu_s']:.1f} s"


def _others(results: Results, pages: str) -> str:
    checker_rows = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    judged = [of_checker(checker_rows), *(of_peer(row, checker_rows) for row in results["zoo-peers"])]
    on_zoo = {method.name: decision_row(method) for method in judged}
    before = {method.name: f"{len(above_every_stranger(method))} of {sum(method.related)}" for method in judged}
    real = rows_of_peers(results)
    on_real = {name: peer_row(name, [row for row in real if row["peer"] == name]) for name in peers_in_order(real)}
    pairs = results["real-pairs"]
    n_related = sum(row["related"] for row in pairs)
    n_found = sum(row["related"] and row["verdict"] == "homologous" for row in pairs)
    body = []
    for name in dict.fromkeys((*on_zoo, *on_real)):
        zoo, peer = on_zoo.get(name), on_real.get(name)
        by_rule = "" if zoo is None else zoo[3] or zoo[4]
        of_real = f"{n_found} of {n_related}" if name == judged[0].name else "" if peer is None else peer[1]
        body.append([name, by_rule, before.get(name, ""), of_real])
    return "\n\n".join(
        [
            "## Other methods on the same pairs",
            "Each method was written from its description, at its own sizes; packages are the versions of their "
            f"authors. The pairs are all {len(checker_rows)} of a zoo of small, fully trained models, and pairs of "
            f"real models. [Zoo]({pages}/others-on-the-same-pairs.md), [real models]({pages}/peers-on-real-models.md), "
            f"[MDIR as printed]({pages}/mdir-as-printed.md), [where we lose]({pages}/where-we-lose.md).",
            "![p of every pair of the zoo](images/evidence-zoo.png)",
            table(
                "method | zoo: errors by its own rule | zoo: relatives above every stranger | "
                "real models: relatives above every stranger",
                body,
            ),
        ]
    )
