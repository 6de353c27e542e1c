"""A model card's lineage section: Markdown between two markers, which is always replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from markdown_it import MarkdownIt

from mdir_hf.errors import CardError
from mdir_hf.lineage.cards.badge import Badge
from mdir_hf.lineage.cards.claim import PinnedModel
from mdir_hf.lineage.cards.front_matter import line_end, split_lines
from mdir_hf.render.model_words import ledger_lines
from mdir_hf.render.projection_words import UNCONFIRMED_WORDS, drift_text, short_projection_table
from mdir_hf.render.text import plain
from mdir_hf.report import HomologyReport

BEGIN = "<!-- mdir-hf:lineage:begin -->"
END = "<!-- mdir-hf:lineage:end -->"
FOLDER = ".lineage"
"""Folder in the card's repository for the report and badge."""

REPORT_PATH, BADGE_PATH, BOM_PATH = f"{FOLDER}/report.json", f"{FOLDER}/badge.svg", f"{FOLDER}/bom.json"

_MOST_CAVEATS, _LONGEST_CAVEAT = 8, 600


@dataclass(frozen=True, slots=True)
class LinkedBom:
    """A bill of materials that a card links to, with a summary sentence."""

    content: bytes
    sentence: str


def lineage_section(
    badge: Badge,
    report: HomologyReport,
    *,
    repo: str,
    related_model: PinnedModel,
    endpoint: str,
    bom: LinkedBom | None = None,
) -> str:
    """Return the section on how a model is related to ``related_model``, including both markers."""
    claim = badge.claim
    own_model = claim.candidate if related_model is claim.reference else claim.reference
    report_url = f"{endpoint}/{repo}/blob/main/{REPORT_PATH}"
    lines = [
        BEGIN,
        "<!-- Written by `mdir-hf card`, which replaces everything up to the end marker. -->",
        "## Weight ancestry",
        "",
        badge.markdown(f"{endpoint}/{repo}/resolve/main/{BADGE_PATH}", report_url),
        "",
        f"**{plain(report.sentence)}**",
        *([plain(report.warning)] if report.warning else []),
        "",
        "| compared | at commit |",
        "|---|---|",
        *(
            f"| {plain(model.repo or '')} | {_commit_link(model, endpoint)}{_read_as(model)} |"
            for model in (own_model, related_model)
        ),
        "",
        *(f"{line.label[0].upper()}{line.label[1:]} {plain(line.text)}." for line in ledger_lines(report)),
        report.what_p_says,
        "",
        *_layer_lines(report),
        *(f"- {plain(caveat[:_LONGEST_CAVEAT])}" for caveat in report.caveats[:_MOST_CAVEATS]),
        *([""] if report.caveats else []),
        *([] if bom is None else [_bom_line(bom, f"{endpoint}/{repo}/blob/main/{BOM_PATH}"), ""]),
        f"Measured by mdir-hf {plain(claim.version)}, seed {claim.seed}, level {claim.level}; report sha256 "
        f"`{claim.short_digest}`. To compute it again: `mdir-hf verify --badge {report_url}`",
        END,
    ]
    return "\n".join(lines) + "\n"


def _layer_lines(report: HomologyReport) -> list[str]:
    if report.projections is None:
        return []
    table = short_projection_table(report.projections)
    text = drift_text(report.projections.drift())
    note = "" if report.projections.is_confirmed else f" {UNCONFIRMED_WORDS}"
    return [
        f"{text[0].upper()}{text[1:]}.{note} Cells hold the mean cosine of sampled rows; 1 minus it is the drift.",
        "",
        f"| {' | '.join(table.columns)} |",
        "|---" * len(table.columns) + "|",
        *(f"| {' | '.join(map(plain, row))} |" for row in table.rows),
        "",
    ]


def _bom_line(bom: LinkedBom, url: str) -> str:
    return f"[Bill of materials]({url}) (CycloneDX). {plain(bom.sentence[:_LONGEST_CAVEAT])}"


def replace_section(body: str, section: str) -> str:
    """Replace the lineage section in a card's body, or append one, using the body's line endings.

    ``body`` is the card without its front matter. A marker is ignored if it is in a code block, shares its line with
    other text, or has no counterpart.

    Raises:
        CardError: If there are several sections, or a code block is not closed.
    """
    end_of_line = line_end(body)
    section = section.replace("\n", end_of_line)
    sections = _sections(body)
    if len(sections) > 1:
        raise CardError(f"the card holds {len(sections)} lineage sections; remove all but one (lines {sections}) first")
    if sections:
        lines, (first, last) = split_lines(body), sections[0]
        if not lines[last].endswith(("\r", "\n")):
            section = section.removesuffix(end_of_line)
        return "".join([*lines[:first], section, *lines[last + 1 :]])
    if not body.strip():
        return body + section
    n_ends = len(body) - len(body.rstrip("\r\n")) if end_of_line != "\r\n" else body[-4:].count("\r\n")
    longer = body + end_of_line * max(0, 2 - n_ends) + section
    if not _sections(longer):
        raise CardError("the card ends inside an unclosed code block; close it first")
    return longer


def _commit_link(model: PinnedModel, endpoint: str) -> str:
    return f"[`{(model.commit or '')[:12]}`]({endpoint}/{model.repo}/tree/{model.commit})"


def _read_as(model: PinnedModel) -> str:
    return f" ({plain(model.read_as)})" if model.read_as else ""


def _sections(body: str) -> list[tuple[int, int]]:
    """Return the first and last line of each section outside fenced code."""
    blocks = MarkdownIt("commonmark").disable("inline").parse(body)
    code = {line for block in blocks if block.type == "fence" and block.map for line in range(*block.map)}
    sections: list[tuple[int, int]] = []
    begin: int | None = None
    for number, line in enumerate(split_lines(body)):
        marker = None if number in code else line.rstrip()
        if marker == BEGIN:
            begin = number  # if there are two begin markers in a row, the section begins at the second
        elif marker == END and begin is not None:
            sections.append((begin, number))
            begin = None
    return sections
