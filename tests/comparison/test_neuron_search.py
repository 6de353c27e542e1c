"""The search finds neurons that were reordered, removed, split or disturbed, by gate and up alone."""

import copy
from dataclasses import replace

import pytest
import torch

from mdir_hf.comparison import layer_weights
from mdir_hf.comparison.neuron_layers import bias_of, n_neurons_of, neuron_layers, neuron_role
from mdir_hf.comparison.neuron_search import CANDIDATES, search_neurons
from mdir_hf.errors import AnatomyError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_numbers import match_neurons_by_number
from mdir_hf.model.files.ranged import RangedTensors
from mdir_hf.model.hub import open_repository
from mdir_hf.model.inventory import ModelView
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from tests.comparison.relatives import turned
from tests.method.obfuscation import haar, new_model

transformers = pytest.importorskip("transformers")

WIDTH, NEURONS, TESTED = 96, 256, 64
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": NEURONS, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
IDENTITY = ResidualBasisMap.identity(WIDTH)
TURN = haar(WIDTH, torch.Generator().manual_seed(3))


@pytest.fixture
def opened(tmp_path):
    def open_model(model):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        copy.deepcopy(model).float().save_pretrained(folder)
        return Model(open_repository(str(folder)))

    return open_model


@pytest.fixture
def base():
    return new_model(seed=0, **SIZES)


def counted(reference, candidate, residual_map=IDENTITY, *, pair=(0, 0), seed=1, **options):
    samples = search_neurons((reference, candidate), pair, residual_map, seed=seed, **options)
    assert samples is not None
    first, second = samples
    assert first.layers == pair[:1] and second.layers == pair[1:] and first.is_like(second)
    rows = [list(sample.rows[0]) for sample in samples]
    return match_neurons_by_number(*rows, n_fitted=first.n_fitted, n_neurons=first.n_neurons).counts


@torch.no_grad()
def with_neurons(model, change, **sizes):
    """A copy of a model with the neurons that ``change(gate, up, down.T, generator)`` returns, shuffled."""
    generator = torch.Generator().manual_seed(5)
    changed = [
        change(mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight.T, generator)
        for mlp in (layer.mlp for layer in model.model.layers)
    ]
    n = len(changed[0][0])
    made = new_model(seed=9, **SIZES | {"intermediate_size": n} | sizes)
    state = {name: weight for name, weight in model.state_dict().items() if ".mlp." not in name}
    made.load_state_dict(state, strict=False)
    for layer, (gate, up, down) in zip(made.model.layers, changed, strict=True):
        order = torch.randperm(n, generator=generator)
        layer.mlp.gate_proj.weight.copy_(gate[order])
        layer.mlp.up_proj.weight.copy_(up[order])
        layer.mlp.down_proj.weight.copy_(down[order].T)
    return made


def unchanged(gate, up, down, generator):
    return gate, up, down


def negated(gate, up, down, generator):
    signs = torch.where(torch.rand(len(up), 1, generator=generator) < 0.5, -1.0, 1.0).double()
    return gate, signs * up, signs * down


def pruned(gate, up, down, generator):
    return gate[:200], up[:200], down[:200]


def split_in(parts, noise=2.0):
    def split(gate, up, down, generator):
        drawn = torch.randn(parts - 1, *up.shape, generator=generator, dtype=up.dtype)
        drawn *= noise * up.norm(dim=1, keepdim=True) / WIDTH**0.5
        ups = torch.cat([up / parts + drawn, (up / parts - drawn.sum(dim=0))[None]])
        return gate.repeat(parts, 1), ups.flatten(0, 1), down.repeat(parts, 1)

    return split


def split_down(gate, up, down, generator):
    share = torch.rand(len(up), 1, generator=generator, dtype=up.dtype) - 1.0
    return gate.repeat(2, 1), up.repeat(2, 1), torch.cat([share * down, (1.0 - share) * down])


def with_opposite_pairs(gate, up, down, generator):
    """Each gate gets two more neurons, with a length of its own, that cancel each other."""
    drawn = torch.randn(up.shape, generator=generator, dtype=up.dtype)
    more = gate * 1.3
    return torch.cat([gate, more, more]), torch.cat([up, drawn, drawn]), torch.cat([down, down, -down])


def noisy(size):
    def disturb(gate, up, down, generator):
        return tuple(
            weight + size * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator)
            for weight in (gate, up, down)
        )

    return disturb


def then(first, second):
    def both(gate, up, down, generator):
        return second(*first(gate, up, down, generator), generator)

    return both


EDITS = {
    "permuted": unchanged,
    "negated": negated,
    "pruned": pruned,
    "split in two": split_in(2),
    "split in three": split_in(3),
    "split down": split_down,
    "opposite pairs": with_opposite_pairs,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_all_neurons_are_found_in_either_direction(base, opened, edit, is_turned):
    made, residual_map = with_neurons(base, EDITS[edit]), IDENTITY
    if is_turned:
        made.load_state_dict({name: turned(made, turn=TURN)(name, w) for name, w in made.state_dict().items()})
        residual_map = ResidualBasisMap.rotation(TURN.float())
    first, second = opened(base), opened(made)
    assert counted(first, second, residual_map) == (TESTED, TESTED)
    assert counted(second, first, residual_map.reversed, pair=(1, 1)) == (TESTED, TESTED)


def test_neurons_that_were_split_and_then_disturbed_are_found(base, opened):
    models = opened(base), opened(with_neurons(base, then(split_in(2), noisy(0.05))))
    assert counted(*models).certain >= 0.9 * TESTED  # in a few neurons, noise exceeds what cancels


def test_split_neurons_of_the_smaller_layer_are_found(base, opened):
    """The thief prunes more neurons than he adds by splitting, so the sample contains parts."""

    def prune_and_split(gate, up, down, generator):
        return split_in(2, noise=40.0)(gate[:110], up[:110], down[:110], generator)

    thief = with_neurons(base, prune_and_split)
    # Parts of one neuron tie if both are tested, which is expected for 63 of 219, and at most 5 deviations more.
    assert counted(opened(base), opened(thief), seed=2).certain >= 0.45 * TESTED


def test_the_sign_of_the_stream_does_not_matter(base, opened):
    models = opened(base), opened(with_neurons(base, negated))
    assert counted(*models, IDENTITY.negated) == counted(*models) == (TESTED, TESTED)


def test_channels_that_were_cut_do_not_hide_neurons(base, opened):
    made = with_neurons(base, unchanged)
    kept = torch.arange(0, WIDTH, 2)
    every = torch.arange(len(kept))
    channels = ResidualBasisMap(
        "channels", WIDTH, len(kept), reference=kept, candidate=every, signs=torch.ones_like(every)
    )
    with torch.no_grad():
        narrow = new_model(seed=9, **SIZES | {"hidden_size": len(kept)})
        for own, whole in zip(narrow.model.layers, made.model.layers, strict=True):
            own.post_attention_layernorm.weight.copy_(whole.post_attention_layernorm.weight[kept])
            for name in ("gate_proj", "up_proj"):
                getattr(own.mlp, name).weight.copy_(getattr(whole.mlp, name).weight[:, kept])
    first, second = opened(base), opened(narrow)
    assert counted(first, second, channels).own == TESTED == counted(second, first, channels.reversed).own


def test_more_fitted_rows_find_more_under_noise(base, opened):
    models = opened(base), opened(with_neurons(base, noisy(1.5)))
    few, many = counted(*models, n_fitted_rows=64), counted(*models, n_fitted_rows=2 * NEURONS)
    assert few.certain < many.certain and many.own >= 0.9 * TESTED


def test_other_layers_and_strangers_are_not_found(base, opened):
    """In 36 searches, none of 64 neurons is certain more than four times."""
    models = [opened(base), opened(new_model(seed=1, **SIZES)), opened(with_neurons(base, unchanged))]
    found = [counted(models[0], models[1], pair=(i, j), seed=seed) for i in (0, 1) for j in (0, 1) for seed in range(5)]
    found += [counted(models[0], models[2], pair=pair, seed=seed) for pair in ((0, 1), (1, 0)) for seed in range(8)]
    assert max(counts.certain for counts in found) <= 4
    assert len(found) == 36


def test_neurons_that_cancel_are_no_partners(base, opened):
    """All neurons of the victim stand in opposite pairs, next to the framer's own."""
    stranger = new_model(seed=1, **SIZES)

    def copied(gate, up, down, generator):
        mlp = base.model.layers[0].mlp
        theirs = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight.T
        pairs = theirs[0].repeat(2, 1), theirs[1].repeat(2, 1), torch.cat([theirs[2], -theirs[2]])
        return tuple(torch.cat(parts) for parts in zip((gate, up, down), pairs, strict=True))

    framed = with_neurons(stranger, copied)
    with torch.no_grad():
        for own, norm in zip(framed.model.layers, base.model.layers, strict=True):
            own.post_attention_layernorm.weight.copy_(norm.post_attention_layernorm.weight)
    assert counted(opened(base), opened(framed)).certain <= 4


@pytest.mark.parametrize("n_kept_bytes", [layer_weights.KEPT_BYTES, 0])
def test_a_search_reads_one_gate_once_and_few_rows(base, opened, monkeypatch, n_kept_bytes):
    monkeypatch.setattr(layer_weights, "KEPT_BYTES", n_kept_bytes)
    big = {**SIZES, "intermediate_size": 8192, "hidden_size": 64}
    reference = opened(new_model(seed=0, **big))
    read, whole = [], []
    read_rows, read_all = RangedTensors.read_rows, RangedTensors.read

    def counting_rows(self, name, rows, **options):
        read.append((name, len(rows)))
        return read_rows(self, name, rows, **options)

    def counting(self, name):
        whole.append(name)
        return read_all(self, name)

    monkeypatch.setattr(RangedTensors, "read_rows", counting_rows)
    monkeypatch.setattr(RangedTensors, "read", counting)
    samples = search_neurons((reference, reference), (0, 1), ResidualBasisMap.identity(64), seed=0)
    assert [name for name in whole if name.endswith("proj.weight")] == ["model.layers.1.mlp.gate_proj.weight"]
    n_sampled = samples[0].rows.shape[2]
    assert {name.split(".mlp.")[1] for name, _ in read} == {"gate_proj.weight", "up_proj.weight"}
    assert sum(n for _, n in read) <= (2 + CANDIDATES) * n_sampled  # gates and ups of the sample, and partners' ups


def test_neurons_without_a_gate_are_found(opened):
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    base = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(vocab_size=100, **sizes)).double()
    permuted, stranger = copy.deepcopy(base), copy.deepcopy(base)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for layer, other in zip(permuted.gpt_neox.layers, stranger.gpt_neox.layers, strict=True):
            mlp = layer.mlp
            mlp.dense_h_to_4h.weight.copy_(mlp.dense_h_to_4h.weight[order].clone())
            mlp.dense_h_to_4h.bias.copy_(torch.randn(256))
            mlp.dense_4h_to_h.weight.copy_(mlp.dense_4h_to_h.weight[:, order].clone())
            other.mlp.dense_h_to_4h.weight.normal_()
    models = opened(base), opened(permuted), opened(stranger)
    identity = ResidualBasisMap.identity(64)
    assert counted(*models[:2], identity) == counted(*models[:2], identity.negated) == (TESTED, TESTED)
    assert counted(models[0], models[2], identity).certain <= 4


def test_layers_without_common_neurons_are_not_searched(base, opened):
    model = opened(base)
    small = opened(new_model(seed=0, **SIZES | {"intermediate_size": 32}))
    assert search_neurons((model, small), (0, 0), IDENTITY, seed=0) is None  # too few

    def without(role):
        layers = tuple(
            replace(layer, parts={key: part for key, part in layer.parts.items() if key is not role})
            for layer in model.anatomy.layers
        )
        return ModelView("cut", model.label, model.tensors, replace(model.anatomy, layers=layers))

    assert search_neurons((model, without(Role.UP)), (0, 0), IDENTITY, seed=0) is None
    assert search_neurons((model, without(Role.GATE)), (0, 0), IDENTITY, seed=0) is None
    assert counted(model, without(Role.DOWN)) == (TESTED, TESTED)  # down is needed only for classes
    assert neuron_role(without(Role.UP)) is None and neuron_layers(without(Role.UP)) == ()
    assert n_neurons_of(without(Role.UP)) == {} and n_neurons_of(model) == {0: NEURONS, 1: NEURONS}
    assert bias_of(model, 0, Role.GATE) is None


def test_a_matrix_of_another_width_is_an_error(base, opened):
    model = opened(base)
    wider = ModelView("wider", model.label, model.tensors, replace(model.anatomy, hidden_size=WIDTH + 1))
    with pytest.raises(AnatomyError, match="expected"):
        search_neurons((model, wider), (0, 0), IDENTITY, seed=0)
