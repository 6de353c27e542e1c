"""The words that a result is made of, each a closed set, with what the code and a reader may ask of them."""

from __future__ import annotations

from enum import Enum

PLACEBO_LOG10_P = -3.0
"""log10 p from which a placebo, or any test by itself, counts as significant: 0.1 %."""


class Term(str, Enum):
    """A word of a result: equal to its text in JSON."""

    def __str__(self) -> str:
        return str(self.value)


class Verdict(Term):
    """What the evidence supports. It has no direction, and it is never "unrelated"."""

    HOMOLOGOUS = "homologous"
    NO_EVIDENCE = "no_evidence"
    INCONCLUSIVE = "inconclusive"


class Reason(Term):
    """Why a comparison is inconclusive."""

    TOO_FEW_COMMON_TOKENS = "too_few_common_tokens"
    FEW_SHARED_AXES = "few_shared_axes_only"
    NULL_NOT_VALIDATED = "null_not_validated"
    WEIGHTS_UNREADABLE = "weights_unreadable"


class Level(Term):
    """How far a comparison goes."""

    AUTO = "auto"
    SCREEN = "screen"
    EMBEDDING = "embedding"
    BODY = "body"

    @property
    def runs_full_test(self) -> bool:
        """Whether every common token is looked at, whatever the first looks say."""
        return self in (Level.EMBEDDING, Level.BODY)

    @property
    def is_screen_only(self) -> bool:
        """Whether it ends with the screen of the embeddings: no unembedding, no full test, no layers."""
        return self is Level.SCREEN

    @property
    def accepts_equal_files(self) -> bool:
        """Whether weight files of the same SHA-256 settle the question, and no weight is read."""
        return self is Level.AUTO

    @property
    def may_read_layers(self) -> bool:
        """Whether it goes on to the layers where the embeddings do not settle the question."""
        return self in (Level.AUTO, Level.BODY)

    @property
    def analyses_all_layers(self) -> bool:
        """Whether every layer is mapped and analysed, even where the embeddings have settled the question."""
        return self is Level.BODY

    @property
    def stops_when_settled(self) -> bool:
        """Whether nothing more is read once the question is settled."""
        return self is not Level.BODY


class SettledBy(Term):
    """The step that settled the question."""

    IDENTICAL_FILES = "identical_files"
    SCREEN = "screen"
    EMBEDDING = "embedding"
    UNEMBEDDING = "unembedding"
    BODY = "body"


class Transformation(Term):
    """What takes the channels of one model to those of the other."""

    NONE = "none"
    IDENTITY = "identity"
    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    ROTATION = "rotation"
