"""The section on peers: every method on the same pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.evidence.costs import compared, costs_text
from benchmarks.evidence.judged import Judged, named, of_checker, of_peer
from benchmarks.evidence.tables import Results, Row, table
from benchmarks.metrics import decisions, leafbench_metrics, mahalanobis_ceiling
from benchmarks.zoo.members import MEMBERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def peers_section(results: Results, figures: dict[str, Figure]) -> str:
    """Every method on the same pairs."""
    del figures
    checker_rows = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    packages_last = sorted(results["zoo-peers"], key=lambda row: "(package)" in row["peer"])
    judged = [of_checker(checker_rows), *(of_peer(row, checker_rows) for row in packages_last)]
    n_related = sum(judged[0].related)
    ceiling = mahalanobis_ceiling(n_related, len(judged[0].related) - n_related)
    return "\n\n".join(
        [
            "## Others on the same pairs",
            f"All {len(checker_rows)} pairs of the zoo, {n_related} of them related. Each peer is written from its "
            "description, at its own sizes (`benchmarks/peers` lists the open choices); packages are what their "
            "authors publish. None was made for models so small, and some need what a stored or upcycled model here "
            "does not offer: a pair that a method cannot score has no answer.",
            "### Decisions",
            "False positives (FP) and false negatives (FN). *Own rule*: its published threshold or level, if it "
            "has one that is not fitted to the scores being judged; a pair without an answer is not called related. "
            "*At 1e-10*: the same by its own p-value, if it has one. *Best threshold*: the one that does best on "
            "these very scores, which nobody has in advance, over the pairs answered. *Before the first error*: "
            "related pairs that score higher than every unrelated one.",
            table(
                [
                    "method",
                    "answered",
                    "own rule",
                    "errors by it",
                    "at 1e-10",
                    "best threshold",
                    "before the first error",
                ],
                [decision_row(method) for method in judged],
            ),
            where_others_are_right(judged, checker_rows),
            "### By relation, side by side",
            "In how many families a method calls a base and its descendant related, each peer at its best "
            "threshold; strangers are in italics, and any number above 0 there is an error. `?`: no answer in any "
            "family.",
            relation_table(judged),
            "### LeaFBench's metrics",
            "As its code computes them (`benchmarks/metrics.py` names the fault of each), over the pairs "
            "answered; the last two columns count a pair without an answer as the least related. MD cannot exceed "
            f"{ceiling:.2f} on these pairs for any method, and scores that say no more than yes or no come nearest "
            "to it.",
            table(
                ["method", "ACC", "AUC", "pAUC", "MD", "TPR at 1 % FPR", "AUC, all pairs", "TPR at 1 % FPR, all pairs"],
                [metrics_row(method) for method in judged if method.is_ranked],
            ),
            costs_text(compared(judged, checker_rows)),
        ]
    )


def decision_row(method: Judged) -> list[str]:
    """One method's decisions."""
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
    """One method's five numbers, and two of them with unanswered pairs last."""
    answered, related = method.answered
    numbers = leafbench_metrics(answered, related)
    last = min(answered) - 1.0
    everywhere = leafbench_metrics([last if score is None else score for score in method.scores], method.related)
    five = (numbers.accuracy, numbers.auc, numbers.partial_auc, numbers.mahalanobis, numbers.tpr_at_1_percent_fpr)
    return [named(method), *(f"{value:.3f}" for value in (*five, everywhere.auc, everywhere.tpr_at_1_percent_fpr))]


def relation_table(judged: Sequence[Judged]) -> str:
    """Members down, methods across: families in which a base and this member are called related."""
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


def accepted_at_best(method: Judged) -> dict[tuple[str, str], bool]:
    """Return decisions of a method on the pairs that it answers, at the threshold that does best on them."""
    threshold = leafbench_metrics(*method.answered).threshold
    scored = zip(method.pairs, method.scores, strict=True)
    return {key: score >= threshold for key, score in scored if score is not None}


def is_with_base(key: tuple[str, str], member: str) -> bool:
    """Whether a pair is a base and this member of its family."""
    (family, a), (second_family, b) = (name.split("/") for name in key)
    return family == second_family and a == "base" and b == member


def where_others_are_right(judged: Sequence[Judged], checker_rows: dict[tuple[str, str], Row]) -> str:
    """Related pairs that the checker misses and another method ranks above every unrelated pair."""
    missed = {key for key, row in checker_rows.items() if row["related"] and row["verdict"] != "homologous"}
    pairs_of = {method.name: sorted(missed & above_every_stranger(method)) for method in judged[1:]}
    if not missed:
        return "There is no related pair that the checker misses."
    lines = [
        f"{name} {len(keys)} ({', '.join(f'{a} + {b}' for a, b in keys)})" for name, keys in pairs_of.items() if keys
    ]
    told = "; ".join(lines) if lines else "none does"
    return (
        f"The checker misses {len(missed)} related pairs. Some of them rank above every unrelated pair by other "
        f"methods: {told}."
    )


def above_every_stranger(method: Judged) -> set[tuple[str, str]]:
    """Return the related pairs that a method ranks above every unrelated pair."""
    everything = list(zip(method.pairs, method.scores, method.related, strict=True))
    strangers = [score for _, score, is_related in everything if score is not None and not is_related]
    highest = max(strangers, default=math.inf)
    return {key for key, score, is_related in everything if is_related and score is not None and score > highest}


def errors(accepted: Sequence[bool], related: Sequence[bool]) -> str:
    """False positives and negatives in words."""
    counted = decisions(accepted, related)
    n_related = counted.true_positives + counted.false_negatives
    n_others = counted.false_positives + counted.true_negatives
    return f"{counted.false_positives} of {n_others} FP, {counted.false_negatives} of {n_related} FN"
