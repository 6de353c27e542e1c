"""Describe the planned cost of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mdir_hf import ReadPlan
from mdir_hf.lineage.survey.reads import PlannedRequests, SurveyReads
from mdir_hf.names import shown_name
from mdir_space.html.notices import does_not_fit, plan_notice
from mdir_space.html.templates import render
from mdir_space.jobs.estimate import OPENING_S, Pace, bytes_of, duration_text, size_text
from mdir_space.jobs.family import FamilyPlan
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.service import Plan

STRONGEST_NOISE = 100.0
"""Excluded noise above this value is shown as this value."""


@dataclass(frozen=True)
class Cost:
    """The cost of a plan.

    Attributes:
        kind: ``comparison``, ``family`` or ``survey``.
        n_bytes: Minimum number of bytes to read, and approximate number if every step is needed.
        seconds: Estimated duration in these two cases.
        memory_bytes: Estimated memory; None if not planned.
        requests: Number of requests to the Hub; None if not planned.
        why_not: Reason why this server would refuse the job, or empty.
    """

    kind: str
    n_bytes: tuple[int, int]
    seconds: tuple[float, float]
    memory_bytes: int | None
    requests: PlannedRequests | None
    why_not: str = ""


def cost_of(plan: Plan, pace: Pace, limits: Limits) -> Cost:
    """Return the cost of a plan."""
    if isinstance(plan, ReadPlan):
        why_not = does_not_fit(plan, limits)
        return Cost("comparison", bytes_of(plan), pace.seconds(plan), plan.peak_memory_bytes, None, why_not)
    if isinstance(plan, SurveyReads):
        n_bytes = sum(plan.n_bytes.values())
        seconds = pace.seconds_of_survey(n_bytes, n_models=len(plan.n_rows), n_pairs=plan.n_pairs)
        return Cost("survey", (n_bytes, n_bytes), seconds, None, plan.requests)
    comparisons = tuple(plan.comparisons.values())
    searched = 0 if plan.search is None else plan.search.n_bytes
    least = searched + sum(bytes_of(comparison)[0] for comparison in comparisons)
    most = searched + sum(bytes_of(comparison)[1] for comparison in comparisons)
    first_s = OPENING_S + searched / pace.bytes_per_s
    times = [pace.seconds(comparison) for comparison in comparisons]
    return Cost(
        "family",
        (least, most),
        (first_s + sum(shortest for shortest, _ in times), first_s + sum(longest for _, longest in times)),
        max((comparison.peak_memory_bytes for comparison in comparisons), default=None),
        plan.requests,
    )


def notice_of(plan: Plan, pace: Pace, limits: Limits, fields: Sequence[str] = ()) -> Markup:
    """Return the notice of a plan as HTML; for the arguments, see :func:`plan_notice`."""
    if isinstance(plan, ReadPlan):
        return plan_notice(plan, pace, limits, fields)
    return render("plan", said=in_sentences(plan, pace, limits), kind="", asked=fields)


def in_sentences(plan: FamilyPlan | SurveyReads, pace: Pace, limits: Limits) -> str:
    """Describe the cost of a search or a survey."""
    cost = cost_of(plan, pace, limits)
    sentences = _of_survey(plan) if isinstance(plan, SurveyReads) else _of_family(plan)
    times = dict.fromkeys(map(duration_text, cost.seconds))
    if limits.n_bytes is not None and cost.n_bytes[1] > limits.n_bytes:
        sentences.append(
            f"It stops at {size_text(limits.n_bytes)} in all, the limit here, and shows its results so far."
        )
    sentences.append(f"Takes {' to '.join(times)}, by estimate.")
    if cost.requests is not None and cost.requests.n_models:
        n_requests = cost.requests.api + cost.requests.files
        sentences.append(f"Sends at most {n_requests} requests to the Hub, and reads the rows from its CDN.")
    return " ".join(sentences)


def _of_family(plan: FamilyPlan) -> list[str]:
    sentences = []
    search = plan.search
    if search is not None:
        bases = "one base model" if search.n_bases == 1 else f"{search.n_bases} base models"
        sentences.append(
            f"The search reads {search.n_rows} rows of the embedding, {size_text(search.n_bytes)}, and compares them "
            f"with the index of {bases}."
        )
        if search.n_bytes_of_neurons:
            sentences.append(
                "If they show nothing, or to match layers, it also reads neurons of all layers: "
                f"{size_text(search.n_bytes_of_neurons)}."
            )
        if search.excluded_noise is None:
            sentences.append(
                "None of them has its width and shares enough tokens, so the search cannot exclude a copy."
            )
        else:
            which, it = ("One is", "it") if search.n_of_width == 1 else (f"{search.n_of_width} are", "one of those")
            sentences.append(
                f"{which} as wide as this model: a copy of {it} with noise of up to {_noise(search.excluded_noise)} "
                "times the weights would be found, unless its channels were rotated. Bases that it finds are also "
                "compared in full if they are on the Hub."
            )
    for base, comparison in plan.comparisons.items():
        first, most = map(size_text, bytes_of(comparison))
        sentences.append(
            f"The card declares {shown_name(base)}: comparing the two reads {first} if the first step settles it, "
            f"at most {most} if every step is needed."
        )
    for base, why in plan.not_planned.items():
        what = f"The card declares {shown_name(base)}, which cannot be opened" if base else "The card cannot be read"
        sentences.append(f"{what}: {why}")
    n_more = len(plan.declared) - len(plan.comparisons) - sum(bool(base) for base in plan.not_planned)
    if n_more:
        sentences.append(f"It declares {n_more} more, which are compared as well.")
    return sentences


def _of_survey(plan: SurveyReads) -> list[str]:
    rows = sorted(filter(None, plan.n_rows.values()))
    pairs = "1 pair" if plan.n_pairs == 1 else f"{plan.n_pairs} pairs"
    if rows:
        spread = f"{rows[0]:,}" if rows[0] == rows[-1] else f"{rows[0]:,} to {rows[-1]:,}"
        sentences = [
            f"Reads {spread} rows of each of {len(rows)} models, {size_text(sum(plan.n_bytes.values()))} in all, and "
            f"compares {pairs}."
        ]
    else:
        sentences = ["Continues the survey without layers: no row is read again."]
    if plan.layers:
        sentences.append("Then it compares pairs without a finding in full, which reads more.")
    sentences += [f"{shown_name(name)} cannot be opened: {why}." for name, why in plan.failures.items()]
    return sentences


def _noise(noise: float) -> str:
    return f"{min(noise, STRONGEST_NOISE):.2g}"
