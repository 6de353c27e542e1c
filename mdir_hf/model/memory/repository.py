"""A repository of in-memory tensors and small files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mdir_hf.errors import ByteBudgetError, FileMissingError
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.sources import ByteSource, FileEntry, StoredSource


@dataclass(eq=False, repr=False)
class LoadedRepository:
    """A repository for a model or tokenizer in memory. Implements ``Repository`` and ``TreeWithTensors``.

    Attributes:
        repo: Name shown in reports, such as ``memory:LlamaForCausalLM(Qwen/Qwen2.5-0.5B)``.
        tensors: The tensors, under the names used when saving; None for a tokenizer.
        came_from: Name that the model was loaded from, or None.
        is_sharded: Whether several ranks of ``torch.distributed`` store parts of the model.
    """

    repo: str
    contents: Mapping[str, bytes]
    tensors: StoredSource | None = None
    base: LoadedRepository | None = None
    came_from: str | None = None
    is_sharded: bool = False
    ledger: IoLedger = field(default_factory=IoLedger)
    revision: str | None = None
    commit: str | None = None
    is_local: bool = True
    subfolder: str = ""
    file: str | None = None
    variant: str | None = None

    def __repr__(self) -> str:
        return f"LoadedRepository({self.label!r})"

    @property
    def present_name(self) -> str:
        """Same as ``repo``."""
        return self.repo

    @property
    def label(self) -> str:
        """Same as ``repo``."""
        return self.repo

    @cached_property
    def files(self) -> Mapping[str, FileEntry]:
        """The small files, with digests."""
        return {
            path: FileEntry(path, len(content), sha256=hashlib.sha256(content).hexdigest())
            for path, content in self.contents.items()
        }

    def open(self, path: str) -> ByteSource:
        """Raise ``FileMissingError``, because there are no weight files."""
        raise FileMissingError(f"there is no file {path!r}: the model is in memory", subject=self.label)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return the contents of a small file without counting it towards the bytes read."""
        content = self.contents.get(path)
        if content is None:
            raise FileMissingError(f"a model in memory has no file {path!r}", subject=self.label)
        if len(content) > max_bytes:
            raise ByteBudgetError(
                f"has {len(content):,} bytes; the limit for a file of this kind is {max_bytes:,}",
                subject=f"{self.label}:{path}",
            )
        return content

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Do nothing, because data in memory needs no prefetching."""

    def count(self, name: str, n_bytes: int) -> None:
        """Count a tensor's bytes before it is copied, enforcing the ledger's limit."""
        with self.ledger.reserve(f"{self.label}:{name}", n_bytes) as arrived:
            arrived(n_bytes)

    def counted_by(self, ledger: IoLedger) -> LoadedRepository:
        """Count further reads, including the base's, in this ledger, and return ``self``."""
        self.ledger = ledger
        if self.base is not None:
            self.base.counted_by(ledger)
        return self

    def open_base(self, reference: str, *, revision: str | None = None, allow_local: bool = True) -> LoadedRepository:
        """Return an adapter's base, given its name in the config."""
        del revision, allow_local
        if self.base is None:
            raise FileMissingError(f"there is no base {reference!r}", subject=self.label)
        return self.base if self.base.repo == reference else self.base.open_base(reference)
