"""The tools for programs and agents, each defined once for both the API and MCP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema

from mdir_space.html.links import download_link, pinned_link
from mdir_space.jobs.question import (
    DEFAULT_ALPHA,
    LEVELS,
    MAX_LIST_LENGTH,
    MAX_MODELS,
    MAX_NAME_LENGTH,
    Question,
    RefusedError,
    family_question,
    pair_question,
    reconstruction_question,
    shortened,
    survey_question,
)
from mdir_space.jobs.reconstruction import ReconstructionResult
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
from mdir_space.routes.reconstructions import RECONSTRUCTED, reconstructed

COMPARE = (
    "Decide from the weights alone whether two language models on the Hugging Face Hub share weight ancestry: whether "
    "one was made from the other, or both from a third. Returns a verdict (homologous, no_evidence or inconclusive) "
    "with log10 of a p-value, its meaning and its limits. It has no direction and is not an accusation. Reads a few "
    "megabytes for near copies and more for other pairs; takes seconds to minutes. If a limit of this server stops the "
    "comparison, the result covers the parts compared so far, and cut_short names the missing ones."
)
PLAN = (
    "Estimate the cost of an answer, step by step, without computing it. "
    "Name reference and candidate to plan compare, reference alone to plan family and verify together, models to "
    "plan survey. Reads headers and vocabularies only; takes seconds, for a survey some seconds a model."
)
FAMILY = (
    "Find known base models that share weight ancestry with one language model on the Hugging Face Hub, regardless of "
    "its card: searches an index of base models and compares the candidates. Use it if you do not know which model to "
    "compare with. A negative answer excludes only the base models of the index. Takes seconds to minutes."
)
VERIFY = (
    "Check the base models that the card of a language model on the Hugging Face Hub declares (base_model) against the "
    "weights: each base is compared with the model. Takes seconds to minutes for each declared base."
)
SURVEY = (
    "Find which of 2 to 20 language models on the Hugging Face Hub share weight ancestry: every pair is compared, each "
    "model is read once, and the result has groups of relatives and their family trees. Takes some seconds a model "
    "and up to eight a pair."
)
ALIGN = (
    "Reconstruct the transformation between the weights of two homologous language models on the Hugging Face Hub: the "
    "order, signs or rotation of channels, the layer map, and in each layer heads, neurons and experts, with the "
    "relative residual of each matrix. Returns a summary and a link to the files (JSON and safetensors, some "
    "megabytes). Compares the models first. Reads every layer of both; takes seconds to minutes."
)
MODEL = "owner/name, owner/name@revision, or the URL of its page, for example Qwen/Qwen2.5-0.5B"

LevelName = Literal["auto", "layers"]
REQUIRED: Any = object()
"""Default that marks an argument as required."""


@dataclass(frozen=True)
class Argument:
    """An argument of a tool.

    Attributes:
        type: Python type, for the API.
        schema: JSON Schema with a description, for MCP.
        is_in_api: Whether the API has the argument, too.
    """

    name: str
    type: Any
    schema: dict[str, Any]
    default: Any = REQUIRED
    is_in_api: bool = True


@dataclass(frozen=True)
class Call:
    """One call of a tool, with arguments that match the tool's schema."""

    arguments: dict[str, Any]
    visitor: Visitor
    request: Any


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: Name for programs.
        title: Name for people.
        description: Purpose of the tool, when to use it, and how long it takes.
        output_schema: JSON Schema of the result.
        question: Makes the question from the arguments.
        result: Makes the result from an answer, a link and the arguments; if None, the result is the plan.
        one_of: Names of arguments; at least one is required.
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
            "properties": {argument.name: argument.schema for argument in self.arguments},
        }
        if self.one_of:
            return {**schema, "anyOf": [{"required": [name]} for name in self.one_of]}
        return {**schema, "required": [argument.name for argument in self.arguments if argument.default is REQUIRED]}

    def why_not(self, arguments: dict[str, Any]) -> str:
        """Return a sentence that says why the arguments are invalid; empty if they are valid."""
        errors = jsonschema.Draft202012Validator(self.input_schema).iter_errors(arguments)
        wrong = jsonschema.exceptions.best_match(errors)
        if wrong is None:
            return ""
        where = ".".join(map(str, wrong.absolute_path))
        message = shortened(wrong.message, 300)
        names = ", ".join(argument.name for argument in self.arguments)
        return f"{self.name} does not take this{f' {where}' if where else ''}: {message}. Its arguments are {names}."

    async def answer(
        self, service: Service, call: Call
    ) -> AsyncGenerator[Queued | Running[Any] | dict[str, Any], None]:
        """Answer a call step by step; the last step is the result. Closing the iterator kills the job's process.

        Raises:
            RefusedError: If the question is refused.
        """
        question = self.question(call.arguments)
        if self.result is None:
            yield planned(await service.plan(question, call.visitor), service.pace, service.settings.limits)
            return
        async with aclosing(service.answer(question, call.visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    is_download = isinstance(step.result, ReconstructionResult)
                    link = (
                        download_link(step.result, call.request)
                        if is_download
                        else pinned_link(step, call.request, question)
                    )
                    yield self.result(step, link, call.arguments)
                else:
                    yield step


def _planned_question(arguments: dict[str, Any]) -> Question:
    """Return the question to plan."""
    level = arguments.get("level", "auto")
    if "models" in arguments:
        if "reference" in arguments or "candidate" in arguments:
            raise RefusedError("Plan either a comparison or a survey: name reference and candidate, or models.")
        return survey_question(arguments["models"], layers=level == "layers")
    if "candidate" in arguments:
        return pair_question(arguments["reference"], arguments["candidate"], level)
    return family_question(arguments["reference"], level)


_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
_REFERENCE = {**_NAME, "description": f"One model: {MODEL}."}
_CANDIDATE = {**_NAME, "description": f"The other model: {MODEL}. The order of the two does not matter."}
_LEVELS = "; ".join(f"{name} {what}" for name, what in LEVELS.items())
_LEVEL = {"enum": list(LEVELS), "default": "auto", "description": f"Level of the comparison: {_LEVELS}."}
_ALPHA = {
    "type": "number",
    "exclusiveMinimum": 0,
    "exclusiveMaximum": 1,
    "default": DEFAULT_ALPHA,
    "description": "The largest p-value that counts as significant, fixed in advance.",
}
_DETAILED = {
    "type": "boolean",
    "default": False,
    "description": "Whether to return every module and cell of the layer map (up to hundreds of kilobytes).",
}
_WHOLE_INDEX = {
    "type": "boolean",
    "default": False,
    "description": "Whether to return the whole index (some kilobytes for each layer).",
}
_MODELS = {
    "anyOf": [
        {"type": "array", "items": _NAME, "minItems": 1, "maxItems": MAX_MODELS, "uniqueItems": True},
        {"type": "string", "minLength": 1, "maxLength": MAX_LIST_LENGTH},
    ],
    "description": (
        f"Models, each {MODEL}; or one collection (its URL), or one author (a user's name). A list, or one text with "
        "blanks, commas or line breaks between the names."
    ),
}
Models = list[str] | str
_LAYERS = {
    "type": "boolean",
    "default": False,
    "description": "Whether pairs without a finding are compared again in full.",
}
_LEVEL_ARGUMENT = Argument("level", LevelName, _LEVEL, "auto")
_ONE_MODEL = (
    Argument("model", str, {**_NAME, "description": f"The model: {MODEL}."}),
    Argument("level", LevelName, {**_LEVEL, "description": "Level of its comparisons."}, "auto"),
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
        lambda arguments: pair_question(
            arguments["reference"],
            arguments["candidate"],
            arguments.get("level", "auto"),
            arguments.get("alpha", DEFAULT_ALPHA),
        ),
        lambda answered, link, arguments: answer_of(answered, link, detailed=arguments.get("detailed", False)),
    ),
    Tool(
        "plan",
        "Plan an answer",
        PLAN,
        (
            Argument("reference", str, _REFERENCE, ""),
            Argument("candidate", str, _CANDIDATE, ""),
            _LEVEL_ARGUMENT,
            Argument("models", Models | None, _MODELS, None),
        ),
        PLANNED,
        _planned_question,
        one_of=("reference", "models"),
    ),
    Tool(
        "align",
        "Reconstruct the transformation between two models",
        ALIGN,
        (
            Argument("reference", str, _REFERENCE),
            Argument("candidate", str, {**_NAME, "description": f"The model that was made from it: {MODEL}."}),
            _LEVEL_ARGUMENT,
            Argument("detailed", bool, _WHOLE_INDEX, False),
        ),
        RECONSTRUCTED,
        lambda arguments: reconstruction_question(
            arguments["reference"], arguments["candidate"], arguments.get("level", "auto")
        ),
        lambda answered, link, arguments: reconstructed(answered, link, detailed=arguments.get("detailed", False)),
    ),
    Tool(
        "family",
        "Find the family of a model",
        FAMILY,
        _ONE_MODEL,
        IDENTIFIED,
        lambda arguments: family_question(arguments["model"], arguments.get("level", "auto"), verifies=False),
        lambda answered, link, _: identified(answered, link),
    ),
    Tool(
        "verify",
        "Check a model card",
        VERIFY,
        _ONE_MODEL,
        VERIFIED,
        lambda arguments: family_question(arguments["model"], arguments.get("level", "auto"), searches=False),
        lambda answered, link, _: verified(answered, link),
    ),
    Tool(
        "survey",
        "Compare several models",
        SURVEY,
        (Argument("models", Models, _MODELS), Argument("layers", bool, _LAYERS, False)),
        SURVEYED,
        lambda arguments: survey_question(arguments["models"], layers=arguments.get("layers", False)),
        lambda answered, link, _: surveyed(answered, link),
    ),
)
