"""The verdict: the first thing on the page that a visitor reads, and often the only one."""

from __future__ import annotations

from mdir_hf import DeclaredLineage, HomologyReport, Verdict, shown_name
from mdir_space.estimate import size_text
from mdir_space.markup import alpha_text, log10_p, model_name, number, power_of_ten, text

FOUND = {
    "identity": ("same order", "The channels of the two models stand in the same order."),
    "permutation": ("reordered", "The channels of the one are those of the other in another order"),
    "signed_permutation": (
        "reordered, signs turned",
        "The channels of the one are those of the other in another order",
    ),
    "rotation": ("rotated", "A rotation of the whole residual stream takes the one model to the other."),
}

SETTLED = {
    "identical_files": ("same files", "All weight files have the same digests in both."),
    "screen": ("a first look", "At some tokens of the embeddings; more was not needed."),
    "embedding": ("embeddings", "On every common token."),
    "unembedding": ("unembeddings", "On every common token; the embeddings were silent."),
    "body": ("the layers", "The embeddings alone did not decide."),
}


def verdict_card(report: HomologyReport, *, declared: str = "", link: str = "", note: str = "") -> str:
    """Return the card.

    Args:
        report: The report.
        declared: Declared lineage, as :func:`declared_text` makes it; HTML.
        link: Address that asks this question again; empty for none.
        note: A sentence above the verdict: where this result comes from.
    """
    parts = [
        f'<p class="note">{text(note)}</p>' if note else "",
        f'<p class="pair"><span class="side">{model_name(report.reference)}</span> <span class="and">and</span> '
        f'<span class="side">{model_name(report.candidate)}</span></p>',
        f'<h2 id="verdict-words"><span class="icon" aria-hidden="true">{report.icon}</span>'
        f"<span>{text(report.headline)}.</span></h2>",
        _numbers(report),
        _meaning(report),
        declared,
        _link(link) if link else "",
    ]
    return f'<section class="verdict {report.verdict.value}" aria-labelledby="verdict-words">{"".join(parts)}</section>'


def _numbers(report: HomologyReport) -> str:
    io, seconds = report.io, sum(report.seconds.values())
    share = io.bytes_read / io.bytes_of_weights if io.bytes_of_weights else 0.0
    n_tests = "1 test" if report.tests == 1 else f"{report.tests:,} tests"
    gloss = f"p is at most {power_of_ten(report.log10_p)}, corrected for {n_tests}."
    if report.log10_p > -0.05:
        gloss = "p is 1: nothing stands out from chance."
    gloss += f" It counts from {alpha_text(report.alpha)} (alpha), fixed before looking."
    rows = [("log<sub>10</sub> p", log10_p(report.log10_p), gloss)]
    matrix = report.embedding
    if report.verdict is Verdict.HOMOLOGOUS and matrix is not None and matrix.transformation in FOUND:
        found, explanation = FOUND[matrix.transformation]
        if matrix.scale is not None and abs(matrix.scale - 1.0) > 0.02:
            explanation = f"{explanation.rstrip('.')}, {matrix.scale:.3g} times as large"
        rows.append(("Channels", text(found), f"{text(explanation.rstrip('.'))}."))
    if report.settled_by in SETTLED:
        settled, explanation = SETTLED[report.settled_by]
        rows.append(("Settled by", text(settled), text(explanation)))
    else:
        looked_at = [name for name, part in _parts(report) if part is not None]
        rows.append(("Looked at", text(", ".join(looked_at) or "nothing"), "Nothing there settled the question."))
    cached = f", and {size_text(io.bytes_from_cache)} from the cache of this server" if io.bytes_from_cache else ""
    rows.append(
        (
            "Read",
            f"{size_text(io.bytes_read)}",
            f"{share:.1%} of the {size_text(io.bytes_of_weights)} of weights{cached}, in {number(seconds, 1)} s.",
        )
    )
    items = "".join(
        f'<div><dt>{name}</dt><dd><span class="figure">{value}</span><span class="gloss">{gloss}</span></dd></div>'
        for name, value, gloss in rows
    )
    return f'<dl class="numbers">{items}</dl>'


def _parts(report: HomologyReport) -> tuple[tuple[str, object], ...]:
    return ("embeddings", report.embedding), ("unembeddings", report.unembedding), ("layers", report.layers)


def _meaning(report: HomologyReport) -> str:
    not_meant = "".join(f"<li>{text(sentence)}</li>" for sentence in report.does_not_mean)
    caveats = "".join(f"<li>{text(caveat)}</li>" for caveat in report.caveats)
    about = f'<div class="caveats"><h3>About this pair</h3><ul>{caveats}</ul></div>' if caveats else ""
    return (
        f'<div class="meaning"><div><h3>What it means</h3><p>{text(report.means)}</p>{about}</div>'
        f"<div><h3>What it does not mean</h3><ul>{not_meant}</ul></div></div>"
    )


def _link(link: str) -> str:
    return (
        '<div class="share"><label for="share-link">Link to this comparison</label><div class="share-row">'
        f'<input id="share-link" type="text" readonly value="{text(link)}">'
        '<button type="button" class="copy" data-from="share-link" aria-label="Copy the link">Copy</button></div></div>'
    )


def declared_text(report: HomologyReport, declared: tuple[DeclaredLineage | None, DeclaredLineage | None]) -> str:
    """Set what the two model cards say beside what was measured, in neutral words.

    Args:
        report: The measurement.
        declared: What reference and candidate declare; None where it could not be read.
    """
    if all(lineage is None for lineage in declared):
        return ""
    names = (report.reference.repo, report.candidate.repo)
    sentences = [
        _declares(names[side], names[1 - side], declared[side]) for side in (0, 1) if declared[side] is not None
    ]
    is_declared = any(lineage is not None and _names(lineage, names[1 - side]) for side, lineage in enumerate(declared))
    return (
        f'<div class="declared"><h3>Declared and measured</h3><ul>{"".join(sentences)}'
        f"<li>{text(_beside(report.verdict, is_declared))}</li></ul></div>"
    )


def _names(lineage: DeclaredLineage, repo: str) -> bool:
    return repo.casefold() in (base.casefold() for base in lineage.base_models)


def _declares(repo: str, other: str, lineage: DeclaredLineage | None) -> str:
    assert lineage is not None
    if not lineage.base_models:
        return f"<li><b>{text(shown_name(repo))}</b> declares no base model.</li>"
    bases = ", ".join(f"<b>{text(shown_name(base))}</b>" for base in lineage.base_models[:8])
    how = f" ({text(lineage.relation)})" if lineage.relation else ""
    return f"<li><b>{text(shown_name(repo))}</b> declares {bases} as its base{how}.</li>"


def _beside(verdict: Verdict, is_declared: bool) -> str:
    if verdict is Verdict.HOMOLOGOUS:
        if is_declared:
            return "The measurement agrees with what is declared."
        return (
            "Neither card names the other model. The common origin that was measured may be a third model, and a card "
            "need not name every ancestor."
        )
    if verdict is Verdict.NO_EVIDENCE and is_declared:
        return (
            "One card names the other model, and this comparison found no trace of it in the weights. Heavy training "
            "can remove every trace, and a card can mean another kind of relation, such as distillation."
        )
    return "The measurement adds nothing to what is declared." if is_declared else "Neither card names the other model."
