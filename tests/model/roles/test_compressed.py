"""Checkpoints saved by compression methods: all weights have roles, relatives are found and strangers are not."""

import copy

import pytest
import torch

from mdir_hf import Verdict, compare
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.comparison.relatives import SIZES, new_embeddings, weights_of, write
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")

RANK, WIDTH = 56, 72


def factors(weight, rank=RANK):
    u, s, v = torch.linalg.svd(weight.float(), full_matrices=False)
    return u[:, :rank] * s[:rank].sqrt(), s[:rank].sqrt()[:, None] * v[:rank]


def svd_llm(name, weight):
    left, right = factors(weight)
    stem = name.removesuffix("_proj.weight")
    return {f"{stem}_u_proj.weight": left, f"{stem}_v_proj.weight": right}


def asvd(name, weight):
    left, right = factors(weight)
    stem = name.removesuffix(".weight")
    return {f"{stem}.ALinear.weight": left, f"{stem}.BLinear.weight": right}


def quarot(name, weight):
    return {name.removesuffix("weight") + "module.weight": weight}


def sliced(tensors):
    """SliceGPT: a basis for each layer, a quarter of the channels removed, norms without weights, shortcuts between."""
    generator = torch.Generator().manual_seed(7)

    def basis():
        return torch.linalg.qr(torch.randn(96, 96, generator=generator)).Q[:, :WIDTH]

    made, q = {}, basis()
    made["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] @ q
    for layer in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for part, reading, writing, norm in (
            ("self_attn", "q k v", "o", "input_layernorm"), ("mlp", "gate up", "down", "post_attention_layernorm"),
        ):  # fmt: skip
            gain = tensors[f"{at}{norm}.weight"]
            for one in reading.split():
                made[f"{at}{part}.{one}_proj.weight"] = (tensors[f"{at}{part}.{one}_proj.weight"] * gain) @ q
            after = basis()
            made[f"{at}{part}.{writing}_proj.weight"] = after.T @ tensors[f"{at}{part}.{writing}_proj.weight"]
            made[f"{at}{'attn' if part == 'self_attn' else 'mlp'}_shortcut_Q"] = q.T @ after
            q = after
    made["lm_head.weight"] = (tensors["lm_head.weight"] * tensors["model.norm.weight"]) @ q
    return made


def by_weight(made_of):
    """Apply a method to a layer's matrices and leave the other tensors unchanged."""

    def make(tensors):
        made = {}
        for name, tensor in tensors.items():
            is_matrix = ".layers." in name and tensor.ndim == 2
            made |= made_of(name, tensor) if is_matrix else {name: tensor}
        return made

    return make


def mha2mla(svd):
    """MHA2MLA: half of each head's rows is rotated; the rest of k and v have a joint factor, one each, or none."""

    def low_rank(weight, name, at):
        left, right = factors(weight, rank=len(weight) // 2)
        return {f"{at}kv_proj.up_{name}.weight": left, f"{at}kv_proj.down_{name}.weight": right}

    def make(tensors):
        made = dict(tensors)
        for layer in range(SIZES["num_hidden_layers"]):
            at = f"model.layers.{layer}.self_attn."
            q, k, v = (made.pop(f"{at}{name}_proj.weight") for name in "qkv")
            of_q, of_k = (torch.arange(len(weight)) % SIZES["head_dim"] < SIZES["head_dim"] // 2 for weight in (q, k))
            made[f"{at}q_proj.weight"] = torch.cat([q[of_q], q[~of_q]])
            made[f"{at}k_r_proj.weight"], rest = k[of_k], k[~of_k]
            if svd == "joint":
                left, right = factors(torch.cat([rest, v]))
                made[f"{at}kv_proj.down_kv.weight"] = right
                made[f"{at}kv_proj.up_k.weight"], made[f"{at}kv_proj.up_v.weight"] = (
                    left[: len(rest)],
                    left[len(rest) :],
                )
                continue
            for name, weight, is_cut in (("k", rest, svd != "only_value"), ("v", v, svd != "only_key")):
                made |= low_rank(weight, name, at) if is_cut else {f"{at}kv_proj.up_{name}.weight": weight}
        return made

    return make


SVDS = {f"MHA2MLA, {svd}": mha2mla(svd) for svd in ("joint", "split", "only_key", "only_value")}
METHODS = {"SVD-LLM": by_weight(svd_llm), "ASVD": by_weight(asvd), "QuaRot": by_weight(quarot), "SliceGPT": sliced}
METHODS |= SVDS
METHODS = {name: lambda model, make=make: make(weights_of(model)) for name, make in METHODS.items()}
ROLES = {"q", "k", "v", "o", "gate", "up", "down"}
ROLES_OF = {method: ROLES - {"q", "k"} for method in SVDS} | {"MHA2MLA, joint": ROLES - {"q", "k"} | {"kv_latent"}}


@pytest.mark.parametrize("method", METHODS)
def test_every_weight_of_a_layer_has_a_role(method, tmp_path):
    model = Model(open_repository(str(write(tmp_path / "it", new_model(seed=0, **SIZES), METHODS[method]))))
    assert model.anatomy.unplaced == () and model.anatomy.unread_layers == ()
    wanted = ROLES_OF.get(method, ROLES)
    assert all({r.value for r in layer.parts if not r.is_norm} == wanted for layer in model.anatomy.layers)
    for layer in model.anatomy.layers:
        model.anatomy.check_shapes(layer, lambda name: model.tensors.spec(name).shape)


@pytest.mark.parametrize("method", [*METHODS][::2])
def test_a_relative_is_found_and_a_stranger_is_not(method, tmp_path):
    base = write(tmp_path / "base", new_model(seed=0, **SIZES))
    relative = new_embeddings(copy.deepcopy(new_model(seed=0, **SIZES)))
    found = compare(base, write(tmp_path / "relative", relative, METHODS[method]), progress=False)
    assert found.verdict is Verdict.HOMOLOGOUS
    stranger = write(tmp_path / "stranger", new_model(seed=9, **SIZES), METHODS[method])
    assert compare(base, stranger, progress=False).verdict is Verdict.NO_EVIDENCE
