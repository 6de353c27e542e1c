"""One model, or several, on the page: from the click to the last figure, as updates of the panels."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import gradio as gr

from mdir_space.addresses import page_address, pinned_link, query_again, server_address
from mdir_space.answer_card import answer_card, answer_words
from mdir_space.desk import Answered, Desk, Waiting, Working
from mdir_space.estimate import size_text
from mdir_space.family import Family
from mdir_space.many import Surveyed
from mdir_space.markup import address_mark, text
from mdir_space.notices import bar, progress_notice
from mdir_space.sharing import card_code
from mdir_space.verdict_card import KEPT
from mdir_space.visitor import Visitor
from mdir_space.ways import FamilyQuestion, SurveyQuestion

if TYPE_CHECKING:
    from mdir_space.conversation import Panels

STAGES = {
    "opening": "Opening the models and their vocabularies",
    "index": "Searching the index of base models",
    "rows": "Reading sampled rows",
    "trees": "Drawing matrix and tree",
}
SO_FAR = "So far, from what has been read until now."
"""Above what was found while more is read. It is shown where the visitor cancels: then it is the answer."""
COMPARING = "Comparing with the models that were found or declared"


BETWEEN_UPDATES_S = 0.4
"""A slow browser takes half a second to show how far the work is, and shows what comes one after the other."""


async def unhurried(steps: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Leave out steps that say no more than that time has passed, where another one has just been said."""
    said: object = None
    last = 0.0
    async with aclosing(steps):
        async for step in steps:
            says = (step.progress.stage, id(step.found), step.plan is None) if isinstance(step, Working) else step
            now = time.monotonic()
            if says != said or now - last >= BETWEEN_UPDATES_S:
                said, last = says, now
                yield step


async def talk(
    desk: Desk, panels: Panels, question: FamilyQuestion | SurveyQuestion, visitor: Visitor, request: gr.Request
) -> AsyncGenerator[dict[Any, Any], None]:
    """Answer a question about one model or several on the page.

    Args:
        desk: Where questions are answered.
        panels: What to fill.
        question: What is asked, as it is understood.
        visitor: Who asks.
        request: Their request, for the links.

    Raises:
        RefusedError: If it is not answered.
    """
    yield {panels.plan: ""}
    stream: AsyncGenerator[Any, None] = (
        desk.identify(question, visitor) if isinstance(question, FamilyQuestion) else desk.survey(question, visitor)
    )
    shown: Any = None
    async with aclosing(unhurried(stream)) as steps:
        async for step in steps:
            if isinstance(step, Answered):
                yield answer_updates(panels, question, step, request)
                continue
            updates: dict[Any, Any] = {panels.status: _progress(step)}
            if isinstance(step, Working) and step.found is not shown and _tells(step.found):
                shown = step.found
                growing = " growing" if isinstance(shown, Surveyed) else ""
                updates[panels.verdict] = (
                    f'<div class="interim{growing}">{answer_card(shown, question, note=SO_FAR)}</div>'
                )
            yield updates


def answer_updates(
    panels: Panels, question: FamilyQuestion | SurveyQuestion, answered: Answered[Any], request: gr.Request
) -> dict[Any, Any]:
    """Return the update that shows an answer, computed or kept."""
    result, query = answered.result, query_again(question)
    pinned = pinned_link(answered, request, question)
    link = pinned or f"{page_address(request)}?{query}"
    note = KEPT if answered.was_kept else answered.cut_short
    embedding = ""
    if pinned:
        lines = card_code(answer_words(result, question).headline, pinned, server_address(request))
        embedding = f"<details data-kept='card'><summary>Show it on another page</summary>{lines}</details>"
    card = answer_card(result, question, link=link, note=note, embedding=embedding)
    return {
        panels.status: '<span class="unseen settled" data-say="The answer is complete."></span>',
        panels.verdict: card + address_mark(query, (" ".join(question.names), "")),
        **panels.busy(False),
    }


def _tells(so_far: object) -> bool:
    """Tell whether there is something to be shown before the end."""
    if isinstance(so_far, Surveyed):
        return bool(so_far.report.pairs)
    return isinstance(so_far, Family) and so_far.found is not None


def _progress(step: Waiting | Working[Any]) -> str:
    if isinstance(step, Waiting):
        return progress_notice(step)
    said = STAGES.get(step.progress.stage, COMPARING)
    done = f"{size_text(step.progress.bytes_read)} read"
    if isinstance(step.found, Surveyed):
        report = step.found.report
        done = f"{len(report.models)} of {len(report.names)} models, {done}"
    return (
        f'<div class="progress" data-say="{text(said)}"><p><b>{text(said)}</b> <span>{text(done)} · '
        f"{step.seconds:.0f} s</span></p>{bar(step, said)}</div>"
    )
