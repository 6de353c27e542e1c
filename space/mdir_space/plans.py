"""What an answer is going to cost, and what finding nothing will exclude, before it is begun: in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mdir_hf import ReadPlan
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_hf.lineage.survey.requests import PlannedRequests
from mdir_hf.names import shown_name
from mdir_space.desk import Plan
from mdir_space.estimate import OPENING_S, Pace, bytes_of, duration_text, size_text
from mdir_space.family import FamilyPlan
from mdir_space.limits import Limits
from mdir_space.markup import text
from mdir_space.notices import does_not_fit, plan_notice

STRONGEST_NOISE = 100.0
"""Noise beyond this many times the weights is not told apart in words."""


@dataclass(frozen=True)
class Cost:
    """The numbers of a plan.

    Attributes:
        kind: ``comparison``, ``family`` or ``survey``.
        n_bytes: Bytes of weights that are read at least, and about what is read where every step is needed.
        seconds: How long that takes, by estimate.
        memory_bytes: Memory needed, by estimate; None where it was not planned.
        requests: What is asked of the Hub; None where it was not planned.
        excluded_noise: A copy under noise of up to so many times the weights would be found; None: none would.
        why_not: Why it would not be begun here; empty if it would.
    """

    kind: str
    n_bytes: tuple[int, int]
    seconds: tuple[float, float]
    memory_bytes: int | None
    requests: PlannedRequests | None
    excluded_noise: float | None
    why_not: str = ""


def cost_of(plan: Plan, pace: Pace, limits: Limits) -> Cost:
    """Return the numbers of a plan.

    Args:
        plan: It.
        pace: How fast comparisons are here.
        limits: Of this server.
    """
    if isinstance(plan, ReadPlan):
        why_not = does_not_fit(plan, limits)
        memory, noise = plan.peak_memory_bytes, plan.excluded_noise
        return Cost("comparison", bytes_of(plan), pace.seconds(plan), memory, None, noise, why_not)
    if isinstance(plan, SurveyReads):
        n_bytes = sum(plan.n_bytes.values())
        seconds = pace.seconds_of_survey(n_bytes, n_models=len(plan.n_rows), n_pairs=plan.n_pairs)
        return Cost("survey", (n_bytes, n_bytes), seconds, None, plan.requests, plan.excluded_noise)
    comparisons = tuple(plan.comparisons.values())
    searched = 0 if plan.search is None else plan.search.n_bytes
    least = searched + sum(bytes_of(one)[0] for one in comparisons)
    most = searched + sum(bytes_of(one)[1] for one in comparisons)
    first_s = OPENING_S + searched / pace.bytes_per_s
    times = [pace.seconds(one) for one in comparisons]
    return Cost(
        "family",
        (least, most),
        (first_s + sum(one for one, _ in times), first_s + sum(one for _, one in times)),
        max((one.peak_memory_bytes for one in comparisons), default=None),
        plan.requests,
        None if plan.search is None else plan.search.excluded_noise,
    )


def notice_of(plan: Plan, pace: Pace, limits: Limits) -> str:
    """Return what the page says of a plan; HTML."""
    if isinstance(plan, ReadPlan):
        return plan_notice(plan, pace, limits)
    return f'<p class="plan">{text(in_sentences(plan, pace, limits))}</p>'


def in_sentences(plan: FamilyPlan | SurveyReads, pace: Pace, limits: Limits) -> str:
    """Return what is going to be read about one model, or about several, and what finding nothing will exclude."""
    cost = cost_of(plan, pace, limits)
    said = _of_survey(plan) if isinstance(plan, SurveyReads) else _of_family(plan)
    times = dict.fromkeys(map(duration_text, cost.seconds))
    if limits.n_bytes is not None and cost.n_bytes[1] > limits.n_bytes:
        said.append(
            f"Never more than {size_text(limits.n_bytes)} in all, the limit here: then what was found is shown."
        )
    said.append(f"Takes {' to '.join(times)}, by estimate.")
    if cost.requests is not None and cost.requests.n_models:
        n_requests = cost.requests.api + cost.requests.files
        said.append(f"Asks the Hub {n_requests} times at most, and its store of files for the rows.")
    return " ".join(said)


def _of_family(plan: FamilyPlan) -> list[str]:
    said = []
    search = plan.search
    if search is not None:
        bases = "one base model" if search.n_bases == 1 else f"{search.n_bases} base models"
        said.append(
            f"The search reads {search.n_rows} rows of the embedding, {size_text(search.n_bytes)}, and holds them "
            f"against the index of {bases}."
        )
        if search.excluded_noise is None:
            said.append("None of them is as wide as this model, so that the search can exclude no copy.")
        else:
            which, it = ("One is", "it") if search.n_of_width == 1 else (f"{search.n_of_width} are", "one of those")
            said.append(
                f"{which} as wide as this model: a copy of {it} under noise of up to {_noise(search.excluded_noise)} "
                "times the weights would be found, unless its channels were rotated. A base that it finds is compared, "
                "too, where it is on the Hub."
            )
    for base, comparison in plan.comparisons.items():
        first, most = map(size_text, bytes_of(comparison))
        said.append(
            f"The card declares {shown_name(base)}: comparing the two reads {first} if the first look settles it, "
            f"about {most} if all is needed; a copy under noise of up to {_noise(comparison.excluded_noise)} times the "
            "weights would be found, unless its channels were rotated."
        )
    for base, why in plan.not_planned.items():
        what = f"The card declares {shown_name(base)}, which cannot be opened" if base else "The card cannot be read"
        said.append(f"{what}: {why}")
    n_more = len(plan.declared) - len(plan.comparisons) - sum(bool(base) for base in plan.not_planned)
    if n_more:
        said.append(f"It declares {n_more} more, which are compared as well.")
    return said


def _of_survey(plan: SurveyReads) -> list[str]:
    rows = sorted(plan.n_rows.values())
    spread = f"{rows[0]:,}" if rows[0] == rows[-1] else f"{rows[0]:,} to {rows[-1]:,}"
    pairs = "1 pair" if plan.n_pairs == 1 else f"{plan.n_pairs} pairs"
    said = [
        f"Reads {spread} rows of each of {len(rows)} models, {size_text(sum(plan.n_bytes.values()))} in all, and "
        f"compares {pairs}."
    ]
    if plan.excluded_noise is not None:
        which = "each of the others" if plan.n_blind else "each pair"
        said.append(
            f"In {which} a copy under noise of up to {_noise(plan.excluded_noise)} times the weights would be found, "
            "unless its channels were rotated."
        )
    if plan.n_blind:
        share = "1 pair shares" if plan.n_blind == 1 else f"{plan.n_blind} pairs share"
        said.insert(1, f"{share} too few tokens to find anything.")
    said += [f"{shown_name(name)} cannot be opened: {why}." for name, why in plan.failures.items()]
    return said


def _noise(noise: float) -> str:
    return f"{min(noise, STRONGEST_NOISE):.2g}"


_SIZE = {"type": "integer", "minimum": 0}
_SIZE_OR_NULL = {"type": ["integer", "null"], "minimum": 0}
_SECONDS = {"type": "number", "minimum": 0}
PLANNED: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "kind": {"enum": ["comparison", "family", "survey"], "description": "Which of the tools it is the plan of."},
        "bytes_at_least": {**_SIZE, "description": "Bytes of weights that are read in any case."},
        "bytes_if_nothing_settles_it": {**_SIZE, "description": "About what is read where every step is needed."},
        "bytes_limit": {"type": ["integer", "null"], "description": "More than this is never read here; null: no cap."},
        "bytes_of_weights": {**_SIZE_OR_NULL, "description": "Stored size of both models; null but for a comparison."},
        "seconds_at_least": {**_SECONDS, "description": "How long that takes, by estimate."},
        "seconds_if_nothing_settles_it": {**_SECONDS, "description": "Likewise, where every step is needed."},
        "requests": {**_SIZE_OR_NULL, "description": "Requests to the Hub, at most; null for a comparison."},
        "peak_memory_bytes": {**_SIZE_OR_NULL, "description": "Memory needed, by estimate; null where not planned."},
        "common_tokens": {
            **_SIZE_OR_NULL,
            "description": "Tokens that both vocabularies hold; null but for a comparison.",
        },
        "excluded_noise": {
            "type": ["number", "null"],
            "description": "A copy under noise of up to so many times the weights would be found by its embeddings, "
            "unless its channels were rotated: "
            "of the other model, of any base of the index that is as wide, or in each pair. Null: none would.",
        },
        "models": {
            "type": "array",
            "description": "Of a survey: the rows and bytes that are read of each model, or why it cannot be opened.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "rows": _SIZE_OR_NULL,
                    "bytes": _SIZE_OR_NULL,
                    "error": {"type": ["string", "null"]},
                },
                "required": ["name", "rows", "bytes", "error"],
            },
        },
        "says": {"type": "string", "description": "The plan in words; empty for a comparison."},
        "fits": {"type": "boolean", "description": "Whether it would be begun here."},
    },
}
PLANNED["required"] = list(PLANNED["properties"])
"""What :func:`planned` gives."""


def planned(plan: Plan, pace: Pace, limits: Limits) -> dict[str, Any]:
    """Return a plan as programs get it."""
    cost = cost_of(plan, pace, limits)
    comparison = plan if isinstance(plan, ReadPlan) else None
    models = []
    if isinstance(plan, SurveyReads):
        rows = plan.n_rows.items()
        models = [{"name": name, "rows": n, "bytes": plan.n_bytes[name], "error": None} for name, n in rows]
        models += [{"name": name, "rows": None, "bytes": None, "error": why} for name, why in plan.failures.items()]
    return {
        "kind": cost.kind,
        "bytes_at_least": cost.n_bytes[0],
        "bytes_if_nothing_settles_it": cost.n_bytes[1],
        "bytes_limit": limits.n_bytes,
        "bytes_of_weights": None if comparison is None else comparison.bytes_of_weights,
        "seconds_at_least": round(cost.seconds[0], 1),
        "seconds_if_nothing_settles_it": round(cost.seconds[1], 1),
        "requests": None if cost.requests is None else cost.requests.api + cost.requests.files,
        "peak_memory_bytes": cost.memory_bytes,
        "common_tokens": None if comparison is None else comparison.common_tokens,
        "excluded_noise": cost.excluded_noise,
        "models": models,
        "says": "" if isinstance(plan, ReadPlan) else in_sentences(plan, pace, limits),
        "fits": not cost.why_not,
    }
