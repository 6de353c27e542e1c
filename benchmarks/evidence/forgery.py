"""Section on attackers: the cost of evading detection, and the weights that a forgery must copy."""

from __future__ import annotations

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

MODEL = "smollm2-135m-instruct"


def attack_rows(results: Results) -> tuple[list[list[str]], float, float]:
    """Return a row for each attack, and the losses of the model and of random weights, in nats per token."""
    row_of = {row["b"]: row for row in results["real-pairs"] if row["a"] == MODEL}
    done = {row["model"]: row["done"] for row in results["real-models"]}
    forgery = results["real-forgery"]
    loss = {row["name"]: row["loss"] for row in forgery if row["part"] == "losses"}
    rows = [
        [done[name], f"{nats:.2f}", *_verdict(row_of[name]), row_of[name]["settled_by"] or ""]
        for name, nats in sorted(loss.items(), key=lambda each: each[1])
        if name in row_of and row_of[name]["related"]
    ]
    rows += [
        [row["done"], f"{row['loss']:.2f}", *_verdict(row), row["settled_by"] or ""]
        for row in forgery
        if row["part"] == "evading"
    ]
    return rows, loss[MODEL], loss[f"{MODEL}/random"]


def forgery_section(results: Results) -> str:
    """Tabulate attacks by their cost, and forgeries by the weights that they copy."""
    of = {part: [row for row in results["real-forgery"] if row["part"] == part] for part in _PARTS}
    attacks, of_base, of_random = attack_rows(results)
    forged = [[row["name"], *_verdict(row)] for row in of["forging"]]
    base, *repaired = sorted(of["repairing"], key=lambda row: row["name"] != "base")
    as_random = next(row["held_out_loss"] for row in results["real-models"] if row["model"] == f"{MODEL}/from-random")
    repairs = [[row["done"], f"{row['loss']:.2f}", f"{row['repaired']:.2f}", *_verdict(row)] for row in repaired]
    missed = [row[0] for row in attacks if row[2] != "homologous"]
    return "\n\n".join(
        [
            "## What evading costs, and what forging takes",
            "The losses of SmolLM2-135M-Instruct are in nats per token on text that it was not trained on: "
            f"{of_base:.2f} unchanged, {of_random:.2f} with random weights (`python -m "
            "benchmarks real-forgery`).",
            table("edit | nats per token | verdict | log10 p | found by", attacks),
            f"Not found: {'; '.join(missed) or 'none of these'}. Attacks that preserve the function cost nothing, and "
            "they are detected. Attacks that damage the weights make the model worse than random weights long before "
            "they evade detection.",
            f"A patient attacker repairs the model by training. In minutes, one core trains {base['steps']} steps of "
            f"{base['tokens'] // base['steps']} tokens ({base['tokens']:,} in all, peak rate 1e-3); longer repairs "
            f"were not tried. On other parts of that text, the model has {base['loss']:.2f} nats per token, and a "
            f"model trained from random weights {as_random:.2f} after the same steps. If the repaired model ends above "
            "that value, training from scratch would have been no worse.",
            table("edit, then repaired | nats before | after | verdict after | log10 p", repairs),
            "A forgery copies parts of the model into a stranger of the same shape that was trained from random "
            "weights. A whole copied layer is found, because these weights are shared. Copied rows of the embedding "
            "are reported, but they are not enough for a verdict. Copied neurons count, whatever they do, if they are "
            "half of the tested neurons of a layer.",
            table("copied into the stranger | verdict | log10 p", forged),
        ]
    )


def _verdict(row: Row) -> tuple[str, str]:
    """Return the verdict with its reason, and log10 p if it is a bound below 1."""
    reason = f" ({row['reason']})" if row.get("reason") else ""
    return f"{row['verdict']}{reason}", f"{row['log10_p']:,.1f}" if row["log10_p"] else ""


_PARTS = ("repairing", "forging")
