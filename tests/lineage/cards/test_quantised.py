"""The declared relation "quantized" is tested: values within the step of the code are confirmed, others are not."""

import json
import re

import pytest
import safetensors.torch
import torch

from mdir_hf.cli import main
from mdir_hf.comparison.settings import Listeners
from mdir_hf.lineage.cards.verify_lineage import verify_lineage
from mdir_hf.lineage.policy import Condition
from mdir_hf.model.open import NamedModel, Reading
from tests.lineage.merges.test_check_recipe import CONFIG, N_LAYERS, drifted, save, weights


def int_codes(value, bits, group):
    """Round to integers of ``bits`` bits with one scale per group, and multiply again."""
    grouped = value.reshape(-1, group or value.shape[-1])
    scale = grouped.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((grouped / scale).round() * scale).reshape(value.shape)


def quantised(state, bits=8, group=0, code=int_codes):
    return {name: code(value, bits, group) if "proj" in name else value for name, value in state.items()}


@pytest.fixture
def serve(loopback_hub, tmp_path):
    def serve_state(repo, state, block="", n_layers=N_LAYERS):
        folder = save(tmp_path / repo.replace("/", "-"), state, n_layers)
        if block:
            (folder / "README.md").write_text(f"---\n{block}\n---\n")
        loopback_hub.add_repository(repo, folder)

    return serve_state


def card(base, relation="quantized"):
    return f"base_model: {base}\nbase_model_relation: {relation}"


def verify(repo):
    return verify_lineage(NamedModel(repo), reading=Reading(), listeners=Listeners(progress=False))


BASE = weights(0)
TUNE = drifted(BASE, 1, share=0.05)
CODES = {"int8": (8, 0, int_codes), "int4 in groups": (4, 16, int_codes), "int3": (3, 0, int_codes)}


@pytest.mark.parametrize("code", CODES)
def test_values_of_the_base_under_the_code_are_confirmed(serve, code):
    serve("ds/base", BASE)
    serve("me/q", quantised(BASE, *CODES[code]), card("ds/base"))
    check = verify("me/q")
    assert [base.relation.outcome.value for base in check.bases] == ["confirmed"]
    text = str(check)
    assert "quantized: confirmed: its values differ from ds/base by 0." in text
    (unnoticed,) = re.findall(r"changes of the base below (\S+)% of its size would not be noticed", text)
    # Three quarters of a step: largest values are 2.2 (int4, 16 values) and 2.7 (rows of 48 to 128) times the RMS.
    step = {"int8": 2.7 / 127, "int4 in groups": 2.2 / 7, "int3": 2.7 / 3}[code]
    assert float(unnoticed) == pytest.approx(75 * step, rel=0.3)


@pytest.mark.parametrize("code", CODES)
def test_a_quantised_base_under_the_card_of_its_tune_is_contradicted(serve, capsys, code):
    serve("ds/base", BASE)
    serve("ds/tune", TUNE, card("ds/base", "finetune"))
    serve("me/q", quantised(BASE, *CODES[code]), card("ds/tune"))
    check = verify("me/q")
    assert check.bases[0].outcome == "homologous"
    assert check.bases[0].relation.outcome.value == "contradicted"
    assert "the nearest base is ds/base" in str(check)
    assert main(["verify", "me/q", "--quiet", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["bases"][0]["relation"]["outcome"] == "contradicted"


def test_a_quantised_tune_under_the_card_of_its_base_is_contradicted(serve):
    serve("ds/base", BASE)
    serve("me/q", quantised(TUNE, 8), card("ds/base"))
    (base,) = verify("me/q").bases
    assert base.relation.outcome.value == "contradicted"
    assert "no rounding explains" in base.relation.tested


SISTER, STRANGER = drifted(BASE, 2, share=0.05), weights(9)
PROJECTION = "model.layers.1.mlp.up_proj.weight"


def swapped(state):
    """Return a model whose first two layers have changed places."""
    return {
        name: state[name.replace(f"layers.{old}.", f"layers.{1 - old}.")] if f"layers.{old}." in name else value
        for name, value in state.items()
        for old in (1 if "layers.1." in name else 0,)
    }


MUTATIONS = {
    "of a tune": TUNE,
    "of a stranger": STRANGER,
    "one layer of a tune": {n: TUNE[n] if "layers.2." in n else v for n, v in BASE.items()},
    "one projection of a tune": BASE | {PROJECTION: TUNE[PROJECTION]},
    "one projection of a stranger": BASE | {PROJECTION: STRANGER[PROJECTION]},
    "one negated projection": BASE | {PROJECTION: -BASE[PROJECTION]},
    "one scaled projection": BASE | {PROJECTION: 1.1 * BASE[PROJECTION]},
    "layers in another order": swapped(BASE),
    "mean of two models": {n: (v + TUNE[n]) / 2 for n, v in BASE.items()},
}

DEEP = weights(0, n_layers=8)
DEEP_STRANGER = weights(9, n_layers=8) | {n: v + 0.3 * torch.randn_like(v) for n, v in DEEP.items() if v.ndim == 1}
DEEP_TUNE = drifted(DEEP, 1, share=0.05)


def taken_from(other, *parts, but=()):
    """Return the quantised base, with the named parts of another model as it is."""
    of_other = {n: v for n, v in other.items() if any(p in n for p in parts) and not any(p in n for p in but)}
    return quantised(DEEP) | of_other


def without(*parts):
    return {n: v for n, v in quantised(DEEP).items() if not any(part in n for part in parts)}


STORED_MUTATIONS = {
    **{f"layer {at} of a stranger": quantised(taken_from(DEEP_STRANGER, f"layers.{at}.")) for at in (1, 3, 4, 6)},
    "embedding of a stranger": taken_from(DEEP_STRANGER, "embed_tokens"),
    "head of a stranger": taken_from(DEEP_STRANGER, "lm_head"),
    "head of a tune": taken_from(DEEP_TUNE, "lm_head"),
    "norms of a stranger": taken_from(DEEP_STRANGER, "norm"),
    "one norm of a stranger": taken_from(DEEP_STRANGER, "layers.3.input_layernorm"),
    "final norm of a tune": taken_from(DEEP_TUNE, "model.norm")
    | {"model.norm.weight": 1.02 * DEEP["model.norm.weight"]},
    "last layers missing": without("layers.6.", "layers.7."),
    "one matrix missing": without("layers.3.mlp.gate_proj"),
    "norms missing": without("layernorm"),
    "head missing": without("lm_head"),
    "a bias added": quantised(DEEP) | {"model.layers.3.mlp.up_proj.bias": torch.ones(128)},
    "down and o of a stranger": taken_from(DEEP_STRANGER, "down_proj", "o_proj"),
    "all but up of a tune": taken_from(DEEP_TUNE, "", but=("up_proj",)),
    "a shorter vocabulary": {n: v[:90] if v.shape[0] == 100 else v for n, v in quantised(DEEP).items()},
}


@pytest.mark.parametrize("mutation", STORED_MUTATIONS)
def test_mutations_of_stored_tensors_are_not_confirmed(serve, mutation):
    state = STORED_MUTATIONS[mutation]
    n_layers = 6 if mutation == "last layers missing" else 8
    serve("ds/base", DEEP, n_layers=8)
    serve("me/q", state, card("ds/base"), n_layers=n_layers)
    (base,) = verify("me/q").bases
    assert base.relation is None or base.relation.outcome.value != "confirmed"


def in_half(state):
    return {n: v if "proj" in n else v.half() for n, v in quantised(state).items()}


HONEST = {
    "unquantised tensors in float16": (DEEP, in_half(DEEP)),
    "bfloat16 in float16": (
        {n: v.bfloat16() for n, v in DEEP.items()},
        in_half({n: v.bfloat16().float() for n, v in DEEP.items()}),
    ),
    "quantised embedding": (DEEP, {n: int_codes(v, 8, 0) if v.ndim == 2 else v for n, v in DEEP.items()}),
    "tied head is not stored": (
        DEEP | {"lm_head.weight": DEEP["model.embed_tokens.weight"].clone()},
        without("lm_head"),
    ),
    "biases of zeros": (DEEP, quantised(DEEP) | {"model.layers.3.mlp.up_proj.bias": torch.zeros(128)}),
    "frequencies are not stored": (
        DEEP | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)},
        quantised(DEEP),
    ),
}


@pytest.mark.parametrize("copy", HONEST)
def test_honest_copies_are_confirmed(serve, copy):
    base, state = HONEST[copy]
    serve("ds/base", base, n_layers=8)
    serve("me/q", state, card("ds/base"), n_layers=8)
    (check,) = verify("me/q").bases
    assert check.relation.outcome.value == "confirmed", check.relation.tested
    assert re.search(r"tested a few rows of \d+ quantised matrices in 8 of 8 layers", check.relation.tested)


@pytest.mark.parametrize("code", CODES)
def test_scales_moved_from_norms_to_the_next_matrix_do_not_contradict(serve, code):
    """AWQ and SmoothQuant divide a norm by factors, and multiply the columns of the matrices after it."""
    scales = 0.5 + torch.rand(48)
    state = dict(DEEP)
    for name in DEEP:
        if "layernorm" in name:
            state[name] = DEEP[name] / scales
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            state[name] = DEEP[name] * scales
    serve("ds/base", DEEP, n_layers=8)
    serve("me/q", quantised(state, *CODES[code]), card("ds/base"), n_layers=8)
    assert verify("me/q").bases[0].relation.outcome.value == "cannot_tell"


# The others change the base by less than the step of a coarse code, and the report says how much is not noticed.
COARSE = ["of a stranger", "one projection of a stranger", "one negated projection", "layers in another order"]


@pytest.mark.parametrize(
    ("mutation", "code"),
    [*((mutation, "int8") for mutation in MUTATIONS), *((m, code) for m in COARSE for code in CODES if code != "int8")],
)
def test_mutations_of_a_quantised_model_are_not_confirmed(serve, mutation, code):
    serve("ds/base", BASE)
    serve("me/q", quantised(MUTATIONS[mutation], *CODES[code]), card("ds/base"))
    (base,) = verify("me/q").bases
    assert base.relation is None or base.relation.outcome.value != "confirmed"


@pytest.mark.parametrize("declared", ["ds/tune", "ds/sister", "ds/stranger"])
def test_mutations_of_a_card_are_not_confirmed(serve, declared):
    serve("ds/base", BASE)
    serve("ds/tune", TUNE)
    serve("ds/sister", SISTER, card("ds/base", "finetune"))
    serve("ds/stranger", STRANGER)
    serve("me/q", quantised(BASE), card(declared))
    (base,) = verify("me/q").bases
    assert base.relation is None or base.relation.outcome.value == "contradicted"
    assert (base.relation is None) is (declared == "ds/stranger")


def test_scales_of_columns_do_not_contradict(serve):
    """AWQ multiplies columns before it rounds; the norm before the matrix divides by the same numbers."""
    scales = 1 + torch.rand(48)
    scaled = {n: v * scales if n.endswith(("q_proj.weight", "up_proj.weight")) else v for n, v in BASE.items()}
    serve("ds/base", BASE)
    serve("me/q", quantised(scaled, 4, 16), card("ds/base"))
    assert verify("me/q").bases[0].relation.outcome.value != "contradicted"


def test_a_copy_without_a_code_cannot_be_told(serve):
    serve("ds/base", BASE)
    serve("me/q", {name: value.clone() for name, value in TUNE.items()}, card("ds/base"))
    check = verify("me/q")
    assert check.bases[0].relation.outcome.value == "cannot_tell"
    assert check.failures({Condition.BASES}) == ()
    assert [failure.condition for failure in check.failures({Condition.RELATIONS})] == [Condition.RELATIONS]


def test_a_relation_that_was_not_tested_does_not_meet_the_condition(serve):
    serve("me/q", quantised(TUNE), card("ds/gone"))
    check = verify("me/q")
    assert check.bases[0].relation is None
    (failure,) = check.failures({Condition.RELATIONS})
    assert failure.condition is Condition.RELATIONS and "not tested" in failure.statement


def test_fp8_is_tested_by_its_relative_step(serve, loopback_hub, tmp_path):
    def stored(name, state, base):
        codes = {}
        for key, value in state.items():
            scale = value.abs().amax(dim=-1, keepdim=True) / 448
            is_code = "proj" in key
            codes[key] = (value / scale).to(torch.float8_e4m3fn) if is_code else value
            if is_code:
                codes[f"{key}_scale"] = scale
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        quantization = {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
        }
        folder = tmp_path / name
        folder.mkdir()
        safetensors.torch.save_file(codes, folder / "model.safetensors")
        config = CONFIG | {"num_hidden_layers": N_LAYERS, "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "README.md").write_text(f"---\n{card(base)}\n---\n")
        loopback_hub.add_repository(f"me/{name}", folder)
        return verify(f"me/{name}").bases[0].relation.outcome.value

    serve("ds/base", BASE)
    serve("ds/far", drifted(BASE, 1, share=0.3), card("ds/base", "finetune"))
    assert stored("true", BASE, "ds/base") == "confirmed"
    assert stored("false", BASE, "ds/far") == "contradicted"


@pytest.mark.parametrize("relation", ["finetune", "merge", "adapter"])
def test_other_relations_state_what_was_tested(serve, relation):
    serve("ds/base", BASE)
    serve("me/model", TUNE, card("ds/base", relation))
    check = verify("me/model")
    assert f"    {relation}: cannot tell: " in str(check)


def test_large_parts_that_match_nothing_are_named_with_their_share(serve):
    def with_tower(state, seed):
        names = {name: value.shape for name, value in state.items() if ".layers." in name}
        draw = torch.Generator().manual_seed(seed)
        tower = {
            f"vision_tower.{n.removeprefix('model.')}": 0.05 * torch.randn(s, generator=draw) for n, s in names.items()
        }
        return state | tower

    serve("ds/base", with_tower(BASE, 1))
    serve("me/tune", with_tower(TUNE, 2), card("ds/base", "finetune"))
    measured = (
        r"measured: shared weight ancestry, p ≤ 10⁻\S+; "
        r"no match: part of the vision tower \(\d\d %, not loaded by this model\)"
    )
    assert re.search(measured, str(verify("me/tune")))
    serve("me/whole", with_tower(TUNE, 1), card("ds/base", "finetune"))
    assert "no match" not in str(verify("me/whole"))
