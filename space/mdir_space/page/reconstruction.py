"""Reconstruct the transformation between two compared models, and show it in its tab."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import parse_qs

import gradio as gr

from mdir_space.html.links import download_link
from mdir_space.html.notices import BROKEN, refusal_notice
from mdir_space.html.reconstruction_tab import reconstruction_end, reconstruction_progress, reconstruction_result
from mdir_space.jobs.question import ReconstructionQuestion, RefusedError, reconstruction_question
from mdir_space.jobs.service import Answered, Service
from mdir_space.jobs.visitor import Visitor
from mdir_space.page.panels import Panels, Updates, throttled

log = logging.getLogger(__name__)


async def show_reconstruction(
    service: Service, panels: Panels, query: object, visitor: Visitor, request: gr.Request
) -> AsyncGenerator[Updates, None]:
    """Reconstruct the transformation, and show progress and result in the tab.

    ``query`` is the URL query of the current answer, as sent by the browser.
    """
    question: ReconstructionQuestion | None = None
    try:
        question = question_of(query)
        async with aclosing(throttled(service.answer(question, visitor))) as steps:
            async for step in steps:
                if not isinstance(step, Answered):
                    yield {panels.reconstruction: reconstruction_progress(step)}
                    continue
                address = download_link(step.result, request)
                yield {panels.reconstruction: reconstruction_result(step.result, question.names, address)}
    except RefusedError as refused:
        yield {panels.reconstruction: reconstruction_end(refusal_notice(refused, question))}
    except Exception:
        log.exception("a reconstruction on the page failed with an unexpected error")
        yield {panels.reconstruction: reconstruction_end(refusal_notice(RefusedError(BROKEN), question))}


def question_of(query: object) -> ReconstructionQuestion:
    """Return the reconstruction question about the models in an answer's query.

    Raises:
        RefusedError: If the query does not name two models.
    """
    fields = {name: values[0] for name, values in parse_qs(str(query or "")[:2000]).items()}
    return reconstruction_question(
        fields.get("a"), fields.get("b"), fields.get("level", "auto"), fields.get("alpha", "")
    )
