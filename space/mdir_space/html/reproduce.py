"""The Reproduce and Badge tabs: commands that compute a result again, and ways to show it elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode

from huggingface_hub import constants
from markupsafe import Markup

from mdir_hf import HomologyReport, __version__, make_badge
from mdir_hf.installing import install_command
from mdir_hf.names import shown_name
from mdir_hf.render.description import describe
from mdir_hf.render.reproduce import comparison_lines
from mdir_hf.render.sections import Listing, SectionKind
from mdir_space.html.links import CARD_PATH, MCP_PATH
from mdir_space.html.templates import render

CARD_SIZE = (480, 190)
"""Width and height of a card's frame, in pixels."""


def reproduce_tab(report: HomologyReport, *, server: str, is_example: bool = False) -> Markup:
    """Return the tab with commands, code, commits and the report itself.

    ``server`` is the base URL of this server for programs. If ``is_example``, the models have to be built with ``make
    real``.
    """
    sections = {section.kind: section for section in describe(report)}
    section = sections[SectionKind.REPRODUCE]
    if is_example:
        section = replace(
            section,
            paragraphs=(
                "No repository has these models. In a clone of this project, the command downloads the packages with "
                "the base models, makes the others from them (45 GB), and compares them again.",
            ),
            code=(Listing("sh", "make real examples"),),
        )
    has_commits = not is_example and report.reference.commit and report.candidate.commit
    return render(
        "reproduce",
        report=report,
        section=section,
        models=sections[SectionKind.MODELS],
        read=sections[SectionKind.READ],
        stem=file_stem((report.reference.repo, report.candidate.repo)),
        notebook="" if is_example else notebook(report),
        program=_program_lines(report, server) if has_commits else "",
        mcp=f"{server}{MCP_PATH}",
    )


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


def file_stem(names: Sequence[str]) -> str:
    """Return a file name, without suffix, for a result about some models."""
    return "-".join(map(_file_word, names))


def _file_word(repo: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in repo)[-60:] or "model"


def badge_tab(report: HomologyReport, link: str, server: str = "") -> Markup:
    """Return the badge of a result and, if the result is public, its card and a link that opens a discussion.

    The badge links to ``link`` or, if empty, to a file. ``server`` is empty if the result is not public.
    """
    models = (report.reference, report.candidate)
    return render(
        "badge",
        report=report,
        badge=make_badge(report),
        link=link,
        version=__version__,
        frame=card_frame(report.sentence, link, server) if server else "",
        discussions=[(shown_name(model.repo), discussion_link(report, at, link)) for at, model in enumerate(models)],
    )


def card_frame(title: str, link: str, server: str) -> str:
    """Return the HTML that embeds the card of a result in another page."""
    width, height = CARD_SIZE
    address = f"{server}{CARD_PATH}?{link.partition('?')[2]}"
    return str(render("frame", address=address, width=width, height=height, title=title))


def discussion_link(report: HomologyReport, side: int, link: str) -> str:
    """Return a URL that opens the draft of a discussion on a model's page.

    ``side`` is 0 for the reference, 1 for the candidate.
    """
    models = (report.reference, report.candidate)
    model, partner = models[side], models[1 - side]
    title = f"Weights compared with {shown_name(partner.repo)}"
    lines = [
        f"The weights of this model (`{model.pinned}`) and of `{partner.pinned}` were compared by mdir-hf "
        f"{report.version}, which looks for shared weight ancestry.",
        f"**{report.sentence}** {report.means}",
        "What this does not mean:\n" + "\n".join(f"- {sentence}" for sentence in report.does_not_mean),
        f"The result, its evidence and how to compute it again: {link}",
        "Does this agree with how the model was made? If so, please add `base_model` to the card.",
    ]
    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    query = urlencode({"title": title, "description": "\n\n".join(lines)}, quote_via=quote)
    return f"{endpoint}/{quote(model.repo)}/discussions/new?{query}"


def notebook(report: HomologyReport) -> str:
    """Return a notebook (nbformat 4.5) that makes the same comparison on a new sample."""
    names = " and ".join(shown_name(model.repo) for model in (report.reference, report.candidate))
    cells = [
        (
            "markdown",
            f"# Do {names} share weight ancestry?\n\nThe same comparison, at the same commits, on a new "
            "sample of neurons.",
        ),
        ("code", f"%{install_command(for_others=True)}"),
        ("code", comparison_lines(report)),
        ("markdown", f"The page said: **{report.sentence}** {report.means}"),
    ]
    body = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            {"id": f"cell-{at}", "cell_type": kind, "metadata": {}, "source": source}
            | ({"outputs": [], "execution_count": None} if kind == "code" else {})
            for at, (kind, source) in enumerate(cells)
        ],
    }
    return json.dumps(body, indent=1, ensure_ascii=False)
