"""A model's fingerprint: embedding rows of sampled tokens, rows of a few neurons, and prints of heads."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.comparison.keys import SampledHeads, planned_bytes_of_heads, sample_heads
from mdir_hf.comparison.neuron_sample import ROWS, DescribedNeurons, NeuronSample, planned_n_bytes, take_neurons
from mdir_hf.comparison.reading import FiniteRows, narrowed
from mdir_hf.errors import AnatomyError, CorruptCheckpointError, InputError, UnsupportedFormatError, VocabularyError
from mdir_hf.method.rows import usual_rows
from mdir_hf.model.comparable import PlacedTensors, embedding_spec
from mdir_hf.model.files import MemorySource
from mdir_hf.model.hub import parse_reference
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import WITHOUT_EMBEDDING, Anatomy, WeightPart, meaning_of_numbers
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.model.tokens.tokens import VocabularyKind
from mdir_hf.report import ModelSummary
from mdir_hf.report.parts import Count
from mdir_hf.validation import read_json

FORMAT = "mdir-hf/fingerprint/4"
EMBEDDING, HEADS = "embedding", "heads"
WITHOUT_TOKENS = (
    "it has no tokenizer files, so its rows cannot be assigned to tokens; compare it by itself, or name a copy "
    "that has them"
)

LEAST_ROWS = 8
"""Bases that have fewer tokens in common with a model are not ranked."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Sampled rows of one model at one commit.

    Attributes:
        rows: Embedding rows of the tokens, ``(len(tokens), n)``, in a 16-bit dtype if that is exact.
        digests: SHA-256 of every weight file, or None if any is unknown.
        neurons: 16-bit rows of neurons in four layers, or None.
        numbers_by_config: A clause that says why channel numbers have a meaning, according to the config, or None.
        heads: Prints of some attention heads, in surveys only.
    """

    model: ModelSummary
    tokens: tuple[bytes, ...]
    rows: torch.Tensor
    bytes_of_weights: int
    digests: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    neurons: NeuronSample | None = None
    numbers_by_config: str | None = None
    heads: SampledHeads | None = None

    @property
    def n_bytes(self) -> int:
        """Size of all rows, in bytes."""
        return self.rows.nbytes + (0 if self.neurons is None else self.neurons.n_bytes)

    @property
    def channel_numbers(self) -> str | None:
        """Meaning of channel numbers according to the config or architecture, or None."""
        return self.numbers_by_config or meaning_of_numbers(self.model.architecture)

    def common_rows(self, other: Fingerprint) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both models' rows for common tokens, float32 ``(r, n)`` and ``(r, n')``."""
        place = {token: at for at, token in enumerate(other.tokens)}
        shared = [(at, place[token]) for at, token in enumerate(self.tokens) if token in place]
        own_rows, other_rows = (list(rows) for rows in zip(*shared, strict=True)) if shared else ([], [])
        return self.rows[own_rows].float(), other.rows[other_rows].float()

    def of_usual_rows(self) -> Fingerprint:
        """Return a copy without uninformative rows; see :func:`usual_rows`."""
        is_usual = usual_rows(self.rows)
        if bool(is_usual.all()):
            return self
        at = torch.nonzero(is_usual)[:, 0].tolist()
        return replace(self, tokens=tuple(self.tokens[number] for number in at), rows=self.rows[at])

    def to_bytes(self) -> bytes:
        """Return the contents of a safetensors file, with all fields except tensors in its metadata."""
        metadata = {
            "format": FORMAT,
            "model": json.dumps(asdict(self.model)),
            "tokens": json.dumps([base64.b64encode(token).decode() for token in self.tokens]),
            "bytes_of_weights": str(self.bytes_of_weights),
            "digests": json.dumps(None if self.digests is None else dict(self.digests)),
            "notes": json.dumps(self.notes),
        }
        if self.numbers_by_config is not None:
            metadata["channel_numbers"] = self.numbers_by_config
        tensors = {"rows": self.rows.contiguous()}
        if self.neurons is not None:
            metadata["neurons"] = json.dumps(self.neurons.described())
            tensors[ROWS] = self.neurons.rows.contiguous()
        if self.heads is not None:
            metadata["heads"] = json.dumps(self.heads.shape)
            tensors[HEADS] = self.heads.prints.contiguous()
        content: bytes = save(tensors, metadata=metadata)
        return content

    @classmethod
    def load(cls, path: Path) -> Fingerprint:
        """Read a file written by :meth:`to_bytes`.

        Raises:
            CorruptCheckpointError: If the file is not a fingerprint.
        """
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                if header.get("format") != FORMAT:
                    raise ValueError(f"expected {FORMAT}, got {header.get('format')!r}")
                rows = file.get_tensor("rows")
                names = set(file.keys())
                neurons = file.get_tensor(ROWS) if ROWS in names else None
                prints = file.get_tensor(HEADS) if HEADS in names else None
            read = partial(read_json, what="the description of its model", label=None, budget=REPORT_JSON)
            metadata = {name: value.encode() for name, value in header.items()}
            tokens = tuple(base64.b64decode(token, validate=True) for token in read(metadata["tokens"], list[str]))
            return cls(
                model=read(metadata["model"], ModelSummary),
                tokens=tokens,
                rows=expect_rows(rows, tokens),
                bytes_of_weights=read(metadata["bytes_of_weights"], Count),
                digests=None if metadata["digests"] == b"null" else read(metadata["digests"], dict[str, str]),
                notes=read(metadata["notes"], tuple[str, ...]),
                neurons=None
                if neurons is None
                else NeuronSample.restored(read(metadata["neurons"], DescribedNeurons), neurons),
                numbers_by_config=header.get("channel_numbers"),
                heads=None
                if prints is None
                else SampledHeads(read(metadata["heads"], tuple[Count, Count]), _expect_prints(prints)),
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as exc:
            raise CorruptCheckpointError(f"this is not a fingerprint: {exc}; delete it", subject=str(path)) from exc


def expect_rows(rows: torch.Tensor, tokens: Sequence[bytes]) -> torch.Tensor:
    """Return rows read from a file; raise ``ValueError`` if they do not match the tokens, or a token occurs twice."""
    if rows.ndim != 2 or len(rows) != len(tokens) or not rows.shape[1]:
        raise ValueError(f"expected one row for each of {len(tokens)} tokens, got shape {tuple(rows.shape)}")
    if not rows.dtype.is_floating_point:
        raise ValueError(f"expected rows of real numbers, got {rows.dtype}")
    if len(set(tokens)) != len(tokens):
        raise ValueError("a token has two rows")
    return rows


def _expect_prints(prints: torch.Tensor) -> torch.Tensor:
    """Return prints of heads read from a file; raise ``ValueError`` if they are not finite rows."""
    if prints.ndim != 2 or 0 in prints.shape or not prints.dtype.is_floating_point or not prints.isfinite().all():
        raise ValueError(f"expected finite prints of heads, got shape {tuple(prints.shape)} and {prints.dtype}")
    return prints


def take_fingerprint(
    model: Model,
    tokens: Sequence[bytes],
    *,
    max_gap_bytes: int | None = None,
    with_neurons: bool = True,
    neuron_seed: int | None = None,
    needs_tokens: bool = True,
    with_heads: bool = False,
) -> Fingerprint:
    """Read the embedding rows of some tokens and, if ``with_neurons`` is true, about 100 rows in each of four layers.

    If ``with_heads`` is true, also read keys of some heads, up to 16 MB.

    Skips tokens that have no row, and also reads small gaps between rows. Pass a ``neuron_seed`` drawn after the models
    were opened if a verdict rests on the neurons. Without a seed, they are the fixed choice that indexes use. If
    ``needs_tokens`` is true, models without token rows are rejected.

    Raises:
        VocabularyError: If the model has no tokenizer files or no embedding.
    """
    vocabulary = None if model.anatomy.embedding is None else model.vocabulary
    neurons = neurons_of(model, seed=neuron_seed) if with_neurons else None
    if vocabulary is None and (needs_tokens or neurons is None):
        raise without_rows(model)
    held_tokens = () if vocabulary is None else tokens_with_rows(vocabulary, model.n_rows, tokens)
    rows = torch.zeros(0, model.width)
    finite_rows = FiniteRows(model)
    if vocabulary is not None:
        ids = np.array([vocabulary.row_of[token] for token in held_tokens], dtype=np.int64)
        rows = finite_rows.read_rows(embedding_spec(model).name, ids, max_gap_bytes=max_gap_bytes)
    return Fingerprint(
        model=model.summary(),
        tokens=held_tokens,
        rows=narrowed(rows),
        bytes_of_weights=model.tensors.n_bytes,
        digests=model.digests(),
        notes=(*model.tensors.description.notes, *_note_on(finite_rows.n_not_finite)),
        neurons=neurons,
        numbers_by_config=model.anatomy.channel_numbers,
        heads=_heads_of(model, seed=neuron_seed or 0) if with_heads else None,
    )


def _note_on(n_not_finite: int) -> tuple[str, ...]:
    if not n_not_finite:
        return ()
    if n_not_finite == 1:
        return ("embedding: 1 row contains NaN or infinity and is ignored",)
    return (f"embedding: {n_not_finite:,} rows contain NaN or infinity and are ignored",)


def without_rows(model: Model) -> VocabularyError:
    """Return the error for a model without token rows."""
    why = WITHOUT_TOKENS if model.anatomy.embedding is not None else f"{WITHOUT_EMBEDDING}: no rows can be compared"
    return VocabularyError(why, subject=model.label)


def neurons_of(model: PlacedTensors, *, every: bool = False, seed: int | None = None) -> NeuronSample | None:
    """Read the neurons of a fingerprint as 16-bit rows; return None if there are none, or if all rows are zero.

    If ``every`` is true, all layers are read instead of four. See :func:`take_fingerprint` for the seed.
    """
    try:
        sample = take_neurons(model, seed=seed or 0, every=every)
    except (AnatomyError, UnsupportedFormatError):
        return None
    return None if sample is None or not sample.rows.any() else sample.for_storage()


def _heads_of(model: PlacedTensors, *, seed: int) -> SampledHeads | None:
    try:
        heads = sample_heads(model, seed=seed)
    except (AnatomyError, UnsupportedFormatError):
        return None
    return heads if heads is not None and heads.prints.isfinite().all() else None


def bytes_of_heads(model: PlacedTensors) -> int:
    """Return how many bytes of keys :func:`take_fingerprint` reads with heads."""
    try:
        return planned_bytes_of_heads(model)
    except (AnatomyError, UnsupportedFormatError):
        return 0


def bytes_of_neurons(model: PlacedTensors, *, every: bool = False) -> int:
    """Estimate how many bytes :func:`neurons_of` reads."""
    try:
        return planned_n_bytes(model, every=every)
    except (AnatomyError, UnsupportedFormatError):
        return 0


def tokens_with_rows(vocabulary: Vocabulary, n_rows: int, tokens: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the sampled tokens that have an embedding row."""
    return tuple(token for token in tokens if vocabulary.row_of.get(token, n_rows) < n_rows)


def sample_name(tokens: Sequence[bytes]) -> str:
    """Return a short name for a set of sampled tokens."""
    digest = hashlib.sha256()
    for token in sorted(tokens):
        digest.update(len(token).to_bytes(4, "little") + token)
    return digest.hexdigest()[:16]


class SampledModel:
    """A fingerprint presented as a model without layers. Implements :class:`~mdir_hf.model.comparable.Comparable`."""

    vocabulary_key = None
    vocabulary_from = None
    is_remote = False
    is_sharded = False
    other_stacks = None

    def __init__(self, fingerprint: Fingerprint) -> None:
        # An embedding needs at least one row. If the tokens are unknown, the row belongs to no token.
        rows = fingerprint.rows if len(fingerprint.rows) else fingerprint.rows.new_zeros(1, fingerprint.rows.shape[1])
        n_rows, width = rows.shape
        commit = fingerprint.model.commit
        self.label = fingerprint.model.repo if commit is None else f"{fingerprint.model.repo}@{commit[:7]}"
        self.tensors = MemorySource({EMBEDDING: rows}, label=self.label)
        self.anatomy = Anatomy(
            architecture=fingerprint.model.architecture,
            hidden_size=width,
            embedding_size=width,
            vocabulary_size=None,
            n_layers=0,
            n_heads=None,
            n_kv_heads=None,
            head_dim=None,
            embedding=WeightPart(EMBEDDING),
            unembedding=None,
            tied=False,
            channel_numbers=fingerprint.channel_numbers,
        )
        self.vocabulary = Vocabulary(
            kind=VocabularyKind.TIKTOKEN,  # plain bytes
            row_of={token: row for row, token in enumerate(fingerprint.tokens)},
            n_rows=n_rows,
            n_special=0,
            n_reserved=0,
            n_unused=0,
            n_duplicate=0,
            duplicates={},
            files=(),
        )
        self._fingerprint = fingerprint

    def known_inventory(self) -> None:
        """Return None, because the files are unknown."""

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """Return an empty tuple, because a fingerprint has no tokenizer files to check."""
        return ()

    def identities(self) -> frozenset[str] | None:
        """Return the SHA-256 of every weight file or, if unknown, the path of a local model; else None."""
        if self._fingerprint.digests is not None:
            return frozenset(self._fingerprint.digests.values())
        if self._fingerprint.model.commit is not None:
            return None
        try:
            place = parse_reference(self._fingerprint.model.repo)
        except InputError:  # it no longer exists
            return None
        return None if place.folder is None else frozenset({str(place.folder / (place.file or ""))})

    def summary(self) -> ModelSummary:
        """Return the model's summary for a report."""
        return self._fingerprint.model


def usual_rows_of(base: Fingerprint, tokens: Container[bytes]) -> tuple[torch.Tensor, tuple[bytes, ...]]:
    """Return a base's informative rows ``(r, n)`` for those ``tokens`` that it has, and these tokens."""
    usual = base.of_usual_rows()
    at = [number for number, token in enumerate(usual.tokens) if token in tokens]
    return usual.rows[at], tuple(usual.tokens[number] for number in at)


def expect_usual_rows(fingerprint: Fingerprint, label: str) -> None:
    """Raise ``InputError`` if fewer than :data:`LEAST_ROWS` sampled rows are informative."""
    n_usual = len(fingerprint.of_usual_rows().tokens)
    if n_usual < LEAST_ROWS:
        raise InputError(
            f"only {n_usual} of its {len(fingerprint.tokens)} sampled rows are informative, and {LEAST_ROWS} are "
            "needed: the others are empty, constant or thousands of times as long as most; compare it with a base "
            "by itself",
            subject=label,
        )
