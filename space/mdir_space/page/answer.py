"""Answer a question on the page, from the click to the last figure, as updates of its panels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import gradio as gr
from markupsafe import Markup

from mdir_hf import HomologyReport, Level, MdirError, declared_lineage
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.lineage.family import Family
from mdir_hf.model.hub.repository import ResolvedModel
from mdir_hf.render.sections import SectionKind
from mdir_space.html.answer_card import answer_card, answer_words
from mdir_space.html.figures import PUBLIC_FIGURES, ReportFigures
from mdir_space.html.links import page_address, pinned_link, query_again, read_link, server_address
from mdir_space.html.notices import (
    BROKEN,
    cut_short_notice,
    not_kept_notice,
    plan_notice,
    progress_notice,
    progress_of_several,
    read_notice,
    refusal_notice,
    stored_notice,
)
from mdir_space.html.reconstruction_tab import reconstruction_tab
from mdir_space.html.reproduce import badge_tab, card_frame, reproduce_tab
from mdir_space.html.tabs import tab_html
from mdir_space.html.templates import address_mark, render
from mdir_space.html.verdict_card import KEPT, declared_lineage_html, verdict_card
from mdir_space.jobs.access import Access
from mdir_space.jobs.examples import Example, example_of, example_with
from mdir_space.jobs.question import PairQuestion, Question, RefusedError, parse_question
from mdir_space.jobs.service import Answered, Queued, Running, Service
from mdir_space.jobs.survey import SurveyResult
from mdir_space.jobs.visitor import Visitor
from mdir_space.page.panels import Panels, Updates, throttled, together

log = logging.getLogger(__name__)

N_FIELDS = 4
"""Number of fields: the two models, the level and alpha."""

SO_FAR = "Still running. This is the result so far."
"""Shown above an interim result, which remains as the answer if the visitor cancels."""


async def answer_question(
    service: Service, panels: Panels, fields: tuple[object, ...], visitor: Visitor, request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Answer a question on the page.

    ``fields`` has the arguments of :func:`~mdir_space.jobs.question.parse_question`, as sent by the browser.
    """
    question: Question | None = None
    yield {**panels.cleared(), **panels.busy(True)}
    try:
        question = parse_question(*fields, allow_local=service.settings.allow_local)
        stored = example_of(question.names)
        if stored is not None and isinstance(question, PairQuestion):
            async for updates in show_example(panels, stored, request, question=question):
                yield updates
            return
        refuse_stored(question.names)
        question = await service.resolve_author(question, visitor)
        if not isinstance(question, PairQuestion):
            yield {panels.plan: ""}
        interim: object = None
        async with aclosing(throttled(service.answer(question, visitor))) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    async for updates in _show(panels, question, step, request, fields):
                        yield updates
                    continue
                yield _progress(service, panels, question, step, interim, fields)
                interim = step.interim if isinstance(step, Running) else interim
    except RefusedError as refused:
        yield {panels.status: "", panels.alert: refusal_notice(refused, question), **panels.busy(False)}
    except Exception:
        log.exception("an answer on the page failed with an unexpected error")
        yield {panels.status: "", panels.alert: refusal_notice(RefusedError(BROKEN), question), **panels.busy(False)}


def _progress(
    service: Service,
    panels: Panels,
    question: Question,
    step: Queued | Running[Any],
    shown: object,
    fields: tuple[object, ...],
) -> Updates:
    """Return the update for a queued or running job; ``shown`` is the interim result already on the page."""
    is_pair = isinstance(question, PairQuestion)
    updates: Updates = {panels.status: progress_notice(step) if is_pair else progress_of_several(step)}
    if not isinstance(step, Running):
        return updates
    if step.interim is not None and step.interim is not shown and _has_content(step.interim):
        card = answer_card(step.interim, question, note=SO_FAR)
        updates[panels.verdict] = render("interim", card=card, grows=isinstance(step.interim, SurveyResult))
    if is_pair and step.plan is not None:
        updates[panels.plan] = plan_notice(step.plan, service.pace, service.settings.limits, _field_texts(fields))
    return updates


def _field_texts(fields: tuple[object, ...]) -> list[str]:
    """Return the content of the fields in the form that the page's script compares."""
    return [str(field).strip() for field in fields[:N_FIELDS]]


def _has_content(interim: object) -> bool:
    if isinstance(interim, SurveyResult):
        return bool(interim.report.pairs)
    return not isinstance(interim, Family) or interim.found is not None


def refuse_stored(names: Iterable[str]) -> None:
    """Refuse names of models that exist only in a stored result.

    Raises:
        RefusedError: If a name belongs to a stored result.
    """
    match = example_with(names)
    if match is not None:
        name, example = match
        raise RefusedError(
            f"{name} is a model of the stored result “{example.title}”, not an id on the Hub. Enter the id of a model "
            "there, such as HuggingFaceTB/SmolLM2-135M-Instruct."
        )


async def show_kept(
    service: Service, panels: Panels, fields: tuple[object, ...], visitor: Visitor, request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Show the stored result of a link; if it is no longer stored, offer to compute it again."""
    yield {**panels.cleared(), **panels.busy(False)}
    question: Question | None = None
    try:
        question = parse_question(*fields, allow_local=service.settings.allow_local)
        answered = await service.kept_answer(question, visitor)
    except RefusedError as refused:
        yield {panels.alert: refusal_notice(refused, question)}
        return
    if answered is None:
        yield {panels.alert: not_kept_notice(read_link(request).version)}
        return
    async for updates in _show(panels, question, answered, request, fields):
        yield updates


def _show(
    panels: Panels, question: Question, answered: Answered[Any], request: gr.Request, fields: tuple[object, ...]
) -> AsyncGenerator[Updates, None]:
    """Show an answer at once, then add a comparison's declared lineage, and its figures unless they are drawn."""
    return _at_once_if_drawn(answered.result, _answer_in_steps(panels, question, answered, request, fields))


def _at_once_if_drawn(result: object, updates: AsyncGenerator[Updates, None]) -> AsyncGenerator[Updates, None]:
    return together(updates) if PUBLIC_FIGURES.has(result) else updates


async def _answer_in_steps(
    panels: Panels, question: Question, answered: Answered[Any], request: gr.Request, fields: tuple[object, ...]
) -> AsyncGenerator[Updates, None]:
    result, query = answered.result, query_again(question)
    pinned = pinned_link(answered, request, question)
    link = pinned or f"{page_address(request)}?{query}"
    if not isinstance(question, PairQuestion):
        frame = card_frame(answer_words(result, question).headline, pinned, server_address(request)) if pinned else ""
        note = KEPT if answered.was_kept else answered.cut_short
        card = answer_card(result, question, link=link, note=note, frame=frame)
        yield {
            panels.status: render("status", said="The answer is complete.", is_stopped=False),
            panels.verdict: card + address_mark(query, (" ".join(question.names), "")),
            **panels.busy(False),
        }
        return
    note = KEPT if answered.was_kept else ""
    mark = address_mark(query, question.names, first_tab(result))
    yield {
        panels.status: "",
        panels.plan: "" if answered.was_kept else read_notice(result, _field_texts(fields)),
        panels.alert: cut_short_notice(answered.cut_short, question) if answered.cut_short else "",
        panels.verdict: verdict_card(result, link=link, note=note) + mark,
        **panels.busy(False),
    }
    draw = PUBLIC_FIGURES.of if answered.is_kept else ReportFigures
    declared, figures = await asyncio.gather(
        asyncio.to_thread(_declared, result, answered.access), asyncio.to_thread(draw, result)
    )
    card = verdict_card(result, link=link, note=note, declared=declared, figure=figures.deciding)
    yield {panels.verdict: card + mark}
    async for updates in details(panels, result, figures, link, server_address(request), is_public=bool(pinned)):
        yield updates


def first_tab(report: HomologyReport) -> str:
    """Return the tab with the deciding evidence, or the layers tab if all layers were requested."""
    return "layers" if report.level is Level.LAYERS and report.layers is not None else "evidence"


async def details(
    panels: Panels,
    report: HomologyReport,
    figures: ReportFigures,
    link: str,
    server: str,
    *,
    is_example: bool = False,
    is_public: bool = False,
) -> AsyncGenerator[Updates, None]:
    """Fill the tabs in order, rendering the figures in a thread."""
    yield {
        panels.details: gr.update(visible=True),
        panels.evidence: "",
        panels.layers: "",
        panels.modules: "",
        panels.reconstruction: reconstruction_tab(report, is_example=is_example),
        panels.reproduce: reproduce_tab(report, server=server, is_example=is_example),
        panels.badge: badge_tab(report, link, server if is_public else ""),
    }
    for tab, kind in (
        (panels.evidence, SectionKind.EVIDENCE),
        (panels.layers, SectionKind.LAYERS),
        (panels.modules, SectionKind.MODULES),
    ):
        yield {tab: await asyncio.to_thread(tab_html, report, kind, figures, link)}
    yield {panels.status: render("status", said="The evidence is complete.", is_stopped=False)}


def _declared(report: HomologyReport, access: Access) -> Markup:
    def read(model: ResolvedModel) -> DeclaredLineage | None:
        if model.commit is None:
            return None
        try:
            return declared_lineage(
                model.repo,
                revision=model.commit,
                token=access.token if access.token is not None else False,
                use_caches=not access.is_private,
                public_only=not access.is_private,
            )
        except MdirError:  # a card that cannot be read declares nothing
            return None

    return declared_lineage_html(report, (read(access.reference), read(access.candidate)))


def show_example(
    panels: Panels, example: Example, request: gr.Request, question: PairQuestion | None = None
) -> AsyncGenerator[Updates, None]:
    """Show a stored result; ``question`` is None if the visitor opened it directly."""
    return _at_once_if_drawn(example.report, _example_in_steps(panels, example, request, question))


async def _example_in_steps(
    panels: Panels, example: Example, request: gr.Request, question: PairQuestion | None
) -> AsyncGenerator[Updates, None]:
    report = example.report
    note = example.note
    if question is not None and (question.alpha != report.alpha or question.level not in ("auto", report.level)):
        stored = f"this is the stored result, at level {report.level} and alpha {report.alpha:g}"
        note = f"Nothing was computed: {stored}. {note}"
    mark = address_mark(f"example={quote(example.name)}", example.models, first_tab(report))
    yield {
        **panels.cleared(),
        **panels.busy(False),
        panels.plan: stored_notice(example),
        panels.verdict: verdict_card(report, note=note, is_example=True) + mark,
    }
    figures = await asyncio.to_thread(PUBLIC_FIGURES.of, report)
    yield {panels.verdict: verdict_card(report, note=note, figure=figures.deciding, is_example=True) + mark}
    async for updates in details(panels, report, figures, "", server_address(request), is_example=True):
        yield updates
