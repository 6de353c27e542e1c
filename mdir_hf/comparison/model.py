"""One model opened for comparison: its files, weights, roles and vocabulary, each read when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from mdir_hf.anatomy import Anatomy, WeightPart, read_config, resolve_anatomy
from mdir_hf.checkpoint import TensorSource, TensorSpec, open_checkpoint
from mdir_hf.errors import AnatomyError, MdirError, UnsupportedFormatError
from mdir_hf.hub import Repository
from mdir_hf.report import ModelSummary
from mdir_hf.vocabulary import Vocabulary, read_vocabulary, vocabulary_files

CONFIG = "config.json"


class Model:
    """A language model in a repository or folder.

    Opening reads the config and the index of the weights, and the header of the one shard that holds the embedding.

    Args:
        repository: Where its files are.
        variant: As in transformers: ``fp16`` reads ``model.fp16.safetensors``.

    Attributes:
        repository: Where its files are.
        tensors: Its weights.
        anatomy: Which tensor plays which role.

    Raises:
        CheckpointError: If there are no weights that can be read.
        AnatomyError: If no embedding is found, or the config is not one.
        HubError: If a file cannot be had.
    """

    def __init__(self, repository: Repository, *, variant: str | None = None) -> None:
        self.repository = repository
        try:
            self.tensors: TensorSource = open_checkpoint(repository, variant=variant, file=repository.file)
            config: Mapping[str, object] = {}
            if CONFIG in repository.files:
                config = read_config(repository.read(CONFIG))
            self.anatomy: Anatomy = resolve_anatomy(
                config, self.tensors.names(), lambda name: self.tensors.spec(name).shape
            )
            self.n_rows, self.width = self._matrix_shape(self.anatomy.embedding)
        except MdirError as exc:
            raise exc.about(repository.label) from exc.__cause__

    @property
    def label(self) -> str:
        """``owner/name@0123abc`` or the folder."""
        return self.repository.label

    @cached_property
    def vocabulary_paths(self) -> tuple[str, ...]:
        """The tokenizer files that would be read; empty where there is no tokenizer."""
        return vocabulary_files(self.repository.files)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary, None where the repository has no tokenizer files.

        Raises:
            VocabularyError: If the files are not what their kind of tokenizer should be.
        """
        if not self.vocabulary_paths:
            return None
        try:
            return read_vocabulary(self.repository.files, self.repository.read)
        except MdirError as exc:
            raise exc.about(self.label) from exc.__cause__

    def matrix_spec(self, part: WeightPart) -> TensorSpec:
        """Where an embedding or unembedding lies, checked to be a plain matrix of rows.

        Raises:
            AnatomyError: If it is not a matrix with one row per token.
        """
        spec = self.tensors.spec(part.tensor)
        if len(spec.shape) != 2 or 0 in spec.shape:
            raise AnatomyError(
                f"tensor {spec.name!r} should hold one row per token, and has shape {spec.shape}", subject=self.label
            )
        if not part.is_whole or part.transposed:
            raise UnsupportedFormatError(
                f"tensor {spec.name!r} stores tokens along its second axis, which this version does not read",
                subject=self.label,
            )
        return spec

    def digests(self) -> dict[str, str] | None:
        """SHA-256 of every weight file, None unless all are known without reading them."""
        known = {path: self.repository.files[path].sha256 for path in self.tensors.paths}
        return {path: sha for path, sha in known.items() if sha is not None} if all(known.values()) else None

    def summary(self) -> ModelSummary:
        """What a report says about this model."""
        return ModelSummary(
            repo=self.repository.repo,
            revision=self.repository.revision,
            commit=self.repository.commit,
            architecture=self.anatomy.architecture,
            hidden_size=self.width,
            layers=self.anatomy.n_layers,
            vocabulary=self.n_rows,
        )

    def _matrix_shape(self, part: WeightPart) -> tuple[int, int]:
        n_rows, width = self.matrix_spec(part).shape
        return n_rows, width


def share_vocabulary(reference: Model, candidate: Model) -> bool:
    """Let the candidate use the reference's vocabulary where their tokenizer files are the same bytes.

    Returns:
        Whether they are. Told by digest, so that identical tokenizers are read and parsed once.
    """
    paths = reference.vocabulary_paths
    if not paths or paths != candidate.vocabulary_paths:
        return False
    for path in paths:
        mine, other = reference.repository.files[path], candidate.repository.files[path]
        same_sha = mine.sha256 is not None and mine.sha256 == other.sha256
        same_blob = mine.blob_id is not None and mine.blob_id == other.blob_id
        if not (same_sha or same_blob):
            return False
    candidate.vocabulary = reference.vocabulary
    return True
