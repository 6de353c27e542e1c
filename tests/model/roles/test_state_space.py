"""State-space mixers by value: set rows of the gate or input to zero, and check which channels become zero."""

import warnings

import pytest
import torch

from mdir_hf.comparison.layer_weights import norm_before
from mdir_hf.model.roles import Role, read_part
from tests.model.roles.tiny_causal import build_module, save_and_open

FAMILIES = (
    *("mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h"),
    *("zamba2", "zamba", "lfm2", "recurrent_gemma"),
)
CHANNEL = 7


class Hybrid:
    """A saved model and our anatomy of it."""

    def __init__(self, family, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing kernels
            module = build_module(family)
        self.module, self.ours = module, save_and_open(module, folder, original_format=False)
        self.layers = self.ours.anatomy.layers
        self.mixers = [layer for layer in self.layers if Role.SSM_IN in layer.parts]

    def read(self, part):
        return read_part(self.ours.tensors, part)

    @torch.no_grad()
    def given_to_output(self, layer, role, rows=(), tokens=slice(None)):
        """The input of a layer's output projection on a few tokens, after some rows of a role are zero for tokens."""
        part, given = layer.parts[role], []
        modules = [self.module.get_submodule(n.removesuffix(".weight")) for n in (part.tensor, self.output_of(layer))]
        chosen = torch.from_numpy(part.rows(tuple(modules[0].weight.shape))[list(rows)])

        def clear(module, args, made):
            made[0, tokens, chosen] = 0.0

        hooks = (
            modules[0].register_forward_hook(clear),
            modules[1].register_forward_pre_hook(lambda module, args: given.append(args[0])),
        )
        self.module(torch.tensor([[5, 7, 9]]))
        for hook in hooks:
            hook.remove()
        return given[0].reshape(3, -1)

    def output_of(self, layer):
        return layer.parts[Role.SSM_OUT].tensor


@pytest.fixture(scope="module", params=FAMILIES)
def hybrid(request, tmp_path_factory):
    return Hybrid(request.param, tmp_path_factory.mktemp("model"))


def test_a_zero_row_of_the_gate_zeroes_its_channel(hybrid):
    assert hybrid.mixers
    for layer in hybrid.mixers:
        given = hybrid.given_to_output(layer, Role.MIXER_GATE, [CHANNEL])
        assert (given == 0).all(dim=0).nonzero().flatten().tolist() == [CHANNEL]


def test_a_row_of_the_input_affects_only_its_channel(hybrid):
    for layer in hybrid.mixers:
        n_rows = len(hybrid.read(layer.parts[Role.SSM_IN]))
        others = [row for row in range(n_rows) if row != CHANNEL]
        given = hybrid.given_to_output(layer, Role.SSM_IN, others)
        assert (given[:, others] == 0).all()
        assert (given[:, CHANNEL] != 0).all()


def test_the_gate_acts_on_its_own_token_and_the_input_on_later_ones_too(hybrid):
    for layer in hybrid.mixers:
        every = range(len(hybrid.read(layer.parts[Role.SSM_IN])))
        before = hybrid.given_to_output(layer, Role.MIXER_GATE)
        without_gate, without_input = (
            hybrid.given_to_output(layer, role, every, 0) for role in (Role.MIXER_GATE, Role.SSM_IN)
        )
        assert torch.equal(without_gate[1:], before[1:])
        assert not torch.allclose(without_input[1:], before[1:], rtol=1e-3)


def test_shapes_fit_and_the_layer_is_whole(hybrid):
    for layer in hybrid.layers:
        hybrid.ours.anatomy.check_shapes(layer, lambda name: hybrid.ours.tensors.spec(name).shape)
        read = [layer.parts[role] for role in (Role.SSM_IN, Role.MIXER_GATE) if role in layer.parts]
        if Role.SSM_OUT in layer.parts:
            assert {len(hybrid.read(part)) for part in read} == {hybrid.read(layer.parts[Role.SSM_OUT]).shape[1]}
        assert layer.missing == ()


def test_the_norm_in_front_of_the_mixer_is_known(hybrid):
    assert all(norm_before(layer, Role.SSM_IN) in layer.parts for layer in hybrid.mixers)
