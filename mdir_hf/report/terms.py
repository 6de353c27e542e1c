"""Enumerations of the terms in a report, with texts for readers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

REMARKABLE_LOG10_P = -3.0
"""Largest log10 p at which a single test is called significant: 0.1%."""

PRIVILEGED_Z = 3.0
"""z-score above which a model's axes stand out."""


class Term(str, Enum):
    """A term in a report, equal to its string in JSON.

    Attributes:
        words: Text for readers; defaults to the JSON string without underscores.
        letter: Character for the cells of a figure, if any.
    """

    words: str
    letter: str

    def __new__(cls, value: str, words: str = "", letter: str = "") -> Self:
        """Create a term from its JSON value, its text for readers and its letter."""
        term = str.__new__(cls, value)
        term._value_, term.words, term.letter = value, words or value.replace("_", " "), letter
        return term

    def __str__(self) -> str:
        return str(self.value)

    __hash__ = str.__hash__  # Enum hashes differently, so a set of strings would not contain equal terms


class Verdict(Term):
    """The outcome at a fixed significance level. It has no direction, and it is never "unrelated"."""

    HOMOLOGOUS = "homologous"
    NO_EVIDENCE = "no_evidence"
    INCONCLUSIVE = "inconclusive"


class Reason(Term):
    """Why a comparison is inconclusive."""

    SAMPLE_CHOSEN = "sample_chosen"
    EMBEDDINGS_ONLY = "embeddings_only"
    ATTENTION_ONLY = "attention_only"
    LOADING_UNKNOWN = "loading_unknown"
    WEIGHTS_UNREADABLE = "weights_unreadable"
    UNFINISHED = "unfinished"


class Level(Term):
    """How much of the two models a comparison reads."""

    AUTO = "auto"
    LAYERS = "layers"
    PAPER = "paper"

    @property
    def describes_layers(self) -> bool:
        """Whether rows of every projection of every layer are compared, even if the question is settled."""
        return self is not Level.AUTO

    @property
    def runs_paper(self) -> bool:
        """Whether the paper's algorithms are run on whole matrices."""
        return self is Level.PAPER


class SettledBy(Term):
    """The step that settled the question."""

    IDENTICAL_FILES = "identical_files", "the weight files, which are the same"
    NEAR = "near", "neurons of one or two layers at the same place"
    NUMBER = "number", "neurons of four layers, compared by number"
    PARTS = "parts", "neurons of experts or other stacks"
    KEYS = "keys", "neurons searched for behind a map fitted on keys"
    EVERY = "every", "neurons of every layer, compared by number"
    NOISE = "noise", "neurons behind a rotation fitted on many rows"
    EMBEDDINGS = "embeddings", "neurons searched for behind a map fitted on the embeddings"


class Assumption(Term):
    """The assumption that a finding rests on. Members are ordered from the weakest to the strongest."""

    NUMBERING = (
        "numbering",
        "training does not care how neurons are numbered, and the numbers were not arranged",
    )
    CALIBRATION = "calibration", "no unrelated models that were measured matched like this; this is not a bound on p"


class Transformation(Term):
    """The transformation between the channels of the two models."""

    NONE = "none", "nothing"
    IDENTITY = "identity"
    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    ROTATION = "rotation"


class ResidualMap(Term):
    """The map between the residual bases of the two models."""

    IDENTITY = "identity"
    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    CHANNELS = "channels"
    ROTATION = "rotation"


class LayerPattern(Term):
    """The arrangement of matches between the layers of two models."""

    NONE = "none", "no layer was found to match"
    IDENTITY = "identity", "every layer in its own place"
    PRUNED = "pruned", "layers were left out"
    REPEATED = "repeated", "layers were repeated"
    REORDERED = "reordered", "layers were put in another order"
    PARTIAL = "partial", "some layers have a partner"


class ModuleRole(Term):
    """A projection of a layer."""

    Q = "q", "query"
    K = "k", "key"
    V = "v", "value"
    O = "o", "attention output"  # noqa: E741 - the field's letter for the output projection of attention
    GATE = "gate", "MLP gate"
    UP = "up", "MLP up"
    DOWN = "down", "MLP down"
    MIXER_GATE = "mixer_gate", "mixer gate"
    SSM_IN = "ssm_in", "mixer input"
    SSM_OUT = "ssm_out", "mixer output"


class Outcome(Term):
    """How a projection of a layer changed."""

    KEPT = "kept", "", "k"
    KEPT_IN_PART = "kept_in_part", "", "p"
    PERMUTED = "permuted", "", "P"
    ROTATED_IN_HEADS = "rotated_in_heads", "", "R"
    FROM_LAYER = "from_layer", "from another layer", "L"
    REPLACED = "replaced", "", "x"
    ROWS_AGREE = "rows_agree", "", "="
    NO_AGREEMENT = "no_agreement", "", "."
    NOT_COMPARED = "not_compared", "", "-"
