"""The cost of an answer before it starts, and what a negative answer would exclude: in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from mdir_hf import ReadPlan
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_hf.lineage.survey.requests import PlannedRequests
from mdir_hf.names import shown_name
from mdir_space.html.notices import does_not_fit, plan_notice
from mdir_space.html.templates import render
from mdir_space.jobs.estimate import OPENING_S, Pace, bytes_of, duration_text, size_text
from mdir_space.jobs.family import FamilyPlan
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.service import Plan

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


def notice_of(plan: Plan, pace: Pace, limits: Limits) -> Markup:
    """Return what the page says of a plan; HTML."""
    if isinstance(plan, ReadPlan):
        return plan_notice(plan, pace, limits)
    return render("plan", said=in_sentences(plan, pace, limits), kind="")


def in_sentences(plan: FamilyPlan | SurveyReads, pace: Pace, limits: Limits) -> str:
    """Return what is going to be read about one model, or about several, and what finding nothing will exclude."""
    cost = cost_of(plan, pace, limits)
    said = _of_survey(plan) if isinstance(plan, SurveyReads) else _of_family(plan)
    times = dict.fromkeys(map(duration_text, cost.seconds))
    if limits.n_bytes is not None and cost.n_bytes[1] > limits.n_bytes:
        said.append(f"It stops at {size_text(limits.n_bytes)} in all, the limit here, and shows what it found.")
    said.append(f"Takes {' to '.join(times)}, by estimate.")
    if cost.requests is not None and cost.requests.n_models:
        n_requests = cost.requests.api + cost.requests.files
        said.append(f"Sends at most {n_requests} requests to the Hub, and reads the rows from its CDN.")
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
        if search.n_bytes_of_neurons:
            said.append(
                "Where they show nothing, and to say which layers are whose, it reads neurons of all layers: "
                f"{size_text(search.n_bytes_of_neurons)}."
            )
        if search.excluded_noise is None:
            said.append("None of them has its width and enough of its tokens, so that the search can exclude no copy.")
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
        said.insert(1, f"{share} too few tokens to find anything by embeddings.")
    if plan.layers:
        said.append("Then it compares each model without a relative in full with one of each family, which reads more.")
    said += [f"{shown_name(name)} cannot be opened: {why}." for name, why in plan.failures.items()]
    return said


def _noise(noise: float) -> str:
    return f"{min(noise, STRONGEST_NOISE):.2g}"
