"""What the page says while nothing is settled: plans, progress, refusals."""

from __future__ import annotations

from typing import Any

from mdir_hf import HomologyReport, ReadPlan, __version__
from mdir_hf.installing import install_command
from mdir_hf.render.reproduce import compare_command
from mdir_space.addresses import query_of
from mdir_space.desk import Waiting, Working
from mdir_space.estimate import Pace, bytes_of, duration_text, size_text
from mdir_space.examples import Example
from mdir_space.limits import Limits
from mdir_space.markup import choices, code, text
from mdir_space.question import Question, RefusedError, shortened
from mdir_space.ways import FamilyQuestion, SurveyQuestion

STAGES = {
    "opening": "Opening the two models",
    "vocabulary": "Reading the vocabularies",
    "screen": "Looking at the embeddings",
    "embedding": "Comparing the embeddings",
    "unembedding": "Comparing the unembeddings",
    "layers": "Comparing the layers",
    "modules": "Looking at each matched pair of layers",
}
BROKEN = (
    "Something went wrong on this server, and it has been noted there. Try again; if it stays, run the comparison on "
    "your own machine."
)


def plan_notice(plan: ReadPlan, pace: Pace, limits: Limits) -> str:
    """Say what a comparison is going to read, how long it may take, what finding nothing would exclude, if it fits."""
    first, most = bytes_of(plan)
    least_s, most_s = pace.seconds(plan)
    times = dict.fromkeys((duration_text(least_s), duration_text(most_s)))
    fits = does_not_fit(plan, limits)
    if first == most:
        reads = f"Reads about {size_text(most)}"
    elif plan.level == "auto":
        reads = f"Reads {size_text(first)} if the first look settles it, more with every further look, and layers last"
    else:
        reads = f"Reads {size_text(first)} to about {size_text(most)}"
    parts = [f"{reads}; both models have {size_text(plan.bytes_of_weights)} of weights."]
    if limits.n_bytes is not None and not fits and most > limits.n_bytes:
        parts.append(f"Never more than {size_text(limits.n_bytes)}, the limit here: then what was found is shown.")
    parts += [
        f"Takes {' to '.join(times)}, by estimate.",
        f"Needs {size_text(plan.peak_memory_bytes)} of memory{'' if fits else '; it fits'}.",
        f"{plan.common_tokens:,} tokens are common to both: a copy under noise of up to "
        f"{min(plan.excluded_noise, 100.0):.2g} times the weights would be found by its embeddings{_by_layers(plan)}, "
        f"unless its channels were rotated{', or reordered under new embeddings' * bool(plan.excluded_layers_noise)}.",
    ]
    if fits:
        parts.append(fits)
    return f'<p class="plan{" too-large" if fits else ""}">{text(" ".join(parts))}</p>'


def _by_layers(plan: ReadPlan) -> str:
    noise = plan.excluded_layers_noise
    return f", under {min(noise, 100.0):.2g} times by its layers" if noise else ""


def stored_notice(example: Example) -> str:
    """Say of the names in the fields that they are of a stored result."""
    said = (
        f"These are the models of the stored result “{example.title}”: they are in no repository under these names. "
        "Compare opens that result again, and reads nothing."
    )
    return f'<p class="plan stored">{text(said)}</p>'


def does_not_fit(plan: ReadPlan, limits: Limits) -> str:
    """Return why a plan is refused here; empty if it is not."""
    if limits.memory_bytes is not None and plan.peak_memory_bytes > limits.memory_bytes:
        return f"That does not fit: one comparison may use {size_text(limits.memory_bytes)} here."
    if limits.n_bytes is not None and bytes_of(plan)[0] > limits.n_bytes:
        return f"That is too much: one comparison may read {size_text(limits.n_bytes)} here."
    return ""


def in_words(step: Waiting | Working[Any]) -> str:
    """Say in a sentence where some work is: in the queue, or at which stage, and what it has found so far."""
    if isinstance(step, Waiting):
        others = "1 comparison is" if step.n_ahead == 1 else f"{step.n_ahead} comparisons are"
        return f"Waiting: {others} ahead of yours."
    found = f" So far: {step.found.sentence}" if isinstance(step.found, HomologyReport) else ""
    return f"{_stage(step)}: {_read(step)}.{found}"


def _stage(step: Working[Any]) -> str:
    return STAGES.get(step.progress.stage, step.progress.stage)


def _read(step: Working[Any]) -> str:
    """What was read, and how many parts of the stage are done, without a bound that would not be one."""
    told = step.progress
    parts = {"layers": "map", "modules": "matched pair of layers"}.get(told.stage, "part")
    done = f", {parts} {told.n_done + 1} of {told.n_parts}" if told.n_parts and told.n_done < told.n_parts else ""
    return f"{size_text(told.bytes_read)} read{done}"


def progress_notice(step: Waiting | Working[HomologyReport]) -> str:
    """Say where a comparison is: in the queue, or at which of its stages."""
    if isinstance(step, Waiting):
        said = in_words(step)
        return f'<div class="progress" data-say="{text(said)}"><p><b>{text(said)}</b></p><progress></progress></div>'
    stage = _stage(step)
    found = ""
    if step.found is not None:
        found = f'<p class="so-far">So far: {text(step.found.sentence)}</p>'
    return (
        f'<div class="progress" data-say="{text(stage)}"><p><b>{text(stage)}</b> <span>{text(_read(step))} · '
        f"{step.seconds:.0f} s</span></p>{bar(step, stage)}{found}</div>"
    )


def bar(step: Working[Any], stage: str) -> str:
    """Return the bar of all the work, which bears the name of its stage."""
    return f'<progress max="1" value="{step.share:.3f}" aria-label="{text(stage)}"></progress>'


LIGHTER = {"layers": "embedding", "auto": "screen", "embedding": "screen"}
"""The level that reads less."""


def cut_short_notice(why: str, question: Question) -> str:
    """Say what a limit left out, with the ways to go on: a lighter level here, or all of it on one's own machine."""
    lighter = LIGHTER.get(question.level)
    way = ""
    if lighter is not None:
        query = query_of(question.reference, question.candidate, lighter, question.alpha)
        way = f'<p><a href="?{text(query)}">Compare at the lighter level “{text(lighter)}”</a></p>'
    command = compare_command(question.reference, question.candidate, level=question.level, alpha=question.alpha)
    return (
        f'<div class="alert" role="alert"><h2>Not everything was looked at</h2><p>{text(why)}</p>{way}'
        f"{code(install_command(for_others=True) + chr(10) + command, 'All of it, on your own machine')}</div>"
    )


def not_kept_notice(version: str) -> str:
    """Say that the result of an address is not here, and how to have it.

    Args:
        version: Of the package that gave it.
    """
    again = "Press the button above to compute it again, at the same commits."
    if version != __version__:
        again += f" It was computed by mdir-hf {shortened(version, 40)}, and here {__version__} is at work."
    return f'<div class="alert" role="status"><h2>This result is not kept here</h2><p>{text(again)}</p></div>'


NOT_DONE = {
    Question: "Not compared",
    FamilyQuestion: "Its family was not looked for",
    SurveyQuestion: "The models were not surveyed",
}
"""What was not done, by what was asked."""


def alert(refused: RefusedError, question: Question | FamilyQuestion | SurveyQuestion | None = None) -> str:
    """Say why a question is not answered, and what to do instead. Stays until the next question.

    Args:
        refused: Why not.
        question: What was asked; None where that could not be understood.
    """
    local = ""
    if refused.runs_locally and isinstance(question, Question):
        command = compare_command(question.reference, question.candidate, level=question.level, alpha=question.alpha)
        local = code(f"{install_command(for_others=True)}\n{command}", "The same on your own machine")
    title = "That cannot be asked" if question is None else NOT_DONE[type(question)]
    more = "".join(choices(asked, names) for asked, names in refused.choices.items()) + local
    return f'<div class="alert" role="alert"><h2>{title}</h2><p>{text(refused.message)}</p>{more}</div>'
