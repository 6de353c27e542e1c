"""Matrices with unknown names get roles if one arrangement of attention and MLP explains their shapes."""

import pytest

from mdir_hf.model.inventory.by_structure import with_reading, with_structure
from mdir_hf.model.inventory.orientation import with_fitting_orientation
from mdir_hf.model.roles import ConfigSizes, Role, read_sizes, resolve_anatomy

WIDTH, N_NEURONS = 32, 80
CONFIG = {"model_type": "never_seen", "hidden_size": WIDTH, "vocab_size": 100}
ATTENTION = (Role.Q, Role.K, Role.V, Role.O)

KNOWN_MLP = {"mlp.up_proj": (N_NEURONS, WIDTH), "mlp.down_proj": (WIDTH, N_NEURONS)}


def resolve(names, vectors=None, config=CONFIG, n_layers=2):
    """Resolve layers whose matrices have these names and shapes."""
    shapes = {"embed_tokens.weight": (100, WIDTH)}
    for i in range(n_layers):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in names.items()}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in (vectors or {}).items()}
    anatomy = with_fitting_orientation(resolve_anatomy(config, shapes, shapes.__getitem__), shapes.__getitem__)
    return with_structure(anatomy, shapes, read_sizes(config), shapes.__getitem__)


def mlp(up="fc1", down="fc2", n=N_NEURONS):
    return {up: (n, WIDTH), down: (WIDTH, n)}


def attention(names, folder="attention"):
    return {f"{folder}.{name}": (WIDTH, WIDTH) for name in names.split()}


@pytest.mark.parametrize("names", [mlp("mlp.fc1", "mlp.fc2"), mlp("ffn.lin1", "ffn.lin2"), mlp("a.second", "a.first")])
def test_up_and_down_are_told_by_shape(names):
    up, down = names
    for i, layer in enumerate(resolve(names).layers):
        assert layer.parts[Role.UP].tensor == f"layers.{i}.{up}.weight"
        assert layer.parts[Role.DOWN].tensor == f"layers.{i}.{down}.weight"
        assert not {Role.UP, Role.DOWN} & set(layer.missing)


@pytest.mark.parametrize(
    "names",
    ["q_head k_head v_head post_proj", "query_proj key_proj value_proj out", "to_q to_k to_v proj", "wq wk wv wo"],
)
def test_words_tell_square_matrices_apart(names):
    anatomy = resolve(attention(names) | KNOWN_MLP)
    assert not anatomy.readings
    for i, layer in enumerate(anatomy.layers):
        placed = [layer.parts[role].tensor for role in ATTENTION]
        assert placed == [f"layers.{i}.attention.{name}.weight" for name in names.split()]


def test_square_matrices_without_telling_names_have_every_reading():
    (readings,) = resolve(attention("a b c d") | KNOWN_MLP).readings
    assert len({tuple(part.tensor for part in reading[0].values()) for reading in readings}) == len(readings) == 24


def test_shapes_that_do_not_fit_give_no_role():
    layer = resolve(mlp() | {"fc2": (WIDTH, N_NEURONS + 1)}).layers[0]
    assert Role.UP not in layer.parts and Role.DOWN not in layer.parts


def test_gate_and_up_in_one_tensor_have_readings():
    (readings,) = resolve({"mlp.fc1": (2 * N_NEURONS, WIDTH), "mlp.fc2": (WIDTH, N_NEURONS)}).readings
    rows = {tuple(reading[0][Role.GATE].rows_of(6)) for reading in readings}
    assert rows == {(0, 1, 2), (3, 4, 5), (0, 2, 4), (1, 3, 5)}


def test_cross_attention_is_not_taken_for_attention():
    assert Role.Q not in resolve(attention("q_head k_head v_head post_proj", folder="cross_attention")).layers[0].parts


def test_two_mlps_give_no_role():
    assert Role.UP not in resolve(mlp("a.fc1", "a.fc2") | mlp("b.fc1", "b.fc2")).layers[0].parts


def test_known_roles_stay_as_they_are():
    layer = resolve(KNOWN_MLP | mlp("side.fc1", "side.fc2")).layers[0]
    assert layer.parts[Role.UP].tensor == "layers.0.mlp.up_proj.weight"


def test_one_known_role_does_not_stop_the_others():
    names = {"mlp.down_proj": (WIDTH, N_NEURONS), "mlp.first": (N_NEURONS, WIDTH), "mlp.second": (N_NEURONS, WIDTH)}
    layer = resolve(names).layers[0]
    assert layer.parts[Role.DOWN].tensor == "layers.0.mlp.down_proj.weight"
    assert {layer.parts[role].tensor for role in (Role.GATE, Role.UP)} == {
        f"layers.0.mlp.{word}.weight" for word in ("first", "second")
    }


BIASES = {"nn.Linear": (N_NEURONS, WIDTH), "Conv1D": (WIDTH, N_NEURONS)}


@pytest.mark.parametrize("kind", BIASES)
def test_biases_tell_the_orientation_of_an_mlp_without_a_gate(kind):
    first = BIASES[kind]
    vectors = {"mlp.a.bias": (N_NEURONS,), "mlp.b.bias": (WIDTH,)}
    layer = resolve({"mlp.a": first, "mlp.b": first[::-1]}, vectors).layers[0]
    assert layer.parts[Role.UP].tensor == "layers.0.mlp.a.weight"
    assert layer.parts[Role.UP].transposed is (kind == "Conv1D")


def test_a_fused_projection_tells_the_orientation():
    names = {
        "attn.qkv": (WIDTH, 3 * WIDTH),
        "attn.o": (WIDTH, WIDTH),
        "mlp.a": (WIDTH, N_NEURONS),
        "mlp.b": (N_NEURONS, WIDTH),
    }
    parts = resolve(names).layers[0].parts
    assert all(part.transposed for part in parts.values()) and parts[Role.UP].tensor == "layers.0.mlp.a.weight"


GPT2 = {"model_type": "gpt2", "n_embd": WIDTH, "n_head": 4, "n_layer": 2, "vocab_size": 100}
GPT2_SHAPES = {
    "attn.c_attn": (3 * WIDTH, WIDTH),
    "attn.c_proj": (WIDTH, WIDTH),
    "mlp.c_fc": (N_NEURONS, WIDTH),
    "mlp.c_proj": (WIDTH, N_NEURONS),
}


@pytest.mark.parametrize("is_linear", [True, False], ids=["nn.Linear", "Conv1D"])
def test_the_matrices_of_a_known_family_may_be_stored_the_other_way(is_linear):
    names = {name: shape if is_linear else shape[::-1] for name, shape in GPT2_SHAPES.items()}
    anatomy = resolve(names, config=GPT2)
    for layer in anatomy.layers:
        assert {part.transposed for role, part in layer.parts.items() if not role.is_norm} == {not is_linear}
    assert any("other orientation than the family gpt2" in note for note in anatomy.notes) is is_linear


def test_many_layers_are_solved_once(monkeypatch):
    calls = []
    solve = "mdir_hf.model.inventory.by_structure._Solver._options"
    from mdir_hf.model.inventory.by_structure import _Solver

    original = _Solver._options
    monkeypatch.setattr(solve, lambda self, *args: calls.append(args) or original(self, *args))
    anatomy = resolve(attention("a b c d") | mlp("mlp.a", "mlp.b"), n_layers=60)
    assert len(anatomy.layers) == 60 and len(calls) == 1


def test_without_unknown_matrices_nothing_is_read():
    anatomy = resolve(KNOWN_MLP)
    assert with_structure(anatomy, [], ConfigSizes(), lambda name: pytest.fail(name)) is anatomy


def test_attention_is_told_beside_experts_and_a_router():
    experts = {f"mlp.experts.{i}.{name}": shape for i in range(4) for name, shape in mlp().items()}
    parts = resolve(attention("wq wk wv wo") | experts | {"mlp.choice": (4, WIDTH)}).layers[0].parts
    assert {role for role in parts if not role.is_norm} == set(ATTENTION)


def test_one_matrix_of_another_shape_is_not_turned():
    layer = resolve({"self_attn.v_proj": (WIDTH, WIDTH + 1)}).layers[0]
    assert not layer.parts[Role.V].transposed


NORMS = {
    "in order": ("norm_1.weight", "norm_2.weight"),
    "by folder": ("sa_norm.scale", "mlp_norm.scale"),
    "of Megatron": ("attention.qkv.layer_norm_weight", "mlp.fc1.layer_norm_weight"),
}


@pytest.mark.parametrize("kind", NORMS)
def test_the_first_reading_has_the_likely_norms(kind):
    vectors = dict.fromkeys(NORMS[kind], (WIDTH,))
    layer = resolve(attention("to_q to_k to_v proj") | mlp("mlp.a", "mlp.b"), vectors).layers[0]
    placed = [layer.parts[role].tensor.removeprefix("layers.0.") for role in (Role.ATTENTION_NORM, Role.MLP_NORM)]
    assert tuple(placed) == NORMS[kind]


def test_a_reading_replaces_all_that_its_group_leaves_open():
    vectors = {"norm_1.weight": (WIDTH,), "norm_2.weight": (WIDTH,)}
    fused = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.o": (WIDTH, WIDTH)}  # tells the orientation
    anatomy = resolve(mlp("mlp.a", "mlp.b") | fused, vectors)
    of_mlp = next(options for options in anatomy.readings if Role.UP in options[0][0])
    norms = [with_reading(anatomy, reading).layers[0].parts.get(Role.MLP_NORM) for reading in of_mlp]
    assert [norm and norm.tensor for norm in norms] == ["layers.0.norm_2.weight", "layers.0.norm_1.weight", None]
    assert all(Role.ATTENTION_NORM in with_reading(anatomy, reading).layers[0].parts for reading in of_mlp)
