"""Results and costs of each method on each pair of the zoo."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.evidence.tables import log10_p_of
from benchmarks.metrics import score_of_log10_p
from benchmarks.runner import Row

OURS = "mdir-hf"


@dataclass(frozen=True)
class Cost:
    """Cost of a method for a pair.

    Attributes:
        seconds: Processor time of a new pair.
        score_seconds: Processor time if both models have been processed before.
        weights: Bytes of weights read for a new pair.
        beside: Bytes of tokenizers and configs.
        size: Bytes of both models' weights.
    """

    seconds: float
    score_seconds: float
    weights: int
    beside: int
    size: int


@dataclass(frozen=True)
class Judged:
    """Results of one method on all pairs.

    Attributes:
        name: Name of the method.
        pairs: The pairs, in the order of the other fields.
        related: The true relation of each pair.
        scores: Score of each pair, None if the method cannot score it.
        decided: Decisions by the method's own rule, or None if it has no rule.
        at_alpha: Decisions by its p-value at 1e-10, or None if it has no p-value.
        rule: Its own rule, in words.
        costs: Cost of each pair.
    """

    name: str
    pairs: list[tuple[str, str]]
    related: list[bool]
    scores: list[float | None]
    decided: list[bool] | None
    at_alpha: list[bool] | None
    rule: str
    costs: list[Cost]

    @property
    def answered(self) -> tuple[list[float], list[bool]]:
        """Scores and true relations of the pairs that the method can score."""
        both = [(score, related) for score, related in zip(self.scores, self.related, strict=True) if score is not None]
        return [score for score, _ in both], [related for _, related in both]

    @property
    def is_ranked(self) -> bool:
        """Whether the method can score related pairs as well as unrelated ones."""
        return len(set(self.answered[1])) == 2


def of_checker(checker_rows: dict[tuple[str, str], Row]) -> Judged:
    """Return the results of the checker, which caches nothing between pairs here."""
    rows = list(checker_rows.values())
    decided = [row["verdict"] == "homologous" for row in rows]
    return Judged(
        OURS,
        list(checker_rows),
        [row["related"] for row in rows],
        [score_of_log10_p(log10_p_of(row)) for row in rows],
        decided,
        decided,
        "verdict at 1e-10",
        [
            Cost(
                row["cpu_s"],
                row["cpu_s"],
                row["bytes_read"] - row["bytes_beside_weights"],
                row["bytes_beside_weights"],
                row["bytes_of_weights"],
            )
            for row in rows
        ],
    )


def of_peer(row: Row, checker_rows: dict[tuple[str, str], Row]) -> Judged:
    """Return the results of a peer."""
    names, threshold = row["models"], row["threshold"]
    seconds, weights, beside = (row[f"fingerprint_{what}"] for what in ("cpu_s", "bytes", "bytes_beside"))
    scored = [(score, (names[score[0]], names[score[1]])) for score in row["scores"]]
    scored = [(score, key) for score, key in scored if key in checker_rows]
    scores = [score[2] for score, _ in scored]
    has_p = any(score[3] is not None for score, _ in scored)
    at_alpha = [score[3] is not None and score[3] <= -10 for score, _ in scored] if has_p else None
    decided = at_alpha if threshold is None else [value is not None and value >= threshold for value in scores]
    rule = f"score at least {threshold:g}" if threshold is not None else "its p at 1e-10" if has_p else "none"
    return Judged(
        row["peer"],
        [key for _, key in scored],
        [checker_rows[key]["related"] for _, key in scored],
        scores,
        decided,
        at_alpha,
        rule,
        [
            Cost(
                seconds[a] + seconds[b] + taken,
                taken,
                weights[a] + weights[b] + read,
                beside[a] + beside[b],
                checker_rows[key]["bytes_of_weights"],
            )
            for (a, b, _, _, taken, _, read), key in scored
        ],
    )


def named(method: Judged) -> str:
    """Return the name of a method, in bold for the checker."""
    return f"**{method.name}**" if method.name == OURS else method.name
