"""Find the partners of neurons that were reordered, removed, split or disturbed, by gate and up alone.

A search reads the whole gate of one layer, and little else. Because it chooses the pairs, neuron numbers give no bound
on p; :func:`~mdir_hf.method.neuron_numbers.match_neurons_by_number` then counts the pairs that are certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from mdir_hf.comparison.layer_weights import RoleReader, n_channels_of, read_role
from mdir_hf.comparison.neuron_layers import DOWN_OF, GATE_OF, bias_of, neuron_role, with_first_experts
from mdir_hf.comparison.neuron_sample import FEWEST_NEURONS, FITTED_ROWS, RUN, NeuronSample, sample_sizes
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_classes import EQUAL_COSINE, equal_neurons, summed_neuron
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

CANDIDATES = 8
"""Number of neurons that are most similar by gate, among which up decides if their gates are parallel: neurons that
cancel each other may be added with the direction of a gate, but another length or bias."""

BLOCK = 1024
"""Number of neurons that are compared, or whose candidates are gathered, at once: 0.2 GB at a width of 7,168."""

CONTRADICTION, MOST_BY_GATE_ALONE = 0.5, 0.125
"""If up is less similar than the gate by more than the first value for more than this share of the partners, the
sampled neurons may be parts of split ones, so the gate of their layer is read as well."""


def search_neurons(
    models: tuple[PlacedTensors, PlacedTensors],
    pair: tuple[int, int],
    residual_map: ResidualBasisMap,
    *,
    seed: int,
    n_fitted_rows: int = FITTED_ROWS,
    device: str = "cpu",
) -> tuple[NeuronSample, NeuronSample] | None:
    """Sample neurons of one layer and find their partners in a layer of the other model.

    ``pair`` are the positions of the two layers, ``residual_map`` maps the first model's residual stream to the
    second's, up to the sign of the whole stream, and ``seed`` selects the sampled neurons of the layer with fewer
    neurons. A rotation can later be fitted on ``n_fitted_rows`` rows, as far as there are enough. Neurons with equal
    gates are judged by the sum of their outputs; see :mod:`~mdir_hf.method.neuron_classes`. Reads the gate of the
    other layer (up, if there is no gate), a few hundred rows, all of down if neurons with equal gates are found, and
    the sampled layer's gate if its neurons seem split.

    Returns:
        A sample of each model, in which neurons at the same index are supposed partners. None if the layers do not have
        the same kind of neurons, or too few.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
    """
    up = neuron_role(*models)
    views = with_first_experts(models[0]), with_first_experts(models[1])
    if up is None or not _are_alike(views, up, pair):
        return None
    n_neurons = [n_channels_of(view, up, place) for view, place in zip(views, pair, strict=True)]
    few = int(n_neurons[1] < n_neurons[0])
    many = 1 - few
    if n_neurons[few] < FEWEST_NEURONS:
        return None
    roles = (GATE_OF[up], up) if GATE_OF[up] in views[0].anatomy.layers[pair[0]].parts else (up,)
    n_tested, n_fitted = sample_sizes(n_neurons[few], n_fitted_rows, n_matrices=len(roles))
    # A layer without enough whole runs yields fewer neurons.
    numbers = torch.from_numpy(sample_neurons(n_neurons[few], n_tested + n_fitted, run=RUN, seed=seed))
    n_fitted = len(numbers) - n_tested
    order = numbers.sort().values
    at = torch.searchsorted(order, numbers)
    smaller_layer, larger_layer = (_Layer(views[side], pair[side], up, roles) for side in (few, many))
    carrier = residual_map if few == 0 else residual_map.reversed
    sampled = [RoleReader(views[few], role, (pair[few],)).read(pair[few], order)[at].float() for role in roles]
    found = larger_layer.partners([carrier.carry_in(rows) for rows in sampled], device)
    if found.share_by_gate_alone > MOST_BY_GATE_ALONE:  # the sampled neurons themselves may be parts of split ones
        sampled[-1] = smaller_layer.summed(smaller_layer.classes(order, device))[at]
        found = larger_layer.partners([carrier.carry_in(rows) for rows in sampled], device)
    sampled[-1] = sampled[-1] * found.signs[:, None]

    def sample(side: int, rows: list[torch.Tensor]) -> NeuronSample:
        return NeuronSample((pair[side],), max(n_neurons), n_fitted, torch.stack(in_span(rows, n_fitted))[None])

    smaller, larger = sample(few, sampled), sample(many, found.rows)
    return (smaller, larger) if few == 0 else (larger, smaller)


def _are_alike(views: tuple[PlacedTensors, PlacedTensors], up: Role, pair: tuple[int, int]) -> bool:
    """Return whether both layers have neurons, and both or neither have gates."""
    parts = [view.anatomy.layers[place].parts for view, place in zip(views, pair, strict=True)]
    gates = [GATE_OF[up] in of_layer for of_layer in parts]
    return all(up in of_layer for of_layer in parts) and gates[0] == gates[1]


@dataclass(frozen=True)
class _Partners:
    """Rows of each sampled neuron's partner, the sign of its up, and the share of partners that up contradicts."""

    rows: list[torch.Tensor]
    signs: torch.Tensor
    share_by_gate_alone: float


@dataclass(frozen=True)
class _Layer:
    """A layer whose whole gate can be read; ``roles`` are gate and up, or up alone."""

    model: PlacedTensors
    place: int
    up: Role
    roles: tuple[Role, ...]

    @cached_property
    def reader(self) -> RoleReader:
        """Reader of the gate, or of up if there is no gate."""
        return RoleReader(self.model, self.roles[0], (self.place,))

    @cached_property
    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit rows of the whole gate, or of up if there is no gate, and the lengths of the stored rows."""
        return self.reader.unit_rows_and_lengths(self.place)

    def partners(self, carried: list[torch.Tensor], device: str) -> _Partners:
        """Find the partner of each carried neuron, and the sign of its up."""
        first, _ = self.whole
        candidates, cosines, stream_sign = _most_similar(carried[0], first, device)
        # Only neurons parallel to the most similar one are read, so that few rows of up are scattered over the file.
        is_parallel = _cosines_with(first[candidates[:, 0]], first, candidates) > EQUAL_COSINE
        candidates = torch.where(is_parallel, candidates, candidates[:, :1])
        cosines = torch.where(is_parallel, cosines, cosines[:, :1])
        chosen, at = torch.unique(candidates, return_inverse=True)
        rows = self.summed(self.classes(chosen, device))  # (chosen, width)
        along = torch.zeros_like(cosines)
        if len(self.roles) > 1:
            ups, covered = _covered(carried[1])
            along = stream_sign * _cosines_with(ups, unit_rows(rows[:, covered]), at)
        best = torch.where(rows.any(dim=1)[at], cosines + along.abs(), -torch.inf).argmax(dim=1)
        index = torch.arange(len(candidates))
        found = [first[candidates[index, best]], rows[at[index, best]]][-len(self.roles) :]
        along, cosines = along[index, best], cosines[index, best]
        if len(self.roles) < 2 or self.up is not Role.UP:
            return _Partners(found, torch.ones(len(index)), 0.0)
        # Up may be negated together with down, but only behind a gate.
        signs = torch.where(along < 0.0, -1.0, 1.0)
        return _Partners(found, signs, float((cosines - along.abs() > CONTRADICTION).float().mean()))

    def classes(self, chosen: torch.Tensor, device: str) -> list[torch.Tensor]:
        """Return the neurons equal to each chosen one."""
        if self.up is not Role.UP:  # channels of a mixer with equal rows may differ in their convolution and decay
            return list(chosen[:, None])
        bias = bias_of(self.model, self.place, self.roles[0])
        return equal_neurons(*self.whole, chosen, bias=bias, device=device)

    def summed(self, classes: list[torch.Tensor]) -> torch.Tensor:
        """Return one up row for each class, ``(classes, width)``; zero if its members cancel each other."""
        members = torch.unique(torch.cat(classes))
        reader = RoleReader(self.model, self.roles[-1], (self.place,)) if len(self.roles) > 1 else self.reader
        rows = reader.read(self.place, members).float() * reader.lengths(self.place, members)[:, None]
        summed = rows[torch.searchsorted(members, torch.stack([of_class[0] for of_class in classes]))]
        layer, down = self.model.anatomy.layers[self.place], DOWN_OF[self.up]
        if down in layer.parts and any(len(of_class) > 1 for of_class in classes):
            columns = read_role(self.model, layer, down)[:, members].float().T
            for i, of_class in enumerate(classes):
                if len(of_class) > 1:
                    index = torch.searchsorted(members, of_class)
                    summed[i] = summed_neuron(rows[index], columns[index])
        return summed


def _most_similar(carried: torch.Tensor, rows: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the neurons most similar to each carried one, their cosines, and the sign of the stream.

    Neurons and cosines are ``(k, candidates)``.
    """
    x, covered = _covered(carried)
    x = x.to(device)
    cosines = torch.cat(
        [(x @ unit_rows(of_block[:, covered].to(device)).T).cpu() for of_block in torch.split(rows, BLOCK)], dim=1
    )
    n_candidates = min(CANDIDATES, cosines.shape[1])
    # Keys and queries do not determine the sign of the stream, and neither does a map fitted on keys.
    is_same_sign = bool(cosines.amax(dim=1).mean() >= -cosines.amin(dim=1).mean())
    similarity, neurons = cosines.topk(n_candidates, dim=1, largest=is_same_sign)
    sign = 1.0 if is_same_sign else -1.0
    return neurons, sign * similarity, sign


def _cosines_with(x: torch.Tensor, rows: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Return the inner products of each row of x with its candidates among the rows, ``(k, candidates)``."""
    blocks = zip(torch.split(x, BLOCK), torch.split(candidates, BLOCK), strict=True)
    return torch.cat([torch.einsum("kd,kcd->kc", of_block, rows[numbers]) for of_block, numbers in blocks])


def _covered(carried: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | slice]:
    """Return unit rows in the channels that the residual map covers, and these channels."""
    is_covered = carried.any(dim=0)
    covered = slice(None) if bool(is_covered.all()) else is_covered.nonzero()[:, 0]
    return unit_rows(carried[:, covered]), covered
