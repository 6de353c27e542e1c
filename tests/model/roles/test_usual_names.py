"""Common names give roles in unknown architectures if the shapes fit."""

import pytest

from mdir_hf.model.inventory.headers import with_usual_names
from mdir_hf.model.roles import Role, resolve_anatomy

WIDTH, N_NEURONS = 32, 80
CONFIG = {"model_type": "never_seen", "hidden_size": WIDTH, "vocab_size": 100, "num_attention_heads": 4}


def resolve(names, **changed):
    """Resolve two layers whose matrices have these names and shapes, including common names."""
    shapes = {"embed_tokens.weight": (100, WIDTH)}
    shapes |= {f"layers.{i}.{name}.weight": shape for i in range(2) for name, shape in (names | changed).items()}
    anatomy = resolve_anatomy(CONFIG, shapes, shapes.__getitem__)
    return with_usual_names(anatomy, shapes.__getitem__)


def mlp(up="fc1", down="fc2", n=N_NEURONS):
    return {up: (n, WIDTH), down: (WIDTH, n)}


def attention(names, folder="attention"):
    return {f"{folder}.{name}": (WIDTH, WIDTH) for name in names.split()}


@pytest.mark.parametrize(
    "names",
    [
        mlp("mlp.fc1", "mlp.fc2"),
        mlp("feed_forward.intermediate_dense", "feed_forward.output_dense"),
        mlp("ffn.linear_1", "ffn.linear_2"),
        mlp("ffn.lin1", "ffn.lin2"),
    ],
    ids=lambda names: next(iter(names)),
)
def test_up_and_down_are_placed_by_name_and_shape(names):
    up, down = names
    for i, layer in enumerate(resolve(names).layers):
        assert layer.parts[Role.UP].tensor == f"layers.{i}.{up}.weight"
        assert layer.parts[Role.DOWN].tensor == f"layers.{i}.{down}.weight"
        assert not {Role.UP, Role.DOWN} & set(layer.missing)


@pytest.mark.parametrize(
    "names", ["q_head k_head v_head post_proj", "query_proj key_proj value_proj out", "to_q to_k to_v proj"]
)
def test_attention_is_placed_by_name_and_shape(names):
    for i, layer in enumerate(resolve(attention(names)).layers):
        placed = [layer.parts[role].tensor for role in (Role.Q, Role.K, Role.V, Role.O)]
        assert placed == [f"layers.{i}.attention.{name}.weight" for name in names.split()]


def test_shapes_that_do_not_fit_give_no_role():
    layer = resolve(mlp("mlp.fc1", "mlp.fc2"), **{"mlp.fc2": (WIDTH, N_NEURONS + 1)}).layers[0]
    assert Role.UP not in layer.parts and Role.DOWN not in layer.parts
    fused = resolve({"mlp.fc1": (2 * N_NEURONS, WIDTH), "mlp.fc2": (WIDTH, N_NEURONS)}).layers[0]
    assert Role.UP not in fused.parts


def test_cross_attention_is_not_taken_for_attention():
    names = attention("q_head k_head v_head post_proj", folder="cross_attention")
    assert Role.Q not in resolve(names).layers[0].parts


def test_two_tensors_with_a_usual_name_give_no_role():
    assert Role.UP not in resolve(mlp("a.fc1", "a.fc2") | mlp("b.fc1", "b.fc2")).layers[0].parts


def test_known_roles_stay_as_they_are():
    names = {"mlp.up_proj": (N_NEURONS, WIDTH), "mlp.down_proj": (WIDTH, N_NEURONS)}
    layer = resolve(names | mlp("side.fc1", "side.fc2")).layers[0]
    assert layer.parts[Role.UP].tensor == "layers.0.mlp.up_proj.weight"
