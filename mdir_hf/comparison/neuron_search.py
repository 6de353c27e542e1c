"""Find the partners of neurons that were reordered, removed, split or disturbed, by gate and up alone.

A search reads the whole gate of one layer, and little else. Because it chooses the pairs, neuron numbers give no bound
on p; :func:`~mdir_hf.method.neuron_numbers.match_neurons_by_number` then counts the pairs that are certain.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    neurons. A rotation can later be fitted on ``n_fitted_rows`` rows or, if that is None, on all neurons that are not
    tested. Neurons with equal gates are judged by the sum of what they compute; see
    :mod:`~mdir_hf.method.neuron_classes`. Reads the gate of the other layer (up, if there is no gate), a few hundred
    rows, and all of down if neurons with equal gates are found.

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
    readers = [RoleReader(views[few], role, (pair[few],)) for role in roles]
    sampled = [reader.read(pair[few], order)[at].float() for reader in readers]
    carrier = residual_map if few == 0 else residual_map.reversed
    carried = [carrier.carry_in(rows) for rows in sampled]
    layer = _LargerLayer(views[many], pair[many], up, roles)
    partners, signs = layer.partners(carried, device)
    sampled[-1] = sampled[-1] * signs[:, None]

    def sample(side: int, rows: list[torch.Tensor]) -> NeuronSample:
        return NeuronSample((pair[side],), max(n_neurons), n_fitted, torch.stack(in_span(rows, n_fitted))[None])

    smaller, larger = sample(few, sampled), sample(many, partners)
    return (smaller, larger) if few == 0 else (larger, smaller)


def _are_alike(views: tuple[PlacedTensors, PlacedTensors], up: Role, pair: tuple[int, int]) -> bool:
    """Return whether both layers have neurons, and both or neither have gates."""
    parts = [view.anatomy.layers[place].parts for view, place in zip(views, pair, strict=True)]
    gates = [GATE_OF[up] in of_layer for of_layer in parts]
    return all(up in of_layer for of_layer in parts) and gates[0] == gates[1]


@dataclass(frozen=True)
class _LargerLayer:
    """The layer in which partners are sought; ``roles`` are gate and up, or up alone."""

    model: PlacedTensors
    place: int
    up: Role
    roles: tuple[Role, ...]

    def partners(self, carried: list[torch.Tensor], device: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the rows of each carried neuron's partner, and the sign of its up, ``(k,)``."""
        reader = RoleReader(self.model, self.roles[0], (self.place,))
        first = reader.read(self.place, None).float()
        # Channels of a mixer with equal rows may differ in their convolution and decay, so they form no classes.
        lengths = reader.folded(self.place).float().norm(dim=1) if self.up is Role.UP else None
        bias = bias_of(self.model, self.place, self.roles[0])
        candidates, cosines, stream_sign = _most_similar(carried[0], first, device)
        # Only neurons parallel to the most similar one are read, so that few rows of up are scattered over the file.
        gates = first[candidates.flatten()].view(*candidates.shape, -1)
        is_parallel = torch.einsum("kcd,kd->kc", gates, gates[:, 0]) > EQUAL_COSINE
        candidates = torch.where(is_parallel, candidates, candidates[:, :1])
        cosines = torch.where(is_parallel, cosines, cosines[:, :1])
        chosen, at = torch.unique(candidates, return_inverse=True)
        classes = [chosen[i : i + 1] for i in range(len(chosen))]
        if lengths is not None:
            classes = equal_neurons(first, lengths, chosen, bias=bias, device=device)
        rows = self._summed(classes, first)[at]  # (k, candidates, width)
        k, n_candidates, _ = rows.shape
        score = cosines
        along = torch.zeros_like(cosines)
        if len(self.roles) > 1:
            x, y = _in_common(carried[1], rows.flatten(0, 1))
            along = stream_sign * torch.einsum("kd,kcd->kc", x, y.view(k, n_candidates, -1))
            score = cosines + along.abs()
        best = torch.where(rows.any(dim=2), score, -torch.inf).argmax(dim=1)
        index = torch.arange(k)
        partners = [first[candidates[index, best]], rows[index, best]][-len(self.roles) :]
        # Up may be negated together with down, but only behind a gate.
        signs = torch.where(along[index, best] < 0.0, -1.0, 1.0)
        return partners, signs if self.up is Role.UP else torch.ones_like(signs)

    def _summed(self, classes: list[torch.Tensor], first: torch.Tensor) -> torch.Tensor:
        """Return one up row for each class, ``(classes, width)``; zero if its members cancel each other."""
        members = torch.unique(torch.cat(classes))
        rows = first[members]
        if len(self.roles) > 1:
            reader = RoleReader(self.model, self.roles[1], (self.place,))
            rows = reader.read(self.place, members).float()
            rows = rows * reader.lengths(self.place, members)[:, None]
        single = rows[torch.searchsorted(members, torch.stack([of_class[0] for of_class in classes]))]
        down = DOWN_OF[self.up]
        layer = self.model.anatomy.layers[self.place]
        if all(len(of_class) == 1 for of_class in classes) or down not in layer.parts:
            return single
        columns = read_role(self.model, layer, down)[:, members].float().T
        for i, of_class in enumerate(classes):
            if len(of_class) > 1:
                index = torch.searchsorted(members, of_class)
                single[i] = summed_neuron(rows[index], columns[index])
        return single


def _most_similar(carried: torch.Tensor, rows: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the neurons most similar to each carried one, their cosines, and the sign of the stream.

    Neurons and cosines are ``(k, candidates)``.
    """
    x, y = _in_common(carried.to(device), rows.to(device))
    cosines = (x @ y.T).cpu()
    n_candidates = min(CANDIDATES, cosines.shape[1])
    # Keys and queries do not determine the sign of the stream, and neither does a map fitted on keys.
    sign = max((1.0, -1.0), key=lambda sign: float((sign * cosines).amax(dim=1).mean()))
    similarity, neurons = (sign * cosines).topk(n_candidates, dim=1)
    return neurons, similarity, sign


def _in_common(carried: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return unit rows in the channels that the residual map covers."""
    is_covered = carried.any(dim=0)
    if not bool(is_covered.all()):
        carried, rows = carried[:, is_covered], rows[:, is_covered]
    return unit_rows(carried), unit_rows(rows)
