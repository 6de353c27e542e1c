"""An open model, whose weights and vocabulary are read when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

from mdir_hf.errors import InputError, MdirError, naming
from mdir_hf.model.bases import OpenRepository, Weights, about_model, open_weights
from mdir_hf.model.comparable import n_rows
from mdir_hf.model.files import TensorSource
from mdir_hf.model.hub import Repository, open_repository
from mdir_hf.model.inventory import (
    ModelInventory,
    ModelView,
    inventory_of,
    may_have_other_stacks,
    other_stacks,
    resolve_from_headers,
)
from mdir_hf.model.roles import Anatomy, gguf_config, params_config, read_config
from mdir_hf.model.sources import ListsContents
from mdir_hf.model.tokens import Vocabulary, doubts_of_vocabulary, gguf_vocabulary, read_vocabulary, vocabulary_files
from mdir_hf.report import ModelSummary

CONFIG = "config.json"
PARAMS = "params.json"
"""Name of the config in Meta's and Mistral's own format."""

MAX_CONFIG_N_BYTES = 8 << 20
TOKENS = "tokenizer.ggml.tokens"


class Model:
    """A language model in a repository or folder. Implements :class:`~mdir_hf.model.comparable.Comparable`.

    Opening reads the config, the index and the header that describes the embedding.

    Raises:
        CheckpointError: If there are no readable weights.
        AnatomyError: If no embedding, output head or layers are found, or the config is invalid.
        HubError: If a file cannot be read.
        InputError: If ``variant`` contradicts the variant in the name.
    """

    tokenizer: Repository | None = None

    def __init__(
        self,
        repository: Repository,
        *,
        variant: str | None = None,
        tokenizer: Repository | None = None,
        open_other: OpenRepository | None = None,
    ) -> None:
        self.repository = repository
        if None not in (variant, repository.variant) and variant != repository.variant:
            raise InputError(
                f"the name selects {repository.variant!r} after the colon, but the variant is {variant!r}; give one",
                subject=repository.label,
            )
        self.variant = variant = variant or repository.variant
        self.tokenizer = tokenizer
        open_other = open_other or partial(open_repository, ledger=repository.ledger)
        try:
            self.weights: Weights = open_weights(repository, variant=variant, open_other=open_other)
            self.tensors: TensorSource = self.weights.tensors
            self._metadata = self.tensors.description.metadata
            config: Mapping[str, object] = {}
            if self._metadata:
                # A GGUF file describes its own layout; a config.json next to it describes a different one.
                config = gguf_config(self._metadata)
            elif CONFIG in self.weights.base.files:
                # An adapter's own config describes its training; the base's config describes the layout.
                config = read_config(self.weights.base.read(CONFIG, max_bytes=MAX_CONFIG_N_BYTES))
            elif PARAMS in self.weights.base.files:
                params = read_config(self.weights.base.read(PARAMS, max_bytes=MAX_CONFIG_N_BYTES), label=PARAMS)
                config = params_config(params)
            self.config = config
            self.anatomy: Anatomy = resolve_from_headers(config, self.tensors)
            self.n_rows, self.width = n_rows(self), self.anatomy.embedding_size
        except MdirError as exc:
            raise about_model(exc, repository) from exc.__cause__

    @cached_property
    def inventory(self) -> ModelInventory:
        """All tensors in the files, each assigned to exactly one part. Reads all headers."""
        if isinstance(self.tensors, ListsContents):
            self.tensors.read_all_headers()
        return self.known_inventory()

    def known_inventory(self) -> ModelInventory:
        """The inventory from the headers read so far."""
        return inventory_of(self.tensors, self.anatomy, self.config)

    @cached_property
    def other_stacks(self) -> tuple[ModelView, ...]:
        """The layer stacks that do not belong to the language model."""
        if not may_have_other_stacks(self.tensors.names(), self.anatomy):
            return ()
        return other_stacks(self.known_inventory(), self.label, self.tensors, self.config)

    @property
    def is_remote(self) -> bool:
        """Whether the weights are read over the network."""
        return not self.repository.is_local

    @property
    def is_sharded(self) -> bool:
        """Whether several ranks of ``torch.distributed`` store parts of the model."""
        return self.repository.is_sharded

    @property
    def label(self) -> str:
        """``owner/name@0123abc``, or the path of the folder."""
        return self.repository.label

    @property
    def vocabulary_key(self) -> tuple[tuple[str, str], ...] | None:
        """Path and digest of each tokenizer file, or None if a digest is unknown."""
        files = self.tokenizer_files.files
        key = tuple((path, files[path].sha256 or files[path].blob_id or "") for path in self.vocabulary_paths)
        return key if key and all(digest for _, digest in key) else None

    @property
    def vocabulary_from(self) -> str | None:
        """Label of the repository whose tokenizer replaces the model's own, or None."""
        return None if self.tokenizer is None else self.tokenizer.label

    @cached_property
    def vocabulary_paths(self) -> tuple[str, ...]:
        """Paths of the tokenizer files to read."""
        return () if self._brings_tokens else vocabulary_files(self.tokenizer_files.files)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary from the weight file or the tokenizer files, or None.

        Raises:
            VocabularyError: If a tokenizer file is invalid.
        """
        with naming(self.tokenizer_files.label):
            if self._brings_tokens:
                return gguf_vocabulary(self._metadata, file=self.tensors.paths[0])
            if not self.vocabulary_paths and self.tokenizer is None:
                return None
            return read_vocabulary(self.tokenizer_files.files, self.tokenizer_files.read)

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """Describe contradictions between the tokenizer files."""
        if self._brings_tokens or self.vocabulary is None:
            return ()
        with naming(self.tokenizer_files.label):
            return doubts_of_vocabulary(self.tokenizer_files.files, self.tokenizer_files.read, self.vocabulary)

    @property
    def _brings_tokens(self) -> bool:
        return TOKENS in self._metadata and self.tokenizer is None

    @cached_property
    def tokenizer_files(self) -> Repository:
        """Repository that contains the tokenizer files; for an adapter, this may be its base."""
        if self.tokenizer is not None:
            return self.tokenizer
        repositories = [link.repository for link in self.weights.chain]
        return next((repo for repo in repositories if vocabulary_files(repo.files)), self.repository)

    def digests(self) -> dict[str, str] | None:
        """See :meth:`~mdir_hf.model.bases.Weights.digests`."""
        return self.weights.digests()

    def identities(self) -> frozenset[str] | None:
        """See :meth:`~mdir_hf.model.comparable.Comparable.identities`."""
        return self.weights.identities()

    def summary(self) -> ModelSummary:
        """Return the model's entry for a report."""
        # The name of a local model already includes the subfolder and the file.
        on_hub = None if self.repository.is_local else self.repository
        return ModelSummary(
            repo=self.repository.repo,
            revision=self.repository.revision,
            commit=self.repository.commit,
            architecture=self.anatomy.architecture,
            hidden_size=self.width,
            layers=self.anatomy.n_layers,
            vocabulary=None if self.anatomy.embedding is None else self.n_rows,
            quantization=self.tensors.description.quantization,
            subfolder=None if on_hub is None else on_hub.subfolder or None,
            variant=self.variant,
            file=None if on_hub is None else on_hub.file,
            tokenizer=None if self.tokenizer is None else _pinned(self.tokenizer),
            bases=tuple(_pinned(link.repository) for link in self.weights.chain[1:]) or None,
        )


def _pinned(repository: Repository) -> str:
    if repository.is_local or repository.commit is None:
        return repository.repo
    return "/".join(part for part in (f"{repository.repo}@{repository.commit}", repository.subfolder) if part)
