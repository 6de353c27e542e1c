"""Align the embedding rows of related models, so that all have the same tokens and channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.direction import first_rows
from mdir_hf.errors import MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.method.distances import Alignment, TokenGeometry, token_geometry
from mdir_hf.method.embedding import look_at_rows, matched_scale
from mdir_hf.method.rows import LONGEST, long_rows
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role

ROWS = 32
"""Number of rows read from the start of a matrix, so that one request is enough."""


@dataclass(frozen=True, eq=False)
class LayerRows:
    """The first rows, ``(ROWS, n)``, of V and of up in each layer of a model; None for a layer without them."""

    attention: tuple[torch.Tensor | None, ...]
    mlp: tuple[torch.Tensor | None, ...]

    def carried(self, alignment: Alignment) -> LayerRows:
        """Map the rows to another model's channels, without changing their scale."""

        def carry(rows: torch.Tensor | None) -> torch.Tensor | None:
            if rows is None or int(alignment.source.max(initial=0)) >= rows.shape[1]:
                return None
            moved = Alignment(alignment.source, alignment.target, alignment.signs).carry(rows)
            return moved[:, torch.from_numpy(np.argsort(alignment.target))]

        return LayerRows(tuple(map(carry, self.attention)), tuple(map(carry, self.mlp)))


@dataclass(frozen=True, eq=False)
class CloserLook:
    """Rows of layers, read from related models.

    Attributes:
        layers: Rows of layers, keyed by model; unreadable models are excluded.
    """

    layers: Mapping[str, LayerRows] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bytes_read: int = 0


def look_closer(models: Mapping[str, Model]) -> CloserLook:
    """Read a few rows from each layer of related models.

    For a model with L layers of width n in 16 bits, this takes ``4 L ROWS n`` bytes and 2 L requests: 17 MB for 32
    layers of width 4096.
    """
    layers: dict[str, LayerRows] = {}
    notes: list[str] = []
    for name, model in models.items():
        try:
            layers[name] = read_layer_rows(model)
        except MdirError as exc:
            notes.append(f"The layers of {name} could not be read: {one_line(exc)}")
    ledgers = {id(model.repository.ledger): model.repository.ledger.bytes_read for model in models.values()}
    return CloserLook(layers, tuple(notes), sum(ledgers.values()))


def read_layer_rows(model: Model) -> LayerRows:
    """Read the first rows of V and of the up projection in every layer."""
    layers = model.anatomy.layers
    return LayerRows(*(tuple(first_rows(model, layer, role, ROWS) for layer in layers) for role in (Role.V, Role.UP)))


FloatArray = npt.NDArray[np.float64]

FEWEST_TOKENS = 64
"""Minimum number of common tokens for measuring the distances in a group."""

LOG_ALPHA = -23.0
"""Natural log of 1e-10, the significance level for an alignment. The models are already known to be related."""

LARGEST_PLAIN_SCALE = 1.25
"""A fitted scale up to this factor is ignored as noise or drift; a larger one is assumed to be deliberate."""

BLOCK_TOKENS = 128
"""Number of tokens processed at a time. Their float64 rows take 420 MB for 100 models of width 4096."""


@dataclass(frozen=True, eq=False)
class AlignedRows:
    """The models of a group whose rows could be aligned.

    Attributes:
        rows: Stored rows of the common tokens, ``(n_tokens, n)``, keyed by model.
        pivot: Model that the others are aligned with.
    """

    names: tuple[str, ...]
    rows: Mapping[str, torch.Tensor]
    alignments: Mapping[str, Alignment]
    pivot: str
    n_tokens: int
    notes: tuple[str, ...]

    def geometry(self, *, seed: int = 0) -> TokenGeometry:
        """Compute the inner products of differences between models, in O(tokens m^2 n) time."""

        def blocks() -> Iterator[Sequence[torch.Tensor]]:
            for at in range(0, self.n_tokens, BLOCK_TOKENS):
                yield [self.rows[name][at : at + BLOCK_TOKENS].float() for name in self.names]

        return token_geometry(blocks(), alignments=[self.alignments[name] for name in self.names], seed=seed)

    def relative_distances(self) -> FloatArray:
        """Return the RMS differences ``(m, m)`` between models' rows, divided by the RMS of the pivot's rows."""
        rms = float(self.rows[self.pivot].float().square().mean().sqrt())
        distances: FloatArray = np.sqrt(self.geometry().distances()) / max(rms, 1e-30)
        return distances

    def is_unmoved(self, name: str) -> bool:
        """Return whether a model's channels have the same order, signs and scale as the pivot's."""
        alignment, width = self.alignments[name], self.rows[name].shape[1]
        everything = np.arange(width)
        same = np.array_equal(alignment.source, everything) and np.array_equal(alignment.target, everything)
        return same and alignment.signs is None and alignment.scale == 1.0


def align_rows(fingerprints: Mapping[str, Fingerprint]) -> AlignedRows:
    """Align the rows of related models with the widest model's rows; the result is empty if too few tokens are common.

    Takes O(tokens n min(tokens, n)) time for each permuted model, and O(tokens n) for each other model.
    """
    without = [name for name, fingerprint in fingerprints.items() if len(fingerprint.tokens) < FEWEST_TOKENS]
    if without and len(without) < len(fingerprints):
        aligned = align_rows({name: fingerprint for name, fingerprint in fingerprints.items() if name not in without})
        left_out_of = (f"{name} is not in the tree: it has too few rows of the sample." for name in without)
        return replace(aligned, notes=(*aligned.notes, *left_out_of))
    tokens = sorted(set.intersection(*(set(fingerprint.tokens) for fingerprint in fingerprints.values())))
    # A few huge rows would dominate the distances.
    is_long = torch.stack([long_rows(_rows(fingerprint, tokens)) for fingerprint in fingerprints.values()]).any(dim=0)
    left_out = f"{int(is_long.sum())} tokens were left out: their rows are over {LONGEST:,.0f} times as long as most."
    tokens = [token for token, leave_out in zip(tokens, is_long.tolist(), strict=True) if not leave_out]
    if len(tokens) < FEWEST_TOKENS:
        why = f"the {len(fingerprints)} models have {len(tokens)} sampled tokens in common, of {FEWEST_TOKENS} needed"
        return AlignedRows((), {}, {}, "", len(tokens), (why,))
    rows = {name: _rows(fingerprint, tokens) for name, fingerprint in fingerprints.items()}
    pivot = max(rows, key=lambda name: rows[name].shape[1])
    notes = [left_out] if bool(is_long.any()) else []
    alignments = {pivot: Alignment.identity(rows[pivot].shape[1])}
    for name in rows:
        if name != pivot:
            are_free = all(fingerprints[side].channel_numbers is None for side in (pivot, name))
            alignment = _alignment(rows[pivot].float(), rows[name].float(), name, notes, own_order=are_free)
            if alignment is not None:
                alignments[name] = alignment
    names = tuple(name for name in rows if name in alignments)
    return AlignedRows(names, {name: rows[name] for name in names}, alignments, pivot, len(tokens), tuple(notes))


def _rows(fingerprint: Fingerprint, tokens: Sequence[bytes]) -> torch.Tensor:
    place = {token: at for at, token in enumerate(fingerprint.tokens)}
    return fingerprint.rows[[place[token] for token in tokens]]


def _alignment(
    pivot: torch.Tensor, rows: torch.Tensor, name: str, notes: list[str], *, own_order: bool
) -> Alignment | None:
    if pivot.shape == rows.shape and _is_aligned(pivot, rows):
        everything = Alignment.identity(pivot.shape[1])
        return replace(everything, scale=_undone(_plain_scale(pivot, rows), name, notes))
    look = look_at_rows(pivot, rows, log_alpha=LOG_ALPHA, own_order=own_order)
    if look is None or not look.is_significant:
        notes.append(f"{name} is not in the tree: its sampled rows cannot be aligned with the others'.")
        return None
    matching = look.matching
    return Alignment(
        source=matching.candidate,
        target=matching.reference,
        signs=matching.signs.astype(np.float64) if matching.signed else None,
        scale=_undone(matched_scale(pivot, rows, matching), name, notes),
    )


def _undone(scale: float, name: str, notes: list[str]) -> float:
    if 1.0 / LARGEST_PLAIN_SCALE < scale < LARGEST_PLAIN_SCALE:
        return 1.0
    notes.append(f"{name} was divided by {scale:.3g}, the scale that fits its rows to the others'.")
    return 1.0 / scale


def _plain_scale(pivot: torch.Tensor, rows: torch.Tensor) -> float:
    x, y = pivot.double(), rows.double()
    least, most = float((x * y).sum() / (x * x).sum()), float((y * y).sum() / (x * y).sum())
    is_plain = least < LARGEST_PLAIN_SCALE and most > 1.0 / LARGEST_PLAIN_SCALE
    return 1.0 if is_plain else float((least * most) ** 0.5)


def _is_aligned(pivot: torch.Tensor, other_rows: torch.Tensor) -> bool:
    x, y = (rows - rows.mean(dim=0) for rows in (pivot, other_rows))
    x, y = (rows / rows.norm(dim=0).clamp(min=1e-12) for rows in (x, y))
    in_place = (x * y).sum(dim=0)
    # If channels are permuted, the median correlation between channels with the same number is below 0.5.
    return float(in_place.median()) > 0.5
