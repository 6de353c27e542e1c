"""A Llama's tensors under the names, fused orders and orientations that training frameworks write."""

import re

import torch


def _by_group(q, k, v, n_groups):
    groups = zip(*(weight.chunk(n_groups) for weight in (q, k, v)), strict=True)
    return torch.cat([part for group in groups for part in group])


def _rename(state, edges, layer):
    made = {new: state[old] for new, old in edges.items() if old in state}
    n_layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))
    for i in range(n_layers):
        own = {n.removeprefix(f"model.layers.{i}."): t for n, t in state.items() if n.startswith(f"model.layers.{i}.")}
        made |= layer(i, {name.removesuffix(".weight").rpartition(".")[2]: tensor for name, tensor in own.items()})
    return made


def _edges(embedding, head, norm):
    return {embedding: "model.embed_tokens.weight", head: "lm_head.weight", norm: "model.norm.weight"}


def litgpt(state, n_groups, *, interleaved=False):
    def layer(i, t):
        q, k, v = (t[f"{c}_proj"] for c in "qkv")
        name, qkv = ("attn", _by_group(q, k, v, n_groups)) if interleaved else ("qkv", torch.cat([q, k, v]))
        names = {f"attn.{name}": qkv, "attn.proj": t["o_proj"], "mlp.fc_1": t["gate_proj"], "mlp.fc_2": t["up_proj"]}
        names |= {"mlp.proj": t["down_proj"], "norm_1": t["input_layernorm"], "norm_2": t["post_attention_layernorm"]}
        return {f"transformer.h.{i}.{name}.weight": tensor for name, tensor in names.items()}

    return _rename(state, _edges("transformer.wte.weight", "lm_head.weight", "transformer.ln_f.weight"), layer)


def torchtune(state, n_groups):
    del n_groups

    def layer(i, t):
        names = {f"attn.{c}_proj.weight": t[f"{c}_proj"] for c in "qkv"} | {"attn.output_proj.weight": t["o_proj"]}
        names |= {f"mlp.{w}.weight": t[f"{r}_proj"] for w, r in (("w1", "gate"), ("w2", "down"), ("w3", "up"))}
        names |= {"sa_norm.scale": t["input_layernorm"], "mlp_norm.scale": t["post_attention_layernorm"]}
        return {f"layers.{i}.{name}": tensor for name, tensor in names.items()}

    return _rename(state, _edges("tok_embeddings.weight", "output.weight", "norm.scale"), layer)


def megatron(state, n_groups):
    def layer(i, t):
        names = {"self_attention.linear_qkv.weight": _by_group(*(t[f"{c}_proj"] for c in "qkv"), n_groups)}
        names |= {"self_attention.linear_proj.weight": t["o_proj"], "mlp.linear_fc2.weight": t["down_proj"]}
        names["mlp.linear_fc1.weight"] = torch.cat([t["gate_proj"], t["up_proj"]])
        names["self_attention.linear_qkv.layer_norm_weight"] = t["input_layernorm"]
        names["mlp.linear_fc1.layer_norm_weight"] = t["post_attention_layernorm"]
        return {f"decoder.layers.{i}.{name}": tensor for name, tensor in names.items()}

    edges = _edges("embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight")
    return _rename(state, edges, layer)


def old_megatron(state, n_groups):
    def layer(i, t):
        k, v = (t[f"{c}_proj"].chunk(n_groups) for c in "kv")
        names = {
            "query": t["q_proj"],
            "key_value": torch.cat([part for pair in zip(k, v, strict=True) for part in pair]),
        }
        names = {f"self_attention.{name}": tensor for name, tensor in (names | {"dense": t["o_proj"]}).items()}
        names |= {"mlp.dense_h_to_4h": torch.cat([t["gate_proj"], t["up_proj"]]), "mlp.dense_4h_to_h": t["down_proj"]}
        names |= {"input_norm": t["input_layernorm"], "post_attention_norm": t["post_attention_layernorm"]}
        return {f"encoder.layers.{i}.{name}.weight": tensor for name, tensor in names.items()}

    edges = _edges("embedding.word_embeddings.weight", "output_layer.weight", "encoder.final_norm.weight")
    return _rename(state, edges, layer)


def transposed(state, n_groups):
    """Flax's kernels, ``(d_in, d_out)``, under the usual names."""
    del n_groups
    return {n: t.T.contiguous() if n.endswith("_proj.weight") else t for n, t in state.items()}


def transposed_under_other_names(state, n_groups):
    return {
        n: t.T.contiguous() if ".proj" in n or "mlp." in n or ".qkv" in n else t
        for n, t in litgpt(state, n_groups).items()
    }


def gate_in_turns(state, n_groups):
    """Gate and up row by row in one tensor, up first, and unheard-of names."""

    def layer(i, t):
        in_turns = torch.stack([t["up_proj"], t["gate_proj"]], 1).flatten(0, 1)
        names = {"mix.a": t["o_proj"], "mix.b": torch.cat([t[f"{c}_proj"] for c in "qkv"]), "body.a": in_turns}
        names |= {"body.b": t["down_proj"], "before": t["input_layernorm"], "between": t["post_attention_layernorm"]}
        return {f"cells.{i}.{name}.weight": tensor for name, tensor in names.items()}

    del n_groups
    return _rename(state, _edges("lookup.weight", "logits.weight", "last.weight"), layer)


def flax(state, n_groups):
    """Slashes in names, numbers joined to words, and kernels ``(d_in, d_out)``."""

    def layer(i, t):
        names = {
            f"attention/{word}": t[f"{c}_proj"].T for c, word in zip("qkv", ("query", "key", "value"), strict=True)
        }
        names |= {"attention/out": t["o_proj"].T, "mlp/wi_0": t["gate_proj"].T, "mlp/wi_1": t["up_proj"].T}
        kernels = {f"{name}/kernel": tensor for name, tensor in (names | {"mlp/wo": t["down_proj"].T}).items()}
        norms = {"pre_norm/scale": t["input_layernorm"], "post_norm/scale": t["post_attention_layernorm"]}
        return {f"decoder/layers_{i}/{name}": tensor for name, tensor in (kernels | norms).items()}

    del n_groups
    return _rename(state, _edges("token_embedder/embedding", "decoder/logits", "decoder/norm/scale"), layer)


def joined_numbers(state, n_groups):
    """``layers3`` in place of ``layers.3``."""
    del n_groups
    return {name.replace("layers.", "layers"): tensor for name, tensor in state.items()}


def joined_numbers_from_one(state, n_groups):
    """``layer_4`` in place of ``layers.3``."""
    del n_groups
    return {re.sub(r"layers\.(\d+)", lambda at: f"layer_{int(at[1]) + 1}", name): t for name, t in state.items()}


def joined_numbers_beside_a_tower(state, n_groups):
    """``layers3`` beside a tower with the usual numbers."""
    n_channels = state["model.norm.weight"].numel()
    generator = torch.Generator().manual_seed(4)
    shapes = {"fc1": (2 * n_channels, n_channels), "fc2": (n_channels, 2 * n_channels)}
    tower = {
        f"vision_tower.blocks.{i}.mlp.{name}.weight": torch.randn(shape, generator=generator)
        for i in range(3)
        for name, shape in shapes.items()
    }
    return joined_numbers(state, n_groups) | tower


LAYOUTS = {
    "litgpt": litgpt,
    "litgpt, interleaved": lambda state, n_groups: litgpt(state, n_groups, interleaved=True),
    "torchtune": torchtune,
    "Megatron": megatron,
    "old Megatron": old_megatron,
    "transposed": transposed,
    "transposed, other names": transposed_under_other_names,
    "in turns, other names": gate_in_turns,
    "Flax": flax,
    "joined numbers": joined_numbers,
    "joined numbers from 1": joined_numbers_from_one,
    "joined numbers beside a tower": joined_numbers_beside_a_tower,
}
