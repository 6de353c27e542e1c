"""The parts of the page that an answer fills, and streams of their updates."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Any

import gradio as gr

from mdir_space.jobs.service import Running

Updates = dict[gr.components.Component | gr.blocks.BlockContext, Any]

UPDATE_INTERVAL_S = 0.4
"""Minimum time between updates. A slow browser takes half a second for each, and shows them all."""


@dataclass(frozen=True)
class Panels:
    """The parts of the page that an answer fills."""

    plan: gr.HTML
    status: gr.HTML
    alert: gr.HTML
    verdict: gr.HTML
    details: gr.Column
    evidence: gr.HTML
    layers: gr.HTML
    modules: gr.HTML
    reconstruction: gr.HTML
    reproduce: gr.HTML
    badge: gr.HTML
    compare: gr.Button
    cancel: gr.Button

    def all(self) -> list[Any]:
        """Return all panels, for ``outputs=``."""
        return [getattr(self, field.name) for field in fields(self)]

    def busy(self, is_busy: bool) -> Updates:
        """Show Cancel while a job runs, and Compare otherwise."""
        # "hidden" instead of False, because a removed button returns too late for a quick answer.
        return {
            self.compare: gr.update(visible="hidden" if is_busy else True),
            self.cancel: gr.update(visible=True if is_busy else "hidden"),
        }

    def cleared(self) -> Updates:
        """Clear the panels of the previous answer."""
        return {
            self.status: "",
            self.alert: "",
            self.verdict: "",
            self.details: gr.update(visible=False),
        }


async def accumulated(updates: AsyncGenerator[Updates, None]) -> AsyncGenerator[Updates, None]:
    """Include all earlier updates in every update.

    The browser shows only the last update of each frame, and gradio sends only changes.
    """
    merged: Updates = {}
    async with aclosing(updates):
        async for more in updates:
            merged |= more
            yield dict(merged)


async def together(updates: AsyncGenerator[Updates, None]) -> AsyncGenerator[Updates, None]:
    """Give all updates as one. gradio takes about 10 ms for each."""
    merged: Updates = {}
    async with aclosing(updates):
        async for more in updates:
            merged |= more
    yield merged


async def throttled(steps: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Drop steps within 0.4 s of another unless the stage, the plan or the interim result changes."""
    shown: object = None
    last = 0.0
    async with aclosing(steps):
        async for step in steps:
            content = (step.progress.stage, id(step.interim), step.plan is None) if isinstance(step, Running) else step
            now = time.monotonic()
            if content != shown or now - last >= UPDATE_INTERVAL_S:
                shown, last = content, now
                yield step
