"""Looped models: prelude, core and coda count as one sequence of layers with names."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf.comparison.inspection import inspect_model
from mdir_hf.model.roles import Role, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape
from tests.model.roles.test_wrappers import CONFIG, PARTS

STACKS = ("prelude", "core_block", "coda")
NAMES = tuple(f"{stack}.{i}" for stack in STACKS for i in range(2))


def looped(prefix, parts):
    layers = {f"{prefix}{name}.{rest}": shape for name in NAMES for rest, shape in parts.items()}
    return {"model.embed_tokens.weight": (20, 8), "lm_head.weight": (20, 8), **layers}


@pytest.mark.parametrize("n_layers", [6, 2, 32])
def test_three_stacks_are_one_sequence(n_layers):
    shapes = looped("model.", PARTS)
    anatomy = resolve_anatomy(CONFIG | {"num_hidden_layers": n_layers}, shapes, shapes.__getitem__)
    assert [layer.name for layer in anatomy.layers] == list(NAMES)
    assert [layer.index for layer in anatomy.layers] == list(range(6))
    assert not any("layers" in note for note in anatomy.notes) and anatomy.unplaced == ()
    assert anatomy.layers[3].parts[Role.V].tensor == "model.core_block.1.self_attn.v_proj.weight"
    assert anatomy.prefixes == tuple(f"model.{stack}" for stack in STACKS)


def test_inspect_names_the_layers_by_their_stack(tmp_path):
    tensors = {name: torch.randn(*shape) for name, shape in looped("model.", PARTS).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = inspect_model(tmp_path)
    assert found.layer_groups[0].names == NAMES
    assert f"layers         {', '.join(NAMES)}: q k v o" in str(found)


def test_huginn_is_known_by_its_names():
    parts = {
        "attn.Wqkv.weight": (24, 8), "attn.proj.weight": (8, 8), "mlp.fc.weight": (24, 8), "mlp.proj.weight": (8, 12),
        **{f"norm_{i}.weight": (8,) for i in range(1, 5)},
    }  # fmt: skip
    shapes = looped("transformer.", parts)
    anatomy = resolve_anatomy(CONFIG | {"model_type": "huginn_raven"}, shapes, shapes.__getitem__)
    assert len(anatomy.layers) == 6
    for layer in anatomy.layers:
        assert layer.missing == ()
        made = {role: part_shape(part, shapes.__getitem__) for role, part in layer.parts.items() if not role.is_norm}
        assert made == {
            **dict.fromkeys((Role.Q, Role.K, Role.V, Role.O), (8, 8)),
            **dict.fromkeys((Role.GATE, Role.UP), (12, 8)),
            Role.DOWN: (8, 12),
        }


def test_one_stack_of_such_a_name_stays_what_it_is():
    shapes = {"embed.weight": (20, 8), **{f"core_block.{i}.{rest}": s for i in range(2) for rest, s in PARTS.items()}}
    anatomy = resolve_anatomy(CONFIG, shapes, shapes.__getitem__)
    assert [layer.name for layer in anatomy.layers] == ["0", "1"]
