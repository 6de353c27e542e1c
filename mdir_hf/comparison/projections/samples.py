"""Read sampled rows of all layers' projections, with the same row numbers in both models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from mdir_hf.background import in_order
from mdir_hf.comparison.layer_weights import IntArray, RoleReader, inner_rows, norm_before, read_role
from mdir_hf.comparison.reading import ReadOnce, of_unread_weight
from mdir_hf.errors import AnatomyError, MdirError, UnsupportedFormatError
from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.neuron_numbers import sample_neurons
from mdir_hf.model.roles import Role
from mdir_hf.processor import is_one_of_several_ranks

ATTENTION_ROLES = (Role.Q, Role.K, Role.V, Role.O)
MAPPED_ROLES = (*ATTENTION_ROLES, Role.GATE, Role.UP, Role.DOWN)
"""Projections that may represent a layer in the layer map."""

PROJECTION_ROLES = (*MAPPED_ROLES, Role.MIXER_GATE, Role.SSM_IN, Role.SSM_OUT)

SAMPLED_ROWS = 64
"""Number of rows that tier 1 reads per projection. A projection's cosine is then accurate to 0.01 to 0.03."""

RUN = 4
"""Number of neighbouring rows that are read as one byte range. Short runs reach most heads."""

MOST_WHOLE_VALUES = 1 << 21
"""After a rotation, a projection that writes to the stream cannot be sampled by byte ranges. It is read whole if it has
at most this many entries, and otherwise not compared."""

LONG_RUNS = {role: 32 if role in (Role.Q, Role.K, Role.V) else 64 for role in PROJECTION_ROLES}
"""Number of neighbouring rows read together if a model is remote, because each read takes one request. Rows of q, k and
v are read in two runs, from different heads."""

READS_AT_ONCE = 8
"""Number of layers read concurrently."""

FETCHES_AT_ONCE = 32
"""Number of concurrent reads, over all projections and layers, if models are remote."""


@dataclass(frozen=True, slots=True, eq=False)
class RowSample:
    """Sampled rows of one projection in both models, in the candidate's residual basis.

    Attributes:
        places: Positions of the reference's and the candidate's layers.
        numbers: ``(k,)`` numbers of the rows.
        reference: ``(L, k, n)`` float32.
        candidate: ``(L', k, n')`` float32.
        is_of_stream: Whether the rows are channels of the stream (as in o and down) and the columns heads or neurons.
    """

    role: Role
    places: tuple[tuple[int, ...], tuple[int, ...]]
    numbers: IntArray
    reference: torch.Tensor
    candidate: torch.Tensor
    is_of_stream: bool = False


@dataclass
class ProjectionReader:
    """Reader of projection rows from two models. Rows are chosen without reading weights.

    Attributes:
        left_out: Reasons for not comparing projections, keyed by role.
        failures: Reasons why a projection could not be read in some layers, keyed by role.
        unread: Sentences about unreadable weights.
    """

    models: tuple[ReadOnce, ReadOnce]
    seed: int = 0
    device: str = "cpu"
    left_out: Mapping[Role, str] = field(default_factory=dict)
    failures: dict[Role, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    n_sampled_rows: int = SAMPLED_ROWS
    _readers: dict[tuple[int, Role], RoleReader] = field(default_factory=dict)
    _unreadable: set[tuple[int, Role, int]] = field(default_factory=set)

    @property
    def is_remote(self) -> bool:
        """Whether either model is remote, in which case requests cost more than bytes."""
        return any(model.is_remote for model in self.models)

    def numbers(self, role: Role, n_rows: int) -> IntArray:
        """Choose the row numbers for tier 1; see :func:`chosen_numbers`."""
        run = min(LONG_RUNS[role], self.n_sampled_rows) if self.is_remote else RUN
        return chosen_numbers(n_rows, seed=self.seed, at_most=self.n_sampled_rows, run=run)

    def fetch_ahead(self, residual_map: ResidualBasisMap) -> None:
        """Fetch the rows that tier 1 needs from remote models, in parallel, and keep them."""
        if not self.is_remote or is_one_of_several_ranks():
            return
        norms: dict[tuple[int, tuple[str, ...]], tuple[int, Role, int, IntArray | None]] = {}
        rows: list[tuple[int, Role, int, IntArray | None]] = []
        for role in PROJECTION_ROLES:
            numbers = self._numbers_of_sides(role, residual_map)
            for side, model in enumerate(self.models):
                if numbers is None:
                    continue
                for place in self.places(side, role):
                    rows.append((side, role, place, numbers[side]))
                    norm = norm_before(model.anatomy.layers[place], role)
                    part = model.anatomy.layers[place].parts.get(norm)
                    if part is not None and not role.writes_stream:
                        norms[side, part.tensors] = side, norm, place, None
        for _ in in_order([*norms.values(), *rows], self._fetch, n_in_flight=FETCHES_AT_ONCE, name="mdir-fetch"):
            pass

    def _fetch(self, request: tuple[int, Role, int, IntArray | None], _: object) -> None:
        side, role, place, numbers = request
        with suppress(AnatomyError, UnsupportedFormatError):
            read_role(self.models[side], self.models[side].anatomy.layers[place], role, numbers)

    def _numbers_of_sides(self, role: Role, residual_map: ResidualBasisMap) -> tuple[IntArray, IntArray] | None:
        places = self.places(0, role), self.places(1, role)
        if not all(places) or (role.writes_stream and residual_map.kind == "rotation"):
            return None
        if role.writes_stream:
            channels, others, _ = matched_channels(residual_map)
            at = self.numbers(role, len(channels))
            return np.sort(channels[at]), np.sort(others[at])
        try:
            n_rows = min(self.n_rows(side, role, at) for side in (0, 1) for at in places[side])
        except (AnatomyError, UnsupportedFormatError):
            return None
        numbers = self.numbers(role, n_rows)
        return (numbers, numbers) if n_rows else None

    def places(self, side: int, role: Role) -> tuple[int, ...]:
        """Return the positions of a model's layers in which a projection is readable."""
        if role in self.left_out:
            return ()
        layers = self.models[side].anatomy.layers
        return tuple(
            at for at, layer in enumerate(layers) if role in layer.parts and (side, role, at) not in self._unreadable
        )

    def n_rows(self, side: int, role: Role, place: int) -> int:
        """Return the number of rows on a projection's head or neuron side, from a header."""
        return inner_rows(self.models[side], place, role) or 0

    def n_heads(self, side: int, role: Role, place: int) -> int:
        """Return the number of heads into which a projection's rows divide, or 1 if unknown."""
        anatomy = self.models[side].anatomy
        heads = anatomy.layers[place].heads
        n_kv = heads.n_kv_heads if heads else anatomy.n_kv_heads or anatomy.n_heads
        n_heads = (heads.n_heads if heads else anatomy.n_heads) if role in (Role.Q, Role.O) else n_kv
        n_rows = self.n_rows(side, role, place)
        return n_heads if n_heads and n_rows % n_heads == 0 else 1

    def sample(self, role: Role, residual_map: ResidualBasisMap) -> RowSample | None:
        """Read the rows of a projection that tier 1 compares; return None if they cannot be compared."""
        try:
            return self._sample(role, residual_map)
        except (AnatomyError, UnsupportedFormatError) as exc:
            self.failures[role] = exc.message
        self._leave_out_unreadable(role)
        try:
            return self._sample(role, residual_map)
        except (AnatomyError, UnsupportedFormatError):
            return None

    def _sample(self, role: Role, residual_map: ResidualBasisMap) -> RowSample | None:
        places = self.places(0, role), self.places(1, role)
        if not all(places):
            return None
        if role.writes_stream and residual_map.kind != "rotation":
            return self._sample_of_stream(role, places, residual_map)
        if role.writes_stream and not self._is_small(role, places):
            self.failures[role] = "after a rotation it would have to be read whole"
            return None
        n_rows = min(self.n_rows(side, role, at) for side in (0, 1) for at in places[side])
        if n_rows == 0:
            self.failures[role] = "a layer has none of its rows"
            return None
        numbers = self.numbers(role, n_rows)
        reference, candidate = (
            stacked([self._rows_on_host(side, role, at, numbers) for at in places[side]], self.device)
            for side in (0, 1)
        )
        return RowSample(role, places, numbers, carried(residual_map, reference), candidate)

    def _sample_of_stream(
        self, role: Role, places: tuple[tuple[int, ...], tuple[int, ...]], residual_map: ResidualBasisMap
    ) -> RowSample | None:
        channels, others, signs = matched_channels(residual_map)
        at = self.numbers(role, len(channels))
        sides = []
        for side, numbers in enumerate((channels[at], others[at])):
            sides.append(self._stored_rows(side, role, places[side], numbers))
        reference = sides[0] * torch.from_numpy(signs[at]).to(sides[0])[None, :, None]
        return RowSample(role, places, others[at], reference, sides[1], is_of_stream=True)

    def rows(self, side: int, role: Role, place: int, numbers: IntArray | None) -> torch.Tensor:
        """Read ``(k, width)`` float32 rows on a layer's head or neuron side, with gains folded in."""
        return self._rows_on_host(side, role, place, numbers).to(self.device)

    def _rows_on_host(self, side: int, role: Role, place: int, numbers: IntArray | None) -> torch.Tensor:
        reader = self._readers.setdefault((side, role), RoleReader(self.models[side], role, self.places(side, role)))
        channels = None if numbers is None else torch.from_numpy(numbers)
        return reader.read(place, channels).float()

    def rows_of_one(self, side: int, role: Role, place: int, numbers: IntArray | None = None) -> torch.Tensor:
        """Read rows of a single layer without keeping them."""
        model = self.models[side]
        layer = model.anatomy.layers[place]
        if role.writes_stream:
            rows = read_role(model, layer, role).T
            rows = rows if numbers is None else rows[torch.from_numpy(numbers)]
        else:
            norm = norm_before(layer, role)
            gain = read_role(model, layer, norm) if norm in layer.parts else None
            rows = read_role(model, layer, role, numbers).float()
            rows = fold_gain(rows, gain, plus_one=model.anatomy.norms_add_one)
        return rows.float().to(self.device)

    def _stored_rows(self, side: int, role: Role, places: Sequence[int], numbers: IntArray) -> torch.Tensor:
        model = self.models[side]
        order = np.argsort(numbers)
        back = torch.from_numpy(np.argsort(order))

        def read(place: int, _: object) -> torch.Tensor:
            return read_role(model, model.anatomy.layers[place], role, numbers[order])[back].float()

        n_in_flight = 1 if is_one_of_several_ranks() else READS_AT_ONCE
        rows = list(in_order(places, read, n_in_flight=n_in_flight, name="mdir-rows"))
        width = min(layer_rows.shape[1] for layer_rows in rows)
        return stacked([layer_rows[:, :width] for layer_rows in rows], self.device)

    def _is_small(self, role: Role, places: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
        return all(
            self.n_rows(side, role, at) * self.models[side].anatomy.hidden_size <= MOST_WHOLE_VALUES
            for side in (0, 1)
            for at in places[side]
        )

    def _leave_out_unreadable(self, role: Role) -> None:
        for side in (0, 1):
            for place in self.places(side, role):
                try:
                    self.rows_of_one(side, role, place, np.zeros(1, dtype=np.int64))
                except MdirError as exc:
                    self.failures[role] = exc.message
                    model = self.models[side]
                    tensors = exc.tensors or model.anatomy.layers[place].parts[role].tensors  # it may be a norm
                    self.unread.append(of_unread_weight(model.label, tensors, exc.message))
                    self._unreadable.add((side, role, place))
        self._readers = {key: reader for key, reader in self._readers.items() if key[1] is not role}


def stacked(rows: Sequence[torch.Tensor], device: str) -> torch.Tensor:
    """Stack the rows of all layers, and move them to a device in one copy."""
    # Copies from pinned memory are not staged, and the host does not wait for them.
    is_gpu = torch.device(device).type == "cuda"
    on_host = torch.empty((len(rows), *rows[0].shape), dtype=rows[0].dtype, pin_memory=is_gpu)
    return torch.stack(list(rows), out=on_host).to(device, non_blocking=is_gpu)


def chosen_numbers(n_rows: int, *, seed: int, at_most: int = SAMPLED_ROWS, run: int = RUN) -> IntArray:
    """Choose row numbers in ascending order: groups of ``run`` neighbours, or all rows if there are few."""
    if n_rows <= at_most:
        return np.arange(n_rows, dtype=np.int64)
    return np.sort(sample_neurons(n_rows, at_most, run=run, seed=seed))


def matched_channels(residual_map: ResidualBasisMap) -> tuple[IntArray, IntArray, IntArray]:
    """Return the reference channels, their partners and their signs under a map that is not a rotation."""
    if residual_map.reference is None or residual_map.candidate is None or residual_map.signs is None:
        every = np.arange(residual_map.n_reference, dtype=np.int64)
        return every, every, np.ones_like(every)
    maps = (residual_map.reference, residual_map.candidate, residual_map.signs)
    reference, candidate, signs = (numbers.cpu().numpy().astype(np.int64) for numbers in maps)
    return reference, candidate, signs


def carried(residual_map: ResidualBasisMap, rows: torch.Tensor) -> torch.Tensor:
    """Map rows ``(..., n)`` of the reference into the candidate's residual basis."""
    return residual_map.carry_in(rows.flatten(0, -2)).reshape(*rows.shape[:-1], -1)
