"""The section on peers: every method on the same pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table
from benchmarks.metrics import decisions, leafbench_metrics, mahalanobis_ceiling, score_of_log10_p
from benchmarks.zoo.members import MEMBERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "mdir-hf"


def peers_section(results: Results, figures: dict[str, Figure]) -> str:
    """Every method on the same pairs."""
    del figures
    ours = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    packages_last = sorted(results["zoo-peers"], key=lambda row: "(package)" in row["peer"])
    judged = [of_checker(ours), *(of_peer(row, ours) for row in packages_last)]
    n_related = sum(judged[0].related)
    ceiling = mahalanobis_ceiling(n_related, len(judged[0].related) - n_related)
    shares: dict[bool, list[float]] = {True: [], False: []}
    for row in ours.values():
        shares[row["settled_by"] == "screen"].append(row["bytes_read"] / row["bytes_of_weights"])
    settled, others = (statistics.median(shares[is_settled]) for is_settled in (True, False))
    return "\n\n".join(
        [
            "## Others on the same pairs",
            f"All {len(ours)} pairs of the zoo, {n_related} of them related. Each peer is written from its "
            "description, at its own sizes (`benchmarks/peers` says what was left open); packages are what their "
            "authors publish. None was made for models so small, and some need what a stored or upcycled model here "
            "does not offer: a pair that a method cannot score has no answer.",
            "### Decisions",
            "False positives (FP) and false negatives (FN). *Own rule*: its published threshold or level, where it "
            "has one that is not fitted to the scores being judged; a pair without an answer is not called related. "
            "*At 1e-10*: the same by its own p-value, where it has one. *Best threshold*: the one that does best on "
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
            where_others_are_right(judged, ours),
            "### By relation, side by side",
            "In how many families a method calls a base and its descendant related, each peer at its best "
            "threshold; strangers are in italics, and any number above 0 there is an error. `?`: no answer in any "
            "family.",
            relation_table(judged),
            "### LeaFBench's metrics",
            "As its code computes them (`benchmarks/metrics.py` names what is wrong with each), over the pairs "
            "answered; the last two columns count a pair without an answer as the least related. MD cannot exceed "
            f"{ceiling:.2f} on these pairs for any method, and scores that say no more than yes or no come nearest "
            "to it.",
            table(
                ["method", "ACC", "AUC", "pAUC", "MD", "TPR at 1 % FPR", "AUC, all pairs", "TPR at 1 % FPR, all pairs"],
                [metrics_row(method) for method in judged if method.is_ranked],
            ),
            "### Time and bytes",
            "Seconds of one core for a pair that was not met before: for the checker opening, reading and "
            "comparing, for peers two fingerprints and a score. In a study of many models a fingerprint is made "
            "once, and is then cheaper than the checker's pairs (`mdir-hf survey`, which reads each model once, was "
            f"not timed here). Of the bytes of weights the checker read {settled:.0%} where the embeddings' screen "
            f"settled a pair and {others:.0%} where it did not (medians; more than all where tokenizers, a large "
            "part at these sizes, are counted and layers are read for a second map). What peers read was not "
            "counted; their descriptions have them load both models.",
            table(
                ["method", "seconds for a new pair", "times the checker's", "seconds for one more pair"],
                [
                    [named(m), f"{m.seconds:.2f}", f"{m.seconds / judged[0].seconds:.2g}", f"{m.score_seconds:.3f}"]
                    for m in judged
                ],
            ),
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
                f"{sum(found[key] for key in keys if key in found)}" if any(key in found for key in keys) else "?"
                for found in accepted
            ]
            body.append([name if truth else f"*{name}*", str(len(keys)), *cells])
    return table(["member", "families", *map(named, methods)], body)


def accepted_at_best(method: Judged) -> dict[tuple[str, str], bool]:
    """The decisions of a method on the pairs that it answers, at the threshold that does best on them."""
    threshold = leafbench_metrics(*method.answered).threshold
    scored = zip(method.pairs, method.scores, strict=True)
    return {key: score >= threshold for key, score in scored if score is not None}


def is_with_base(key: tuple[str, str], member: str) -> bool:
    """Whether a pair is a base and this member of its family."""
    (one, a), (other, b) = (name.split("/") for name in key)
    return one == other and a == "base" and b == member


def where_others_are_right(judged: Sequence[Judged], ours: dict[tuple[str, str], Row]) -> str:
    """Related pairs that the checker misses and another method ranks above every unrelated pair."""
    missed = {key for key, row in ours.items() if row["related"] and row["verdict"] != "homologous"}
    found = {method.name: sorted(missed & above_every_stranger(method)) for method in judged[1:]}
    lines = [f"{name} {len(keys)} ({', '.join(f'{a} + {b}' for a, b in keys)})" for name, keys in found.items() if keys]
    told = "; ".join(lines) if lines else "none does"
    return (
        f"Of the {len(missed)} related pairs that the checker misses, others rank above every unrelated pair: {told}."
    )


def above_every_stranger(method: Judged) -> set[tuple[str, str]]:
    """The related pairs that a method ranks above every unrelated one."""
    everything = list(zip(method.pairs, method.scores, method.related, strict=True))
    strangers = [score for _, score, is_related in everything if score is not None and not is_related]
    highest = max(strangers, default=math.inf)
    return {key for key, score, is_related in everything if is_related and score is not None and score > highest}


def named(method: Judged) -> str:
    """Its name, ours in bold."""
    return f"**{method.name}**" if method.name == OURS else method.name


@dataclass(frozen=True)
class Judged:
    """One method on all pairs.

    Attributes:
        name: Its name.
        pairs: The pairs, in the order of what follows.
        related: The truth.
        scores: None where it has no answer.
        decided: Decisions by its own rule, None where it has none.
        at_alpha: Decisions by its p-value at 1e-10, None where it has none.
        rule: Its own rule, in words.
        seconds: Mean processor time of a new pair.
        score_seconds: The same where both models have been met before.
    """

    name: str
    pairs: list[tuple[str, str]]
    related: list[bool]
    scores: list[float | None]
    decided: list[bool] | None
    at_alpha: list[bool] | None
    rule: str
    seconds: float
    score_seconds: float

    @property
    def answered(self) -> tuple[list[float], list[bool]]:
        """Scores and truth of the pairs that have an answer."""
        both = [(score, related) for score, related in zip(self.scores, self.related, strict=True) if score is not None]
        return [score for score, _ in both], [related for _, related in both]

    @property
    def is_ranked(self) -> bool:
        """Whether pairs of both kinds have an answer."""
        return len(set(self.answered[1])) == 2


def of_checker(ours: dict[tuple[str, str], Row]) -> Judged:
    """The checker as one of the methods; it keeps nothing between pairs here."""
    rows = list(ours.values())
    decided = [row["verdict"] == "homologous" for row in rows]
    seconds = statistics.mean(row["cpu_s"] for row in rows)
    return Judged(
        OURS,
        list(ours),
        [row["related"] for row in rows],
        [score_of_log10_p(row["log10_p"]) for row in rows],
        decided,
        decided,
        "verdict at 1e-10",
        seconds,
        seconds,
    )


def of_peer(row: Row, ours: dict[tuple[str, str], Row]) -> Judged:
    """A peer as one of them."""
    names, threshold = row["models"], row["threshold"]
    made = row["fingerprint_cpu_s"]
    kept = [(score, (names[score[0]], names[score[1]])) for score in row["scores"]]
    kept = [(score, key) for score, key in kept if key in ours]
    scores = [score[2] for score, _ in kept]
    has_p = any(score[3] is not None for score, _ in kept)
    at_alpha = [score[3] is not None and score[3] <= -10 for score, _ in kept] if has_p else None
    decided = at_alpha if threshold is None else [value is not None and value >= threshold for value in scores]
    rule = f"score at least {threshold:g}" if threshold is not None else "its p at 1e-10" if has_p else "none"
    return Judged(
        row["peer"],
        [key for _, key in kept],
        [ours[key]["related"] for _, key in kept],
        scores,
        decided,
        at_alpha,
        rule,
        statistics.mean(made[score[0]] + made[score[1]] + score[4] for score, _ in kept),
        statistics.mean(score[4] for score, _ in kept),
    )


def errors(accepted: Sequence[bool], related: Sequence[bool]) -> str:
    """False positives and negatives in words."""
    counted = decisions(accepted, related)
    n_related = counted.true_positives + counted.false_negatives
    n_others = counted.false_positives + counted.true_negatives
    return f"{counted.false_positives} of {n_others} FP, {counted.false_negatives} of {n_related} FN"
