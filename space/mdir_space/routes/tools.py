"""The tools for programs and agents, each defined once for the API and for MCP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema

from mdir_space.html.links import pinned_link
from mdir_space.jobs.question import (
    DEFAULT_ALPHA,
    LEVELS,
    MAX_MODELS,
    MAX_NAME_LENGTH,
    Question,
    RefusedError,
    family_question,
    pair_question,
    shortened,
    survey_question,
)
from mdir_space.jobs.service import Answered, Queued, Running, Service
from mdir_space.jobs.visitor import Visitor
from mdir_space.routes.answers import (
    IDENTIFIED,
    PLANNED,
    SURVEYED,
    VERIFIED,
    answer_of,
    answer_schema,
    identified,
    planned,
    surveyed,
    verified,
)

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
    "model is read once, and the result has groups of relatives and their family trees. Takes some seconds a model "
    "and up to eight a pair."
)
MODEL = "owner/name, owner/name@revision, or the address of its page, for example Qwen/Qwen2.5-0.5B"

Level = Literal["auto", "screen", "embedding", "layers"]
REQUIRED: Any = object()
"""The default of an argument that has none."""


@dataclass(frozen=True)
class Argument:
    """An argument of a tool.

    Attributes:
        name: Its name.
        type: Its Python type, for the API.
        schema: Its JSON Schema with a description, for MCP.
        default: Its default.
        is_in_api: Whether the API has it, too.
    """

    name: str
    type: Any
    schema: dict[str, Any]
    default: Any = REQUIRED
    is_in_api: bool = True


@dataclass(frozen=True)
class Call:
    """One call of a tool.

    Attributes:
        arguments: Valid by the schema of the tool.
        visitor: The caller.
        request: The request, for links.
    """

    arguments: dict[str, Any]
    visitor: Visitor
    request: Any


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: Its name for programs.
        title: Its name for people.
        description: What it does, when to use it, and how long it takes.
        arguments: Its arguments.
        output_schema: JSON Schema of the result.
        question: Makes the question of the arguments.
        result: Makes the result of an answer, a link and the arguments; None: the result is the plan of the question.
        one_of: At least one of these arguments is required.
    """

    name: str
    title: str
    description: str
    arguments: tuple[Argument, ...]
    output_schema: dict[str, Any]
    question: Callable[[dict[str, Any]], Question]
    result: Callable[[Answered[Any], str, dict[str, Any]], dict[str, Any]] | None = None
    one_of: tuple[str, ...] = ()

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {one.name: one.schema for one in self.arguments},
        }
        if self.one_of:
            return {**schema, "anyOf": [{"required": [name]} for name in self.one_of]}
        return {**schema, "required": [one.name for one in self.arguments if one.default is REQUIRED]}

    def why_not(self, arguments: dict[str, Any]) -> str:
        """Return in a sentence why it does not take these arguments; empty if it does."""
        errors = jsonschema.Draft202012Validator(self.input_schema).iter_errors(arguments)
        wrong = jsonschema.exceptions.best_match(errors)
        if wrong is None:
            return ""
        where = ".".join(map(str, wrong.absolute_path))
        said = shortened(wrong.message, 300)
        names = ", ".join(one.name for one in self.arguments)
        return f"{self.name} does not take this{f' {where}' if where else ''}: {said}. Its arguments are {names}."

    async def answer(
        self, service: Service, call: Call
    ) -> AsyncGenerator[Queued | Running[Any] | dict[str, Any], None]:
        """Answer a call, step by step; the last step is the result. Closing it kills the process of the job.

        Raises:
            RefusedError: If there is no answer.
        """
        question = self.question(call.arguments)
        if self.result is None:
            yield planned(await service.plan(question, call.visitor), service.pace, service.settings.limits)
            return
        async with aclosing(service.answer(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    yield self.result(step, pinned_link(step, call.request, question), call.arguments)
                else:
                    yield step


def _planned_question(asked: dict[str, Any]) -> Question:
    """Return the question whose plan is asked for."""
    level = asked.get("level", "auto")
    if "models" in asked:
        if "reference" in asked or "candidate" in asked:
            raise RefusedError(
                "The plan is that of a comparison or of a survey: name reference and candidate, or models."
            )
        return survey_question(asked["models"], layers=level == "layers")
    if "candidate" in asked:
        return pair_question(asked["reference"], asked["candidate"], level)
    return family_question(asked["reference"], level)


_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
_REFERENCE = {**_NAME, "description": f"One model: {MODEL}."}
_CANDIDATE = {**_NAME, "description": "The other model, likewise. Their order changes nothing."}
_LEVELS = "; ".join(f"{name} {what}" for name, what in LEVELS.items())
_LEVEL = {"enum": list(LEVELS), "default": "auto", "description": f"How far to go: {_LEVELS}."}
_ALPHA = {
    "type": "number",
    "exclusiveMinimum": 0,
    "exclusiveMaximum": 1,
    "default": DEFAULT_ALPHA,
    "description": "The p-value from which on a result counts, fixed before looking.",
}
_DETAILED = {
    "type": "boolean",
    "default": False,
    "description": "Whether to get every look, module and cell of the layer map; hundreds of kilobytes.",
}
_MODELS = {
    "type": "array",
    "items": _NAME,
    "minItems": 1,
    "maxItems": MAX_MODELS,
    "uniqueItems": True,
    "description": f"Models, each {MODEL}; or one collection (its address), or one author (a user's name).",
}
_LAYERS = {
    "type": "boolean",
    "default": False,
    "description": "Whether models without a relative are compared again in full, with one of each family.",
}
_LEVEL_ARGUMENT = Argument("level", Level, _LEVEL, "auto")
_ONE_MODEL = (
    Argument("model", str, {**_NAME, "description": f"The model: {MODEL}."}),
    Argument("level", Level, {**_LEVEL, "description": "How far its comparisons go."}, "auto"),
)

TOOLS = (
    Tool(
        "compare",
        "Compare two models",
        COMPARE,
        (
            Argument("reference", str, _REFERENCE),
            Argument("candidate", str, _CANDIDATE),
            _LEVEL_ARGUMENT,
            Argument("alpha", float, _ALPHA, DEFAULT_ALPHA),
            Argument("detailed", bool, _DETAILED, False, is_in_api=False),
        ),
        answer_schema(),
        lambda asked: pair_question(
            asked["reference"], asked["candidate"], asked.get("level", "auto"), asked.get("alpha", DEFAULT_ALPHA)
        ),
        lambda answered, link, asked: answer_of(answered, link, detailed=asked.get("detailed", False)),
    ),
    Tool(
        "plan",
        "What an answer would read",
        PLAN,
        (
            Argument("reference", str, _REFERENCE, ""),
            Argument("candidate", str, _CANDIDATE, ""),
            _LEVEL_ARGUMENT,
            Argument("models", list[str] | None, _MODELS, None),
        ),
        PLANNED,
        _planned_question,
        one_of=("reference", "models"),
    ),
    Tool(
        "identify",
        "Find the family of a model",
        IDENTIFY,
        _ONE_MODEL,
        IDENTIFIED,
        lambda asked: family_question(asked["model"], asked.get("level", "auto"), verifies=False),
        lambda answered, link, _: identified(answered, link),
    ),
    Tool(
        "verify",
        "Check what a card declares",
        VERIFY,
        _ONE_MODEL,
        VERIFIED,
        lambda asked: family_question(asked["model"], asked.get("level", "auto"), searches=False),
        lambda answered, link, _: verified(answered, link),
    ),
    Tool(
        "survey",
        "Compare several models",
        SURVEY,
        (Argument("models", list[str], _MODELS), Argument("layers", bool, _LAYERS, False)),
        SURVEYED,
        lambda asked: survey_question(asked["models"], layers=asked.get("layers", False)),
        lambda answered, link, _: surveyed(answered, link),
    ),
)
