"""An index of base models, which finds likely ancestors in milliseconds using token and neuron rows.

Neurons reveal ancestry even if the embedding is new or rotated.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from mdir_hf.budgets import INDEX_JSON
from mdir_hf.comparison.neuron_sample import DescribedNeurons, NeuronSample, resemblances
from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.fingerprints.fingerprint import (
    LEAST_ROWS,
    Fingerprint,
    expect_rows,
    expect_usual_rows,
    sample_name,
    take_fingerprint,
    usual_rows_of,
)
from mdir_hf.lineage.index.sketches import (
    PARTS,
    SHAPE_ROWS,
    Sketch,
    projected_neurons,
    projected_rows,
    shape_of,
    sketch_of,
    unstacked,
)
from mdir_hf.method.polar import orthonormal_rows, thin_svd
from mdir_hf.model.hub.hub_file import fetch_hub_file
from mdir_hf.model.opened import Model
from mdir_hf.report import ModelSummary
from mdir_hf.report.parts import Count
from mdir_hf.validation import AS_WRITTEN, read_json
from mdir_hf.writing import write_file, writing_into

FORMAT = "mdir-hf/index/2"

BYTES_PER_BASE = 190_000
"""Size of the token rows stored for each base. Neuron rows need as much again, so 500 bases take less than 200 MB. At
width 4096, this is enough for 23 rows of 16-bit numbers; 15 rows make a copy significant (ln n! < r n / 2)."""

LARGEST_INDEX_BYTES = 4 << 30
"""Maximum size of an index to download, enough for about eleven thousand bases."""

LEAST_AGREEMENT = 0.25
"""A base's neurons are compared one by one only if, for some pair of layers, the similarities between neurons correlate
at least this strongly. The correlation is below 0.15 for unrelated layers, and 0.28 to 0.47 for a copy of SmolLM2 with
noise as large as the weights."""

SCANNED_BASES = 1_000
"""Maximum number of bases that a search scans one by one, which takes two milliseconds each."""

PICKED_BASES = 100
"""Number of candidates picked by each part of a sketch."""

SCANNED_CHANNELS = 192
"""Approximate number of a base's channels whose best partners are computed if the stored order shows no relation."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A base that a search proposes.

    Attributes:
        log_p: Natural log of an estimate of p, used only for ranking.
        identity_log_p: Natural log of a bound on p, with channels in their stored order; 0 if widths differ.
    """

    base: ModelSummary
    log_p: float
    identity_log_p: float
    common_tokens: int


Places = tuple[Count, ...]
"""Positions in an index's list of sampled tokens."""


@dataclass(frozen=True)
class _Base:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    model: ModelSummary
    tokens: Count
    bytes_of_weights: Count
    digests: dict[str, str] | None
    neurons: DescribedNeurons | None = None
    channel_numbers: str | None = None


class BaseIndex:
    """Fingerprints of base models for one sample of tokens, stored in one file.

    Args:
        tokens: The sampled tokens, in order. Each base stores rows for the first tokens that it has.
        bases: Fingerprints of the bases.
    """

    def __init__(self, tokens: Sequence[bytes], bases: Iterable[Fingerprint] = ()) -> None:
        self.tokens = tuple(tokens)
        self.bases: list[Fingerprint] = list(bases)
        self._sketches: dict[str, Sketch] = {}

    def __len__(self) -> int:
        return len(self.bases)

    @property
    def n_bytes(self) -> int:
        """Size of the stored rows in bytes."""
        return sum(base.n_bytes for base in self.bases)

    def add(self, model: Model) -> Fingerprint:
        """Read a base and store its fingerprint; see :meth:`read` and :meth:`put`."""
        base = self.read(model)
        self.put(base)
        return base

    def read(self, model: Model) -> Fingerprint:
        """Read the fingerprint of a base without storing it. Thread-safe.

        Raises:
            MdirError: If the model cannot be read, or has neither rows of enough tokens nor neurons.
        """
        n_rows = max(LEAST_ROWS, BYTES_PER_BASE // (2 * model.width))
        vocabulary = model.vocabulary
        tokens = [t for t in self.tokens if vocabulary is None or vocabulary.row_of.get(t, model.n_rows) < model.n_rows]
        base = take_fingerprint(model, tokens[:n_rows], needs_tokens=False)
        if len(base.of_usual_rows().tokens) < LEAST_ROWS and base.neurons is not None:
            return replace(base, tokens=(), rows=base.rows[:0].bfloat16())  # it is found by its neurons
        if len(base.tokens) < LEAST_ROWS:
            raise InputError(
                f"it holds {len(base.tokens)} of the {len(self.tokens)} tokens of the index, and {LEAST_ROWS} are "
                "needed; its tokenizer is too different from those that the index was made for",
                subject=model.label,
            )
        expect_usual_rows(base, model.label)
        if base.rows.element_size() > 2:  # float32 weights; the eight bits of precision of bfloat16 are enough
            base = replace(base, rows=base.rows.bfloat16())
        return base

    def put(self, base: Fingerprint) -> None:
        """Store a fingerprint, replacing a base with the same name."""
        self.bases = [stored_base for stored_base in self.bases if stored_base.model.repo != base.model.repo]
        self.bases.append(base)
        self._sketches.pop(base.model.repo, None)

    def search(self, query: Fingerprint, *, top: int = 5) -> list[Hit]:
        """Return the ``top`` bases that are most likely to share ancestry with a model, most likely first.

        Takes O(r^2 n) time per base, for r common rows of width n. If there are more than :data:`SCANNED_BASES` bases,
        only bases picked by their sketches are scanned.
        """
        query = query.of_usual_rows()
        place = {token: at for at, token in enumerate(query.tokens)}
        rows = query.rows
        # Bases of the same width store the same tokens, so the model's rows are factored only once for them.
        factors: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        hits = []
        for base in self.bases if len(self) <= SCANNED_BASES else self._picked(query):
            base_rows, tokens = usual_rows_of(base, place)
            if len(tokens) < LEAST_ROWS:
                continue
            positions = tuple(place[token] for token in tokens)
            if positions not in factors:
                factors[positions] = orthonormal_rows(rows[list(positions)])
            guess, identity = _log_p(orthonormal_rows(base_rows), factors[positions])
            hits.append(Hit(base.model, guess, identity, len(tokens)))
        return sorted(hits, key=lambda hit: hit.log_p)[:top]

    def search_by_neurons(self, query: NeuronSample, *, top: int = 5) -> list[Fingerprint]:
        """Return the ``top`` bases whose layers are most similar to the model's, most similar first.

        Neurons are paired by number. Bases that are not similar enough to be compared are left out.
        """
        shapes = resemblances(query)
        alike = [base for base in self.bases if base.neurons is not None and base.neurons.is_like(query)]
        if len(alike) > SCANNED_BASES:
            projected = projected_neurons(query)
            scores = torch.stack([(self._sketch(base).neurons.float() @ projected.T).max() for base in alike])
            alike = [alike[at] for at in scores.topk(PICKED_BASES).indices.tolist()]
        agreements = {
            number: float((resemblances(base.neurons) @ shapes.T).max())
            for number, base in enumerate(alike)
            if base.neurons is not None
        }
        best = sorted(agreements, key=lambda at: -agreements[at])[:top]
        return [alike[at] for at in best if agreements[at] >= LEAST_AGREEMENT]

    def _sketch(self, base: Fingerprint) -> Sketch:
        name = base.model.repo
        if name not in self._sketches:
            self._sketches[name] = sketch_of(base, {token: at for at, token in enumerate(self.tokens)})
        return self._sketches[name]

    def _picked(self, query: Fingerprint) -> list[Fingerprint]:
        at = {token: number for number, token in enumerate(query.tokens)}
        place = {token: number for number, token in enumerate(self.tokens)}
        groups: dict[tuple[bytes, ...], list[Fingerprint]] = {}
        for base in self.bases:
            groups.setdefault(base.tokens, []).append(base)
        by_rows: list[tuple[float, Fingerprint]] = []
        by_shape: list[tuple[float, Fingerprint]] = []
        for tokens, bases in groups.items():
            common_tokens = [token for token in tokens if token in at]
            if len(common_tokens) < LEAST_ROWS:
                continue
            first = [number for number, token in enumerate(tokens[:SHAPE_ROWS]) if token in at]
            rows = projected_rows(
                query.rows[[at[token] for token in common_tokens]], [place[token] for token in common_tokens]
            )
            shape = shape_of(query.rows[[at[tokens[number]] for number in first]], first)
            sketches = [self._sketch(base) for base in bases]
            scores = (torch.stack([sketch.rows for sketch in sketches]).float() @ rows).tolist()
            by_rows += [
                (score, base)
                for score, base in zip(scores, bases, strict=True)
                if base.rows.shape[1] == query.rows.shape[1]
            ]
            scores = (torch.stack([sketch.shape for sketch in sketches]).float() @ shape).tolist()
            by_shape += zip(scores, bases, strict=True)
        best = (
            nlargest(PICKED_BASES, scored, key=lambda score_and_base: score_and_base[0])
            for scored in (by_rows, by_shape)
        )
        return list({base.model.repo: base for scored in best for _, base in scored}.values())

    def fingerprint(self, base: ModelSummary) -> Fingerprint:
        """Return the fingerprint of a base.

        Raises:
            InputError: If the index does not contain the base.
        """
        for stored_base in self.bases:
            if stored_base.model == base:
                return stored_base
        raise InputError(f"the index holds no {base.repo}")

    def save(self, path: Path) -> None:
        """Write the index as one safetensors file, atomically.

        Raises:
            InputError: If the index cannot be written.
        """
        place = {token: at for at, token in enumerate(self.tokens)}
        kept_tokens = {tokens: at for at, tokens in enumerate(dict.fromkeys(base.tokens for base in self.bases))}
        about = [
            {
                "model": asdict(base.model),
                "tokens": kept_tokens[base.tokens],
                "bytes_of_weights": base.bytes_of_weights,
                "digests": None if base.digests is None else dict(base.digests),
                "neurons": None if base.neurons is None else base.neurons.described(),
                "channel_numbers": base.numbers_by_config,
            }
            for base in self.bases
        ]
        sketches = [self._sketch(base) for base in self.bases]
        metadata = {
            "format": FORMAT,
            "sample": sample_name(self.tokens),
            "tokens": json.dumps([base64.b64encode(token).decode() for token in self.tokens]),
            "kept": json.dumps([[place[token] for token in tokens] for tokens in kept_tokens]),
            "bases": json.dumps(about),
        }
        tensors = {f"base.{number:05}": base.rows for number, base in enumerate(self.bases)}
        tensors |= {
            f"neurons.{number:05}": base.neurons.rows
            for number, base in enumerate(self.bases)
            if base.neurons is not None
        }
        if sketches:
            tensors |= {
                f"sketches.{part}": torch.stack([getattr(sketch, part) for sketch in sketches]) for part in PARTS
            }
        content: bytes = save({name: rows.contiguous() for name, rows in tensors.items()}, metadata=metadata)
        with writing_into(path.parent, path):
            write_file(path, content)

    @classmethod
    def open(
        cls, place: str, *, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
    ) -> BaseIndex:
        """Read an index from disk, or download it from the Hub and cache it.

        Args:
            place: Path or Hub URL, such as
                ``https://huggingface.co/datasets/owner/name/resolve/main/bases.safetensors``.
            token: Hub token.
            cache_dir: Downloads go to its ``mdir-hf`` folder; by default, next to the range cache.

        Raises:
            CorruptCheckpointError: If the file is missing or not an index.
            HubError: If the index cannot be read from the Hub.
        """
        if not place.startswith(("http://", "https://")):
            return cls.load(Path(place))
        return cls.load(fetch_hub_file(place, max_bytes=LARGEST_INDEX_BYTES, token=token, cache_dir=cache_dir)[0])

    @classmethod
    def load(cls, path: Path) -> BaseIndex:
        """Read an index.

        Raises:
            CorruptCheckpointError: If the file is not an index.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"expected {FORMAT}, got {metadata.get('format')!r}")
                read = partial(read_json, what="the description of its bases", label=None, budget=INDEX_JSON)
                encoded_tokens = read(metadata["tokens"].encode(), list[str])
                tokens = tuple(base64.b64decode(token, validate=True) for token in encoded_tokens)
                all_kept = [
                    tuple(tokens[at] for at in places) for places in read(metadata["kept"].encode(), list[Places])
                ]
                bases = []
                for number, about in enumerate(read(metadata["bases"].encode(), list[_Base])):
                    base_tokens = all_kept[about.tokens]
                    rows = expect_rows(file.get_tensor(f"base.{number:05}"), base_tokens)
                    neurons = (
                        None
                        if about.neurons is None
                        else NeuronSample.restored(about.neurons, file.get_tensor(f"neurons.{number:05}"))
                    )
                    bases.append(
                        Fingerprint(
                            about.model,
                            base_tokens,
                            rows,
                            about.bytes_of_weights,
                            about.digests,
                            neurons=neurons,
                            numbers_by_config=about.channel_numbers,
                        )
                    )
                index = cls(tokens, bases)
                if bases and f"sketches.{PARTS[0]}" in file.keys():  # noqa: SIM118 - it is not a dict
                    sketches = unstacked([file.get_tensor(f"sketches.{part}") for part in PARTS], len(bases))
                    index._sketches = dict(zip((base.model.repo for base in bases), sketches, strict=True))
            return index
        except (OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError) as exc:
            raise CorruptCheckpointError(f"this is not an index of base models: {exc}", subject=str(path)) from exc


def _log_p(x: tuple[torch.Tensor, torch.Tensor], y: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
    """Estimate ln p for two blocks of a few rows, and bound ln p for channels in their stored order."""
    # U = V_x Ortho(L_x^T L_y) V_y^T from whitened rows needs no scale, and is well conditioned if there are few rows.
    core_left, _, core_right = thin_svd(x[0].T @ y[0])
    rank = core_left.shape[1]
    if not rank:
        return 0.0, 0.0
    left, right = x[1] @ core_left, y[1] @ core_right.T  # (n_x, rank), (n_y, rank)
    n_narrow, n_wide = sorted((len(left), len(right)))
    identity = 0.0
    if n_narrow == n_wide:
        trace = float((left * right).sum())
        identity = min(0.0, -trace * abs(trace) * n_wide / (2.0 * rank))
        if identity < -math.lgamma(n_wide + 1):
            return identity, identity
    step = max(1, len(left) // SCANNED_CHANNELS)
    scanned = left[::step]
    per_channel = float((scanned @ right.T).abs().amax(dim=1).mean())
    trace = per_channel * n_narrow
    nats = math.lgamma(n_wide + 1) - math.lgamma(n_wide - n_narrow + 1) + n_narrow * math.log(2.0)
    return min(identity, nats - trace * trace * n_wide / (2.0 * rank)), identity
