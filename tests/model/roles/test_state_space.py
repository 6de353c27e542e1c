"""State-space mixers by value: set rows of the gate or input to zero, and check which channels become zero."""

import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

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
        self.folder = folder
        self.ours = save_and_open(module, folder, original_format=False)
        self.layers = self.ours.anatomy.layers
        self.mixers = [layer for layer in self.layers if Role.SSM_IN in layer.parts]

    def read(self, part):
        return read_part(self.ours.tensors, part)

    def given_to_output(self, layer, role, rows):
        """The input of a layer's output projection on a few tokens, after rows of a stored tensor are set to zero."""
        tensors = load_file(self.folder / "model.safetensors")
        part = layer.parts[role]
        stored = part.rows(tuple(tensors[part.tensor].shape))
        tensors[part.tensor][torch.from_numpy(stored[rows])] = 0.0
        other = self.folder / "changed"
        other.mkdir(exist_ok=True)
        save_file(tensors, other / "model.safetensors", {"format": "pt"})
        (other / "config.json").write_text((self.folder / "config.json").read_text())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = transformers.AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32).eval()
        output = tensors[layer.parts[Role.SSM_OUT].tensor]
        (module,) = {
            id(m): m
            for m in model.modules()
            if isinstance(m, torch.nn.Linear) and m.weight.shape == output.shape and torch.equal(m.weight, output)
        }.values()
        given = []
        module.register_forward_pre_hook(lambda _, args: given.append(args[0]))
        with torch.no_grad():
            model(torch.tensor([[5, 7, 9]]))
        return given[0].reshape(3, -1)


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


def test_shapes_fit_and_the_layer_is_whole(hybrid):
    for layer in hybrid.layers:
        hybrid.ours.anatomy.check_shapes(layer, lambda name: hybrid.ours.tensors.spec(name).shape)
        read = [layer.parts[role] for role in (Role.SSM_IN, Role.MIXER_GATE) if role in layer.parts]
        if Role.SSM_OUT in layer.parts:
            assert {len(hybrid.read(part)) for part in read} == {hybrid.read(layer.parts[Role.SSM_OUT]).shape[1]}
        assert layer.missing == ()


def test_the_norm_in_front_of_the_mixer_is_known(hybrid):
    assert all(norm_before(layer, Role.SSM_IN) in layer.parts for layer in hybrid.mixers)
