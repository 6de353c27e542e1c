"""One visitor's comparison on the page: from the click to the last figure, as updates of the panels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Any, cast
from urllib.parse import quote

import gradio as gr

from mdir_hf import HomologyReport, Level, MdirError, SettledBy, declared_lineage
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.model.hub.resolve import ResolvedModel
from mdir_hf.render.sections import SectionKind
from mdir_space.access import Access
from mdir_space.addresses import page_address, pinned_link, query_again, read_link, server_address
from mdir_space.desk import Answered, Desk, Working
from mdir_space.examples import Example, example_of, example_with
from mdir_space.markup import address_mark
from mdir_space.notices import (
    BROKEN,
    alert,
    cut_short_notice,
    not_kept_notice,
    plan_notice,
    progress_notice,
    stored_notice,
)
from mdir_space.panels import panel
from mdir_space.pictures import Pictures
from mdir_space.question import Question, RefusedError
from mdir_space.reproduce import badge_panel, reproduce_panel
from mdir_space.sharing import sharing_panel
from mdir_space.talks import SO_FAR, answer_updates, talk, unhurried
from mdir_space.verdict_card import KEPT, declared_text, verdict_card
from mdir_space.visitor import Visitor
from mdir_space.ways import FamilyQuestion, SurveyQuestion, asked_way

log = logging.getLogger(__name__)

Updates = dict[gr.components.Component | gr.blocks.BlockContext, Any]


@dataclass(frozen=True)
class Panels:
    """The parts of the page that a comparison fills."""

    plan: gr.HTML
    status: gr.HTML
    alert: gr.HTML
    verdict: gr.HTML
    details: gr.Column
    evidence: gr.HTML
    layers: gr.HTML
    modules: gr.HTML
    calibration: gr.HTML
    reproduce: gr.HTML
    badge: gr.HTML
    compare: gr.Button
    cancel: gr.Button

    def all(self) -> list[Any]:
        """All of them, for ``outputs=``."""
        return [getattr(self, field.name) for field in fields(self)]

    def busy(self, is_busy: bool) -> Updates:
        """Offer to cancel while a comparison is at work, and to compare while none is."""
        # "hidden" and not False: what is taken off the page comes back too late for an answer that is quick.
        return {
            self.compare: gr.update(visible="hidden" if is_busy else True),
            self.cancel: gr.update(visible=True if is_busy else "hidden"),
        }

    def cleared(self) -> Updates:
        """Take away what an earlier comparison left."""
        return {
            self.status: "",
            self.alert: "",
            self.verdict: "",
            self.details: gr.update(visible=False),
        }


async def accumulated(updates: AsyncGenerator[Updates, None]) -> AsyncGenerator[Updates, None]:
    """Repeat in every update what the earlier ones said.

    The browser shows the last of the updates that come within one frame, and of those before it, nothing. What stays
    the same is not sent again.
    """
    said: Updates = {}
    async with aclosing(updates):
        async for more in updates:
            said |= more
            yield dict(said)


async def converse(
    desk: Desk, panels: Panels, asked: tuple[object, ...], visitor: Visitor, request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Answer on the page.

    Args:
        desk: Where questions are answered.
        panels: What to fill.
        asked: The arguments of :func:`~mdir_space.ways.asked_way`, as they came from the browser.
        visitor: Who asks.
        request: Their request, for the links.
    """
    question: Question | FamilyQuestion | SurveyQuestion | None = None
    shown: HomologyReport | None = None
    yield {**panels.cleared(), **panels.busy(True)}
    try:
        question = asked_way(*asked, allow_local=desk.serving.allow_local)
        stored = example_of(question.names)
        if stored is not None and isinstance(question, Question):
            async for updates in show_example(panels, stored, request, asked=question):
                yield updates
            return
        refuse_stored(question.names)
        question = await desk.understood(question, visitor)
        if not isinstance(question, Question):
            async for updates in talk(desk, panels, question, visitor, request):
                yield updates
            return
        async with aclosing(unhurried(desk.answer(question, visitor))) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    async for updates in _show(panels, question, step, request):
                        yield updates
                    continue
                updates = {panels.status: progress_notice(step)}
                if isinstance(step, Working) and step.found is not None and step.found is not shown:
                    shown = step.found
                    updates[panels.verdict] = f'<div class="interim">{verdict_card(shown, note=SO_FAR)}</div>'
                if isinstance(step, Working) and step.plan is not None:
                    updates[panels.plan] = plan_notice(step.plan, desk.pace, desk.serving.limits)
                yield updates
    except RefusedError as refused:
        yield {panels.status: "", panels.alert: alert(refused, question), **panels.busy(False)}
    except Exception:
        log.exception("a comparison failed in a way that is not foreseen")
        yield {panels.status: "", panels.alert: alert(RefusedError(BROKEN), question), **panels.busy(False)}


def refuse_stored(names: Iterable[str]) -> None:
    """Refuse names of models that are in a stored result and in no repository.

    Raises:
        RefusedError: If one of the names is one of those.
    """
    found = example_with(names)
    if found is not None:
        name, example = found
        raise RefusedError(
            f"{name} is a model of the stored result “{example.title}”, and no id on the Hub. Give the id of a model "
            "there, such as HuggingFaceTB/SmolLM2-135M-Instruct."
        )


async def show_kept(
    desk: Desk, panels: Panels, asked: tuple[object, ...], visitor: Visitor, request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Show the result that an address stands for, where it is kept; else offer to compute the same again.

    Args:
        desk: Where results are kept.
        panels: What to fill.
        asked: As of :func:`converse`.
        visitor: Who asks.
        request: Their request, for the links.
    """
    yield {**panels.cleared(), **panels.busy(False)}
    question: Question | FamilyQuestion | SurveyQuestion | None = None
    try:
        question = asked_way(*asked, allow_local=desk.serving.allow_local)
        answered = await desk.kept(question, visitor)
    except RefusedError as refused:
        yield {panels.alert: alert(refused, question)}
        return
    if answered is None:
        yield {panels.alert: not_kept_notice(read_link(request).version)}
        return
    if not isinstance(question, Question):
        yield answer_updates(panels, question, answered, request)
        return
    async for updates in _show(panels, question, cast("Answered[HomologyReport]", answered), request):
        yield updates


async def _show(
    panels: Panels, question: Question, answered: Answered[HomologyReport], request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Show the verdict at once, what is declared and the figures as they come."""
    report = answered.result
    query = query_again(question)
    pinned = pinned_link(answered, request, question)
    link = pinned or f"{page_address(request)}?{query}"
    note = KEPT if answered.was_kept else ""
    mark = address_mark(query, (question.reference, question.candidate), first_tab(report))
    yield {
        panels.status: "",
        panels.alert: cut_short_notice(answered.cut_short, question) if answered.cut_short else "",
        panels.verdict: verdict_card(report, link=link, note=note) + mark,
        **panels.busy(False),
    }
    declared = await asyncio.to_thread(_declared, report, answered.access)
    yield {panels.verdict: verdict_card(report, link=link, note=note, declared=declared) + mark}
    async for updates in details(panels, report, link, server_address(request), is_public=bool(pinned)):
        yield updates


def first_tab(report: HomologyReport) -> str:
    """Return the tab of the evidence that decided, or of the layers where all of them were asked for."""
    is_about_layers = report.settled_by is SettledBy.LAYERS or report.level is Level.LAYERS
    return "layers" if is_about_layers and report.layers is not None else "evidence"


async def details(
    panels: Panels,
    report: HomologyReport,
    link: str,
    server: str,
    *,
    is_example: bool = False,
    is_public: bool = False,
) -> AsyncGenerator[Updates, None]:
    """Fill the tabs; figures are drawn in a thread, one tab after the other."""
    yield {
        panels.details: gr.update(visible=True),
        panels.evidence: "",
        panels.layers: "",
        panels.modules: "",
        panels.calibration: "",
        panels.reproduce: reproduce_panel(report, server=server, is_example=is_example),
        panels.badge: badge_panel(report, link) + (sharing_panel(report, link, server) if is_public else ""),
    }
    pictures = await asyncio.to_thread(Pictures, report)
    for tab, kind in (
        (panels.evidence, SectionKind.EVIDENCE),
        (panels.layers, SectionKind.LAYERS),
        (panels.modules, SectionKind.MODULES),
        (panels.calibration, SectionKind.CALIBRATION),
    ):
        yield {tab: await asyncio.to_thread(panel, report, kind, pictures, link)}
    yield {panels.status: '<span class="unseen settled" data-say="The evidence is complete."></span>'}


def _declared(report: HomologyReport, access: Access) -> str:
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

    return declared_text(report, (read(access.reference), read(access.candidate)))


async def show_example(
    panels: Panels, example: Example, request: gr.Request, asked: Question | None = None
) -> AsyncGenerator[Updates, None]:
    """Show a stored result.

    Args:
        panels: What to fill.
        example: The result.
        request: Whose.
        asked: The question about its models; None where the result itself was asked for.
    """
    report = example.report
    note = example.note
    if asked is not None and (asked.alpha != report.alpha or asked.level not in ("auto", report.level)):
        stored = f"this is the stored result, at level {report.level} and alpha {report.alpha:g}"
        note = f"Nothing was computed: {stored}. {note}"
    yield {
        **panels.cleared(),
        **panels.busy(False),
        panels.plan: stored_notice(example),
        panels.verdict: verdict_card(report, note=note, is_example=True)
        + address_mark(f"example={quote(example.name)}", example.models, first_tab(report)),
    }
    async for updates in details(panels, report, "", server_address(request), is_example=True):
        yield updates
