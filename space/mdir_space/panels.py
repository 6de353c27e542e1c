"""The tabs under a verdict: what the evidence is, layer by layer and module by module, and how it was calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mdir_hf import HomologyReport, MatrixReport, PlaceboResult
from mdir_space.markup import facts, log10_p, number, prose, table, text
from mdir_space.pictures import Pictures

NOT_RUN_LAYERS = (
    "The layers were not compared: the question was settled before, or the level does not reach them. The level “body” "
    "maps and analyses every layer."
)
ROLES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention output",
    "gate": "MLP gate",
    "up": "MLP up",
    "down": "MLP down",
    "experts": "experts",
}
SILENT_FROM_LOG10_P = -3.0
"""A placebo is silent while its p is above 0.1 %."""


def evidence_panel(report: HomologyReport, pictures: Pictures) -> str:
    """The embeddings and unembeddings."""
    parts = [
        prose(
            "Both models have one row of weights per token. On the tokens that both know, the rows of the one are "
            "multiplied with those of the other; the polar factor of the product is the rotation that fits best. Of "
            "relatives it is close to a permutation of channels, of strangers it is noise."
        )
    ]
    for name, title in (("embedding", "Embeddings"), ("unembedding", "Unembeddings")):
        matrix: MatrixReport | None = getattr(report, name)
        if matrix is None:
            continue
        parts.append(f"<h3>{title}</h3>")
        heat_maps = pictures.show(
            name,
            "The polar factor, each cell the largest entry of a block. A plain relative shows one strong entry in "
            "every row.",
        ) + pictures.show(
            f"{name}_matched", "The same with every channel beside the one that it matches: the diagonal is the match."
        )
        parts.append(f'<div class="figures">{heat_maps}</div>' if heat_maps else "")
        parts.append(facts(_matrix_facts(matrix), f"{title}, in numbers"))
    if report.embedding is None:
        parts.append(prose("No weights were compared: the files of both models have the same digests."))
    parts.append(
        pictures.show(
            "looks",
            "The comparison looks at more and more tokens, and stops at the first decisive look. Every look is paid "
            "for: p is corrected for all of them.",
        )
    )
    return "".join(parts)


def _matrix_facts(matrix: MatrixReport) -> list[tuple[str, str, str]]:
    found = {"none": "nothing"}.get(matrix.transformation, matrix.transformation.replace("_", " "))
    rows = [
        ("Common tokens", number(matrix.common_tokens, unit="tokens"), "Tokens that both vocabularies hold."),
        ("Tokens read", number(matrix.rows_used, unit="tokens"), "Those whose rows were used for this result."),
        ("Rank", number(matrix.rank, unit="dimensions"), "Independent directions in the product; p uses no others."),
    ]
    if matrix.trace is not None and matrix.threshold is not None and matrix.normalized_trace is not None:
        rows += [
            (
                "Trace",
                f"{number(matrix.trace, 1)} of {number(matrix.trace / matrix.normalized_trace)}"
                if matrix.normalized_trace
                else number(matrix.trace, 1),
                "Sum of the matched entries of the polar factor; the number of channels if every one matches fully.",
            ),
            ("Significant from", number(matrix.threshold, 1), "The trace that strangers pass once in a thousand."),
        ]
    if matrix.matched_channels is not None and matrix.coverage is not None:
        rows.append(
            (
                "Matched by itself",
                f"{number(matrix.matched_channels, unit='channels')} ({matrix.coverage:.0%})",
                "Channels whose match alone would be significant at 1 %.",
            )
        )
    if matrix.stray_channels is not None:
        rows.append(
            (
                "Strays",
                number(matrix.stray_channels, unit="channels"),
                "Channels that resemble a second one, too. Relatives have next to none.",
            )
        )
    rows.append(("Found", text(found), "What takes the channels of the one model to those of the other."))
    if matrix.scale is not None:
        rows.append(("Scale", f"×&nbsp;{matrix.scale:.3g}", "How much larger the candidate's rows are."))
    rows.append(("log10 p", log10_p(matrix.log10_p), "Of this test, corrected for the number of tests and looks."))
    rows += [
        (
            f"log10 p without the best {share}",
            log10_p(value),
            f"The same after the best {share} of the n channels are taken out: outliers alone do not carry it.",
        )
        for share, value in matrix.log10_p_trimmed.items()
    ]
    if matrix.log10_p_signs is not None:
        meaning = "The same with one vote for each channel, its sign: a few outliers are a few votes."
        rows.append(("log10 p by the signs alone", log10_p(matrix.log10_p_signs), meaning))
    return rows


def layers_panel(report: HomologyReport, pictures: Pictures) -> str:
    """Which layer descends from which."""
    layers = report.layers
    if layers is None:
        return prose(NOT_RUN_LAYERS)
    matches = layers["matches"]
    n_layers = len(layers["matrix"][0]) if layers["matrix"] else 0
    outer = {"identity": "in the same residual basis", "rotation": "through a fitted rotation"}.get(
        layers["outer"], f"through the channels matched on the {text(layers.get('fitted_on') or 'embeddings')}"
    )
    found = f"{len(matches)} of {n_layers} layers of the candidate have an ancestor in the reference"
    parts = [
        prose(
            f"{found} (pattern: {layers['pattern']}). Every layer of the one model was tested against every layer of "
            f"the other, {outer}. Layers are counted from 0."
        ),
        pictures.show(
            "layers", "Each cell is the evidence for one pair of layers. A diagonal means that layers kept their order."
        ),
    ]
    if matches:
        rows = [(str(j), str(i), log10_p(p)) for i, j, p in matches]
        parts.append(
            table(("Layer of the candidate", "Its ancestor in the reference", "log10 p"), rows, "Layer matches")
        )
    return "".join(parts)


def modules_panel(report: HomologyReport, pictures: Pictures) -> str:
    """What each matrix of each matched pair of layers says."""
    if not report.modules:
        return prose(
            NOT_RUN_LAYERS if report.layers is None else "No layer has an ancestor whose matrices could be compared."
        )
    matrices = [module for module in report.modules if module["role"] != "experts"]
    parts = [
        prose(
            "Each matrix of each matched pair of layers was tested by itself: queries and keys up to rotations of "
            "their position planes, values and outputs up to any change inside a head, MLPs up to a reordering of "
            "neurons."
        ),
        pictures.show("modules", "One column for each matched pair of layers, one row for each matrix and test."),
    ]
    rows = [
        (
            f"{module['layer'][1]} ← {module['layer'][0]}",
            text(ROLES.get(module["role"], module["role"])),
            text(module["test"].replace("_", " ")),
            number(module["trace"], 1),
            log10_p(module["log10_p"]),
        )
        for module in matrices
    ]
    if rows:
        parts.append(
            f"<details><summary>All {len(rows):,} tests in numbers</summary>"
            + table(("Layer ← ancestor", "Matrix", "Up to", "Trace", "log10 p"), rows, "Tests of modules")
            + "</details>"
        )
    parts.append(_experts(report.modules))
    return "".join(parts)


def _experts(modules: tuple[Mapping[str, Any], ...]) -> str:
    mixtures = [module for module in modules if module["role"] == "experts"]
    if not mixtures:
        return ""
    rows = [
        (
            f"{module['layer'][1]} ← {module['layer'][0]}",
            number(len(module["found"]["experts"])),
            number(len(module["found"]["without_origin"])),
        )
        for module in mixtures
    ]
    return "<h3>Experts</h3>" + table(
        ("Layer ← ancestor", "Experts with an origin", "Experts without"), rows, "Experts of mixtures"
    )


def calibration_panel(report: HomologyReport, pictures: Pictures) -> str:
    """The same tests where there is nothing to find."""
    parts = [
        prose(
            "A p-value is worth what its assumptions are worth, so the same test is run where there is nothing to "
            "find. There it must stay silent; if it does not, the verdict says so and is inconclusive."
        ),
        pictures.show("null", "Each bar is a trace over the trace that strangers pass once in a thousand (the line)."),
    ]
    for name, title in (("embedding", "Embeddings"), ("unembedding", "Unembeddings")):
        matrix: MatrixReport | None = getattr(report, name)
        if matrix is None or matrix.placebo is None:
            continue
        placebo = matrix.placebo
        rows = [
            _placebo_row("Re-paired tokens", placebo.re_paired),
            _placebo_row("Rotated at random", placebo.rotated),
        ]
        parts.append(f"<h3>{title}</h3>")
        parts.append(
            table(
                ("Placebo", "Trace", "Significant from", "log10 p", "It is"), rows, f"Placebos of the {title.lower()}"
            )
        )
        z_reference, z_candidate = placebo.privileged_basis_z
        parts.append(
            facts(
                [
                    (
                        "Privileged axes",
                        f"{number(z_reference, 1)} and {number(z_candidate, 1)} standard deviations",
                        "How far the axes of reference and candidate stand out among all directions. The p-value holds "
                        "where at least one is small; where both are large, more is asked of a match.",
                    )
                ],
                "What the p-value rests on",
            )
        )
    if report.embedding is None or report.embedding.placebo is None:
        parts.append(prose("No placebo was run: no weights were compared, or too few rows to tell."))
    return "".join(parts)


def _placebo_row(name: str, placebo: PlaceboResult) -> tuple[str, ...]:
    state = "silent" if placebo.log10_p > SILENT_FROM_LOG10_P else "not silent"
    return name, number(placebo.trace, 1), number(placebo.threshold, 1), log10_p(placebo.log10_p), state
