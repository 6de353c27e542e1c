"""What the page says while nothing is settled: plans, progress, refusals."""

from __future__ import annotations

from mdir_hf import ReadPlan, compare_command, install_command
from mdir_space.desk import Waiting, Working
from mdir_space.estimate import Pace, bytes_of, duration_text, size_text
from mdir_space.limits import Limits
from mdir_space.markup import code, text
from mdir_space.question import Question, RefusedError

STAGES = {
    "opening": "Opening the two models",
    "vocabulary": "Reading the vocabularies",
    "screen": "Looking at the embeddings",
    "embedding": "Comparing the embeddings",
    "unembedding": "Comparing the unembeddings",
    "layers": "Comparing the layers",
}
BROKEN = (
    "Something went wrong on this server, and it has been noted there. Try again; if it stays, run the comparison on "
    "your own machine."
)


def plan_notice(plan: ReadPlan, pace: Pace, limits: Limits) -> str:
    """Say what a comparison is going to read, how long it may take, and whether it fits."""
    first, most = bytes_of(plan)
    least_s, most_s = pace.seconds(plan)
    if first == most:
        reads = f"Reads {size_text(most)}"
    elif plan.level == "auto":
        reads = f"Reads {size_text(first)} if the first look settles it, at most {size_text(most)}"
    else:
        reads = f"Reads {size_text(first)} to {size_text(most)}"
    times = dict.fromkeys((duration_text(least_s), duration_text(most_s)))
    fits = does_not_fit(plan, limits)
    parts = [
        f"{reads} of {size_text(plan.bytes_of_weights)} of weights.",
        f"Takes {' to '.join(times)}, by estimate.",
        f"Needs {size_text(plan.peak_memory_bytes)} of memory{'' if fits else '; it fits'}.",
        f"{plan.common_tokens:,} tokens are common to both: a copy under noise of up to "
        f"{min(plan.excluded_noise, 100.0):.2g} times the weights would be found by its embeddings{_by_layers(plan)}.",
    ]
    if fits:
        parts.append(fits)
    return f'<p class="plan{" too-large" if fits else ""}">{text(" ".join(parts))}</p>'


def _by_layers(plan: ReadPlan) -> str:
    noise = plan.excluded_layers_noise
    return f", under {min(noise, 100.0):.2g} times by its layers" if noise else ""


def does_not_fit(plan: ReadPlan, limits: Limits) -> str:
    """Return why a plan is refused here; empty if it is not."""
    if limits.memory_bytes is not None and plan.peak_memory_bytes > limits.memory_bytes:
        return f"That does not fit: one comparison may use {size_text(limits.memory_bytes)} here."
    if limits.n_bytes is not None and bytes_of(plan)[0] > limits.n_bytes:
        return f"That is too much: one comparison may read {size_text(limits.n_bytes)} here."
    return ""


def progress_notice(step: Waiting | Working) -> str:
    """Say where a comparison is: in the queue, or at which stage with how many bytes."""
    if isinstance(step, Waiting):
        others = "1 comparison is" if step.n_ahead == 1 else f"{step.n_ahead} comparisons are"
        said = f"Waiting: {others} ahead of yours."
        return f'<div class="progress" data-say="{text(said)}"><p><b>{text(said)}</b></p><progress></progress></div>'
    stage = STAGES.get(step.progress.stage, step.progress.stage)
    n_bytes, expected = step.progress.bytes_read, step.progress.bytes_expected
    read = f"{size_text(n_bytes)} read"
    value = ""
    if expected:
        read += f", at most {size_text(expected)}"
        value = f' value="{min(1.0, n_bytes / expected):.3f}"'
    return (
        f'<div class="progress" data-say="{text(stage)}"><p><b>{text(stage)}</b> <span>{text(read)} · '
        f'{step.seconds:.0f} s</span></p><progress max="1"{value} aria-label="{text(stage)}"></progress></div>'
    )


def alert(refused: RefusedError, question: Question | None = None) -> str:
    """Say why a question is not answered, and what to do instead. Stays until the next question."""
    local = ""
    if refused.runs_locally and question is not None:
        command = compare_command(question.reference, question.candidate, level=question.level, alpha=question.alpha)
        local = code(f"{install_command(for_others=True)}\n{command}", "The same on your own machine")
    return f'<div class="alert" role="alert"><h2>Not compared</h2><p>{text(refused.message)}</p>{local}</div>'
