"""Names of training frameworks are unknown: structure and the other model tell what their tensors are."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import Verdict, compare
from mdir_hf.comparison.agreed_roles import with_agreed_roles
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role, read_part
from tests.comparison.framework_layouts import LAYOUTS
from tests.comparison.relatives import SIZES, write
from tests.method.obfuscation import new_model

N_GROUPS = SIZES["num_key_value_heads"]
ROLES = {role: f"self_attn.{role.value}_proj" for role in (Role.Q, Role.K, Role.V, Role.O)}
ROLES |= {role: f"mlp.{role.value}_proj" for role in (Role.GATE, Role.UP, Role.DOWN)}
NORMS = {Role.ATTENTION_NORM: "input_layernorm", Role.MLP_NORM: "post_attention_layernorm"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write(tmp_path_factory.mktemp("base") / "base", new_model(seed=0, **SIZES))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stranger") / "stranger", new_model(seed=9, **SIZES))


def in_layout(base, folder, layout, *, has_config=True):
    folder.mkdir()
    state = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    tuned = {
        n: t + 0.02 * t.std() * torch.randn(t.shape, generator=generator) if t.ndim > 1 else t for n, t in state.items()
    }
    save_file({n: t.contiguous() for n, t in LAYOUTS[layout](tuned, N_GROUPS).items()}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    if has_config:
        (folder / "config.json").write_bytes((base / "config.json").read_bytes())
    return folder, tuned


@pytest.mark.parametrize("has_config", [True, False], ids=["config", "no config"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_role_is_found_with_its_rows_and_norm(layout, has_config, base, tmp_path):
    folder, tuned = in_layout(base, tmp_path / "x", layout, has_config=has_config)
    models = [Model(open_repository(str(place))) for place in (base, folder)]
    _, candidate = with_agreed_roles(*models).models
    for layer in candidate.anatomy.layers:
        for role, name in (ROLES | NORMS).items():
            weight = read_part(candidate.tensors, layer.parts[role])
            torch.testing.assert_close(weight, tuned[f"model.layers.{layer.index}.{name}.weight"], rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_relative_is_told_and_a_stranger_is_not_accused(layout, base, stranger, tmp_path):
    folder, _ = in_layout(base, tmp_path / "x", layout, has_config=False)
    report = compare(base, folder, progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert compare(stranger, folder, progress=False).verdict is Verdict.NO_EVIDENCE


def test_p_pays_for_the_readings_among_which_rows_chose(base, tmp_path):
    plain, _ = in_layout(base, tmp_path / "plain", "transposed")
    open_roles, _ = in_layout(base, tmp_path / "open", "torchtune")
    p = [compare(base, each, progress=False, sample_seed=5).neurons.log10_p for each in (plain, open_roles)]
    n_readings = 2 * 3  # gate and up may be exchanged, with no norm or one of two
    # Both are sums of the same terms in floating point.
    assert p[1] - p[0] == pytest.approx(torch.tensor(float(n_readings)).log10().item(), abs=1e-6)


def test_two_models_with_open_readings_are_compared(base, tmp_path):
    first, _ = in_layout(base, tmp_path / "first", "torchtune", has_config=False)
    second, _ = in_layout(base, tmp_path / "second", "Megatron", has_config=False)
    assert compare(first, second, progress=False).verdict is Verdict.HOMOLOGOUS


def test_a_note_says_that_names_were_unknown(base, tmp_path):
    folder, _ = in_layout(base, tmp_path / "x", "Megatron")
    text = compare(base, folder, progress=False).details
    assert f"names and shapes allow 12 readings of the MLPs of {folder}" in " ".join(text.split())


def test_a_config_of_another_depth_does_not_matter(base, tmp_path):
    folder, _ = in_layout(base, tmp_path / "x", "litgpt")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    assert compare(base, folder, progress=False).verdict is Verdict.HOMOLOGOUS


def test_neurons_in_another_order_are_told_by_their_moments(base, tmp_path):
    folder, _ = in_layout(base, tmp_path / "x", "torchtune", has_config=False)
    path = folder / "model.safetensors"
    state = load_file(path)
    for i in range(SIZES["num_hidden_layers"]):
        order = torch.randperm(SIZES["intermediate_size"], generator=torch.Generator().manual_seed(i))
        gate, up, down = (state[f"layers.{i}.mlp.w{k}.weight"] for k in (1, 3, 2))
        # The names suggest that up comes first.
        state |= {f"layers.{i}.mlp.w1.weight": up[order], f"layers.{i}.mlp.w3.weight": gate[order]}
        state[f"layers.{i}.mlp.w2.weight"] = down[:, order].contiguous()
    save_file(state, path)
    assert compare(base, folder, progress=False).verdict is Verdict.HOMOLOGOUS


def test_rows_that_several_tokens_share_are_not_blamed_on_the_tokenizer(base, tmp_path):
    folder = tmp_path / "static"
    folder.mkdir()
    n_tokens = len(load_file(base / "model.safetensors")["model.embed_tokens.weight"])
    tensors = {"embeddings": torch.randn(40, 8), "mapping": torch.zeros(n_tokens, dtype=torch.int64)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    text = " ".join(compare(base, folder, progress=False).details.split())
    assert f"40 rows, which {n_tokens} tokens share, as tensor 'mapping' tells" in text
    assert "does not match its embedding" not in text
