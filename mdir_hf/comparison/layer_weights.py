"""Read a model's layers for comparison, with norm gains folded in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.background import in_order
from mdir_hf.comparison.reading import narrowed
from mdir_hf.errors import AnatomyError, UnsupportedFormatError, naming
from mdir_hf.method.gauge import fold_gain
from mdir_hf.method.layer_weights import LayerWeights
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Layer, Role, StoredWeight, part_shape, read_part
from mdir_hf.processor import is_one_of_several_ranks

IntArray = npt.NDArray[np.int64]

READS_AT_ONCE = 8
"""Number of layers read concurrently."""

KEPT_BYTES = 160 << 20
"""Maximum bytes kept in memory per model and role. The V matrices of eight layers of Llama-3.1-8B fit, even in
float32."""

CONVERTED_ROWS = 1024
"""Number of rows of a whole matrix that are converted at once."""

STORED_BYTES = 4
"""Upper bound on the bytes per cached weight. Most models use two."""

STANDS_IN = {Role.V: Role.SSM_IN}
"""Fallback for V in layers without attention: the input projection of the state-space mixer. One map can thus cover all
layers of a hybrid model, since V never matches a mixer input significantly."""


def n_neurons(model: PlacedTensors) -> int:
    """Return the number of MLP neurons in the first layer with an MLP, or 0."""
    for position in layers_with(model, Role.UP)[:1]:
        part = model.anatomy.layers[position].parts[Role.UP]
        return part_shape(part, lambda name: model.tensors.spec(name).shape)[0]
    return 0


def layers_with(model: PlacedTensors, role: Role) -> tuple[int, ...]:
    """Return the positions of layers that have ``role`` or its fallback."""
    layers = model.anatomy.layers
    return tuple(position for position, layer in enumerate(layers) if standing_for(layer, role) is not None)


def standing_for(layer: Layer, role: Role) -> Role | None:
    """Return ``role`` if the layer has it, otherwise its fallback or None."""
    if role in layer.parts:
        return role
    fallback = STANDS_IN.get(role)
    return fallback if fallback in layer.parts else None


def n_channels_of(model: PlacedTensors, role: Role, position: int) -> int:
    """Return the number of rows of the matrix that represents a layer, from its header.

    Raises:
        AnatomyError: If the weight is not a matrix with the model's width on one side.
    """
    layer = model.anatomy.layers[position]
    standing = standing_for(layer, role)
    assert standing is not None
    part = layer.parts[standing]
    with about_weight(part):
        shape = part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))
        check_shape(model, layer, standing, part, shape)
    return shape[-1 if standing.writes_stream else 0]


@dataclass(frozen=True, slots=True, eq=False)
class _StoredRows:
    """Stored ``(k, n)`` rows, in 16 bits if that is lossless, and the gain of the norm before them."""

    rows: torch.Tensor
    gain: torch.Tensor | None

    @property
    def n_bytes(self) -> int:
        return self.rows.nbytes


class RoleReader:
    """Reader of the ``(d_out, n)`` matrix that represents each layer, with the norm gain folded in.

    Rows are scaled to unit length, because heavy-tailed lengths would distort the polar factor. Matrices that write to
    the residual stream are transposed. Sampled rows of all layers are read at once; whole matrices are cached while
    they fit.

    Attributes:
        positions: Layers to read, as positions in ``model.anatomy.layers``; by default, all layers with the role.
        empty: Positions of layers found to contain only zeros.
    """

    def __init__(self, model: PlacedTensors, role: Role, positions: Sequence[int] | None = None) -> None:
        self.model, self.role = model, role
        self.positions = layers_with(model, role) if positions is None else tuple(positions)
        self._cached_rows: dict[tuple[int, bytes | None], _StoredRows] = {}
        self._last: tuple[int, torch.Tensor] | None = None
        self.empty: set[int] = set()

    def n_channels(self, position: int) -> int:
        """Return the number of rows of a layer's matrix; see :func:`n_channels_of`."""
        return n_channels_of(self.model, self.role, position)

    def read(self, position: int, channels: torch.Tensor | None) -> torch.Tensor:
        """Read a layer's matrix, or only the rows in ``channels``. The result must not be modified."""
        if channels is None:
            if self._last is None or self._last[0] != position:
                self._last = position, self._prepared(position, self._whole(position))
            return self._last[1]
        if self.role.writes_stream:  # columns are not contiguous in the file
            return self.read(position, None)[channels]
        whole = self._cached_rows.get((position, None))
        if whole is not None:
            return self._prepared(position, _StoredRows(whole.rows[channels], whole.gain))
        key = channels.numpy().tobytes()
        if (position, key) not in self._cached_rows:
            has_rows = [place for place in self.positions if self.n_channels(place) > int(channels.max())]
            self._read_all(has_rows, channels, key)
        return self._prepared(position, self._cached_rows[position, key])

    def lengths(self, position: int, channels: torch.Tensor) -> torch.Tensor:
        """Return the lengths of the rows in ``channels`` before normalisation."""
        cached = self._cached_rows.get((position, channels.numpy().tobytes()))
        rows = self.folded(position)[channels] if cached is None else self._folded(cached)
        lengths: torch.Tensor = rows.float().norm(dim=1)
        return lengths

    def unit_rows_and_lengths(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read a layer's whole matrix as float32 unit rows, and return the lengths of the rows before normalisation.

        Rows are converted in blocks, so that only the stored and the unit rows are in memory.
        """
        stored_rows = self._whole(position)
        rows = torch.empty(stored_rows.rows.shape, dtype=torch.float32)
        lengths = torch.empty(len(rows), dtype=torch.float32)
        for block in torch.split(torch.arange(len(rows)), CONVERTED_ROWS):
            folded = self._folded(_StoredRows(stored_rows.rows[block], stored_rows.gain))
            rows[block], lengths[block] = unit_rows(folded).float(), folded.float().norm(dim=1)
        return rows, lengths

    def folded(self, position: int) -> torch.Tensor:
        """Read a layer's whole matrix with the gain folded in and row lengths unchanged."""
        return self._folded(self._whole(position))

    def _whole(self, position: int) -> _StoredRows:
        """Read a layer's whole matrix; if layers are few and small, read all of them together."""
        stored_rows = self._cached_rows.get((position, None))
        if stored_rows is not None:
            return stored_rows
        n_bytes = sum(STORED_BYTES * self.n_channels(place) for place in self.positions)
        if n_bytes * self.model.anatomy.hidden_size <= KEPT_BYTES and len(self.positions) <= READS_AT_ONCE:
            self._read_all(self.positions, None, None)
            return self._cached_rows[position, None]
        stored_rows = self._read(position, None)
        if stored_rows.n_bytes + sum(cached.n_bytes for cached in self._cached_rows.values()) <= KEPT_BYTES:
            self._cached_rows[position, None] = stored_rows
        return stored_rows

    def _read_all(self, positions: Sequence[int], channels: torch.Tensor | None, key: bytes | None) -> None:
        n_in_flight = 1 if is_one_of_several_ranks() else READS_AT_ONCE
        of_layers = in_order(
            positions, lambda position, _: self._read(position, channels), n_in_flight=n_in_flight, name="mdir-layers"
        )
        for position, stored_rows in zip(positions, of_layers, strict=True):
            self._cached_rows[position, key] = stored_rows

    def _read(self, position: int, channels: torch.Tensor | None) -> _StoredRows:
        layer, standing = self._standing(position)
        if standing.writes_stream:
            return _StoredRows(narrowed(read_role(self.model, layer, standing)).T.contiguous(), None)
        gain = _read_if_placed(self.model, layer, norm_before(layer, standing))
        rows = None if channels is None else channels.numpy()
        return _StoredRows(narrowed(read_role(self.model, layer, standing, rows)), gain)

    def _prepared(self, position: int, stored_rows: _StoredRows) -> torch.Tensor:
        rows = unit_rows(self._folded(stored_rows))
        (self.empty.discard if bool(rows.any()) else self.empty.add)(position)
        return rows

    def _folded(self, stored_rows: _StoredRows) -> torch.Tensor:
        weight = stored_rows.rows if stored_rows.rows.dtype == torch.float64 else stored_rows.rows.float()
        return fold_gain(weight, stored_rows.gain, plus_one=self.model.anatomy.norms_add_one)

    def _standing(self, position: int) -> tuple[Layer, Role]:
        layer = self.model.anatomy.layers[position]
        standing = standing_for(layer, self.role)
        assert standing is not None
        return layer, standing


def norm_before(layer: Layer, role: Role) -> Role:
    """Return the role of the norm whose output a matrix reads."""
    if role in (Role.UP, Role.GATE):
        return Role.MLP_NORM
    is_mixer = role in (Role.SSM_IN, Role.MIXER_GATE) and Role.MIXER_NORM in layer.parts
    return Role.MIXER_NORM if is_mixer else Role.ATTENTION_NORM


def read_role(model: PlacedTensors, layer: Layer, role: Role, rows: IntArray | None = None) -> torch.Tensor:
    """Read the weight of a role: a norm ``(d,)``, or a matrix ``(d_out, d_in)``.

    Raises:
        AnatomyError: If the weight's shape does not fit the role.
    """
    with about_weight(layer.parts[role]), naming(model.label):
        weight = read_part(model.tensors, layer.parts[role], rows)
        shape = tuple(weight.shape)
        if rows is not None and role.writes_stream:
            shape = part_shape(layer.parts[role], lambda name: tuple(model.tensors.spec(name).shape))
        check_shape(model, layer, role, layer.parts[role], shape)
    return weight


@contextmanager
def about_weight(part: StoredWeight) -> Iterator[None]:
    """Name the tensors of an unreadable weight in the error."""
    try:
        yield
    except (AnatomyError, UnsupportedFormatError) as exc:
        exc.tensors = part.tensors
        raise


def check_shape(model: PlacedTensors, layer: Layer, role: Role, part: StoredWeight, shape: tuple[int, ...]) -> None:
    """Check that the shape of a weight fits its role.

    Raises:
        AnatomyError: If the weight does not have the model's width.
    """
    width = model.anatomy.hidden_size
    is_matrix = len(shape) == 2 and 0 not in shape
    if role.is_norm:
        fits, expected = shape == (width,), f"({width},)"
    elif role.reads_stream:
        fits, expected = is_matrix and shape[1] == width, f"(…, {width})"
    elif role.writes_stream:
        written_width = model.anatomy.written_width
        fits, expected = is_matrix and shape[0] == written_width, f"({written_width}, …)"
    else:
        fits, expected = is_matrix, "a matrix"
    if not fits:
        raise AnatomyError(
            f"tensor {part.tensor!r} (role {role.value} of layer {layer.index}) has shape {shape}; "
            f"expected {expected}, so the layers of this model cannot be compared",
            subject=model.label,
        )


def _read_if_placed(model: PlacedTensors, layer: Layer, role: Role) -> torch.Tensor | None:
    return read_role(model, layer, role) if role in layer.parts else None


def stored_n_bytes(model: PlacedTensors, position: int, role: Role) -> int:
    """Return the stored size in bytes of the matrix that represents a layer, from its header."""
    layer = model.anatomy.layers[position]
    part = layer.parts[standing_for(layer, role) or role]
    shape = part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))
    spec = model.tensors.spec(part.tensors[0])
    return math.prod(shape) * spec.n_bytes // max(1, math.prod(spec.shape))


def inner_rows(model: PlacedTensors, position: int, role: Role) -> int | None:
    """Return the number of rows that a projection has on its head or neuron side, from headers."""
    part = model.anatomy.layers[position].parts.get(role)
    if part is None:
        return None
    shape = part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))
    return shape[-1 if role.writes_stream else 0]


def layer_weights(
    model: PlacedTensors,
    position: int,
) -> LayerWeights:
    """Read one layer for Algorithm 3, with norm gains folded in; missing roles are None."""
    anatomy = model.anatomy
    layer = anatomy.layers[position]
    parts = layer.parts
    read = partial(_read_if_placed, model, layer)
    q, k, v, o = (read(role) for role in (Role.Q, Role.K, Role.V, Role.O))
    n_heads = layer.heads.n_heads if layer.heads else anatomy.n_heads or 1
    n_kv_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or n_heads
    rope = layer.rope or anatomy.rope
    rotary_dim = anatomy.rotary_dim if layer.rope is None else layer.rotary_dim
    sides = ((q, 0, n_heads), (k, 0, n_kv_heads), (v, 0, n_kv_heads), (o, 1, n_heads))
    is_known = layer.heads is not None or anatomy.n_heads is not None
    if not is_known or any(weight is not None and weight.shape[side] % n for weight, side, n in sides):
        # The head count is unknown or does not divide these weights: test without heads and rotary planes.
        n_heads = n_kv_heads = 1
        rope, rotary_dim = "none", None
    return LayerWeights(
        q=q,
        k=k,
        v=v,
        o=o,
        gate=read(Role.GATE),
        up=read(Role.UP),
        down=read(Role.DOWN),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        rope=rope,
        rotary_dim=rotary_dim,
        qk_norm=Role.Q_NORM in parts,
        attention_gain=read(Role.ATTENTION_NORM),
        mlp_gain=read(Role.MLP_NORM),
    ).folded(plus_one=anatomy.norms_add_one)
