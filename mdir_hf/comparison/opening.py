"""How a model is named, how repositories are opened, and both together: an opened model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from mdir_hf.comparison.bases import open_bases_at
from mdir_hf.comparison.model import Model
from mdir_hf.hub import IoLedger, Repository, open_repository


@dataclass(frozen=True, slots=True)
class Reading:
    """How repositories are opened, the same for all of one comparison.

    Attributes:
        token: Token for gated and private models; None or True: the stored one, False: none.
        cache_dir: The Hub cache to use; None: the standard one.
        local_files_only: Use no network.
        force_download: Do not use what is cached.
        allow_local: False: models must be on the Hub.
        use_caches: False: no cache on this disk is read or written.
    """

    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False
    allow_local: bool = True
    use_caches: bool = True

    def open(
        self,
        reference: str | os.PathLike[str],
        *,
        revision: str | None = None,
        subfolder: str = "",
        allow_local: bool = True,
        ledger: IoLedger | None = None,
    ) -> Repository:
        """Open a repository or folder this way; see :func:`~mdir_hf.hub.open_repository`."""
        return open_repository(
            reference,
            revision=revision,
            subfolder=subfolder,
            token=self.token,
            cache_dir=self.cache_dir,
            local_files_only=self.local_files_only,
            force_download=self.force_download,
            allow_local=self.allow_local and allow_local,
            use_caches=self.use_caches,
            ledger=ledger,
        )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as somebody names it.

    Attributes:
        repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file.
        revision: Branch, tag or commit.
        subfolder: Folder of the repository that holds the model.
        variant: ``fp16`` reads ``model.fp16.safetensors``, ``Q4_K_M`` of several GGUF files the one of that name.
        tokenizer: Repository or folder to read its vocabulary from, where its own has none or another one.
        bases: Of an adapter: commits at which to read what lies under it, each ``owner/name@commit``.
    """

    repo_or_folder: str | os.PathLike[str]
    revision: str | None = None
    subfolder: str = ""
    variant: str | None = None
    tokenizer: str | os.PathLike[str] | None = None
    bases: tuple[str, ...] = ()

    def open(self, reading: Reading, ledger: IoLedger | None = None) -> Model:
        """Open it. Reads its config, the index of its weights and one header; no weights.

        Args:
            reading: How repositories are opened.
            ledger: Counts what is read; None: a new one.

        Raises:
            InputError: If what names the model cannot be used.
            HubError: If the model's files cannot be had.
            CheckpointError: If it has no weights that can be read.
            AnatomyError: If they are not those of a language model.
        """
        open_one = partial(reading.open, ledger=ledger or IoLedger())
        repository = open_one(self.repo_or_folder, revision=self.revision, subfolder=self.subfolder)
        return Model(
            repository,
            variant=self.variant,
            tokenizer=None if self.tokenizer is None else open_one(self.tokenizer),
            open_other=open_bases_at(open_one, self.bases),
        )
