"""The section on peers: every method on the same pairs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table
from benchmarks.metrics import decisions, leafbench_metrics, mahalanobis_ceiling, score_of_log10_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def peers_section(results: Results, figures: dict[str, Figure]) -> str:
    """Every method on the same pairs."""
    del figures
    ours = {(row["a"], row["b"]): row for row in results["zoo-pairs"] if row["level"] == "auto"}
    own_seconds = statistics.mean(row["cpu_s"] for row in ours.values())
    judged = [of_checker(ours), *(of_peer(row, ours) for row in results["zoo-peers"])]
    decided, ranked, costs = [], [], []
    for method in judged:
        fixed = "" if method.decided is None else errors(method.decided, method.related)
        answered = [(s, r) for s, r in zip(method.scores, method.related, strict=True) if s is not None]
        name = f"**{method.name}**" if method is judged[0] else method.name
        if len({r for _, r in answered}) == 2:
            scores, related = zip(*answered, strict=True)
            numbers = leafbench_metrics(scores, related)
            best = errors([s >= numbers.threshold for s in scores], related)
            low = min(scores) - 1.0
            everywhere = leafbench_metrics([low if s is None else s for s in method.scores], method.related)
            ranked.append(
                [
                    name,
                    f"{numbers.accuracy:.3f}",
                    f"{numbers.auc:.3f}",
                    f"{numbers.partial_auc:.3f}",
                    f"{numbers.mahalanobis:.2f}",
                    f"{numbers.tpr_at_1_percent_fpr:.3f}",
                    f"{everywhere.auc:.3f}",
                    f"{everywhere.tpr_at_1_percent_fpr:.3f}",
                ]
            )
        else:
            best = ""
        decided.append([name, str(len(answered)), method.rule, fixed, best])
        costs.append([name, f"{method.seconds:.2f}", f"{method.seconds / own_seconds:.1f}"])
    n_related = sum(judged[0].related)
    ceiling = mahalanobis_ceiling(n_related, len(judged[0].related) - n_related)
    return "\n\n".join(
        [
            "## Others on the same pairs",
            f"All {len(ours)} pairs of the zoo. Each peer is written from its description, at its own sizes "
            "(`benchmarks/peers` says what each leaves open); a pair that a peer cannot score counts as not answered. "
            "Written from memory of papers and at sizes that they were not made for, peers may do better elsewhere.",
            "### Decisions",
            "False positives and false negatives among the pairs that a method answers. *Own rule*: its published "
            "threshold "
            "or level, where it has one that is not fitted to the scores being judged. *Best threshold*: the one "
            "that does "
            "best on these very scores, which nobody has in advance.",
            table(["method", "pairs answered", "own rule", "errors by it", "errors at its best threshold"], decided),
            "### LeaFBench's metrics",
            "As its code computes them (`benchmarks/metrics.py` names what is wrong with each), over the pairs "
            "answered; the "
            f"last two columns count a pair without an answer as the least related. MD cannot exceed {ceiling:.2f} "
            f"on these "
            "pairs for any method, and scores that say no more than yes or no come nearest to it.",
            table(
                ["method", "ACC", "AUC", "pAUC", "MD", "TPR at 1 % FPR", "AUC, all pairs", "TPR at 1 % FPR, all pairs"],
                ranked,
            ),
            "### Time",
            "Seconds of one core for a pair that was not met before: for the checker opening, reading and "
            "comparing, for "
            "peers two fingerprints and a score; the same machine, one run. Peers read both models whole; the "
            "checker read "
            f"{statistics.median(r['bytes_read'] / r['bytes_of_weights'] for r in ours.values()):.0%} (median) of the "
            "bytes of weights, tokenizers included.",
            table(["method", "seconds per pair", "times the checker's"], costs),
        ]
    )


@dataclass(frozen=True)
class Judged:
    """One method on all pairs: scores (None: no answer), decisions by its own rule, seconds for a new pair."""

    name: str
    related: list[bool]
    scores: list[float | None]
    decided: list[bool] | None
    rule: str
    seconds: float


def of_checker(ours: dict[tuple[str, str], Row]) -> Judged:
    """The checker as one of the methods."""
    rows = list(ours.values())
    return Judged(
        "mdir-hf",
        [row["related"] for row in rows],
        [score_of_log10_p(row["log10_p"]) for row in rows],
        [row["verdict"] == "homologous" for row in rows],
        "verdict at 1e-10",
        statistics.mean(row["cpu_s"] for row in rows),
    )


def of_peer(row: Row, ours: dict[tuple[str, str], Row]) -> Judged:
    """A peer as one of them."""
    names, threshold = row["models"], row["threshold"]
    related, scores, decided, seconds = [], [], [], []
    has_p = any(score[3] is not None for score in row["scores"])
    for a, b, score, log10_p, taken, _ in row["scores"]:
        pair = ours.get((names[a], names[b]))
        if pair is None:
            continue
        related.append(pair["related"])
        scores.append(score)
        accepted = False
        if score is not None:
            accepted = score >= threshold if threshold is not None else log10_p is not None and log10_p <= -10
        decided.append(accepted)
        seconds.append(row["fingerprint_cpu_s"][a] + row["fingerprint_cpu_s"][b] + taken)
    rule = f"score at least {threshold:g}" if threshold is not None else "its p at 1e-10" if has_p else "none"
    return Judged(row["peer"], related, scores, decided if rule != "none" else None, rule, statistics.mean(seconds))


def errors(accepted: Sequence[bool], related: Sequence[bool]) -> str:
    """False positives and negatives in words."""
    counted = decisions(accepted, related)
    n_related = counted.true_positives + counted.false_negatives
    n_others = counted.false_positives + counted.true_negatives
    return f"{counted.false_positives} of {n_others} FP, {counted.false_negatives} of {n_related} FN"
