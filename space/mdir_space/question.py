"""What a visitor asks, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

LEVELS = {
    "auto": "stops as soon as the question is settled, and goes on to the layers where the embeddings do not settle it",
    "screen": "looks at a few thousand tokens of the embeddings and at nothing else",
    "embedding": "compares the embeddings, and untied unembeddings, on every common token",
    "layers": "compares the embeddings like that, and maps and analyses every layer",
}
DEFAULT_ALPHA = 1e-10
LONGEST_NAME = 400
"""Repo ids have at most 96 characters; an address with a revision and a folder has some more."""
MOST_MODELS = 20
"""Models of one survey here; the command line takes as many as there are."""
LONGEST_LIST = MOST_MODELS * LONGEST_NAME


class RefusedError(Exception):
    """Why a question is not answered, in words for the visitor.

    Args:
        message: One paragraph, plain text.
        runs_locally: Whether the same comparison may well work on the visitor's own machine.
        may_sign_in: Whether signing in may help.
        is_absent: Whether there is no such model on the Hub.
        choices: Names of which one may be meant, by the name that was asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        runs_locally: bool = False,
        may_sign_in: bool = False,
        is_absent: bool = False,
        choices: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.runs_locally = runs_locally
        self.may_sign_in = may_sign_in
        self.is_absent = is_absent
        self.choices = choices


class Asks(Protocol):
    """Whatever a visitor asks of some models."""

    @property
    def names(self) -> tuple[str, ...]:
        """What names the models, as typed."""


@dataclass(frozen=True)
class Question:
    """A comparison as a visitor puts it.

    Attributes:
        reference: What names the one model, as typed.
        candidate: What names the other.
        level: auto, screen, embedding or body.
        alpha: Level of significance, in (0, 1).
    """

    reference: str
    candidate: str
    level: str = "auto"
    alpha: float = DEFAULT_ALPHA

    @property
    def names(self) -> tuple[str, ...]:
        """Both of them."""
        return self.reference, self.candidate


def ask(reference: object, candidate: object, level: object = "auto", alpha: object = DEFAULT_ALPHA) -> Question:
    """Make a question of what came from a browser or a program.

    Raises:
        RefusedError: If a name is missing or too long, the level is not one, or alpha is not in (0, 1).
    """
    names = [checked_name(text, which) for text, which in ((reference, "first"), (candidate, "second"))]
    return Question(names[0], names[1], checked_level(level), checked_alpha(alpha))


def checked_level(level: object) -> str:
    """Return a level.

    Raises:
        RefusedError: If it is none.
    """
    if level not in LEVELS:
        raise RefusedError(f"The level {shortened(str(level))} is not known. Choose one of {', '.join(LEVELS)}.")
    return str(level)


def checked_name(text: object, which: str = "") -> str:
    """Return what names a model.

    Args:
        text: As it came.
        which: Which of several, for the message.

    Raises:
        RefusedError: If it is empty or too long.
    """
    which = f"{which} " if which else ""
    name = "" if text is None else str(text).strip()
    if not name:
        raise RefusedError(
            f"The {which}model is not named. Give its id on the Hub, such as owner/name, or its address."
        )
    if len(name) > LONGEST_NAME:
        raise RefusedError(
            f"The name of the {which}model has {len(name):,} characters. No model on the Hub has one of more than "
            f"{LONGEST_NAME}."
        )
    return name


def checked_alpha(value: object) -> float:
    """Return a level of significance.

    Raises:
        RefusedError: If it is not in (0, 1).
    """
    try:
        alpha = float(str(value).strip().replace("−", "-")) if str(value).strip() else DEFAULT_ALPHA
    except ValueError:
        alpha = math.nan
    if not 0.0 < alpha < 1.0:
        raise RefusedError(
            f"Alpha is {shortened(str(value))}. It is the p-value from which on a result counts: a number between 0 "
            "and 1, such as 1e-10."
        )
    return alpha


def shortened(text: str, length: int = 80) -> str:
    """Return a text of at most so many characters, elided in the middle."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return text[:head] + "…" + text[len(text) - (length - 1 - head) :]
