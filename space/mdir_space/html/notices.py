"""Notices that the page shows before an answer: plans, progress, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from mdir_hf import HomologyReport, ReadPlan, __version__
from mdir_hf.comparison.progress import LOOKED_FOR
from mdir_hf.installing import install_command
from mdir_hf.lineage.family import Family
from mdir_hf.render.reproduce import align_command, compare_command
from mdir_hf.report.words import counted
from mdir_space.html.links import query_of
from mdir_space.html.templates import render
from mdir_space.jobs.estimate import Pace, bytes_of, duration_text, size_text
from mdir_space.jobs.examples import Example
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.question import (
    FamilyQuestion,
    PairQuestion,
    Question,
    ReconstructionQuestion,
    RefusedError,
    SurveyQuestion,
    shortened,
)
from mdir_space.jobs.reconstruction import STAGE
from mdir_space.jobs.service import Queued, Running
from mdir_space.jobs.survey import SurveyResult

STAGES_OF_SEVERAL = {
    "opening": "Opening the models and their vocabularies",
    "index": "Searching the index of base models",
    "rows": "Reading sampled rows",
    "trees": "Drawing matrix and tree",
}
COMPARING = "Comparing with the models that were found or declared"
BROKEN = (
    "Something went wrong on this server, and the error was logged. Try again; if it fails again, run the comparison "
    "on your own machine."
)


def plan_notice(plan: ReadPlan, pace: Pace, limits: Limits, fields: Sequence[str] = ()) -> Markup:
    """Describe a planned comparison: bytes, time and memory.

    The page hides the notice when the content of its fields differs from ``fields``, unless ``fields`` is empty.
    """
    first, most = bytes_of(plan)
    least_s, most_s = pace.seconds(plan)
    times = dict.fromkeys((duration_text(least_s), duration_text(most_s)))
    fits = does_not_fit(plan, limits)
    if first == most:
        reads = f"Reads about {size_text(most)}"
    else:
        reads = f"Reads at least {size_text(first)}, and at most {size_text(most)} if no step settles the question"
    opening = f", {size_text(plan.opening_bytes)} of it headers and tokenizers" if plan.opening_bytes else ""
    parts = [f"{reads}{opening}; both models have {size_text(plan.bytes_of_weights)} of weights."]
    if limits.n_bytes is not None and not fits and most > limits.n_bytes:
        parts.append(f"It stops at {size_text(limits.n_bytes)}, the limit here, and shows its results so far.")
    parts += [
        f"Takes {' to '.join(times)}, by estimate.",
        _memory_text(plan, limits),
    ]
    if fits:
        parts.append(fits)
    return render("plan", said=" ".join(parts), kind="too-large" if fits else "", asked=fields)


def _memory_text(plan: ReadPlan, limits: Limits) -> str:
    peak = f"Needs {size_text(plan.peak_memory_bytes)} of memory"
    if limits.memory_bytes is None or plan.peak_memory_bytes <= limits.memory_bytes:
        return f"{peak}; it fits."
    return f"{peak}; steps that need more than {size_text(limits.memory_bytes)} are left out here."


def read_notice(report: HomologyReport, fields: Sequence[str]) -> Markup:
    """Compare the bytes read by a finished comparison with the planned bytes; empty without a plan."""
    io = report.io
    if io.bytes_planned is None:
        return Markup()
    least, most = map(size_text, io.bytes_planned)
    planned = least if least == most else f"{least}, or at most {most} if every step is needed"
    text = (
        f"Planned: {planned}. Read: {size_text(io.bytes_read + io.bytes_from_cache)}, headers and tokenizers included."
    )
    return render("plan", said=text, kind="", asked=fields)


def stored_notice(example: Example, fields: Sequence[str] = ()) -> Markup:
    """Return a notice that the fields name the models of a stored result.

    ``fields`` is as in :func:`plan_notice`; if it is empty, the two models of the example are used.
    """
    text = (
        f"These are the models of the stored result “{example.title}”. No repository has them under these names. "
        "Compare opens that result again without reading anything."
    )
    return render("plan", said=text, kind="stored", asked=fields or example.models)


def does_not_fit(plan: ReadPlan, limits: Limits) -> str:
    """Return why this server would refuse a planned comparison; empty if it would not."""
    if limits.memory_bytes is not None and plan.least_memory_bytes > limits.memory_bytes:
        return f"That does not fit: one comparison may use {size_text(limits.memory_bytes)} here."
    if limits.n_bytes is not None and bytes_of(plan)[0] > limits.n_bytes:
        return f"That is too much: one comparison may read {size_text(limits.n_bytes)} here."
    return ""


def in_words(step: Queued | Running[Any]) -> str:
    """Describe the state of a job in a sentence: its position in the queue, or its stage and its results so far."""
    if isinstance(step, Queued):
        return f"Waiting: {place_in_words(step)}."
    so_far = f" So far: {step.interim.sentence}" if isinstance(step.interim, HomologyReport) else ""
    return f"{_stage(step)}: {_read(step)}.{so_far}"


def place_in_words(step: Queued) -> str:
    """Return the place in the queue and the estimated wait, such as ``place 3 of 12, about 40 s``."""
    wait = f"{max(5, 5 * round(step.seconds / 5))} s" if step.seconds < 100.0 else f"{round(step.seconds / 60)} min"
    return f"place {step.n_ahead} of {step.n_waiting}, about {wait}"


def _stage(step: Running[Any]) -> str:
    stage = step.progress.stage
    words = "reconstructing the layers" if stage == STAGE else LOOKED_FOR.get(stage, stage)
    return words[:1].upper() + words[1:]


def _read(step: Running[Any]) -> str:
    """Return the number of bytes read, and how many parts of the stage are done."""
    at = step.progress
    if at.stage == STAGE:
        return f"layer {min(at.n_done + 1, at.n_parts or 1)} of {at.n_parts}"
    part_text = f", part {at.n_done + 1} of {at.n_parts}" if at.n_parts and at.n_done < at.n_parts else ""
    return f"{size_text(at.bytes_read)} read{part_text}"


def progress_notice(step: Queued | Running[Any]) -> Markup:
    """Return the progress of a comparison or reconstruction: its position in the queue, or its stage."""
    if isinstance(step, Queued):
        return render("progress", stage=in_words(step), step=None, so_far="")
    so_far = step.interim.sentence if isinstance(step.interim, HomologyReport) else ""
    return render("progress", stage=_stage(step), step=step, done=_read(step), so_far=so_far)


def progress_of_several(step: Queued | Running[Family] | Running[SurveyResult]) -> Markup:
    """Return the progress of a search or survey: its position in the queue, or its stage."""
    if isinstance(step, Queued):
        return progress_notice(step)
    stage = STAGES_OF_SEVERAL.get(step.progress.stage, COMPARING)
    done_text = f"{size_text(step.progress.bytes_read)} read"
    if isinstance(step.interim, SurveyResult):
        report = step.interim.report
        done_text = f"{len(report.models)} of {len(report.names)} models, {done_text}"
        if stage == COMPARING:
            stage = "Comparing pairs in full"
            n_pairs = sum(pair.layers_compared or pair.layer_drift is not None for pair in report.pairs.values())
            done_text = f"{counted(n_pairs, 'pair')} compared in full, {size_text(step.progress.bytes_read)} read"
    return render("progress", stage=stage, step=step, done=done_text, so_far="")


LIGHTER = {"layers": "auto"}
"""For each level, a level that reads less."""


def cut_short_notice(why: str, question: PairQuestion) -> Markup:
    """Say what a limit left out, and offer two ways to continue: a lighter level, or the visitor's own machine."""
    lighter = LIGHTER.get(question.level, "")
    query = query_of(question.reference, question.candidate, lighter, question.alpha)
    command = _local_command(question)
    title, label = "This result is incomplete", "The whole comparison on your own machine"
    return _alert(title, why, lighter=lighter, query=query, command=command, command_label=label)


def not_kept_notice(version: str) -> Markup:
    """Return a notice that a linked result is not cached, with a button that computes it again.

    ``version`` is the version of the package that computed the result.
    """
    again = "Press the button above to compute it again, at the same commits."
    if version != __version__:
        again += f" It was computed by mdir-hf {shortened(version, 40)}; this server runs {__version__}."
    return _alert("This result is no longer stored here", again, role="status")


NOT_DONE = {
    PairQuestion: "Not compared",
    ReconstructionQuestion: "Not reconstructed",
    FamilyQuestion: "Its family was not searched",
    SurveyQuestion: "The models were not surveyed",
}


def refusal_notice(refused: RefusedError, question: Question | None = None) -> Markup:
    """Return a notice that explains why a question is not answered, and what to do instead.

    ``question`` is None if it could not be parsed.
    """
    command = _local_command(question) if refused.runs_locally and isinstance(question, PairQuestion) else ""
    return _alert(
        "This is not a valid question" if question is None else NOT_DONE[type(question)],
        refused.message,
        choices=refused.choices,
        command=command,
        command_label="Run it on your own machine",
    )


def _alert(title: str, message: str, **more: object) -> Markup:
    nothing = {"role": "alert", "lighter": "", "query": "", "choices": {}, "command": "", "command_label": ""}
    return render("alert", title=title, message=message, **{**nothing, **more})


def _local_command(question: PairQuestion) -> str:
    if isinstance(question, ReconstructionQuestion):
        command = align_command(question.reference, question.candidate)
    else:
        command = compare_command(question.reference, question.candidate, level=question.level, alpha=question.alpha)
    return f"{install_command(for_others=True)}\n{command}"
