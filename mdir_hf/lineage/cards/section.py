"""The lineage section of a model card: Markdown between two markers, replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from markdown_it import MarkdownIt

from mdir_hf.errors import CardError
from mdir_hf.lineage.cards.badge import Badge
from mdir_hf.lineage.cards.claim import PinnedModel
from mdir_hf.lineage.cards.text_lines import line_end, split_lines
from mdir_hf.render.markdown import plain
from mdir_hf.report import HomologyReport

BEGIN = "<!-- mdir-hf:lineage:begin -->"
END = "<!-- mdir-hf:lineage:end -->"
FOLDER = ".lineage"
"""Where the report and its picture lie in the repository that the card is of."""

REPORT_PATH, BADGE_PATH, BOM_PATH = f"{FOLDER}/report.json", f"{FOLDER}/badge.svg", f"{FOLDER}/bom.json"

_MOST_CAVEATS, _LONGEST_CAVEAT = 8, 600


@dataclass(frozen=True, slots=True)
class LinkedBom:
    """A bill of materials that a card links.

    Attributes:
        content: The document.
        sentence: What was checked, in one sentence.
    """

    content: bytes
    sentence: str


def lineage_section(
    badge: Badge,
    report: HomologyReport,
    *,
    repo: str,
    other: PinnedModel,
    endpoint: str,
    bom: LinkedBom | None = None,
) -> str:
    """Write the section, markers included, with line feeds.

    Args:
        badge: The badge of the report.
        report: The report.
        repo: The repository whose card this is.
        other: The model it was compared with, on the Hub.
        endpoint: Base URL of the Hub.
        bom: The bill of materials to link; None: none.
    """
    claim = badge.claim
    mine = claim.candidate if other is claim.reference else claim.reference
    report_url = f"{endpoint}/{repo}/blob/main/{REPORT_PATH}"
    lines = [
        BEGIN,
        "<!-- Written by `mdir-hf card`, which replaces everything up to the end marker. -->",
        "## Weight ancestry",
        "",
        badge.markdown(f"{endpoint}/{repo}/resolve/main/{BADGE_PATH}", report_url),
        "",
        f"**{claim.sentence.replace('<', '&lt;')}** ({claim.numbers}).",
        "",
        "| compared | at commit |",
        "|---|---|",
        *(
            f"| {plain(model.repo or '')} | {_commit_link(model, endpoint)}{_read_as(model)} |"
            for model in (mine, other)
        ),
        "",
        report.what_p_says,
        "",
        *(f"- {plain(caveat[:_LONGEST_CAVEAT])}" for caveat in report.caveats[:_MOST_CAVEATS]),
        *([""] if report.caveats else []),
        *([] if bom is None else [_bom_line(bom, f"{endpoint}/{repo}/blob/main/{BOM_PATH}"), ""]),
        f"Measured by mdir-hf {plain(claim.version)}, seed {claim.seed}, level {claim.level}; report sha256 "
        f"`{claim.short_digest}`. To compute it again: `mdir-hf verify-badge {report_url}`",
        END,
    ]
    return "\n".join(lines) + "\n"


def _bom_line(bom: LinkedBom, url: str) -> str:
    return f"[Bill of materials]({url}) (CycloneDX). {plain(bom.sentence[:_LONGEST_CAVEAT])}"


def replace_section(body: str, section: str) -> str:
    """Put the section in the place of its earlier self, or at the end.

    Args:
        body: The card behind its front matter.
        section: What :func:`lineage_section` gave.

    Returns:
        The body with the section, in the body's line ends. Everything outside of the section is kept byte for byte;
        markers in code blocks, inside of lines or without their partner are text like any other.

    Raises:
        CardError: If there are two sections, or the end of the text lies in a code block that nothing closes.
    """
    end_of_line = line_end(body)
    section = section.replace("\n", end_of_line)
    found = _sections(body)
    if len(found) > 1:
        raise CardError(f"the card holds {len(found)} lineage sections; remove all but one (lines {found}) first")
    if found:
        lines, (first, last) = split_lines(body), found[0]
        if not lines[last].endswith(("\r", "\n")):
            section = section.removesuffix(end_of_line)
        return "".join([*lines[:first], section, *lines[last + 1 :]])
    if not body.strip():
        return body + section
    n_ends = len(body) - len(body.rstrip("\r\n")) if end_of_line != "\r\n" else body[-4:].count("\r\n")
    longer = body + end_of_line * max(0, 2 - n_ends) + section
    if not _sections(longer):
        raise CardError("the card ends inside of a code block that nothing closes; close it first")
    return longer


def _commit_link(model: PinnedModel, endpoint: str) -> str:
    return f"[`{(model.commit or '')[:12]}`]({endpoint}/{model.repo}/tree/{model.commit})"


def _read_as(model: PinnedModel) -> str:
    return f" ({plain(model.read_as)})" if model.read_as else ""


def _sections(body: str) -> list[tuple[int, int]]:
    """Return the first and last line of every section; markers in fenced code are an example of some, and none."""
    blocks = MarkdownIt("commonmark").disable("inline").parse(body)
    code = {line for block in blocks if block.type == "fence" and block.map for line in range(*block.map)}
    found: list[tuple[int, int]] = []
    begin: int | None = None
    for number, line in enumerate(split_lines(body)):
        marker = None if number in code else line.rstrip()
        if marker == BEGIN:
            begin = number  # of two in a row the later one is the beginning of something
        elif marker == END and begin is not None:
            found.append((begin, number))
            begin = None
    return found
