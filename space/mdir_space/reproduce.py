"""How to have the same comparison again: on a command line, in Python, from a program; and the badge."""

from __future__ import annotations

import base64
from dataclasses import replace

from mdir_hf import HomologyReport, __version__, make_badge
from mdir_hf.render.description import describe
from mdir_hf.render.html import section_html
from mdir_hf.render.sections import Listing, SectionKind
from mdir_space.agents import ADDRESS
from mdir_space.markup import code, download, prose, text
from mdir_space.sharing import notebook_link


def reproduce_panel(report: HomologyReport, *, server: str, is_example: bool = False) -> str:
    """Commands, code, commits and the report itself.

    Args:
        report: The report.
        server: Base address of this server, for programs.
        is_example: The models are in no repository; ``make real`` builds them.
    """
    sections = {section.kind: section for section in describe(report)}
    section, models = sections[SectionKind.REPRODUCE], sections[SectionKind.MODELS]
    if is_example:
        section = replace(
            section,
            paragraphs=(
                "These very models are in no repository. In a clone of this project the command fetches the base "
                "models from their packages, makes the others of them (45 GB), and compares them again.",
            ),
            code=(Listing("sh", "make real examples"),),
        )
    stem = "-".join(_file_word(model.repo) for model in (report.reference, report.candidate))
    links = download(report.to_json(), f"{stem}.json", "Download the report (JSON)", "application/json")
    if not is_example:
        links += notebook_link(report, stem)
    parts = [
        section_html(section, {}, copyable=True),
        f'<p class="downloads">{links}</p>',
        section_html(models, {}),
        section_html(sections[SectionKind.READ], {}),
    ]
    if not is_example and report.reference.commit and report.candidate.commit:
        parts.append(code(_program_lines(report, server), "From a program (this Space, gradio_client)"))
        parts.append(
            prose(
                f"Agents find the same as an MCP tool at {server}{ADDRESS}/. Send a token of yours in the header "
                "X-HF-Token to have gated models read; it is used for that call only."
            )
        )
    return "".join(parts)


def _program_lines(report: HomologyReport, server: str) -> str:
    return (
        "from gradio_client import Client\n\n"
        f"report = Client({server!r}).predict(\n"
        f"    {report.reference.pinned!r},\n"
        f"    {report.candidate.pinned!r},\n"
        f"    {report.level.value!r},\n"
        f"    {report.alpha:g},\n"
        "    api_name='/compare',\n"
        ")\n"
        "print(report['verdict'], report['log10_p'])"
    )


def _file_word(repo: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in repo)[-60:] or "model"


def badge_panel(report: HomologyReport, link: str) -> str:
    """The badge of a result, and how to show it."""
    badge = make_badge(report)
    picture = base64.b64encode(badge.svg.encode()).decode("ascii")
    report_url = link or "report.json"
    return "".join(
        [
            prose(
                "A badge says what was measured and links to it. It names nobody, and no direction. Put the two files "
                "into your repository, and the line into its card."
            ),
            f'<p class="badge"><img src="data:image/svg+xml;base64,{picture}" alt="{text(badge.label)}: '
            f'{text(badge.message)}"></p>',
            '<p class="downloads">'
            + download(badge.svg, "badge.svg", "Download badge.svg", "image/svg+xml")
            + download(report.to_json(), "report.json", "Download report.json", "application/json")
            + "</p>",
            code(badge.markdown("badge.svg", report_url), "Markdown"),
            code(badge.endpoint_json.strip(), "For a badge service (shields endpoint)"),
            prose(
                "mdir-hf badge report.json makes the same files on the command line, and mdir-hf verify-badge "
                f"recomputes a badge from its commits. Made by mdir-hf {__version__}."
            ),
        ]
    )
