"""The same comparison for programs: endpoints of the API, and tools of agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import gradio as gr
from gradio.events import api

from mdir_space.addresses import pinned_link
from mdir_space.agents import AgentTool, Call, News
from mdir_space.answers import IDENTIFIED, SURVEYED, VERIFIED, answer_of, answer_schema, identified, surveyed, verified
from mdir_space.desk import Answered, Desk, Waiting
from mdir_space.notices import in_words
from mdir_space.plans import PLANNED, planned
from mdir_space.question import DEFAULT_ALPHA, LEVELS, LONGEST_NAME, MOST_MODELS, Question, RefusedError, ask
from mdir_space.visitor import visitor_of
from mdir_space.ways import AnyQuestion, ask_family, ask_survey

Level = Literal["auto", "screen", "embedding", "layers"]


def add_programs(desk: Desk) -> None:
    """Add the endpoints ``/compare``, ``/plan``, ``/identify``, ``/verify`` and ``/survey`` to the page being built."""
    tools = {tool.name: tool for tool in tools_of(desk)}

    async def answered(
        tool: str,
        arguments: dict[str, Any],
        request: gr.Request | None,
        account: gr.OAuthProfile | None,
        account_token: gr.OAuthToken | None,
    ) -> dict[str, Any]:
        """Answer as the tool of agents does."""
        progress = gr.Progress()
        try:
            if why_not := tools[tool].why_not(arguments):
                raise RefusedError(why_not)
            visitor = visitor_of(request, account, account_token, n_proxies=desk.serving.limits.n_proxies)
            async with aclosing(tools[tool].answer(Call(arguments, visitor, request))) as news:
                async for one in news:
                    if isinstance(one, dict):
                        return one
                    progress(None, desc=one)
        except RefusedError as refused:
            raise _error(refused) from refused
        raise AssertionError("a call ends with its result or is refused")

    async def identify(  # noqa: D417 - the docstring is what programs are shown, and gradio fills in the rest
        model: str,
        level: Level = "auto",
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Find with which known base models a model shares weight ancestry.

        Args:
            model: owner/name, owner/name@revision, or its address on the Hub.
            level: How far its comparisons go.
        """
        return await answered("identify", {"model": model, "level": level}, request, account, account_token)

    async def verify(  # noqa: D417 - likewise
        model: str,
        level: Level = "auto",
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Set the base models that a model's card declares beside what its weights say.

        Args:
            model: owner/name, owner/name@revision, or its address on the Hub.
            level: How far its comparisons go.
        """
        return await answered("verify", {"model": model, "level": level}, request, account, account_token)

    async def survey(  # noqa: D417 - likewise
        models: list[str],
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Say which of several models share weight ancestry.

        Args:
            models: Up to 20 models; or one collection, or the name of one author.
        """
        return await answered("survey", {"models": models}, request, account, account_token)

    async def compare(  # noqa: D417 - the docstring is what programs are shown, and gradio fills in the rest
        reference: str,
        candidate: str,
        level: Level = "auto",
        alpha: float = DEFAULT_ALPHA,
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Say from their weights whether two language models on the Hugging Face Hub share weight ancestry.

        Args:
            reference: One model: owner/name, owner/name@revision, or its address on the Hub.
            candidate: The other model.
            level: How far to go. auto stops as soon as the question is settled, body analyses every layer.
            alpha: The p-value from which on a result counts, between 0 and 1.
        """
        question = _asked(reference, candidate, level, alpha)
        visitor = visitor_of(request, account, account_token, n_proxies=desk.serving.limits.n_proxies)
        progress = gr.Progress()  # as a parameter it would be taken for one of the API
        try:
            async with aclosing(desk.answer(question, visitor)) as steps:
                async for step in steps:
                    if isinstance(step, Answered):
                        return answer_of(step, pinned_link(step, request, question))
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
        reference: str = "",
        candidate: str = "",
        level: Level = "auto",
        models: list[str] | None = None,
        request: gr.Request | None = None,
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Say what an answer would read and need, and what finding nothing would exclude, without giving it.

        Args:
            reference: One model: owner/name, owner/name@revision, or its address on the Hub.
            candidate: The other model; empty: the plan of finding the family of the first one.
            level: How far to go: auto, screen, embedding or body.
            models: In their place: the models of a survey, or one collection, or one author.
        """
        arguments: dict[str, Any] = {"level": level}
        arguments |= {"reference": reference} if reference else {}
        arguments |= {"candidate": candidate} if candidate else {}
        arguments |= {"models": models} if models else {}
        return await answered("plan", arguments, request, account, account_token)

    api(compare, api_name="compare", concurrency_limit=None, api_description=COMPARE)
    api(plan, api_name="plan", concurrency_limit=8, api_description=PLAN)
    api(identify, api_name="identify", concurrency_limit=None, api_description=IDENTIFY)
    api(verify, api_name="verify", concurrency_limit=None, api_description=VERIFY)
    api(survey, api_name="survey", concurrency_limit=None, api_description=SURVEY)


def tools_of(desk: Desk) -> tuple[AgentTool, ...]:
    """Return the tools of agents."""

    async def compare(call: Call) -> AsyncGenerator[News, None]:
        asked = call.arguments
        question = ask(
            asked["reference"], asked["candidate"], asked.get("level", "auto"), asked.get("alpha", DEFAULT_ALPHA)
        )
        async with aclosing(desk.answer(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    link = pinned_link(step, call.request, question)
                    yield answer_of(step, link, detailed=asked.get("detailed", False))
                else:
                    yield in_words(step)

    async def plan(call: Call) -> AsyncGenerator[News, None]:
        found = await desk.plan(_to_plan(call.arguments), call.visitor)
        yield planned(found, desk.pace, desk.serving.limits)

    async def identify(call: Call) -> AsyncGenerator[News, None]:
        question = ask_family(call.arguments["model"], call.arguments.get("level", "auto"), verifies=False)
        async with aclosing(desk.identify(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield identified(step, pinned_link(step, call.request, question))
                else:
                    yield in_words(step)

    async def verify(call: Call) -> AsyncGenerator[News, None]:
        question = ask_family(call.arguments["model"], call.arguments.get("level", "auto"), searches=False)
        async with aclosing(desk.identify(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield verified(step, pinned_link(step, call.request, question))
                else:
                    yield in_words(step)

    async def survey(call: Call) -> AsyncGenerator[News, None]:
        question = ask_survey(call.arguments["models"])
        async with aclosing(desk.survey(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield surveyed(step, pinned_link(step, call.request, question))
                else:
                    yield in_words(step)

    return (
        AgentTool("compare", "Compare two models", COMPARE, _takes("alpha", "detailed"), answer_schema(), compare),
        AgentTool("plan", "What an answer would read", PLAN, _PLANS, PLANNED, plan),
        AgentTool("identify", "Find the family of a model", IDENTIFY, _ONE, IDENTIFIED, identify),
        AgentTool("verify", "Check what a card declares", VERIFY, _ONE, VERIFIED, verify),
        AgentTool("survey", "Compare several models", SURVEY, _SEVERAL, SURVEYED, survey),
    )


_NAME = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}

COMPARE = (
    "Say from their weights whether two language models on the Hugging Face Hub share weight ancestry: whether one was "
    "made from the other, or both from a third. The result is a verdict (homologous, no_evidence or inconclusive) with "
    "log10 of a p-value, what it means and what it does not mean. It has no direction and accuses nobody. Reads a few "
    "megabytes where the models are near copies and more where they are not; takes seconds to minutes. Where a limit "
    "of this server ends it, what was found until then is the result, and cut_short says what is missing."
)
PLAN = (
    "Say what an answer would read and need, and what finding nothing would exclude, without giving it. Name reference "
    "and candidate for the plan of compare, reference alone for that of identify and verify together, models for that "
    "of survey. Reads headers and vocabularies only; takes seconds, for a survey some seconds a model."
)
IDENTIFY = (
    "Find with which known base models one language model on the Hugging Face Hub shares weight ancestry, whatever its "
    "card says: an index of base models is searched, and what it proposes is compared. Use it where you do not know "
    "what to compare with. That nothing is found excludes only the base models of the index. Takes seconds to minutes."
)
VERIFY = (
    "Set the base models that the card of a language model on the Hugging Face Hub declares (base_model) beside what "
    "the weights say: each of them is compared with the model. Takes seconds to minutes for each declared base."
)
SURVEY = (
    "Say which of 2 to 20 language models on the Hugging Face Hub share weight ancestry: every pair is compared, each "
    "model is read once, and the result has groups of relatives and their family trees. Takes some seconds a model."
)
MODEL = "owner/name, owner/name@revision, or the address of its page, for example Qwen/Qwen2.5-0.5B"


def _takes(*further: str) -> dict[str, Any]:
    """The schema of the arguments: two models, the level, and some more."""
    level_words = "; ".join(f"{name} {what}" for name, what in LEVELS.items())
    known = {
        "alpha": {
            "type": "number",
            "exclusiveMinimum": 0,
            "exclusiveMaximum": 1,
            "default": DEFAULT_ALPHA,
            "description": "The p-value from which on a result counts, fixed before looking.",
        },
        "detailed": {
            "type": "boolean",
            "default": False,
            "description": "Whether to get every look, module and cell of the layer map; hundreds of kilobytes.",
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "reference": {**_NAME, "description": f"One model: {MODEL}."},
            "candidate": {**_NAME, "description": "The other model, likewise. Their order changes nothing."},
            "level": {"enum": list(LEVELS), "default": "auto", "description": f"How far to go: {level_words}."},
            **{name: known[name] for name in further},
        },
        "required": ["reference", "candidate"],
    }


_ONE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "model": {**_NAME, "description": f"The model: {MODEL}."},
        "level": {"enum": list(LEVELS), "default": "auto", "description": "How far its comparisons go."},
    },
    "required": ["model"],
}
_SEVERAL: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "models": {
            "type": "array",
            "items": _NAME,
            "minItems": 1,
            "maxItems": MOST_MODELS,
            "uniqueItems": True,
            "description": f"Models, each {MODEL}; or one collection (its address), or one author (a user's name).",
        }
    },
    "required": ["models"],
}


_PLANS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**_takes()["properties"], **_SEVERAL["properties"]},
    "anyOf": [{"required": ["reference"]}, {"required": ["models"]}],
}


def _to_plan(asked: dict[str, Any]) -> AnyQuestion:
    """Make the question whose plan is asked for."""
    level = asked.get("level", "auto")
    if "models" in asked:
        if "reference" in asked or "candidate" in asked:
            raise RefusedError(
                "The plan is that of a comparison or of a survey: name reference and candidate, or models."
            )
        return ask_survey(asked["models"])
    if "candidate" in asked:
        return ask(asked["reference"], asked["candidate"], level)
    return ask_family(asked["reference"], level)


def _asked(reference: str, candidate: str, level: str, alpha: float) -> Question:
    try:
        return ask(reference, candidate, level, alpha)
    except RefusedError as refused:
        raise _error(refused) from refused


def _error(refused: RefusedError) -> gr.Error:
    return gr.Error(refused.message, duration=10, print_exception=False, title="Not compared")
