"""Describe the table of projections as text."""

from __future__ import annotations

from collections.abc import Sequence

from mdir_hf.render.sections import Line, Table
from mdir_hf.render.sentence import runs_text, unread_experts_text
from mdir_hf.report.parts import ComparedExpert, LayerDrift, LayerTable, ProjectionResult
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import ModuleRole, Outcome
from mdir_hf.report.words import counted

ROLES = (
    ModuleRole.Q,
    ModuleRole.K,
    ModuleRole.V,
    ModuleRole.O,
    ModuleRole.GATE,
    ModuleRole.UP,
    ModuleRole.DOWN,
    ModuleRole.MIXER_GATE,
    ModuleRole.SSM_IN,
    ModuleRole.SSM_OUT,
)
QUIET = (Outcome.KEPT, Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT)
"""Outcomes that terminal output counts instead of listing by layer."""

MOST_LISTED = 12
"""Maximum number of layers in a terminal line, and of rows in the short table."""

UNCONFIRMED_WORDS = "No neurons match, so the table says which rows agree, and not why."


def outcome_words(result: ProjectionResult) -> str:
    """Describe the change of a projection in a few words."""
    words = result.outcome.words
    if result.outcome is Outcome.FROM_LAYER and result.source is not None:
        return f"from layer {result.source}"
    details = [] if result.share is None or result.share >= 0.995 else [f"{result.share:.0%}"]
    if result.share is not None and result.experts is not None:
        details = _expert_details(result.experts, result.unread_experts[1])
    is_named = result.outcome in (Outcome.PERMUTED, Outcome.ROTATED_IN_HEADS, Outcome.ROWS_AGREE)
    if result.moved is not None and is_named:
        words_of = {Outcome.PERMUTED: result.moved}
        details.append(words_of.get(result.outcome, f"{result.moved} permuted"))
    if result.is_turned and result.outcome is Outcome.ROWS_AGREE:
        details.append("rotated in heads")
    if result.source is not None:
        details.append(f"layer {result.source}")
    return words + (f" ({', '.join(details)})" if details else "")


def _expert_details(experts: Sequence[ComparedExpert], n_unread: int) -> list[str]:
    """Say how many of a layer's experts agree. The others may match an unread expert or have reordered neurons."""
    n_agreeing = sum(expert.cosine is not None for expert in experts)
    if n_agreeing == len(experts) and not n_unread:
        return []
    at_least = "at least " if n_agreeing < len(experts) else ""
    not_read = f"; {n_unread} not read" if n_unread else ""
    return [f"{at_least}{n_agreeing} of {len(experts)} experts{not_read}"]


def projection_lines(table: LayerTable) -> tuple[Line, ...]:
    """Return lines for a terminal: projections counted by outcome, then the layers for each outcome not in QUIET."""
    compared = [result.cosine for result in table.results if result.cosine is not None]
    counts = ", ".join(f"{n} {outcome.words}" for outcome, n in table.counts().items())
    drift = f"; mean cosine {sum(compared) / len(compared):.3f}" if compared else ""
    lines = [Line("projections", f"{counts}{drift}")]
    unread = unread_experts_text(table)
    lines += [Line("", f"{unread} were compared")] if unread else []
    listed: dict[tuple[ModuleRole, Outcome], list[ProjectionResult]] = {}
    for result in table.results:
        if result.outcome not in QUIET:
            listed.setdefault((result.role, result.outcome), []).append(result)
    for (role, outcome), results in listed.items():
        lines.append(Line("", f"{role.words} {outcome.words}: {_layers(results)}"))
    return tuple(lines)


def _layers(results: Sequence[ProjectionResult]) -> str:
    if all(result.source is None for result in results):
        return runs_text([result.layer.candidate for result in results])
    pairs = [f"{result.layer.candidate} (from {result.source})" for result in results[:MOST_LISTED]]
    n_more = len(results) - len(pairs)
    more = f" and {n_more} more" if n_more else ""
    return f"{'layers' if len(results) > 1 else 'layer'} {', '.join(pairs)}{more}"


def drift_text(drift: Sequence[LayerDrift]) -> str:
    """Say how many layers agree and how closely, such as ``sampled rows of all 2 layers agree, mean cosine 0.981``."""
    agreeing = [layer for layer in drift if layer.cosine is not None]
    if not agreeing:
        return f"sampled rows of none of {counted(len(drift), 'layer')} agree"
    if len(agreeing) == len(drift):
        of = f"all {len(drift)} layers" if len(drift) > 1 else "its only layer"
    else:
        of = f"{runs_text([layer.layer.candidate for layer in agreeing])} of {len(drift)}"
    cosines = [layer.cosine for layer in agreeing if layer.cosine is not None]
    text = f"sampled rows of {of} agree, mean cosine {sum(cosines) / len(cosines):.3f}"
    lowest = min(agreeing, key=lambda layer: layer.cosine or 0.0)
    if len(agreeing) > 1 and f"{lowest.cosine:.2f}" != f"{max(cosines):.2f}":
        text += f", lowest {lowest.cosine:.3f} in layer {lowest.layer.candidate}"
    changed = sum(layer.compared - layer.agreeing for layer in agreeing)
    if changed:
        n_compared = sum(layer.compared for layer in agreeing)
        text += f"; {changed} of {n_compared} projections of {'it' if len(agreeing) == 1 else 'these'} do not"
    return text


def projection_paragraphs(report: HomologyReport) -> tuple[str, ...]:
    """Describe how the projections were compared."""
    table = report.projections
    if table is None:
        return ()
    n_layers = len({result.layer.candidate for result in table.results})
    rows = max((result.rows for result in table.results), default=0)
    unread = unread_experts_text(table)
    text = (
        f"Up to {rows} rows of each projection that was compared, in {counted(n_layers, 'layer')} of the candidate, "
        "were held against rows of every layer of the reference, first the rows with the same number. A cell holds the "
        "outcome and the mean cosine of the sampled rows; 1 minus the cosine is the drift."
    )
    if any(result.experts is not None for result in table.results):
        text += " Experts were compared with each expert of the paired layer only."
    if unread:
        text += f" {unread} were compared."
    return (text,) if table.is_confirmed else (text, UNCONFIRMED_WORDS)


def projection_table(table: LayerTable) -> Table:
    """Return the table with candidate layers as rows and projections as columns."""
    roles = [role for role in ROLES if any(result.role is role for result in table.results)]
    by_layer: dict[tuple[int, int], dict[ModuleRole, ProjectionResult]] = {}
    for result in table.results:
        by_layer.setdefault((result.layer.candidate, result.layer.reference), {})[result.role] = result
    rows = tuple(
        (str(candidate), str(reference), *(_cell(results.get(role)) for role in roles))
        for (candidate, reference), results in by_layer.items()
    )
    columns = ("candidate layer", "reference layer", *(role.words for role in roles))
    return Table("Change of each projection of each layer, counted from 0", columns, rows)


def short_projection_table(table: LayerTable) -> Table:
    """Return the table with one row for each group of layers with the same outcomes.

    The largest groups come first, up to :data:`MOST_LISTED` rows.
    """
    roles = [role for role in ROLES if any(result.role is role for result in table.results)]
    by_layer: dict[int, dict[ModuleRole, ProjectionResult]] = {}
    for result in table.results:
        by_layer.setdefault(result.layer.candidate, {})[result.role] = result
    groups: dict[tuple[str, ...], list[int]] = {}
    for layer, results in by_layer.items():
        words = tuple(outcome_words(results[role]) if role in results else "–" for role in roles)
        groups.setdefault(words, []).append(layer)
    rows = []
    for words, layers in sorted(groups.items(), key=lambda group: -len(group[1]))[:MOST_LISTED]:
        cells = [
            _with_cosine(word, [by_layer[layer][role] for layer in layers if role in by_layer[layer]])
            for role, word in zip(roles, words, strict=True)
        ]
        rows.append((runs_text(layers), *cells))
    return Table("Change of each projection, by layers with the same changes", ("layers", *_words(roles)), tuple(rows))


def _words(roles: Sequence[ModuleRole]) -> tuple[str, ...]:
    return tuple(role.words for role in roles)


def _with_cosine(words: str, results: Sequence[ProjectionResult]) -> str:
    cosines = [result.cosine for result in results if result.cosine is not None]
    return f"{words}, {sum(cosines) / len(cosines):.2f}" if cosines else words


def _cell(result: ProjectionResult | None) -> str:
    if result is None:
        return "–"
    cosine = "" if result.cosine is None else f", {result.cosine:.3f}"
    return f"{outcome_words(result)}{cosine}"
