"""State the result in one quotable line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mdir_hf.names import shown_name, visible_text, without_common_folder
from mdir_hf.report.models import ModelSummary
from mdir_hf.report.parts import ExpertName, LayerTable, StackPair
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import Outcome, Reason, SettledBy, Verdict
from mdir_hf.report.words import OF_MEMORY, counted, not_compared_text, percent_text, unmatched_share, unmatched_text

NAME_LENGTH = 48
NOTHING_FOUND = "No shared weights were found"
NO_PROOF = "This does not prove that the models are independent."
NEITHER = "This is evidence neither for nor against a relation."
LONGEST_CAUSE = 320
"""Maximum length of a caveat that is the warning, because it says why the layers could not be compared."""
MOST_RUNS = 6
"""Maximum number of runs of layers listed in a sentence; beyond that, layers are counted."""

_INCONCLUSIVE = {
    Reason.SAMPLE_CHOSEN: "{pair} agree, but in a sample that a given seed selected.",
    Reason.EMBEDDINGS_ONLY: "{pair} share their {tables}; {neurons}.",
    Reason.ATTENTION_ONLY: "Attention heads of {pair} are alike; {neurons}.",
    Reason.LOADING_UNKNOWN: "{pair} share weights in a part that may not be loaded.",
    Reason.WEIGHTS_UNREADABLE: "Too few weights of {pair} could be compared.",
    Reason.UNFINISHED: f"{NOTHING_FOUND} yet; the comparison of {{pair}} is not finished.",
}


def sentence_of(report: HomologyReport) -> str:
    """Return the result as a sentence to quote, of at most 15 words, that implies no direction."""
    reference, candidate = names_of(report)
    pair = f"{candidate} and {reference}"
    if report.verdict is Verdict.INCONCLUSIVE:
        text = (
            "Whether {pair} share weights could not be told." if report.reason is None else _INCONCLUSIVE[report.reason]
        )
        which = " of the main stacks" if any(pair.layers for pair in report.parts or ()) else ""
        neurons = "no neurons were compared" if report.neurons is None else f"no neurons{which} match"
        shared = (f"{name}s" for name, matrix in report.matrices.items() if matrix.is_significant or matrix.is_copied)
        return text.format(pair=pair, neurons=neurons, tables=next(shared, "embeddings"))
    if report.verdict is Verdict.NO_EVIDENCE:
        return _nothing_found(report, pair)
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        return f"{pair} have the same weight files."
    subject = f"Parts of {pair}" if report.settled_by is SettledBy.PARTS else pair
    return f"{subject} share weights ({report.strength})."


def warning_of(report: HomologyReport) -> str | None:
    """Return the one sentence that a reader of :func:`sentence_of` must not miss, or None."""
    reference, candidate = names_of(report)
    related = [part_relation(pair, reference, candidate) for pair in _beside_the_main_stacks(report)]
    if report.verdict is Verdict.HOMOLOGOUS:
        is_part = report.settled_by is SettledBy.PARTS
        texts = [_unmatched(report, reference, candidate), _as_sentence(related[0]) if related else None]
        return next(filter(None, reversed(texts) if is_part else texts), None)
    if related:
        return _as_sentence(related[0])
    if report.reason is Reason.WEIGHTS_UNREADABLE and report.caveats:
        return visible_text(report.caveats[0], length=LONGEST_CAUSE)
    if report.verdict is not Verdict.NO_EVIDENCE:
        return NEITHER
    left_out = next((caveat for caveat in report.caveats if caveat.endswith(OF_MEMORY)), None)
    if left_out is not None:
        return f"{left_out.partition(':')[0]}: there was too little memory. {NO_PROOF}"
    n_agreeing = _n_agreeing_projections(report)
    if n_agreeing:
        rows = f"Sampled rows of {counted(n_agreeing, 'projection')} agree"
        return f"{rows}; no neurons match, and matrices can be edited so that rows agree."
    alike = [name for name, matrix in report.matrices.items() if matrix.is_significant]
    return f"Their {alike[0]}s are alike, but not copies. {NO_PROOF}" if alike else NO_PROOF


def _n_agreeing_projections(report: HomologyReport) -> int:
    """Return the number of projections whose sampled rows agree, at levels that compare them."""
    return 0 if report.projections is None else report.projections.counts().get(Outcome.ROWS_AGREE, 0)


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _beside_the_main_stacks(report: HomologyReport) -> list[StackPair]:
    """Return the related parts that the sentence does not imply."""
    related = [pair for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS]
    if report.verdict is not Verdict.HOMOLOGOUS:
        return related
    return [pair for pair in related if not pair.is_loaded or report.settled_by is SettledBy.PARTS]


def _nothing_found(report: HomologyReport, pair: str) -> str:
    are_layers_excluded = report.neurons is not None or (
        report.excludes is not None and report.excludes.keys is not None
    )
    has_related_parts = bool(_beside_the_main_stacks(report))
    if not are_layers_excluded and report.matrices and (has_related_parts or not report.parts):
        return f"{NOTHING_FOUND} between the {next(iter(report.matrices))}s of {pair}."
    if has_related_parts:
        return f"{NOTHING_FOUND} between the language models of {pair}."
    sides = () if report.coverage is None else (report.coverage.reference, report.coverage.candidate)
    if all(not_compared_text(side) is None and not any(entry.is_match for entry in side) for side in sides):
        return f"{NOTHING_FOUND} between {pair}."
    shares = [unmatched_share(side) for side in sides]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return f"{NOTHING_FOUND} between the compared parts of {pair}."
    # The smaller share, and never 100 %, because something was left out.
    return f"{NOTHING_FOUND} between {pair} in {percent_text(min(0.99, *known))} of the bytes."


def part_relation(pair: StackPair, reference: str, candidate: str) -> str:
    """State that two parts (towers, talkers, experts) share weights."""
    if pair.experts:
        candidate_experts = experts_text([origin.candidate for origin in pair.experts])
        reference_experts = experts_text([origin.reference for origin in pair.experts])
        verb = "shares" if len({origin.candidate for origin in pair.experts}) == 1 else "share"
        layer = pair.layers[0]
        subject = f"{candidate_experts} of layer {layer.candidate} of {candidate}"
        return f"{subject} {verb} weights with {reference_experts} of layer {layer.reference} of {reference}"
    if not pair.is_loaded:
        return _relation_of_unloaded(pair, reference, candidate)
    subject = f"the {shown_name(pair.candidate)} of {candidate}"
    return f"{subject} shares weights with the {shown_name(pair.reference)} of {reference}"


def _relation_of_unloaded(pair: StackPair, reference: str, candidate: str) -> str:
    """State that a part that a model does not load, or may not load, holds copies."""
    is_candidate = not pair.candidate_is_loaded
    holder, other = (candidate, reference) if is_candidate else (reference, candidate)
    is_loaded = pair.candidate_is_loaded if is_candidate else pair.reference_is_loaded
    copied = runs_text([layer.reference if is_candidate else layer.candidate for layer in pair.layers])
    held_part, copied_part = (pair.candidate, pair.reference) if is_candidate else (pair.reference, pair.candidate)
    use = "which this model does not load" if is_loaded is False else "and it is unknown whether this model loads them"
    return (
        f"the files of {holder} also contain copies of {copied} of the {shown_name(copied_part)} of {other} "
        f"({shown_name(held_part)}), {use}"
    )


def _unmatched(report: HomologyReport, reference: str, candidate: str) -> str | None:
    """Name large parts of related models that match nothing, as a sentence; None if there are none."""
    if report.coverage is None:
        return None
    sides = ((reference, report.coverage.reference), (candidate, report.coverage.candidate))
    clauses = [f"{text} of {name}" for name, side in sides if (text := unmatched_text(side))]
    return f"No match in {' and '.join(clauses)}." if clauses else None


def experts_text(names: Iterable[ExpertName]) -> str:
    """Name experts, such as ``experts 0, 2 and 5``, ``the shared expert`` or ``the dense MLP``."""
    distinct = set(names)
    numbers = sorted(name for name in distinct if isinstance(name, int))
    texts = [runs_text(numbers, noun="expert")] if numbers else []
    texts += ["the shared expert"] if "shared" in distinct else []
    texts += ["the dense MLP"] if None in distinct else []
    return " and ".join(texts)


def names_of(report: HomologyReport) -> tuple[str, str]:
    """Return short names of the reference and the candidate, without the folder that local models share.

    If the names are equal, a detail that differs is added.
    """
    models = report.reference, report.candidate
    _, short_names = without_common_folder([model.repo for model in models])
    names = [shown_name(name, length=NAME_LENGTH) for name in short_names]
    if names[0] != names[1]:
        return names[0], names[1]
    details = [_told_apart(model) for model in models]
    if details[0] == details[1]:
        details = ["the reference", "the candidate"]
    return f"{names[0]} ({details[0]})", f"{names[1]} ({details[1]})"


def _told_apart(model: ModelSummary) -> str:
    details = [model.revision or "", model.read_as, model.commit[:8] if model.commit else ""]
    return shown_name(", ".join(filter(None, details)), length=NAME_LENGTH) if any(details) else ""


def unread_experts_text(table: LayerTable) -> str:
    """Say how many experts were compared, such as ``8 of 128 experts of a layer``; empty if all were."""
    sizes = {
        (len(result.experts), len(result.experts) + result.unread_experts[1])
        for result in table.results
        if result.experts is not None and result.unread_experts[1]
    }
    if not sizes:
        return ""
    n_compared, n_experts = min(sizes, key=lambda size: size[0] / size[1])
    return f"{n_compared} of {n_experts} experts of a layer"


def runs_text(layers: Sequence[int], *, noun: str = "layer") -> str:
    """Name layers by number, such as ``layers 0, 2 and 8 to 23``, or count them if there are many runs."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    if len(runs) > MOST_RUNS:
        return counted(len(set(layers)), noun)
    texts = [
        text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(layer) for layer in run])
    ]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    return f"{noun if len(set(layers)) == 1 else f'{noun}s'} {listed}"
