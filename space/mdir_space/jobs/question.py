"""A visitor's question: models, level and alpha, validated first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

LEVELS = {
    "auto": "stops as soon as the question is settled, and goes on to the layers where the embeddings do not settle it",
    "screen": "looks at a few thousand tokens of the embeddings and at nothing else",
    "embedding": "compares the embeddings, and untied unembeddings, on every common token",
    "layers": "looks at the embeddings, and compares rows of every projection of every layer",
}
DEFAULT_ALPHA = 1e-10
MAX_NAME_LENGTH = 400
"""Repo ids have at most 96 characters; an address with a revision and a folder has some more."""
MAX_MODELS = 20
"""Models of one survey here; the command line takes as many as there are."""
MAX_LIST_LENGTH = MAX_MODELS * MAX_NAME_LENGTH

ONLY = ("index", "card")
"""The two halves of a question about one model: the index, and the card."""

_BETWEEN = re.compile(r"[\s,;|]+")
_JOINING = frozenset({"vs", "vs.", "versus", "and", "&", "-", "*", "•", "+"})
_NAME = re.compile(r"[\w.@:/%?=&#~-]+", re.ASCII)
_COLLECTION = re.compile(r"[^/\s]+/[^/\s]+-[0-9a-f]{24}")


class RefusedError(Exception):
    """Why a question is not answered, in words for the visitor.

    Args:
        message: One paragraph, plain text.
        runs_locally: Whether the same comparison may well work on the visitor's own machine.
        may_sign_in: Whether signing in may help.
        is_absent: Whether there is no such model on the Hub.
        choices: For a name with several models: the name of each of them.
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


@dataclass(frozen=True)
class PairQuestion:
    """A comparison as a visitor puts it.

    Attributes:
        reference: What names the one model, as typed.
        candidate: What names the other.
        level: auto, screen, embedding or layers.
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


@dataclass(frozen=True)
class FamilyQuestion:
    """Which models share weight ancestry with one model?

    Attributes:
        model: What names it, as typed.
        level: How far its comparisons go.
        alpha: Level of significance: over all bases of the index, and of each comparison with a declared base.
        searches: Whether the index of base models is searched.
        verifies: Whether the model is compared with the base models that its card declares.
    """

    model: str
    level: str = "auto"
    alpha: float = DEFAULT_ALPHA
    searches: bool = True
    verifies: bool = True

    @property
    def only(self) -> str:
        """One of :data:`ONLY` where it asks for that half alone; else empty."""
        return "" if self.searches and self.verifies else "index" if self.searches else "card"

    @property
    def names(self) -> tuple[str, ...]:
        """It alone."""
        return (self.model,)


@dataclass(frozen=True)
class SurveyQuestion:
    """Which of several models share weight ancestry with each other?

    Attributes:
        names: Models, each once; or one list of the Hub: a collection, or the name of an author.
        alpha: Level of significance of the whole survey.
        layers: Whether models without a relative are compared again in full.
    """

    names: tuple[str, ...]
    alpha: float = DEFAULT_ALPHA
    layers: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it names a list of the Hub, and no model."""
        return len(self.names) == 1


Question = PairQuestion | FamilyQuestion | SurveyQuestion
"""What a visitor may ask."""


def pair_question(
    reference: object, candidate: object, level: object = "auto", alpha: object = DEFAULT_ALPHA
) -> PairQuestion:
    """Make a question of what came from a browser or a program.

    Raises:
        RefusedError: If a name is missing or too long, the level is not one, or alpha is not in (0, 1).
    """
    names = [checked_name(text, which) for text, which in ((reference, "first"), (candidate, "second"))]
    return PairQuestion(names[0], names[1], checked_level(level), checked_alpha(alpha))


def family_question(
    model: object,
    level: object = "auto",
    alpha: object = DEFAULT_ALPHA,
    *,
    searches: bool = True,
    verifies: bool = True,
) -> FamilyQuestion:
    """Make a question about one model of what came from a browser or a program.

    Raises:
        RefusedError: If the name is missing or too long, the level is not one, or alpha is not in (0, 1).
    """
    return FamilyQuestion(
        checked_name(model), checked_level(level), checked_alpha(alpha), searches=searches, verifies=verifies
    )


def survey_question(names: Iterable[object], alpha: object = DEFAULT_ALPHA, *, layers: bool = False) -> SurveyQuestion:
    """Make a question about several models of what came from a browser or a program.

    Args:
        names: Models, or one collection or author.
        alpha: Level of significance of the whole survey.
        layers: Whether models without a relative are compared again in full.

    Raises:
        RefusedError: If there is no name, one is too long, there are more than may be, or alpha is not in (0, 1).
    """
    checked = tuple(dict.fromkeys(checked_name(name, f"{at}.") for at, name in enumerate(names, start=1)))
    if not checked:
        raise RefusedError("No model is named. Give up to 20 ids on the Hub, a collection, or the name of an author.")
    if len(checked) > MAX_MODELS:
        raise RefusedError(
            f"{len(checked)} models are named, and a survey takes at most {MAX_MODELS} here. On your own machine "
            "mdir-hf survey takes as many as you like.",
            runs_locally=True,
        )
    return SurveyQuestion(checked, checked_alpha(alpha), layers)


def parse_question(
    first: object, second: object, level: object, alpha: object, only: object = "", *, allow_local: bool = False
) -> Question:
    """Say what is asked by the two fields: a family, a comparison, or a survey.

    Args:
        first: The text of the first field: one name, or several.
        second: That of the second, which may be empty.
        level: How far comparisons go.
        alpha: Level of significance.
        only: One of :data:`ONLY`, of a question about one model; anything else: both.
        allow_local: As for :func:`split_names`.

    Raises:
        RefusedError: If it is nothing that can be asked.
    """
    texts = [text for text in (first, second) if text is not None and str(text).strip()]
    if not texts:
        raise RefusedError(
            "No model is named. Give its id on the Hub, such as owner/name, or its address: one to find its family, "
            "two to compare them."
        )
    names = [name for text in texts for name in split_names(text, allow_local=allow_local)]
    if len(names) == 1 and not is_collection(names[0]):
        return family_question(names[0], level, alpha, searches=only != "card", verifies=only != "index")
    if len(names) == 2:
        return pair_question(names[0], names[1], level, alpha)
    return survey_question(names, alpha, layers=checked_level(level) == "layers")


def split_names(text: object, *, allow_local: bool = False) -> tuple[str, ...]:
    """Return the names in a text that was typed or pasted: between blanks, commas, new lines, or "vs".

    A text that is not a list of names counts as one name; looking it up gives the error.

    Args:
        text: The text of a field.
        allow_local: Whether folders of this machine may be named, whose names may have blanks.
    """
    whole = "" if text is None else str(text).strip()
    if len(whole) > MAX_LIST_LENGTH:
        return (whole,)
    if allow_local and whole.startswith(("/", "~", ".")):
        return (whole,)
    pieces = [piece for piece in _BETWEEN.split(whole) if piece and piece.lower() not in _JOINING]
    are_names = all(_NAME.fullmatch(piece) for piece in pieces)
    # Three words are a sentence; three names have owners.
    if not are_names or (len(pieces) > 2 and not all("/" in piece for piece in pieces)):
        return (whole,)
    return tuple(dict.fromkeys(pieces))


def is_collection(name: str) -> bool:
    """Emit whether a name is that of a collection: the address of its page, or its slug."""
    parts = urlsplit(name if "://" in name else f"https://{name}") if "/collections/" in name else None
    return parts.path.startswith("/collections/") if parts is not None else _COLLECTION.fullmatch(name) is not None


def may_be_author(name: str) -> bool:
    """Emit whether a name may be that of a user or an organisation: it has one word."""
    return bool(author_in(name))


def author_in(name: str) -> str:
    """Return the one word of a name, or of an address on the Hub; empty if it has more."""
    path = urlsplit(name).path if "://" in name else name
    word = path.strip("/")
    return word if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", word) else ""


def checked_level(level: object) -> str:
    """Return a level.

    Raises:
        RefusedError: If it is not a level.
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
    if len(name) > MAX_NAME_LENGTH:
        raise RefusedError(
            f"The name of the {which}model has {len(name):,} characters. No model on the Hub has one of more than "
            f"{MAX_NAME_LENGTH}."
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
