"""Enumerations of the terms in a report, with texts for readers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

PLACEBO_LOG10_P = -3.0
"""Largest log10 p at which a placebo, or any single test, is significant: 0.1%."""

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

    TOO_FEW_COMMON_TOKENS = "too_few_common_tokens"
    FEW_SHARED_AXES = "few_shared_axes_only"
    NULL_NOT_VALIDATED = "null_not_validated"
    WEIGHTS_UNREADABLE = "weights_unreadable"
    TOKENS_UNKNOWN = "tokens_unknown"
    STOPPED = "stopped"
    EMBEDDINGS_ONLY = "embeddings_only"
    LAYERS_UNCONFIRMED = "layers_unconfirmed"
    SAMPLE_CHOSEN = "sample_chosen"


class Level(Term):
    """How much of the two models a comparison reads."""

    AUTO = "auto"
    SCREEN = "screen"
    EMBEDDING = "embedding"
    LAYERS = "layers"
    FULL = "full"

    @property
    def runs_full_test(self) -> bool:
        """Whether all common tokens are compared, whatever the first looks show."""
        return self in (Level.EMBEDDING, Level.FULL)

    @property
    def is_screen_only(self) -> bool:
        """Whether only samples of the embeddings are compared."""
        return self is Level.SCREEN

    @property
    def accepts_equal_files(self) -> bool:
        """Whether identical weight files settle the question, without reading weights."""
        return self in (Level.AUTO, Level.SCREEN)

    @property
    def may_read_layers(self) -> bool:
        """Whether layers are compared if the embeddings do not settle the question."""
        return self in (Level.AUTO, Level.LAYERS, Level.FULL)

    @property
    def analyses_all_layers(self) -> bool:
        """Whether rows of every projection of every layer are compared, even if the question is settled."""
        return self in (Level.LAYERS, Level.FULL)

    @property
    def tests_whole_layers(self) -> bool:
        """Whether every projection of matched layers is tested in full."""
        return self is Level.FULL

    @property
    def stops_when_settled(self) -> bool:
        """Whether reading stops once the question is settled."""
        return self not in (Level.LAYERS, Level.FULL)


class SettledBy(Term):
    """The step that settled the question."""

    IDENTICAL_FILES = "identical_files", "the weight files, which are the same"
    SCREEN = "screen", "a first look at the embeddings"
    EMBEDDING = "embedding", "the embeddings, all common tokens"
    UNEMBEDDING = "unembedding", "the unembeddings (lm_head)"
    NEURONS = "neurons", "a few neurons of the layers"
    LAYERS = "layers", "the layers"


class Assumption(Term):
    """The assumption that a finding rests on. Members are ordered from the weakest to the strongest."""

    NUMBERING = (
        "numbering",
        "training does not care how channels and neurons are numbered, and the numbers were not arranged",
    )
    ROTATION = "rotation", "the axes of one of the two models are random directions"
    CALIBRATION = "calibration", "no unrelated models that were measured matched like this; this is not a bound on p"


class Transformation(Term):
    """The transformation between the channels of the two models."""

    NONE = "none", "nothing"
    IDENTITY = "identity"
    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    ROTATION = "rotation"


class View(Term):
    """How the rows of two embeddings were prepared for the test."""

    CENTRED = "centred"
    WHITENED = "whitened"


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
    SAMPLED = "sampled", "only some layers were compared (level layers maps all)"
    NEIGHBOURS = (
        "neighbours",
        "layers resemble each other as neighbours in one model do, and none is said to match",
    )
    NOT_ACCEPTED = "not_accepted", "the layers agree, but this was not accepted as a match of any of them"


class LayerRole(Term):
    """The matrix that represents a layer when layers are matched."""

    V = "v", "values"
    K = "k", "keys"
    UP = "up", "MLP up projections"
    KV_LATENT = "kv_latent", "key and value latents"
    Q = "q", "queries"
    O = "o", "attention outputs"  # noqa: E741 - the field's letter for the output projection of attention
    GATE = "gate", "MLP gates"
    DOWN = "down", "MLP down projections"


class ModuleRole(Term):
    """The part of a layer that a test of Algorithm 3 compares."""

    Q = "q", "query"
    K = "k", "key"
    V = "v", "value"
    O = "o", "attention output"  # noqa: E741 - the field's letter for the output projection of attention
    GATE = "gate", "MLP gate"
    UP = "up", "MLP up"
    DOWN = "down", "MLP down"
    MLP = "mlp", "whole MLP"
    EXPERTS = "experts"
    MIXER = "mixer", "state-space mixer"
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


class ModuleTest(Term):
    """The kind of transformation that a test of Algorithm 3 looks for."""

    PERMUTATION = "permutation", "rows permuted", "P"
    SIGNED_PERMUTATION = "signed_permutation", "rows permuted, with signs", "±"
    BLOCKS = "blocks", "a rotation per head", "R"
    SUBSPACES = "subspaces", "any map per head", "M"
    PLANES = "planes", "a turn per RoPE plane", "T"
    FREQUENCIES = "frequencies", "turns per frequency", "F"
    NEURONS = "neurons", "neurons permuted and scaled", "N"
    CHANNELS = "channels", "channels permuted and scaled", "C"
