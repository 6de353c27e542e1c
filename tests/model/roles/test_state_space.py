"""State-space mixers by value: set rows of the gate or input to zero, and check which channels become zero."""

import warnings

import pytest
import torch
import transformers

from mdir_hf.comparison.layer_weights import norm_before
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.roles import Role, read_config, read_part, resolve_anatomy
from tests.conformance_tensors import MemoryTree

WIDTH = 24
SIZES = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "intermediate_size": 36,
    "shared_intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 3,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA2 = {"mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 5}
ONE_OF_EACH = ["linear_attention", "full_attention"]
FAMILIES = {
    "mamba": {"state_size": 5, "intermediate_size": 48},
    "falcon_mamba": {"state_size": 5, "intermediate_size": 48},
    "mamba2": {"state_size": 5, "num_heads": 4, "head_dim": 12, "n_groups": 2, "expand": 2},
    "jamba": {"mamba_d_state": 5, "attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": _MAMBA2 | {"attn_layer_indices": [1]},
    "falcon_h1": _MAMBA2 | {"mamba_d_ssm": 48},
    "granitemoehybrid": _MAMBA2 | {"layer_types": ONE_OF_EACH},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 5,
        "expand": 2,
        "n_routed_experts": 3,
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 20,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    },
    "zamba2": {
        "mamba_expand": 2,
        "n_mamba_heads": 4,
        "mamba_headdim": 12,
        "mamba_ngroups": 2,
        "mamba_d_state": 5,
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_mem_blocks": 1,
        "attention_head_dim": 12,
    },
    "zamba": {
        "mamba_expand": 2,
        "n_mamba_heads": 2,
        "mamba_d_state": 5,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"lru_width": 28, "block_types": ["recurrent", "attention"], "head_dim": 6},
}


class Hybrid:
    """A saved model and our anatomy of it."""

    def __init__(self, family, folder):
        torch.manual_seed(0)
        keys = transformers.CONFIG_MAPPING[family]().to_dict()
        chosen = {key: value for key, value in SIZES.items() if key in keys} | FAMILIES[family]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about generation settings and missing kernels
            config = transformers.CONFIG_MAPPING[family](**chosen)
            self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    if name.endswith("bias"):
                        parameter.zero_()  # without biases, a row of zeros gives zero
            self.model.save_pretrained(folder)
        self.family, self.folder = family, folder
        tree = MemoryTree.from_folder(folder)
        self.source = open_checkpoint(tree)
        self.anatomy = resolve_anatomy(read_config(tree.read("config.json")), self.source.names(), self.shape_of)

    def shape_of(self, name):
        return self.source.spec(name).shape

    def mixers(self):
        """Every layer with a mixer: our anatomy of it, and the input of its output projection on a few tokens."""
        for layer in self.anatomy.layers:
            if Role.SSM_IN in layer.parts:
                yield layer

    def given_to_output(self, layer, changed):
        """The input of a layer's output projection after some rows of stored tensors are changed."""
        from safetensors.torch import load_file, save_file

        tensors = load_file(self.folder / "model.safetensors")
        for role, rows, value in changed:
            part = layer.parts[role]
            stored = part.rows(tuple(tensors[part.tensor].shape))
            tensors[part.tensor][torch.from_numpy(stored[rows])] = value
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


def test_there_is_a_mixer(hybrid):
    assert list(hybrid.mixers())


def test_a_zero_row_of_the_gate_zeroes_its_channel(hybrid):
    for layer in hybrid.mixers():
        channel = 7
        given = hybrid.given_to_output(layer, [(Role.MIXER_GATE, [channel], 0.0)])
        assert (given[:, channel] == 0).all()
        assert (given != 0).sum() == 3 * (given.shape[1] - 1)


def test_a_row_of_the_input_affects_only_its_channel(hybrid):
    for layer in hybrid.mixers():
        n_rows = len(read_part(hybrid.source, layer.parts[Role.SSM_IN]))
        channel = 7
        others = [row for row in range(n_rows) if row != channel]
        given = hybrid.given_to_output(layer, [(Role.SSM_IN, others, 0.0)])
        assert (given[:, others] == 0).all()
        assert (given[:, channel] != 0).all()


def test_shapes_fit_and_the_layer_is_whole(hybrid):
    for layer in hybrid.anatomy.layers:
        hybrid.anatomy.check_shapes(layer, hybrid.shape_of)
        d_in = {
            len(read_part(hybrid.source, layer.parts[role]))
            for role in (Role.SSM_IN, Role.MIXER_GATE)
            if role in layer.parts
        }
        if Role.SSM_OUT in layer.parts:
            assert d_in == {read_part(hybrid.source, layer.parts[Role.SSM_OUT]).shape[1]}
        assert layer.missing == ()


def test_the_norm_in_front_of_the_mixer_is_known(hybrid):
    assert all(norm_before(layer, Role.SSM_IN) in layer.parts for layer in hybrid.mixers())
