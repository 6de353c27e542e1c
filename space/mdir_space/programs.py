"""The same comparison for programs: two API endpoints, which are two MCP tools as well."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Literal

import gradio as gr

from mdir_space.desk import Answered, Desk, Waiting
from mdir_space.estimate import bytes_of
from mdir_space.question import Question, RefusedError, ask
from mdir_space.reproduce import slim_report
from mdir_space.visitor import visitor_of

Level = Literal["auto", "screen", "embedding", "body"]


def add_programs(desk: Desk) -> None:
    """Add the endpoints ``/compare`` and ``/plan`` to the page that is being built."""

    async def compare(  # noqa: D417 - the docstring is the tool's schema, and gradio fills in the rest
        reference: str,
        candidate: str,
        level: Level = "auto",
        alpha: float = 1e-10,
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Say from their weights whether two language models on the Hugging Face Hub share weight ancestry.

        The answer is a verdict (homologous, no_evidence or inconclusive) with log10 of a p-value, what the verdict
        means and what it does not mean. It has no direction and accuses nobody. Only a few megabytes of weights are
        read in most cases; it takes seconds to minutes.

        Args:
            reference: One model: owner/name, owner/name@revision, or its address on the Hub.
            candidate: The other model.
            level: How far to go. auto stops as soon as the question is settled, body analyses every layer.
            alpha: The p-value from which on a result counts, between 0 and 1.
        """
        question = _asked(reference, candidate, level, alpha)
        progress = gr.Progress()  # as a parameter it would be taken for one of the API
        try:
            async with aclosing(
                desk.answer(
                    question, visitor_of(request, account, account_token, n_proxies=desk.serving.limits.n_proxies)
                )
            ) as steps:
                async for step in steps:
                    if isinstance(step, Answered):
                        return slim_report(step.report)
                    if isinstance(step, Waiting):
                        progress(None, desc=f"waiting, {step.n_ahead} ahead")
                    else:
                        told = step.progress
                        share = (min(told.bytes_read, told.bytes_expected or 0), told.bytes_expected)
                        progress(share, desc=told.stage, unit="bytes")
        except RefusedError as refused:
            raise _error(refused) from refused
        raise AssertionError("an answer ends with Answered or is refused")

    async def plan(  # noqa: D417 - likewise
        reference: str,
        candidate: str,
        level: Level = "auto",
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Say what comparing two models would read and need, without comparing them.

        Args:
            reference: One model: owner/name, owner/name@revision, or its address on the Hub.
            candidate: The other model.
            level: How far to go: auto, screen, embedding or body.
        """
        question = _asked(reference, candidate, level, 1e-10)
        try:
            found = await desk.plan(
                question, visitor_of(request, account, account_token, n_proxies=desk.serving.limits.n_proxies)
            )
        except RefusedError as refused:
            raise _error(refused) from refused
        least, most = bytes_of(found)
        return {
            "bytes_at_least": least,
            "bytes_at_most": most,
            "bytes_of_weights": found.bytes_of_weights,
            "peak_memory_bytes": found.peak_memory_bytes,
            "common_tokens": found.common_tokens,
        }

    gr.api(compare, api_name="compare", concurrency_limit=None)
    gr.api(plan, api_name="plan", concurrency_limit=8)


def _asked(reference: str, candidate: str, level: str, alpha: float) -> Question:
    try:
        return ask(reference, candidate, level, alpha)
    except RefusedError as refused:
        raise _error(refused) from refused


def _error(refused: RefusedError) -> gr.Error:
    return gr.Error(refused.message, duration=10, print_exception=False, title="Not compared")
