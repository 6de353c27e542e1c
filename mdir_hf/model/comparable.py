"""One side of a comparison: an open model, or a sample of its rows."""

from __future__ import annotations

from typing import Protocol

from mdir_hf.background import result_of, run_beside
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.files import TensorSource, TensorSpec
from mdir_hf.model.inventory.records import ModelInventory, ModelView
from mdir_hf.model.roles import WITHOUT_EMBEDDING, Anatomy, WeightPart
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.processor import is_one_of_several_ranks
from mdir_hf.report import ModelSummary


class PlacedTensors(Protocol):
    """Tensors and their roles, which is all that Algorithms 2 and 3 need."""

    @property
    def label(self) -> str:
        """Name used in errors and caveats: ``owner/name@0123abc`` or the folder."""

    @property
    def tensors(self) -> TensorSource:
        """The weights."""

    @property
    def anatomy(self) -> Anatomy:
        """The role of each tensor."""


class Comparable(PlacedTensors, Protocol):
    """One side of a comparison."""

    @property
    def is_remote(self) -> bool:
        """Whether the weights are read over the network."""

    @property
    def is_sharded(self) -> bool:
        """Whether several ranks of ``torch.distributed`` store parts of the model."""

    @property
    def other_stacks(self) -> tuple[ModelView, ...] | None:
        """The layer stacks beside the main one; None if only sampled rows are available."""

    def known_inventory(self) -> ModelInventory | None:
        """Return the inventory from the headers read so far; None if only sampled rows are available."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The token for each embedding row, or None if unknown."""

    @property
    def vocabulary_key(self) -> object:
        """A key shared by models with identical tokenizer files, or None."""

    @property
    def vocabulary_from(self) -> str | None:
        """Source of the vocabulary if it is not the model's own, else None."""

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """Return contradictions between tokenizer files. May read a file."""

    def identities(self) -> frozenset[str] | None:
        """Return the SHA-256 or inode of each weight file, or None if any is unknown."""

    def summary(self) -> ModelSummary:
        """Return the model's entry in a report."""


def have_one_vocabulary(reference: Comparable, candidate: Comparable) -> bool:
    """Return whether two models have identical tokenizer files."""
    key = reference.vocabulary_key
    return key is not None and key == candidate.vocabulary_key


def vocabularies_of(reference: Comparable, candidate: Comparable) -> tuple[Vocabulary | None, Vocabulary | None]:
    """Return both vocabularies, as the same object if the tokenizer files are identical.

    Raises:
        VocabularyError: If a tokenizer file is invalid.
    """
    if have_one_vocabulary(reference, candidate):
        return reference.vocabulary, reference.vocabulary
    beside = run_beside(lambda: candidate.vocabulary, name="mdir-hf-candidate", at_once=is_one_of_several_ranks())
    return reference.vocabulary, result_of(beside)


def numbers_are_free(*models: PlacedTensors) -> bool:
    """Return whether residual channel numbers have no known meaning in any of ``models``.

    The bound requires this of one model only; checking all is a precaution.
    """
    return all(model.anatomy.channel_numbers is None for model in models)


def matrix_spec(model: PlacedTensors, part: WeightPart) -> TensorSpec:
    """Return the spec of an embedding or unembedding.

    Raises:
        AnatomyError: If the tensor is not a matrix with one row per token.
        UnsupportedFormatError: If tokens are stored along the second axis.
    """
    spec = model.tensors.spec(part.tensor)
    if len(spec.shape) != 2 or 0 in spec.shape:
        raise AnatomyError(
            f"tensor {spec.name!r} should have one row per token, but its shape is {spec.shape}", subject=model.label
        )
    if not part.is_whole or part.transposed:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} stores tokens along its second axis, which is not supported",
            subject=model.label,
        )
    return spec


def embedding_spec(model: PlacedTensors) -> TensorSpec:
    """Return the spec of the embedding, checked by :func:`matrix_spec`.

    Raises:
        AnatomyError: If there is no embedding.
    """
    if model.anatomy.embedding is None:
        raise AnatomyError(
            f"{WITHOUT_EMBEDDING}; name a model to compare its head and layers with",
            subject=model.label,
        )
    return matrix_spec(model, model.anatomy.embedding)


def head_of(model: PlacedTensors) -> WeightPart | None:
    """Return the unembedding (``lm_head``), which may be the tied embedding, or None."""
    anatomy = model.anatomy
    return anatomy.embedding if anatomy.unembedding is None and anatomy.tied else anatomy.unembedding


def n_rows(model: PlacedTensors) -> int:
    """Return the number of rows in the embedding or, if there is none, the unembedding; 0 if neither exists."""
    part = model.anatomy.embedding or model.anatomy.unembedding
    return 0 if part is None else matrix_spec(model, part).shape[0]
