"""The fingerprint of a model: rows of its embedding for a sample of tokens, and rows of a few neurons.

A fingerprint stands in a comparison for its model: its tokens are the vocabulary, their rows the embedding.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.comparison.neuron_sample import (
    DOWN_CHANNELS,
    OUTPUTS,
    ROWS,
    STRENGTHS,
    DescribedNeurons,
    NeuronSample,
    SampleDesign,
    bytes_of_down,
    planned_n_bytes,
    take_neurons,
)
from mdir_hf.comparison.reading import FiniteRows, narrowed
from mdir_hf.errors import AnatomyError, CorruptCheckpointError, InputError, UnsupportedFormatError, VocabularyError
from mdir_hf.method.rows import usual_rows
from mdir_hf.model.comparable import PlacedTensors, embedding_spec
from mdir_hf.model.files import MemorySource
from mdir_hf.model.files.json_object import read_json
from mdir_hf.model.hub import parse_reference
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import WITHOUT_EMBEDDING, Anatomy, WeightPart, meaning_of_numbers
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.model.tokens.tokens import VocabularyKind
from mdir_hf.report import ModelSummary
from mdir_hf.report.parts import Count

FORMAT = "mdir-hf/fingerprint/2"
EMBEDDING = "embedding"
WHOLE_DOWN_BYTES = 32 << 20
"""The matrices down of the sampled layers are read whole if they take no more than this together. A relative in another
basis needs all of their channels."""

WITHOUT_TOKENS = (
    "it has no tokenizer files, so nothing says which row belongs to which token; compare it by itself, or name a copy "
    "that has them"
)


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Sampled rows of one model at one commit.

    Attributes:
        model: Name, commit, architecture and sizes.
        tokens: The tokens whose rows are kept, as bytes.
        rows: Their rows, ``(len(tokens), n)``, bfloat16 or float16 where that is exact, else float32.
        bytes_of_weights: Stored size of the checkpoint.
        digests: SHA-256 of every weight file, where all are known.
        notes: What a reader should know about the checkpoint.
        neurons: Neurons of four layers, in 16 bits; None where they were not read, or have no free numbers.
        numbers_by_config: What the config says that the number of a channel means; None: nothing that is known.
    """

    model: ModelSummary
    tokens: tuple[bytes, ...]
    rows: torch.Tensor
    bytes_of_weights: int
    digests: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    neurons: NeuronSample | None = None
    numbers_by_config: str | None = None

    @property
    def n_bytes(self) -> int:
        """Size of all rows, in bytes."""
        return self.rows.nbytes + (0 if self.neurons is None else self.neurons.n_bytes)

    @property
    def channel_numbers(self) -> str | None:
        """What the number of a channel means, by the config or the architecture; None where nothing is known."""
        return self.numbers_by_config or meaning_of_numbers(self.model.architecture)

    def common_rows(self, other: Fingerprint) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of both for the tokens that both kept, float32 ``(r, n)`` and ``(r, n_other)``."""
        place = {token: at for at, token in enumerate(other.tokens)}
        shared = [(at, place[token]) for at, token in enumerate(self.tokens) if token in place]
        mine, theirs = (list(rows) for rows in zip(*shared, strict=True)) if shared else ([], [])
        return self.rows[mine].float(), other.rows[theirs].float()

    def of_usual_rows(self) -> Fingerprint:
        """Return it without rows that are empty, all alike or far too long, as of :func:`usual_rows`."""
        kept = usual_rows(self.rows)
        if bool(kept.all()):
            return self
        at = torch.nonzero(kept)[:, 0].tolist()
        return replace(self, tokens=tuple(self.tokens[number] for number in at), rows=self.rows[at])

    def to_bytes(self) -> bytes:
        """A safetensors file with the rows, everything else in its metadata."""
        known = {
            "format": FORMAT,
            "model": json.dumps(asdict(self.model)),
            "tokens": json.dumps([base64.b64encode(token).decode() for token in self.tokens]),
            "bytes_of_weights": str(self.bytes_of_weights),
            "digests": json.dumps(None if self.digests is None else dict(self.digests)),
            "notes": json.dumps(self.notes),
        }
        if self.numbers_by_config is not None:
            known["channel_numbers"] = self.numbers_by_config
        kept = {"rows": self.rows.contiguous()}
        if self.neurons is not None:
            known["neurons"] = json.dumps(self.neurons.described())
            kept |= self.neurons.tensors()
        content: bytes = save(kept, metadata=known)
        return content

    @classmethod
    def load(cls, path: Path) -> Fingerprint:
        """Read a file that :meth:`to_bytes` made.

        Raises:
            CorruptCheckpointError: If it is not one.
        """
        try:
            with safe_open(path, framework="pt") as file:
                known = file.metadata() or {}
                if known.get("format") != FORMAT:
                    raise ValueError(f"expected {FORMAT}, got {known.get('format')!r}")
                rows = file.get_tensor("rows")
                neurons = [file.get_tensor(name) for name in (ROWS, OUTPUTS, STRENGTHS) if name in set(file.keys())]
            read = partial(read_json, what="what it says of its model", label=None, budget=REPORT_JSON)
            said = {name: value.encode() for name, value in known.items()}
            tokens = tuple(base64.b64decode(token, validate=True) for token in read(said["tokens"], list[str]))
            return cls(
                model=read(said["model"], ModelSummary),
                tokens=tokens,
                rows=expect_rows(rows, tokens),
                bytes_of_weights=read(said["bytes_of_weights"], Count),
                digests=None if said["digests"] == b"null" else read(said["digests"], dict[str, str]),
                notes=read(said["notes"], tuple[str, ...]),
                neurons=NeuronSample.restored(read(said["neurons"], DescribedNeurons), *neurons) if neurons else None,
                numbers_by_config=known.get("channel_numbers"),
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as exc:
            raise CorruptCheckpointError(f"this is not a fingerprint: {exc}; delete it", subject=str(path)) from exc


def expect_rows(rows: torch.Tensor, tokens: Sequence[bytes]) -> torch.Tensor:
    """Return rows that were read from a file, if they can be those of tokens.

    Raises:
        ValueError: If they are not one row of real numbers for each token, each token once.
    """
    if rows.ndim != 2 or len(rows) != len(tokens) or not rows.shape[1]:
        raise ValueError(f"expected one row for each of {len(tokens)} tokens, got shape {tuple(rows.shape)}")
    if not rows.dtype.is_floating_point:
        raise ValueError(f"expected rows of real numbers, got {rows.dtype}")
    if len(set(tokens)) != len(tokens):
        raise ValueError("it keeps the rows of a token twice")
    return rows


def take_fingerprint(
    model: Model,
    tokens: Sequence[bytes],
    *,
    max_gap_bytes: int | None = None,
    with_neurons: bool = True,
    neuron_seed: int | None = None,
    needs_tokens: bool = True,
) -> Fingerprint:
    """Read the sampled rows of a model.

    Args:
        model: An opened model.
        tokens: The sample; those that the model's vocabulary lacks, or its embedding has no row for, are left out.
        max_gap_bytes: Gap between two rows that is read over; None: the source's own choice.
        with_neurons: Whether neurons of four layers are read, too.
        neuron_seed: Seed of those neurons, drawn after the models were opened: then down is read as well, and the
            neurons are a second witness. None: a public choice, the same for every index, without down.
        needs_tokens: Whether a model without tokenizer files or embedding is refused also where neurons are read of it.

    Returns:
        The fingerprint. Reads ``len(tokens)`` rows and the gaps between them, and some 100 rows of each of the layers.

    Raises:
        VocabularyError: If the model has no tokenizer files, so that nothing says which row is which token's, or no
            embedding: then only its neurons can be compared.
        MdirError: If the rows cannot be read.
    """
    vocabulary = None if model.anatomy.embedding is None else model.vocabulary
    neurons = neurons_of(model, seed=neuron_seed) if with_neurons else None
    if vocabulary is None and (needs_tokens or neurons is None):
        raise without_rows(model)
    found = () if vocabulary is None else tokens_with_rows(vocabulary, model.n_rows, tokens)
    rows = torch.zeros(0, model.width)
    finite_rows = FiniteRows(model)
    if vocabulary is not None:
        ids = np.array([vocabulary.row_of[token] for token in found], dtype=np.int64)
        rows = finite_rows.read_rows(embedding_spec(model).name, ids, max_gap_bytes=max_gap_bytes)
    return Fingerprint(
        model=model.summary(),
        tokens=found,
        rows=narrowed(rows),
        bytes_of_weights=model.tensors.n_bytes,
        digests=model.digests(),
        notes=(*model.tensors.description.notes, *_note_on(finite_rows.n_not_finite)),
        neurons=neurons,
        numbers_by_config=model.anatomy.channel_numbers,
    )


def _note_on(n_not_finite: int) -> tuple[str, ...]:
    if not n_not_finite:
        return ()
    number = "1 row holds" if n_not_finite == 1 else f"{n_not_finite:,} rows hold"
    return (f"embedding: {number} NaN or infinity and counts for nothing",)


def without_rows(model: Model) -> VocabularyError:
    """The error of a model that has no rows of tokens."""
    why = WITHOUT_TOKENS if model.anatomy.embedding is not None else f"{WITHOUT_EMBEDDING}: no rows can be compared"
    return VocabularyError(why, subject=model.label)


def neurons_of(model: PlacedTensors, *, every: bool = False, seed: int | None = None) -> NeuronSample | None:
    """Read the neurons that a fingerprint keeps.

    Args:
        model: The model.
        every: Whether neurons of all layers are wanted, and not of four.
        seed: Seed of the choice, then with down; None: the public choice of an index, without down.

    Returns:
        The sample in 16 bits; None if the layers cannot be read.
    """
    try:
        if seed is None:
            sample = take_neurons(model, SampleDesign(every=every))
        else:
            n_down_channels = None if bytes_of_down(model) <= WHOLE_DOWN_BYTES else DOWN_CHANNELS
            sample = take_neurons(model, SampleDesign(seed=seed, every=every, n_down_channels=n_down_channels))
    except (AnatomyError, UnsupportedFormatError):
        return None
    return None if sample is None else sample.kept()


def bytes_of_neurons(model: PlacedTensors, *, every: bool = False) -> int:
    """About how many bytes :func:`neurons_of` reads."""
    try:
        return planned_n_bytes(model, every=every)
    except (AnatomyError, UnsupportedFormatError):
        return 0


def tokens_with_rows(vocabulary: Vocabulary, n_rows: int, tokens: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return those tokens of a sample that a model has rows for.

    Args:
        vocabulary: The model's.
        n_rows: Rows of its embedding; some vocabularies claim more.
        tokens: The sample.
    """
    return tuple(token for token in tokens if vocabulary.row_of.get(token, n_rows) < n_rows)


def sample_name(tokens: Sequence[bytes]) -> str:
    """A short name of a sample, the same for the same set of tokens: fingerprints of one sample compare best."""
    digest = hashlib.sha256()
    for token in sorted(tokens):
        digest.update(len(token).to_bytes(4, "little") + token)
    return digest.hexdigest()[:16]


class SampledModel:
    """A fingerprint in the place of an opened model: its tokens are its vocabulary, and it has no layers.

    Implements :class:`~mdir_hf.model.comparable.Comparable`.
    """

    vocabulary_key = None
    vocabulary_from = None

    def __init__(self, fingerprint: Fingerprint) -> None:
        # An embedding has a row. That of a model whose tokens are not known is not a token's.
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

    def vocabulary_doubts(self) -> tuple[str, ...]:
        """None: the tokens were decided when the fingerprint was taken."""
        return ()

    def identities(self) -> frozenset[str] | None:
        """SHA-256 of every weight file; where they are not known, the folder or file of this disk that was named."""
        if self._fingerprint.digests is not None:
            return frozenset(self._fingerprint.digests.values())
        if self._fingerprint.model.commit is not None:
            return None
        try:
            place = parse_reference(self._fingerprint.model.repo)
        except InputError:  # it is there no more
            return None
        return None if place.folder is None else frozenset({str(place.folder / (place.file or ""))})

    def summary(self) -> ModelSummary:
        """What a report says about the model."""
        return self._fingerprint.model
