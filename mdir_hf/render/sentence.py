"""State the result in one quotable line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mdir_hf.names import shown_name
from mdir_hf.render.sections import counted
from mdir_hf.report.models import ModelSummary
from mdir_hf.report.optional_parts import LayerTable, StackPair
from mdir_hf.report.parts import ExpertName
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Verdict
from mdir_hf.report.words import REASON_TEXT, matched_neurons_text, not_compared_text, probability_text, unmatched_text

NAME_LENGTH = 60
NO_PROOF = "This does not prove that the models are independent."
NOTHING_FOUND = f"No shared weights were found. {NO_PROOF}"
"""Sentence for a "no" after a comparison of all parts; numbers are shown below it."""
MOST_RUNS = 6
"""Maximum number of runs of layers listed in a sentence; beyond that, layers are counted."""


def sentence_of(report: HomologyReport) -> str:
    """Return the result as one line of text that implies no direction."""
    reference, candidate = _names(report)
    related_parts = [
        part_relation(pair, reference, candidate) for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS
    ]
    related = "".join(f"; {text}" for text in related_parts)
    unmatched = _unmatched(report, reference, candidate)
    if report.verdict is Verdict.INCONCLUSIVE:
        why = "" if report.reason is None else f": {REASON_TEXT[report.reason]}"
        return f"Whether {candidate} and {reference} share weights could not be told{why}{related}."
    if report.verdict is Verdict.NO_EVIDENCE:
        if related:
            return f"No shared weights were found between the language models of {candidate} and {reference}{related}."
        return _nothing_found(report)
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        return f"{candidate} and {reference} have the same weight files, byte for byte."
    p = "" if report.log10_p is None else f" (p at most {probability_text(report.log10_p)})"
    if report.settled_by is SettledBy.PARTS or report.neurons is None:
        parts = "; ".join(related_parts) or "see the evidence"
        return f"{candidate} and {reference} share weights: {parts}{p}{unmatched}."
    return f"{candidate} and {reference} share weights: {matched_neurons_text(report.neurons)}{p}{related}{unmatched}."


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


def _unmatched(report: HomologyReport, reference: str, candidate: str) -> str:
    """Name large parts of related models that match nothing, as a clause; empty if there are none."""
    if report.coverage is None:
        return ""
    sides = ((reference, report.coverage.reference), (candidate, report.coverage.candidate))
    clauses = [f"; no match in {name}: {text}" for name, side in sides if (text := unmatched_text(side))]
    return "".join(clauses)


def experts_text(names: Iterable[ExpertName]) -> str:
    """Name experts, such as ``experts 0, 2 and 5``, ``the shared expert`` or ``the dense MLP``."""
    distinct = set(names)
    numbers = sorted(name for name in distinct if isinstance(name, int))
    texts = [runs_text(numbers, noun="expert")] if numbers else []
    texts += ["the shared expert"] if "shared" in distinct else []
    texts += ["the dense MLP"] if None in distinct else []
    return " and ".join(texts)


def _names(report: HomologyReport) -> tuple[str, str]:
    """Return the names of the two models; if they are equal, add a detail that differs."""
    models = report.reference, report.candidate
    names = [shown_name(model.repo, length=NAME_LENGTH) for model in models]
    if names[0] != names[1]:
        return names[0], names[1]
    details = [_told_apart(model) for model in models]
    if details[0] == details[1]:
        details = ["the reference", "the candidate"]
    return f"{names[0]} ({details[0]})", f"{names[1]} ({details[1]})"


def _told_apart(model: ModelSummary) -> str:
    details = [model.revision or "", model.read_as, model.commit[:8] if model.commit else ""]
    return shown_name(", ".join(filter(None, details)), length=NAME_LENGTH) if any(details) else ""


def _nothing_found(report: HomologyReport) -> str:
    alike = [name for name, matrix in report.matrices.items() if matrix.is_significant]
    if alike:
        return f"No shared weights were found; the {alike[0]}s are alike, but not copies. {NO_PROOF}"
    excludes = report.excludes
    are_layers_excluded = report.neurons is not None or (excludes is not None and excludes.keys is not None)
    if not are_layers_excluded and report.matrices and not report.parts:
        return f"No shared weights were found in the embeddings; the layers were not compared. {NO_PROOF}"
    ledgers = () if report.coverage is None else (report.coverage.reference, report.coverage.candidate)
    if any(map(not_compared_text, ledgers)):
        return f"No shared weights were found in the parts that were compared. {NO_PROOF}"
    return NOTHING_FOUND


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
