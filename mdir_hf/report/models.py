"""Records of a report that describe the two models and the bytes read."""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf.report.parts import Count, ReportRecord

READ_AS = ("subfolder", "variant", "file", "tokenizer", "bases")
"""Fields of a :class:`ModelSummary` that the JSON contains only if used, so that digests of older reports stay valid.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowRead(ReportRecord):
    """How a model was read, apart from its repository and commit. Unused options are None.

    Attributes:
        subfolder: Folder of the model in its repository; None for the root.
        variant: The requested variant, such as ``fp16`` or ``Q4_K_M``.
        file: The weight file that was selected, if there are several.
        tokenizer: Source of the vocabulary if it is not the model's repository: ``owner/name@commit``, or a folder.
        bases: Bases of an adapter, nearest first: ``owner/name@commit``, or folders.
    """

    subfolder: str | None = None
    variant: str | None = None
    file: str | None = None
    tokenizer: str | None = None
    bases: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Convert lists from JSON to tuples."""
        if isinstance(self.bases, list):
            object.__setattr__(self, "bases", tuple(self.bases))

    @property
    def read_as(self) -> str:
        """Description of the options used; empty if there are none."""
        words = {"subfolder": "folder", "tokenizer": "vocabulary of"}
        options = [f"{words.get(name, name)} {value}" for name in READ_AS[:-1] if (value := getattr(self, name))]
        return ", ".join([*options, *(f"on {base}" for base in self.bases or ())])


@dataclass(frozen=True, slots=True)
class ModelSummary(HowRead):
    """One side of a comparison.

    Attributes:
        repo: Repo id, or the local path.
        revision: Requested revision; None for the default branch or a local folder.
        commit: Resolved commit; None for a local folder.
        architecture: ``model_type`` of the config, or ``unknown``.
        hidden_size: Width n of the residual stream.
        layers: Number of decoder layers; None if unknown.
        vocabulary: Number of rows of the embedding.
        quantization: How the weights are quantised, such as ``GPTQ, 4 bits in groups of 128``; None if they are not.
    """

    repo: str
    revision: str | None
    commit: str | None
    architecture: str
    hidden_size: Count | None
    layers: Count | None
    vocabulary: Count | None
    quantization: str | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the model was an object in memory, which cannot be opened by name."""
        return self.repo.startswith("memory:")

    @property
    def pinned(self) -> str:
        """A name that opens the same files again, with the commit that was read."""
        if self.file is not None:
            return f"hf://models/{self.repo}@{self.commit}/{self.file}"
        return f"{self.repo}@{self.commit}" if self.commit else self.repo


@dataclass(frozen=True, slots=True)
class InputOutput(ReportRecord):
    """Bytes and files read, and requests sent.

    Attributes:
        bytes_read: Bytes from the network or local files.
        bytes_from_cache: Bytes served by this package's cache of byte ranges.
        bytes_of_weights: Stored size of the two checkpoints.
        requests: Number of HTTP requests; 0 for local files.
        files: Files that were read, as ``repo@commit:path``.
        bytes_planned: Minimum and maximum number of bytes in the plan, or None.
    """

    bytes_read: Count
    bytes_from_cache: Count
    bytes_of_weights: Count
    requests: Count
    files: tuple[str, ...]
    bytes_planned: tuple[Count, Count] | None = None

    @property
    def share_read(self) -> float:
        """Bytes read divided by the stored size of the weights; 0 if unknown."""
        return self.bytes_read / self.bytes_of_weights if self.bytes_of_weights else 0.0
