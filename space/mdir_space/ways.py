"""The ways in: what was typed into the fields is one model, two, or several, named one by one or by the Hub's lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from mdir_hf import MdirError
from mdir_hf.model.hub.listing import models_of_author, models_of_collection
from mdir_space.access import sentence
from mdir_space.question import (
    DEFAULT_ALPHA,
    LONGEST_LIST,
    MOST_MODELS,
    Question,
    RefusedError,
    ask,
    checked_alpha,
    checked_level,
    checked_name,
    shortened,
)

ONLY = ("index", "card")
"""The halves of a question about one model: what the index finds, and what the card declares."""

_BETWEEN = re.compile(r"[\s,;|]+")
_JOINING = frozenset({"vs", "vs.", "versus", "and", "&", "-", "*", "•", "+"})
_NAME = re.compile(r"[\w.@:/%?=&#~-]+", re.ASCII)
_COLLECTION = re.compile(r"[^/\s]+/[^/\s]+-[0-9a-f]{24}")


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
    """

    names: tuple[str, ...]
    alpha: float = DEFAULT_ALPHA

    @property
    def is_list(self) -> bool:
        """Whether it names a list of the Hub, and no model."""
        return len(self.names) == 1


AnyQuestion = Question | FamilyQuestion | SurveyQuestion
"""What a visitor may ask."""


def ask_family(
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


def ask_survey(names: Iterable[object], alpha: object = DEFAULT_ALPHA) -> SurveyQuestion:
    """Make a question about several models of what came from a browser or a program.

    Args:
        names: Models, or one collection or author.
        alpha: Level of significance of the whole survey.

    Raises:
        RefusedError: If there is no name, one is too long, there are more than may be, or alpha is not in (0, 1).
    """
    checked = tuple(dict.fromkeys(checked_name(name, f"{at}.") for at, name in enumerate(names, start=1)))
    if not checked:
        raise RefusedError("No model is named. Give up to 20 ids on the Hub, a collection, or the name of an author.")
    if len(checked) > MOST_MODELS:
        raise RefusedError(
            f"{len(checked)} models are named, and a survey takes at most {MOST_MODELS} here. On your own machine "
            "mdir-hf survey takes as many as you like.",
            runs_locally=True,
        )
    return SurveyQuestion(checked, checked_alpha(alpha))


def asked_way(
    first: object, second: object, level: object, alpha: object, only: object = "", *, allow_local: bool = False
) -> AnyQuestion:
    """Say what is asked by the two fields: a family, a comparison, or a survey.

    Args:
        first: The text of the first field: one name, or several.
        second: That of the second, which may be empty.
        level: How far comparisons go.
        alpha: Level of significance.
        only: One of :data:`ONLY`, of a question about one model; anything else: both.
        allow_local: As for :func:`names_in`.

    Raises:
        RefusedError: If it is nothing that can be asked.
    """
    texts = [text for text in (first, second) if text is not None and str(text).strip()]
    if not texts:
        raise RefusedError(
            "No model is named. Give its id on the Hub, such as owner/name, or its address: one to find its family, "
            "two to compare them."
        )
    names = [name for text in texts for name in names_in(text, allow_local=allow_local)]
    if len(names) == 1 and not is_collection(names[0]):
        return ask_family(names[0], level, alpha, searches=only != "card", verifies=only != "index")
    return ask(names[0], names[1], level, alpha) if len(names) == 2 else ask_survey(names, alpha)


def names_in(text: object, *, allow_local: bool = False) -> tuple[str, ...]:
    """Return the names in a text that was typed or pasted: between blanks, commas, new lines, or "vs".

    A text that is no list of names is one name, whatever it is: whoever looks it up says what is wrong with it.

    Args:
        text: The text of a field.
        allow_local: Whether folders of this machine may be named, whose names may have blanks.
    """
    whole = "" if text is None else str(text).strip()
    if len(whole) > LONGEST_LIST:
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
    """Tell whether a name is that of a collection: the address of its page, or its slug."""
    parts = urlsplit(name if "://" in name else f"https://{name}") if "/collections/" in name else None
    return parts.path.startswith("/collections/") if parts is not None else _COLLECTION.fullmatch(name) is not None


def may_be_author(name: str) -> bool:
    """Tell whether a name may be that of a user or an organisation: it has one word."""
    return bool(author_in(name))


def author_in(name: str) -> str:
    """Return the one word of a name, or of an address on the Hub; empty if it has more."""
    path = urlsplit(name).path if "://" in name else name
    word = path.strip("/")
    return word if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", word) else ""


def listed(name: str, token: str | None) -> tuple[tuple[str, ...], str]:
    """Ask the Hub for the models of a collection or of an author.

    Args:
        name: Which one.
        token: To ask with; None: none.

    Returns:
        At most as many models as a survey takes, and what was left out, in a sentence.

    Raises:
        RefusedError: If there is no such list, or it holds fewer than two models.

    Cost: one API request.
    """
    try:
        if is_collection(name):
            address = name if "://" in name or "/collections/" not in name else f"https://{name}"
            found = models_of_collection(address, token=token or False)
            of = f"The collection {shortened(name)}"
        else:
            found = models_of_author(author_in(name), limit=MOST_MODELS, token=token or False)
            of = shortened(author_in(name))
    except MdirError as exc:
        raise RefusedError(sentence(exc)) from exc
    names = found.names[:MOST_MODELS]
    if len(names) < 2:
        raise RefusedError(f"{of} has one model that can be surveyed, {names[0]}. Name that model to find its family.")
    n_more = len(found.names) - len(names)
    is_cut = found.is_cut or n_more > 0
    return names, f"{of} has more models; the first {len(names)} that the Hub lists are here." if is_cut else ""
