"""State the result in one quotable line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mdir_hf.names import shown_name
from mdir_hf.render.sections import counted
from mdir_hf.report.models import ModelSummary
from mdir_hf.report.optional_parts import HeadsFound, LayerTable, ModuleResult, NeuronsFound, StackPair
from mdir_hf.report.parts import ExpertName, LayersResult, MatrixResult
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import Assumption, LayerPattern, ResidualMap, SettledBy, Transformation, Verdict
from mdir_hf.report.words import REASON_TEXT, chance_text, matched_neurons_text, not_compared_text, numbers_text

NAME_LENGTH = 60
NO_PROOF = "This does not prove that the models are independent."
NOTHING_FOUND = f"No shared weights were found. {NO_PROOF}"
"""Sentence for a "no" after a comparison of all parts; numbers are shown below it."""
MOST_RUNS = 6
"""Maximum number of runs of layers listed in a sentence; beyond that, layers are counted."""

_ORDERS = {
    Transformation.IDENTITY: "in the same order",
    Transformation.PERMUTATION: "in another order",
    Transformation.SIGNED_PERMUTATION: "in another order and some with flipped signs",
}
_MAPS = {
    ResidualMap.IDENTITY: "with the channels in place",
    ResidualMap.PERMUTATION: "with the channels in another order",
    ResidualMap.SIGNED_PERMUTATION: "with the channels in another order and some with flipped signs",
    ResidualMap.CHANNELS: "on the matched channels",
    ResidualMap.ROTATION: "once the channels of one model are rotated",
}


def sentence_of(report: HomologyReport) -> str:
    """Return the result as one line of text that implies no direction."""
    reference, candidate = _names(report)
    related_parts = [
        part_relation(pair, reference, candidate) for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS
    ]
    related = "".join(f"; {text}" for text in related_parts)
    if report.verdict is Verdict.INCONCLUSIVE:
        why = "" if report.reason is None else f": {REASON_TEXT[report.reason]}"
        return f"Whether {candidate} and {reference} share weights could not be told{why}{related}."
    if report.verdict is Verdict.NO_EVIDENCE:
        if related:
            return f"No shared weights were found between the language models of {candidate} and {reference}{related}."
        return _nothing_found(report)
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        return f"{candidate} and {reference} have the same weight files, byte for byte."
    evidence = [*_of_matrices(report), *_of_neurons(report)]
    if _rests_on_numbers(report) and report.log10_p is not None:
        evidence.append(chance_text(report.log10_p))
    if evidence or not related_parts:
        evidence += [*_of_layers(report, reference, candidate), *related_parts]
    else:
        evidence = [*related_parts, "no other match was found"]
    return f"{candidate} and {reference} share weights: {'; '.join(evidence) or 'see the evidence'}."


def part_relation(pair: StackPair, reference: str, candidate: str) -> str:
    """State that two parts (towers, talkers, experts) share weights."""
    if pair.experts:
        candidate_experts = experts_text([origin.candidate for origin in pair.experts])
        reference_experts = experts_text([origin.reference for origin in pair.experts])
        verb = "shares" if len({origin.candidate for origin in pair.experts}) == 1 else "share"
        layer = pair.layers[0]
        subject = f"{candidate_experts} of layer {layer.candidate} of {candidate}"
        return f"{subject} {verb} weights with {reference_experts} of layer {layer.reference} of {reference}"
    subject = f"the {shown_name(pair.candidate)} of {candidate}"
    return f"{subject} shares weights with the {shown_name(pair.reference)} of {reference}"


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
    excludes = report.excludes
    if excludes is not None and excludes.layers_noise is None:
        return f"No shared weights were found in the embeddings; the layers were not compared. {NO_PROOF}"
    ledgers = () if report.coverage is None else (report.coverage.reference, report.coverage.candidate)
    if any(map(not_compared_text, ledgers)):
        return f"No shared weights were found in the parts that were compared. {NO_PROOF}"
    return NOTHING_FOUND


def _of_matrices(report: HomologyReport) -> Iterable[str]:
    for step, name, matrix in (
        ((SettledBy.SCREEN, SettledBy.EMBEDDING), "embeddings", report.embedding),
        ((SettledBy.UNEMBEDDING,), "unembeddings (lm_head)", report.unembedding),
    ):
        if report.settled_by in step and matrix is not None and matrix.transformation in _ORDERS:
            numbers = matrix.numbering if report.assumption is Assumption.NUMBERING else None
            by_number = "" if numbers is None else f"; {numbers_text(numbers)}"
            yield f"the channels of their {name} match {_how(matrix, report)}{by_number}"


def _how(matrix: MatrixResult, report: HomologyReport) -> str:
    order = _ORDERS[matrix.transformation]
    if matrix.keeps_order:
        order = _ORDERS[Transformation.IDENTITY]
    widths = sorted(w for w in (report.reference.hidden_size, report.candidate.hidden_size) if w is not None)
    n = matrix.matched_channels or 0
    if len(widths) == 2 and 2 * n >= widths[0]:
        among = "" if widths[0] == widths[1] else f" of the {widths[1]:,} of the wider one"
        return f"{order} ({n:,} of {widths[0]:,} one by one{among})"
    return f"{order}, all of them together, though few or none by itself"


def _rests_on_numbers(report: HomologyReport) -> bool:
    """Return whether p bounds the probability of the agreement that the sentence mentions."""
    matrices = (report.embedding, report.unembedding)
    has_numbers = any(matrix is not None and matrix.numbering is not None for matrix in matrices)
    neurons = report.neurons
    is_witness = neurons is not None and neurons.is_witness and not neurons.is_searched
    return report.assumption is Assumption.NUMBERING and (is_witness or (has_numbers and any(_of_matrices(report))))


def _of_neurons(report: HomologyReport) -> Iterable[str]:
    if report.neurons is not None and report.neurons.matches:
        yield matched_neurons_text(report.neurons)


def _of_layers(report: HomologyReport, reference: str, candidate: str) -> Iterable[str]:
    layers = report.layers
    if layers is None and report.neurons is not None and report.neurons.matches:
        yield "no other part of the layers was compared"
        return
    if layers is None:
        yield "the layers were not compared"
        return
    if not layers.matches and report.settled_by is SettledBy.NEURONS:
        yield "no other match was found"
        return
    if not layers.matches:
        is_told = layers.pattern in (LayerPattern.NEIGHBOURS, LayerPattern.NOT_ACCEPTED)
        yield layers.pattern.words if is_told else LayerPattern.NONE.words
    else:
        basis = _MAPS[layers.residual_map] if report.settled_by is SettledBy.LAYERS else ""
        n_of_candidate = max(report.candidate.layers or 0, layers.n_candidate_layers)
        yield f"{_map_words(layers, reference, candidate, n_of_candidate)}{f', {basis}' if basis else ''}"
    table = report.projections
    if table is not None and table.is_confirmed and table.results:
        yield projections_text(table)
    elif inside := _inside_words(report.modules or (), len(layers.matches)):
        yield inside
    if report.settled_by is SettledBy.LAYERS:
        yield "their embeddings by themselves do not settle it"


def _map_words(layers: LayersResult, reference: str, candidate: str, n_of_candidate: int) -> str:
    """Describe matched layers; "all layers" means all layers of the candidate."""
    n, n_all = len(layers.matches), layers.n_candidate_layers
    if layers.pattern is LayerPattern.SAMPLED or n_all < n_of_candidate:
        return f"{n} of the {n_all} layers of {candidate} that were compared match layers of {reference}"
    if layers.pattern is LayerPattern.IDENTITY:
        return f"all {counted(n, 'layer')} match in their places"
    times = Counter(match.reference for match in layers.matches)
    repeated = [layer for layer, n_times in times.items() if n_times > 1]
    absent = set(layers.reference_layers) - set(times)
    listed = "" if n == n_all else f" ({runs_text([match.candidate for match in layers.matches])})"
    whose = f"all {counted(n, 'layer')}" if n == n_all else f"{n} of the {n_all} layers"
    partners = runs_text(list(times)) if absent and n == n_all else "layers"
    order = ", in another order" if layers.pattern is LayerPattern.REORDERED else ""
    if n == 1:
        return f"{whose} of {candidate}{listed} matches layer {layers.matches[0].reference} of {reference}"
    text = f"{whose} of {candidate}{listed} match {partners} of {reference}{order}"
    if repeated:
        often = "twice" if {times[layer] for layer in repeated} == {2} else "more than once"
        text += f", of which {runs_text(repeated)} {'occurs' if len(repeated) == 1 else 'occur'} {often}"
    if absent and n == n_all:
        left_over = runs_text(list(absent)).replace(f"{len(absent)} layers", f"{len(absent)} other layers")
        text += f"; {left_over} of {reference} {'matches' if len(absent) == 1 else 'match'} none"
    return text


def projections_text(table: LayerTable) -> str:
    """Count projections by outcome, and state how many rows were compared."""
    counts = [f"{n} {outcome.words}" for outcome, n in table.counts().items()]
    n_rows = max((result.rows for result in table.results), default=0)
    judged = f", judged by up to {n_rows} rows of each" if n_rows else ""
    unread = unread_experts_text(table)
    judged += f" and, in mixtures, by {unread}" if unread else ""
    if len(counts) == 1:
        return f"all {len(table.results)} projections are {next(iter(table.counts())).words}{judged}"
    counts[0] = counts[0].replace(" ", " are ", 1)
    return f"of {len(table.results)} projections, {', '.join(counts[:-1])} and {counts[-1]}{judged}"


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


def _inside_words(modules: Sequence[ModuleResult], n_matches: int) -> str:
    results = [module.found for module in modules if module.is_significant]
    neurons = [
        2 * result.moved_neurons > result.matched_neurons for result in results if isinstance(result, NeuronsFound)
    ]
    heads = [any(i != j for i, j in result.heads) for result in results if isinstance(result, HeadsFound)]
    what = [name for name, moved in (("heads", heads), ("neurons", neurons)) if 2 * sum(moved) > len(moved)]
    n = len({module.layer for module in modules})
    where = "inside the layers" if n == n_matches else f"inside the {counted(n, 'layer')} that were analysed"
    return f"{where}, {' and '.join(what)} stand in another order" if what else ""
