"""One side of a comparison: an opened :class:`~mdir_hf.model.opened.Model`, or sampled rows of one.

The layers need tensors and their roles (:class:`PlacedTensors`). The embeddings also need the tokens of their rows, and
a report the names and sizes (:class:`Comparable`).
"""

from __future__ import annotations

from typing import Protocol

from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.files import TensorSource, TensorSpec
from mdir_hf.model.roles import WITHOUT_EMBEDDING, Anatomy, WeightPart
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.report import ModelSummary


class PlacedTensors(Protocol):
    """Tensors and the roles that they play: all that Algorithms 2 and 3 read of a model."""

    @property
    def label(self) -> str:
        """What an error or a caveat calls the model: ``owner/name@0123abc``, or the folder."""

    @property
    def tensors(self) -> TensorSource:
        """Its weights."""

    @property
    def anatomy(self) -> Anatomy:
        """Which tensor plays which role."""


class Comparable(PlacedTensors, Protocol):
    """One side of a comparison."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Which row is which token's; None where nothing says so."""

    @property
    def vocabulary_key(self) -> object:
        """Equal for models whose tokenizer files are the same bytes, told without reading them; None: not known."""

    @property
    def vocabulary_from(self) -> str | None:
        """Where the vocabulary is read from, if not from the model's own files."""

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """Where the model's own files contradict each other on which row is which token's; may read one more file."""

    def identities(self) -> frozenset[str] | None:
        """What tells each weight file from every other: its SHA-256, or where it lies on this disk.

        None unless all are known without reading the files.
        """

    def summary(self) -> ModelSummary:
        """What a report says about the model."""


def have_one_vocabulary(reference: Comparable, candidate: Comparable) -> bool:
    """Whether the tokenizer files of two models are known to be the same bytes."""
    key = reference.vocabulary_key
    return key is not None and key == candidate.vocabulary_key


def vocabularies_of(reference: Comparable, candidate: Comparable) -> tuple[Vocabulary | None, Vocabulary | None]:
    """Return the vocabularies of two models: one object where their tokenizer files are the same, which are read once.

    Raises:
        VocabularyError: If tokenizer files are not what their kind of tokenizer should be.
    """
    mine = reference.vocabulary
    return mine, mine if have_one_vocabulary(reference, candidate) else candidate.vocabulary


def numbers_are_free(*models: PlacedTensors) -> bool:
    """Whether nothing is known to tie a residual channel to its number, in any of some models.

    One model without such a tie would do for the bound; but one that is known only by its tensors may hide it.
    """
    return all(model.anatomy.channel_numbers is None for model in models)


def matrix_spec(model: PlacedTensors, part: WeightPart) -> TensorSpec:
    """Where an embedding or unembedding lies, checked to be a plain matrix of rows.

    Raises:
        AnatomyError: If it is not a matrix with one row per token.
        UnsupportedFormatError: If its rows are not those of tokens as they are stored.
    """
    spec = model.tensors.spec(part.tensor)
    if len(spec.shape) != 2 or 0 in spec.shape:
        raise AnatomyError(
            f"tensor {spec.name!r} should hold one row per token, and has shape {spec.shape}", subject=model.label
        )
    if not part.is_whole or part.transposed:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} stores tokens along its second axis, which this version does not read",
            subject=model.label,
        )
    return spec


def embedding_spec(model: PlacedTensors) -> TensorSpec:
    """Where the embedding lies.

    Raises:
        AnatomyError: If the model has none, or as for :func:`matrix_spec`.
        UnsupportedFormatError: As of :func:`matrix_spec`.
    """
    if model.anatomy.embedding is None:
        raise AnatomyError(
            f"{WITHOUT_EMBEDDING}; its head and layers are compared with those of a model that you name",
            subject=model.label,
        )
    return matrix_spec(model, model.anatomy.embedding)


def head_of(model: PlacedTensors) -> WeightPart | None:
    """The unembedding (``lm_head``): its own, or the embedding that it is tied to; None where there is neither."""
    anatomy = model.anatomy
    return anatomy.embedding if anatomy.unembedding is None and anatomy.tied else anatomy.unembedding


def n_rows(model: PlacedTensors) -> int:
    """Rows of the embedding, or of the unembedding where that is all there is; 0 without both."""
    part = model.anatomy.embedding or model.anatomy.unembedding
    return 0 if part is None else matrix_spec(model, part).shape[0]
