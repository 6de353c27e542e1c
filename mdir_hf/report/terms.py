"""The words that a result is made of, each a closed set, with what the code and a reader may ask of them."""

from __future__ import annotations

from enum import Enum

PLACEBO_LOG10_P = -3.0
"""log10 p from which a placebo, or any test by itself, counts as significant: 0.1 %."""


class Term(str, Enum):
    """A word of a result: equal to its text in JSON."""

    def __str__(self) -> str:
        return str(self.value)

    __hash__ = str.__hash__  # that of Enum is another one, and a set of texts would not know its words


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

    @property
    def words(self) -> str:
        """For people."""
        return "nothing" if self is Transformation.NONE else self.value.replace("_", " ")


class View(Term):
    """How the rows of two embeddings were prepared for the test."""

    CENTRED = "centred"
    WHITENED = "whitened"


class ResidualMap(Term):
    """What carried the layers of one model into the residual basis of the other."""

    IDENTITY = "identity"
    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    CHANNELS = "channels"
    ROTATION = "rotation"


class LayerPattern(Term):
    """How the layers of the candidate descend from those of the reference."""

    NONE = "none"
    IDENTITY = "identity"
    PRUNED = "pruned"
    REPEATED = "repeated"
    REORDERED = "reordered"
    PARTIAL = "partial"

    @property
    def words(self) -> str:
        """For people."""
        return _PATTERN_WORDS[self]


_PATTERN_WORDS = {
    LayerPattern.NONE: "no layer has an ancestor",
    LayerPattern.IDENTITY: "every layer in its own place",
    LayerPattern.PRUNED: "layers were left out",
    LayerPattern.REPEATED: "layers were repeated",
    LayerPattern.REORDERED: "layers were put in another order",
    LayerPattern.PARTIAL: "some layers have an ancestor",
}


class LayerRole(Term):
    """The matrix that stands for a layer where layers are mapped."""

    V = "v"
    K = "k"
    UP = "up"
    KV_LATENT = "kv_latent"

    @property
    def words(self) -> str:
        """For people."""
        return self.value.replace("_", " ")


class ModuleRole(Term):
    """The part of a layer that a test of Algorithm 3 compares."""

    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741 - the field's letter for the output projection of attention
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    MLP = "mlp"
    EXPERTS = "experts"
    MIXER = "mixer"

    @property
    def words(self) -> str:
        """For people."""
        return _ROLE_WORDS[self]


_ROLE_WORDS = {
    ModuleRole.Q: "query",
    ModuleRole.K: "key",
    ModuleRole.V: "value",
    ModuleRole.O: "attention output",
    ModuleRole.GATE: "MLP gate",
    ModuleRole.UP: "MLP up",
    ModuleRole.DOWN: "MLP down",
    ModuleRole.MLP: "whole MLP",
    ModuleRole.EXPERTS: "experts",
    ModuleRole.MIXER: "state-space mixer",
}


class ModuleTest(Term):
    """The inner transformations that a test of Algorithm 3 looks for."""

    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    BLOCKS = "blocks"
    SUBSPACES = "subspaces"
    PLANES = "planes"
    FREQUENCIES = "frequencies"
    NEURONS = "neurons"
    CHANNELS = "channels"

    @property
    def letter(self) -> str:
        """One character, for a cell of a figure."""
        return _TEST_WORDS[self][0]

    @property
    def words(self) -> str:
        """What it looks for."""
        return _TEST_WORDS[self][1]


_TEST_WORDS = {
    ModuleTest.PERMUTATION: ("P", "rows permuted"),
    ModuleTest.SIGNED_PERMUTATION: ("±", "rows permuted, with signs"),
    ModuleTest.BLOCKS: ("R", "a rotation per head"),
    ModuleTest.SUBSPACES: ("M", "any map per head"),
    ModuleTest.PLANES: ("T", "a turn per RoPE plane"),
    ModuleTest.FREQUENCIES: ("F", "turns per frequency"),
    ModuleTest.NEURONS: ("N", "neurons permuted and scaled"),
    ModuleTest.CHANNELS: ("C", "channels permuted and scaled"),
}
