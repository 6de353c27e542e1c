"""Validate a visitor's question: models, level and alpha."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from mdir_hf.thresholds import ALPHA

LEVELS = {
    "auto": "compares neurons until the question is settled, and looks at the embeddings",
    "layers": "also compares rows of every projection of every layer",
}
DEFAULT_ALPHA = ALPHA
MAX_NAME_LENGTH = 400
"""Repo ids have at most 96 characters. A URL with a revision and a folder is slightly longer."""
MAX_MODELS = 20
"""Largest number of models in a survey on this page; the command line has no limit."""
MAX_LIST_LENGTH = MAX_MODELS * MAX_NAME_LENGTH

ONLY = ("index", "card")
"""The two halves of a question about one model: search the index, and check the card."""

_BETWEEN = re.compile(r"[\s,;|]+")
_JOINING = frozenset({"vs", "vs.", "versus", "and", "&", "-", "*", "•", "+"})
_NAME = re.compile(r"[\w.@:/%?=&#~-]+", re.ASCII)
_COLLECTION = re.compile(r"[^/\s]+/[^/\s]+-[0-9a-f]{24}")


class RefusedError(Exception):
    """The question is not answered; the message tells the visitor why.

    Args:
        message: One paragraph of plain text.
        runs_locally: Whether the comparison would probably work on the visitor's own machine.
        may_sign_in: Whether signing in may help.
        is_absent: Whether the model does not exist on the Hub.
        choices: For each ambiguous name, the models that it may stand for.
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
    """A comparison as entered by a visitor.

    Attributes:
        reference: Name or URL of one model, as typed.
        candidate: Name or URL of the other model.
        level: auto or layers.
        alpha: Significance level, in (0, 1).
    """

    reference: str
    candidate: str
    level: str = "auto"
    alpha: float = DEFAULT_ALPHA

    @property
    def names(self) -> tuple[str, ...]:
        """The names of both models."""
        return self.reference, self.candidate


@dataclass(frozen=True)
class ReconstructionQuestion(PairQuestion):
    """Which transformation leads from the reference to the candidate? ``level`` is the level of their comparison."""

    @property
    def comparison(self) -> PairQuestion:
        """The comparison on which the reconstruction is based."""
        return PairQuestion(self.reference, self.candidate, self.level, self.alpha)


@dataclass(frozen=True)
class FamilyQuestion:
    """Which models share weight ancestry with one model?

    Attributes:
        model: Name or URL of the model, as typed.
        level: Level of the comparisons.
        alpha: Significance level over all bases of the index, and for each comparison with a declared base.
        searches: Whether to search the index of base models.
        verifies: Whether to compare the base models that the card declares.
    """

    model: str
    level: str = "auto"
    alpha: float = DEFAULT_ALPHA
    searches: bool = True
    verifies: bool = True

    @property
    def only(self) -> str:
        """The half of the question that is asked, one of :data:`ONLY`; empty for both halves."""
        return "" if self.searches and self.verifies else "index" if self.searches else "card"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the model."""
        return (self.model,)


@dataclass(frozen=True)
class SurveyQuestion:
    """Which of several models share weight ancestry with each other?

    Attributes:
        names: Models, without duplicates; or a single collection or author on the Hub.
        alpha: Significance level of the whole survey.
        layers: Whether models that have no relative are compared again, in full.
    """

    names: tuple[str, ...]
    alpha: float = DEFAULT_ALPHA
    layers: bool = False

    @property
    def is_list(self) -> bool:
        """Whether the only name is a collection or an author."""
        return len(self.names) == 1


Question = PairQuestion | FamilyQuestion | SurveyQuestion
"""Any question that a visitor can ask."""


def pair_question(
    reference: object, candidate: object, level: object = "auto", alpha: object = DEFAULT_ALPHA
) -> PairQuestion:
    """Make a question about two models from the input of a browser or a program.

    Raises:
        RefusedError: If a name is missing or too long, the level is unknown, or alpha is not in (0, 1).
    """
    names = [checked_name(text, which) for text, which in ((reference, "first"), (candidate, "second"))]
    return PairQuestion(names[0], names[1], checked_level(level), checked_alpha(alpha))


def reconstruction_question(
    reference: object, candidate: object, level: object = "auto", alpha: object = DEFAULT_ALPHA
) -> ReconstructionQuestion:
    """Make a question about the transformation between two models; see :func:`pair_question`."""
    pair = pair_question(reference, candidate, level, alpha)
    return ReconstructionQuestion(pair.reference, pair.candidate, pair.level, pair.alpha)


def family_question(
    model: object,
    level: object = "auto",
    alpha: object = DEFAULT_ALPHA,
    *,
    searches: bool = True,
    verifies: bool = True,
) -> FamilyQuestion:
    """Make a question about one model from the input of a browser or a program.

    Raises:
        RefusedError: If the name is missing or too long, the level is unknown, or alpha is not in (0, 1).
    """
    return FamilyQuestion(
        checked_name(model), checked_level(level), checked_alpha(alpha), searches=searches, verifies=verifies
    )


def survey_question(
    names: str | Iterable[object], alpha: object = DEFAULT_ALPHA, *, layers: bool = False
) -> SurveyQuestion:
    """Make a question about several models from the input of a browser or a program.

    ``names`` may be one text, as in a field of the page, and may consist of a single collection or author.

    Raises:
        RefusedError: If there is no name, a name is too long, there are too many names, or alpha is not in (0, 1).
    """
    listed = split_names(names) if isinstance(names, str) else names
    checked = tuple(dict.fromkeys(checked_name(name, f"{at}.") for at, name in enumerate(listed, start=1)))
    if not checked:
        raise RefusedError("No model is named. Enter up to 20 ids on the Hub, a collection, or the name of an author.")
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
    """Parse the two fields of the page as a question about a family, a comparison or a survey.

    The first field has one or several names, and the second may be empty. If ``only`` is one of :data:`ONLY`, a
    question about one model is limited to that half. ``allow_local`` is as for :func:`split_names`.

    Raises:
        RefusedError: If the question is invalid.
    """
    texts = [text for text in (first, second) if text is not None and str(text).strip()]
    if not texts:
        raise RefusedError(
            "No model is named. Enter its id on the Hub, such as owner/name, or its URL: one model to find its family, "
            "two to compare them."
        )
    names = [name for text in texts for name in split_names(text, allow_local=allow_local)]
    if len(names) == 1 and not is_collection(names[0]):
        return family_question(names[0], level, alpha, searches=only != "card", verifies=only != "index")
    if len(names) == 2:
        return pair_question(names[0], names[1], level, alpha)
    return survey_question(names, alpha, layers=checked_level(level) == "layers")


def split_names(text: object, *, allow_local: bool = False) -> tuple[str, ...]:
    """Split typed or pasted text into names at spaces, commas, line breaks and "vs".

    Text that is not a list of names is treated as one name, which is then not found. ``allow_local`` allows local
    folders, whose names may contain spaces.
    """
    whole = "" if text is None else str(text).strip()
    if len(whole) > MAX_LIST_LENGTH:
        return (whole,)
    if allow_local and whole.startswith(("/", "~", ".")):
        return (whole,)
    pieces = [piece for piece in _BETWEEN.split(whole) if piece and piece.lower() not in _JOINING]
    are_names = all(_NAME.fullmatch(piece) for piece in pieces)
    # Three plain words are treated as a sentence, because names in a list have owners.
    if not are_names or (len(pieces) > 2 and not all("/" in piece for piece in pieces)):
        return (whole,)
    return tuple(dict.fromkeys(pieces))


def is_collection(name: str) -> bool:
    """Return whether a name is a collection, given as a slug or the URL of its page."""
    parts = urlsplit(name if "://" in name else f"https://{name}") if "/collections/" in name else None
    return parts.path.startswith("/collections/") if parts is not None else _COLLECTION.fullmatch(name) is not None


def may_be_author(name: str) -> bool:
    """Return whether a name may be a user or an organisation, because it is a single word."""
    return bool(author_in(name))


def author_in(name: str) -> str:
    """Return the only word of a name, or of a URL on the Hub; empty if there are several words."""
    path = urlsplit(name).path if "://" in name else name
    word = path.strip("/")
    return word if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", word) else ""


def checked_level(level: object) -> str:
    """Validate a level.

    Raises:
        RefusedError: If the level is unknown.
    """
    if level not in LEVELS:
        raise RefusedError(f"The level {shortened(str(level))} is unknown. Choose one of {', '.join(LEVELS)}.")
    return str(level)


def checked_name(text: object, which: str = "") -> str:
    """Validate the name or URL of a model.

    ``which`` is a word for the error message, such as "first", if there are several models.

    Raises:
        RefusedError: If the name is empty or too long.
    """
    which = f"{which} " if which else ""
    name = "" if text is None else str(text).strip()
    if not name:
        raise RefusedError(f"The {which}model is not named. Enter its id on the Hub, such as owner/name, or its URL.")
    if len(name) > MAX_NAME_LENGTH:
        raise RefusedError(
            f"The name of the {which}model has {len(name):,} characters. No model on the Hub has a name of more than "
            f"{MAX_NAME_LENGTH}."
        )
    return name


def checked_alpha(value: object) -> float:
    """Validate a significance level.

    Raises:
        RefusedError: If alpha is not in (0, 1).
    """
    try:
        alpha = float(str(value).strip().replace("−", "-")) if str(value).strip() else DEFAULT_ALPHA
    except ValueError:
        alpha = math.nan
    if not 0.0 < alpha < 1.0:
        raise RefusedError(
            f"Alpha is {shortened(str(value))}. It is the largest p-value that counts as significant: a number between "
            "0 and 1, such as 1e-10."
        )
    return alpha


def shortened(text: str, length: int = 80) -> str:
    """Shorten a text to ``length`` characters by eliding its middle."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return text[:head] + "…" + text[len(text) - (length - 1 - head) :]
