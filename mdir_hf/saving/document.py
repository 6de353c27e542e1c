"""What a saved report says, section by section, before it is HTML or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mdir_hf.figures.layer_map import PATTERNS
from mdir_hf.figures.module_strip import SILENT, SYMBOLS
from mdir_hf.names import shown_name
from mdir_hf.report import (
    MEANING,
    HomologyReport,
    MatrixReport,
    ModelSummary,
    PlaceboResult,
    experts_text,
    n_bytes_text,
)
from mdir_hf.saving.reproduce import command_line, python_lines

NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Table:
    """Rows whose first cell is their header.

    Attributes:
        caption: What it holds.
        columns: Headers of the columns, the first of that of the row headers.
        rows: Cells, as text.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One section.

    Attributes:
        anchor: Its id in the page.
        title: Heading.
        paragraphs: Text.
        bullets: Text, as a list after the paragraphs.
        tables: After that; a long one can be folded away.
        figures: Names of figures that belong here and captions, for those that the report has.
        code: Language and text of listings.
        is_detail: Whether the short form leaves it out.
    """

    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    is_detail: bool = False


SETTLED = {
    "identical_files": "files of the same SHA-256",
    "screen": "a first look at the embeddings",
    "embedding": "the embeddings, all common tokens",
    "unembedding": "the unembeddings",
    "body": "the layers",
}

_FOUND = {"none": "nothing", "signed_permutation": "permutation with signs"}

_CAPTIONS = {
    "embedding": "Of two relatives each channel stands out with its one partner; of two strangers there is only noise.",
    "embedding_matched": "The candidate's channels in the order of their partners: a permutation becomes a diagonal.",
    "unembedding": "The same test on the output side of the model.",
    "unembedding_matched": "The unembeddings with the candidate's channels in the order of their partners.",
    "looks": "Reading stops at the first decisive look. Every look is paid for in p.",
    "null": "A test that speaks up on a placebo, where there is nothing to find, is not to be believed.",
    "layers": "Each cell is a pair of layers. Copies in place are a diagonal; inserted or repeated layers break it.",
    "modules": "Which weights of a matched pair of layers agree, and behind which inner transformation.",
}


def report_document(report: HomologyReport) -> tuple[Section, ...]:
    """Lay out a report; a part that was not run has no section."""
    sections = [
        Section("not-meaning", "What it does not mean", bullets=report.does_not_mean),
        *([Section("caveats", "Caveats of this result", bullets=report.caveats)] if report.caveats else []),
        _models(report),
        *_matrices(report),
        *_calibration(report),
        *_layers(report),
        *_modules(report),
        _reproduce(report),
        _read(report),
    ]
    return tuple(sections)


def pair_name(report: HomologyReport, *, length: int = NAME_LENGTH) -> str:
    """The two models, in words."""
    return f"{shown_name(report.reference.repo, length=length)} and {shown_name(report.candidate.repo, length=length)}"


def key_facts(report: HomologyReport) -> tuple[tuple[str, str], ...]:
    """The few numbers that stand beside the verdict."""
    facts = [
        ("log10 p", number(report.log10_p)),
        ("level alpha", f"{report.alpha:g}"),
        ("corrected for", _counted(report.tests, "test")),
    ]
    if report.settled_by is not None:
        facts.append(("settled by", SETTLED.get(report.settled_by, report.settled_by.replace("_", " "))))
    io = report.io
    share = f", {_percent(io.bytes_read / io.bytes_of_weights)} of the weights" if io.bytes_of_weights else ""
    facts.append(("read", f"{n_bytes_text(io.bytes_read)}{share}"))
    return tuple(facts)


def number(value: float | None, digits: int = 1) -> str:
    """A number to read; a dash where there is none."""
    return "–" if value is None else f"{value + 0.0:.{digits}f}".replace("-0.0", "0.0")


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g}%"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _figures(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, _CAPTIONS[name]) for name in names)


def _models(report: HomologyReport) -> Section:
    def column(model: ModelSummary) -> dict[str, str]:
        return {
            "model": shown_name(model.repo, length=NAME_LENGTH),
            "revision": shown_name(model.revision, length=NAME_LENGTH) if model.revision else "–",
            "commit": model.commit or "–",
            "architecture": shown_name(model.architecture),
            "width": _size(model.hidden_size),
            "layers": _size(model.layers),
            "embedding rows": _size(model.vocabulary),
            "quantised": shown_name(model.quantization) if model.quantization else "no",
            "read as": shown_name(model.read_as, length=4 * NAME_LENGTH) if model.read_as else "",
        }

    reference, candidate = column(report.reference), column(report.candidate)
    rows = tuple((label, one, candidate[label]) for label, one in reference.items() if one or candidate[label])
    return Section(
        "models", "The two models", tables=(Table("What was compared", ("", "reference", "candidate"), rows),)
    )


def _size(value: int | None) -> str:
    return "–" if value is None else str(value)


def _matrices(report: HomologyReport) -> list[Section]:
    matrices = {
        name: matrix
        for name, matrix in (("embedding", report.embedding), ("unembedding", report.unembedding))
        if matrix is not None
    }
    if not matrices:
        return []
    columns = tuple(_matrix_column(matrix) for matrix in matrices.values())
    rows = tuple((label, *(column[label] for column in columns)) for label in columns[0])
    table = Table("Agreement of the channels on the tokens that both vocabularies hold", ("", *matrices), rows)
    figures = _figures("embedding", "embedding_matched", "unembedding", "unembedding_matched", "looks")
    return [Section("evidence", "Evidence", (MEANING,), tables=(table,), figures=figures)]


def _matrix_column(matrix: MatrixReport) -> dict[str, str]:
    matched = "–"
    if matrix.matched_channels is not None and matrix.coverage is not None:
        matched = f"{matrix.matched_channels} ({matrix.coverage:.0%})"
    return {
        "log10 p": number(matrix.log10_p),
        **{f"without the best {share} of the channels": number(p) for share, p in matrix.log10_p_trimmed.items()},
        "by the signs alone": "–" if matrix.log10_p_signs is None else number(matrix.log10_p_signs),
        "found": _FOUND.get(matrix.transformation, matrix.transformation),
        "scale of the candidate": "–" if matrix.scale is None else f"{matrix.scale:.3g}",
        "common tokens": str(matrix.common_tokens),
        "of them used": str(matrix.rows_used),
        "trace": number(matrix.trace),
        "significant from": number(matrix.threshold),
        "trace over width": number(matrix.normalized_trace, 3),
        "rank": str(matrix.rank),
        "channels matched each by itself": matched,
        "channels that resemble another one, too": _size(matrix.stray_channels),
        "view": matrix.view,
    }


def _calibration(report: HomologyReport) -> list[Section]:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for name, matrix in (("embedding", report.embedding), ("unembedding", report.unembedding)):
        if matrix is None or matrix.placebo is None:
            continue
        placebo = matrix.placebo
        rows.append(_placebo_row(f"{name}, tokens re-paired", placebo.re_paired))
        rows.append(_placebo_row(f"{name}, one model rotated", placebo.rotated))
        mine, other = placebo.privileged_basis_z
        notes.append(
            f"How far the axes of the {name}s stand out among all directions: z = {number(mine)} in the reference and "
            f"{number(other)} in the candidate. Above 3 in both, p is no theorem by itself."
        )
    if report.layers is not None:
        smallest = number(report.layers["placebo_log10_p"])
        notes.append(
            f"Layers with the residual channels of one model shuffled: smallest log10 p {smallest}; significant off "
            f"the map: {report.layers['stray_share']:.1%} of the pairs of layers."
        )
    if not rows and not notes:
        return []
    columns = ("placebo", "channels", "trace", "significant from", "log10 p", "state")
    tables = (Table("The test where there is nothing to find", columns, tuple(rows)),) if rows else ()
    return [Section("calibration", "Calibration", tuple(notes), tables=tables, figures=_figures("null"))]


def _placebo_row(name: str, placebo: PlaceboResult) -> tuple[str, ...]:
    state = "silent" if placebo.log10_p > SILENT else "NOT silent"
    traces = (number(placebo.trace), number(placebo.threshold))
    return (name, str(placebo.channels), *traces, number(placebo.log10_p), state)


def _layers(report: HomologyReport) -> list[Section]:
    layers = report.layers
    if layers is None:
        return []
    matches = layers["matches"]
    n_layers = len(layers["matrix"][0]) if layers["matrix"] else 0
    fitted_on = layers.get("fitted_on") or "embeddings"  # older reports do not say it
    basis = {"identity": "in the same residual basis", "rotation": f"behind a rotation fitted on the {fitted_on}"}.get(
        layers["outer"], f"through the channels matched on the {fitted_on}"
    )
    found = (
        f"{len(matches)} of {n_layers} layers of the candidate have an ancestor in the reference, compared by their "
        f"{layers['role'].replace('_', ' ')} {basis}: {PATTERNS.get(layers['pattern'], layers['pattern'])}; log10 p "
        f"{number(layers['log10_p'])}."
    )
    rows = tuple((str(candidate), str(reference), number(p)) for reference, candidate, p in matches)
    columns = ("candidate layer", "its ancestor in the reference", "log10 p")
    tables = (Table("Ancestors, counted from 0", columns, rows),) if rows else ()
    return [Section("layers", "Layers", (found,), tables=tables, figures=_figures("layers"))]


def _modules(report: HomologyReport) -> list[Section]:
    if not report.modules:
        return []
    tests: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for module in report.modules:
        tests.setdefault((module["role"], module["test"]), []).append(module)
    rows = tuple(_module_row(role, test, entries) for (role, test), entries in tests.items())
    columns = ("role", "looks for", "layers", "beyond chance", "smallest log10 p", "largest", "what was done")
    mixtures = [module["found"] for module in report.modules if module["role"] == "experts"]
    paragraphs = (f"Of the experts looked at, {experts_text(mixtures)}.",) if mixtures else ()
    table = Table("Every role and test, over the analysed pairs of layers", columns, rows)
    return [Section("modules", "Modules", paragraphs, tables=(table,), figures=_figures("modules"))]


def _module_row(role: str, test: str, entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    evidence = [entry["log10_p"] for entry in entries]
    speaking = [entry for entry in entries if entry["log10_p"] <= SILENT]
    looks_for = SYMBOLS[test][1] if test in SYMBOLS else test.replace("_", " ")
    extremes = (number(min(evidence), 0), number(max(evidence), 0))
    return (role, looks_for, str(len(entries)), str(len(speaking)), *extremes, _done(speaking))


def _done(entries: Sequence[Mapping[str, Any]]) -> str:
    """What the inner transformations were, in the layers where the test speaks."""
    found = [entry["found"] for entry in entries if entry["found"]]
    if not found:
        return "–"
    if "moves" in found[0]:
        n_moved, n_signs = sum(f["moves"] for f in found), sum(f["negative"] > 0 for f in found)
        parts = [f"rows moved in {_counted(n_moved, 'layer')}"] if n_moved else ["rows in place"]
        parts += [f"signs turned in {_counted(n_signs, 'layer')}"] if n_signs else []
        return ", ".join(parts)
    if "moved_neurons" in found[0]:
        n_moved, n_all = (sum(f[key] for f in found) for key in ("moved_neurons", "matched_neurons"))
        what = "channels" if entries[0]["test"] == "channels" else "neurons"
        return f"{n_moved} of {n_all} {what} moved" if n_moved else f"{what} in place"
    if "heads" in found[0]:
        n_moved = sum(any(i != j for i, j in f["heads"]) for f in found)
        return f"heads moved in {_counted(n_moved, 'layer')}" if n_moved else "heads in place"
    return "see above" if "experts" in found[0] else "–"


def _reproduce(report: HomologyReport) -> Section:
    pinned = report.reference.commit is not None and report.candidate.commit is not None
    text = (
        f"With mdir-hf {report.version} and seed {report.seed}. "
        + ("Both commits are pinned." if pinned else "A local folder has no commit: keep the files as they are.")
    )  # fmt: skip
    return Section(
        "reproduce", "Reproduce", (text,), code=(("sh", command_line(report)), ("python", python_lines(report)))
    )


def _read(report: HomologyReport) -> Section:
    io = report.io
    n_read, n_weights = n_bytes_text(io.bytes_read), n_bytes_text(io.bytes_of_weights)
    share = f", {_percent(io.bytes_read / io.bytes_of_weights)} of the {n_weights}" if io.bytes_of_weights else ""
    cached = f", and {n_bytes_text(io.bytes_from_cache)} from the cache" if io.bytes_from_cache else ""
    text = (
        f"{n_read} were read{cached}{share} of the two checkpoints, in {_counted(io.requests, 'request')} and "
        f"{sum(report.seconds.values()):.1f} s."
    )
    steps = tuple((step, f"{seconds:.2f}") for step, seconds in report.seconds.items())
    files = tuple((str(place + 1), shown_name(file, length=160)) for place, file in enumerate(io.files))
    tables = [Table("Time of each step", ("step", "seconds"), steps)] if steps else []
    tables += [Table("Files read, in part or as a whole", ("", "file"), files)] if files else []
    return Section("read", "What was read", (text,), tables=tuple(tables), is_detail=True)
