"""One model opened for comparison: its files, weights, roles and vocabulary, each read when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import cached_property, partial

from mdir_hf.errors import InputError, MdirError, naming
from mdir_hf.model.bases import OpenRepository, Weights, about_model, open_weights
from mdir_hf.model.comparable import n_rows
from mdir_hf.model.files import TensorSource
from mdir_hf.model.files.sources import ListsContents
from mdir_hf.model.hub import Repository, open_repository
from mdir_hf.model.hub.in_order import result_of
from mdir_hf.model.inventory import ModelInventory, StackView, inventory_of, resolve_from_headers, stack_views
from mdir_hf.model.roles import Anatomy, gguf_config, params_config, read_config
from mdir_hf.model.tokens import Vocabulary, doubts_of_vocabulary, gguf_vocabulary, read_vocabulary, vocabulary_files
from mdir_hf.report import ModelSummary

CONFIG = "config.json"
PARAMS = "params.json"
"""What Meta and Mistral write beside their own files."""

MAX_CONFIG_N_BYTES = 8 << 20
TOKENS = "tokenizer.ggml.tokens"


class Model:
    """A language model in a repository or folder. Implements :class:`~mdir_hf.model.comparable.Comparable`.

    Opening reads the config and the index of the weights, and the header of the one shard that holds the embedding.

    Args:
        repository: Where its files are.
        variant: As in transformers: ``fp16`` reads ``model.fp16.safetensors``; of several GGUF files part of a name.
        tokenizer: Where its tokenizer files are instead, and whatever vocabulary its own files hold counts nothing.
        open_other: Opens the base of an adapter; by default as ``open_repository`` does.
        vocabulary: The vocabulary of the repository's own tokenizer files, where it is being read already.

    Attributes:
        repository: Where its files are.
        variant: What was asked for, or named after a colon.
        tokenizer: Where its tokenizer files are, if not with its weights.
        weights: What its weights are put together from.
        tensors: Its weights.
        anatomy: Which tensor plays which role.

    Raises:
        CheckpointError: If there are no weights that can be read.
        AnatomyError: If neither an embedding, a head nor layers are found, or the config is not one.
        HubError: If a file cannot be read.
        InputError: If another variant is asked for than its name names.
    """

    tokenizer: Repository | None = None

    def __init__(
        self,
        repository: Repository,
        *,
        variant: str | None = None,
        tokenizer: Repository | None = None,
        open_other: OpenRepository | None = None,
        vocabulary: Future[Vocabulary] | None = None,
    ) -> None:
        self.repository = repository
        if None not in (variant, repository.variant) and variant != repository.variant:
            raise InputError(
                f"{repository.variant!r} is named after the colon, and the variant {variant!r} was asked for; give one",
                subject=repository.label,
            )
        self.variant = variant = variant or repository.variant
        self.tokenizer = tokenizer
        self._coming_vocabulary = vocabulary
        open_other = open_other or partial(open_repository, ledger=repository.ledger)
        try:
            self.weights: Weights = open_weights(repository, variant=variant, open_other=open_other)
            self.tensors: TensorSource = self.weights.tensors
            self._metadata = self.tensors.description.metadata
            config: Mapping[str, object] = {}
            if self._metadata:
                # A GGUF file says itself how it is laid out; a config.json beside it is that of another layout.
                config = gguf_config(self._metadata)
            elif CONFIG in self.weights.base.files:
                # The config beside an adapter, if any, is that of its training; the layout is that of its base.
                config = read_config(self.weights.base.read(CONFIG, max_bytes=MAX_CONFIG_N_BYTES))
            elif PARAMS in self.weights.base.files:
                params = read_config(self.weights.base.read(PARAMS, max_bytes=MAX_CONFIG_N_BYTES), label=PARAMS)
                config = params_config(params)
            self.anatomy: Anatomy = resolve_from_headers(config, self.tensors)
            self.n_rows, self.width = n_rows(self), self.anatomy.embedding_size
        except MdirError as exc:
            raise about_model(exc, repository) from exc.__cause__

    @cached_property
    def inventory(self) -> ModelInventory:
        """Every tensor of its files, each in one part; reads the headers of all files.

        Raises:
            MdirError: If a header cannot be read.
        """
        if isinstance(self.tensors, ListsContents):
            self.tensors.read_all_headers()
        return self.known_inventory()

    def known_inventory(self) -> ModelInventory:
        """The inventory by the headers that were read so far; sizes of other tensors are None. Reads nothing."""
        return inventory_of(self.tensors, self.anatomy)

    @cached_property
    def stacks(self) -> tuple[StackView, ...]:
        """Its stacks of layers, the language model first; costs the headers of the shards that hold them."""
        return stack_views(self.known_inventory(), self.label, self.tensors, self.anatomy)

    @property
    def label(self) -> str:
        """``owner/name@0123abc`` or the folder."""
        return self.repository.label

    @property
    def vocabulary_key(self) -> tuple[tuple[str, str], ...] | None:
        """Tokenizer files and their digests, None unless all are known: the same for the same bytes."""
        files = self.tokenizer_files.files
        key = tuple((path, files[path].sha256 or files[path].blob_id or "") for path in self.vocabulary_paths)
        return key if key and all(digest for _, digest in key) else None

    @property
    def vocabulary_from(self) -> str | None:
        """The repository whose tokenizer was asked for in place of its own."""
        return None if self.tokenizer is None else self.tokenizer.label

    @cached_property
    def vocabulary_paths(self) -> tuple[str, ...]:
        """The tokenizer files that would be read; empty without any, or where the weights bring their own."""
        return () if self._brings_tokens else vocabulary_files(self.tokenizer_files.files)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary: that of the weight file where it has one, else of the tokenizer files; None without any.

        Raises:
            VocabularyError: If the files are not what their kind of tokenizer should be.
        """
        with naming(self.tokenizer_files.label):
            if self._brings_tokens:
                return gguf_vocabulary(self._metadata, file=self.tensors.paths[0])
            if not self.vocabulary_paths and self.tokenizer is None:
                return None
            if self._coming_vocabulary is not None and self.tokenizer_files is self.repository:
                return result_of(self._coming_vocabulary)
            return read_vocabulary(self.tokenizer_files.files, self.tokenizer_files.read)

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """Where its tokenizer files contradict each other on which row is which token's, a sentence each."""
        if self._brings_tokens or self.vocabulary is None:
            return ()
        with naming(self.tokenizer_files.label):
            return doubts_of_vocabulary(self.tokenizer_files.files, self.tokenizer_files.read, self.vocabulary)

    @property
    def has_read_vocabulary(self) -> bool:
        """Whether its tokenizer files were read."""
        return "vocabulary" in self.__dict__  # where a cached property keeps it

    @property
    def _brings_tokens(self) -> bool:
        """Whether the vocabulary stands in the header of the weights."""
        return TOKENS in self._metadata and self.tokenizer is None

    @cached_property
    def tokenizer_files(self) -> Repository:
        """Where its tokenizer files are: of an adapter its own repository, or the first one under it that has any."""
        if self.tokenizer is not None:
            return self.tokenizer
        repositories = [files.repository for files in self.weights.files]
        return next((found for found in repositories if vocabulary_files(found.files)), self.repository)

    def digests(self) -> dict[str, str] | None:
        """SHA-256 of every weight file, None unless all are known without reading them."""
        return self.weights.digests()

    def identities(self) -> frozenset[str] | None:
        """As :meth:`~mdir_hf.model.comparable.Comparable.identities`."""
        return self.weights.identities()

    def summary(self) -> ModelSummary:
        """What a report says about this model."""
        # The name of a folder or file on this disk has its subfolder and file in it.
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
            bases=tuple(_pinned(files.repository) for files in self.weights.files[1:]) or None,
        )


def _pinned(repository: Repository) -> str:
    """``owner/name@commit``, with the folder in it if it is not the root; or a folder on this disk."""
    if repository.is_local or repository.commit is None:
        return repository.repo
    return "/".join(part for part in (f"{repository.repo}@{repository.commit}", repository.subfolder) if part)
