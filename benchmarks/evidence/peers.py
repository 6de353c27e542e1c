"""Section on peers: every method on the same pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.evidence.costs import compared, costs_text
from benchmarks.evidence.judged import Judged, named, of_checker, of_peer
from benchmarks.evidence.tables import Results
from benchmarks.metrics import decisions, leafbench_metrics, mahalanobis_ceiling
from benchmarks.runner import Row, table
from benchmarks.zoo.members import MEMBERS


def peers_section(results: Results) -> str:
    """Tabulate decisions, metrics and costs of every method on the same pairs."""
    checker_rows = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    packages_last = sorted(results["zoo-peers"], key=lambda row: "(package)" in row["peer"])
    judged = [of_checker(checker_rows), *(of_peer(row, checker_rows) for row in packages_last)]
    n_related = sum(judged[0].related)
    ceiling = mahalanobis_ceiling(n_related, len(judged[0].related) - n_related)
    return "\n\n".join(
        [
            "## Others on the same pairs",
            f"The pairs are all {len(checker_rows)} pairs of the zoo, {n_related} of them related. We wrote each peer "
            "from its description, at its own sizes (`benchmarks/peers` lists the open choices); packages are the "
            "versions that their authors publish. No peer was made for models so small. Some need parts that a stored "
            "or upcycled model here lacks, so a method may give no answer for a pair.",
            "### Decisions",
            "The table shows false positives (FP) and false negatives (FN). *Own rule*: the method's published "
            "threshold or level, if it has one that is not fitted to the scores being judged; a pair without an answer "
            "is not called related. *At 1e-10*: decisions by the method's own p-value, if it has one. *Best "
            "threshold*: the best threshold for these very scores, which is unknown in advance, over the pairs "
            "answered. *Before the first error*: related pairs that score higher than every unrelated pair.",
            table(
                "method | answered | own rule | errors by own rule | at 1e-10 | best threshold | "
                "before the first error",
                [decision_row(method) for method in judged],
            ),
            where_others_are_right(judged, checker_rows),
            "### By relation, side by side",
            "The table counts the families in which a method calls a base and its descendant related, each peer at its "
            "best threshold. Strangers are in italics; any number above 0 for them is an error. `?`: no answer in any "
            "family.",
            relation_table(judged),
            "### LeaFBench's metrics",
            "The metrics are computed as in LeaFBench's code (`benchmarks/metrics.py` describes the flaw of each), "
            "over the pairs answered. The last two columns rank a pair without an answer as the least related. On "
            f"these pairs, MD cannot exceed {ceiling:.2f} for any method, and scores that only say yes or no come "
            "closest to it.",
            table(
                "method | ACC | AUC | pAUC | MD | TPR at 1 % FPR | AUC, all pairs | TPR at 1 % FPR, all pairs",
                [metrics_row(method) for method in judged if method.is_ranked],
            ),
            costs_text(compared(judged, checker_rows)),
        ]
    )


def decision_row(method: Judged) -> list[str]:
    """Return the row of a method in the table of decisions."""
    answered, related = method.answered
    best = before = ""
    if method.is_ranked:
        numbers = leafbench_metrics(answered, related)
        best = errors([score >= numbers.threshold for score in answered], related)
        before = f"{len(above_every_stranger(method))} of {sum(method.related)}"
    return [
        named(method),
        str(len(answered)),
        method.rule,
        "" if method.decided is None else errors(method.decided, method.related),
        "" if method.at_alpha is None else errors(method.at_alpha, method.related),
        best,
        before,
    ]


def metrics_row(method: Judged) -> list[str]:
    """Return five metrics of a method, and two of them with unanswered pairs ranked last."""
    answered, related = method.answered
    numbers = leafbench_metrics(answered, related)
    last = min(answered) - 1.0
    everywhere = leafbench_metrics([last if score is None else score for score in method.scores], method.related)
    five = (numbers.accuracy, numbers.auc, numbers.partial_auc, numbers.mahalanobis, numbers.tpr_at_1_percent_fpr)
    return [named(method), *(f"{value:.3f}" for value in (*five, everywhere.auc, everywhere.tpr_at_1_percent_fpr))]


def relation_table(judged: Sequence[Judged]) -> str:
    """Count the families in which each method calls a base and a member related."""
    methods = [method for method in judged if method.is_ranked]
    accepted = [accepted_at_best(method) for method in methods]
    body = []
    for name in MEMBERS:
        keys = [key for key in methods[0].pairs if is_with_base(key, name)]
        if keys:
            truth = dict(zip(methods[0].pairs, methods[0].related, strict=True))[keys[0]]
            cells = [
                f"{sum(is_accepted[key] for key in keys if key in is_accepted)}"
                if any(key in is_accepted for key in keys)
                else "?"
                for is_accepted in accepted
            ]
            body.append([name if truth else f"*{name}*", str(len(keys)), *cells])
    return table(["member", "families", *map(named, methods)], body)


OF_THE_PAPER = {
    "Gradient (LeaFBench)": ("0.798", "0.374", "no", "–"),
    "REEF": ("0.896", "0.634", "yes", "yes"),
    "HuRef": ("0.994", "0.943", "no", "yes"),
    "PDF": ("0.995", "0.992", "yes", "yes"),
    "SeedPrints": ("–", "–", "yes", "no"),
    "MDIR, as printed": ("1.000", "1.000", "yes", "yes"),
    "mdir-hf": ("–", "–", "–", "–"),
}
"""AUC and TPR at 1 % FPR (table 1); whether a cut dimension and another tokenizer are handled (table 2)."""


def beside_the_paper(results: Results) -> str:
    """Tabulate the paper's tables 1 and 2 beside the same quantities of the zoo."""
    checker_rows = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    judged = [of_checker(checker_rows), *(of_peer(row, checker_rows) for row in results["zoo-peers"])]
    methods = {method.name: method for method in judged}
    body = []
    for name, (auc, tpr, dimension, tokenizer) in OF_THE_PAPER.items():
        method = methods[name]
        numbers, accepted = leafbench_metrics(*method.answered), accepted_at_best(method)
        cut, retokenised = (
            str(sum(is_accepted for key, is_accepted in accepted.items() if is_with_base(key, member)))
            for member in ("width-pruned", "retokenised")
        )
        here = f"{numbers.auc:.3f}", f"{numbers.tpr_at_1_percent_fpr:.3f}"
        body.append([named(method), auc, here[0], tpr, here[1], dimension, cut, tokenizer, retokenised])
    columns = "AUC, paper | AUC, here | TPR, paper | TPR, here | dimension, paper | cut channels, here"
    return table(f"method | {columns} | tokenizer, paper | tokenizer, here", body)


def accepted_at_best(method: Judged) -> dict[tuple[str, str], bool]:
    """Return decisions of a method on the pairs that it can score, at its best threshold on them."""
    threshold = leafbench_metrics(*method.answered).threshold
    scored = zip(method.pairs, method.scores, strict=True)
    return {key: score >= threshold for key, score in scored if score is not None}


def is_with_base(key: tuple[str, str], member: str) -> bool:
    """Return whether a pair is a base and the given member of its family."""
    (family, a), (second_family, b) = (name.split("/") for name in key)
    return family == second_family and a == "base" and b == member


def where_others_are_right(judged: Sequence[Judged], checker_rows: dict[tuple[str, str], Row]) -> str:
    """List related pairs that the checker misses and another method ranks above every unrelated pair."""
    missed = {key for key, row in checker_rows.items() if row["related"] and row["verdict"] != "homologous"}
    pairs_of = {method.name: sorted(missed & above_every_stranger(method)) for method in judged[1:]}
    if not missed:
        return "The checker misses no related pair."
    lines = [
        f"{name} {len(keys)} ({', '.join(f'{a} + {b}' for a, b in keys)})" for name, keys in pairs_of.items() if keys
    ]
    told = "; ".join(lines) if lines else "none"
    return (
        f"The checker misses {len(missed)} related pairs. Other methods that rank some of them above every unrelated "
        f"pair: {told}."
    )


def above_every_stranger(method: Judged) -> set[tuple[str, str]]:
    """Return the related pairs that a method ranks above every unrelated pair."""
    everything = list(zip(method.pairs, method.scores, method.related, strict=True))
    strangers = [score for _, score, is_related in everything if score is not None and not is_related]
    highest = max(strangers, default=math.inf)
    return {key for key, score, is_related in everything if is_related and score is not None and score > highest}


def errors(accepted: Sequence[bool], related: Sequence[bool]) -> str:
    """Format the numbers of false positives and negatives."""
    counted = decisions(accepted, related)
    n_related = counted.true_positives + counted.false_negatives
    n_others = counted.false_positives + counted.true_negatives
    return f"{counted.false_positives} of {n_others} FP, {counted.false_negatives} of {n_related} FN"
