"""Obfuscate whole transformers models without changing their logits.

Uses every transformation in the invariance group of a GQA transformer at once (paper, section on invariant
transformations and appendix C), and some beyond it: any invertible map per head on V and O, scales per plane on Q and K
and per neuron on up and down, and a scaled residual stream.
"""

import copy
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mdir_hf.method.layer_weights import LayerWeights

VOCABULARY = 160
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def haar(n, generator):
    q, r = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()


@torch.no_grad()
def new_model(architecture="llama", seed=0, *, dtype=torch.float64, **changes):
    """A model at initialisation, except that its gains are not 1, as after training."""
    config_class, model_class = MODELS[architecture]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **changes})).to(dtype)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.copy_(0.5 + torch.rand(weight.shape, dtype=dtype) if "norm" in name else weight)
    return model.eval()


@torch.no_grad()
def logits(model, seed=0):
    tokens = torch.randint(VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(seed))
    return model(tokens).logits


@torch.no_grad()
def layers_of(model):
    """Every layer of a model as input of the analysis, in float64."""
    config = model.config

    def weight(module):
        return module.weight.detach().double()

    return [
        LayerWeights(
            q=weight(layer.self_attn.q_proj),
            k=weight(layer.self_attn.k_proj),
            v=weight(layer.self_attn.v_proj),
            o=weight(layer.self_attn.o_proj),
            gate=weight(layer.mlp.gate_proj),
            up=weight(layer.mlp.up_proj),
            down=weight(layer.mlp.down_proj),
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            qk_norm=hasattr(layer.self_attn, "q_norm"),
            attention_gain=weight(layer.input_layernorm),
            mlp_gain=weight(layer.post_attention_layernorm),
        )
        for layer in model.model.layers
    ]


@dataclass
class Secrets:
    """The applied transformations: each index array gives the original position of each part of the new model."""

    rotation: torch.Tensor
    kv_heads: list
    q_heads: list
    neurons: list
    signs: list


@torch.no_grad()
def obfuscate(model, seed=0, *, rotation=None, residual_scale=3.0, skewed_values=True):
    """A copy of the model with other weights and the same logits.

    Args:
        model: Llama or Qwen3 with an untied head, float64; not modified.
        seed: Seed of everything drawn.
        rotation: (n, n) for the residual stream; drawn from the Haar measure if None.
        residual_scale: Factor on the residual stream; the epsilon of the norms is adapted.
        skewed_values: Whether V and O are mixed by arbitrary invertible maps per head instead of rotations.

    Returns:
        The new model and the applied transformations.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    n, d = config.hidden_size, config.head_dim
    n_heads, n_kv = config.num_attention_heads, config.num_key_value_heads
    group = n_heads // n_kv
    made = copy.deepcopy(model)
    u = haar(n, generator) if rotation is None else rotation
    body = made.model
    body.embed_tokens.weight.copy_(residual_scale * body.embed_tokens.weight @ u)
    made.lm_head.weight.copy_((made.lm_head.weight * body.norm.weight) @ u)
    body.norm.weight.fill_(1.0)
    secrets = Secrets(u, [], [], [], [])
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for reader in readers:
                reader.weight.copy_((reader.weight * norm.weight) @ u)
            norm.weight.fill_(1.0)
        for writer in (attention.o_proj, mlp.down_proj):
            writer.weight.copy_(residual_scale * u.T @ writer.weight)
        kv = torch.randperm(n_kv, generator=generator)
        queries = torch.cat([group * g + torch.randperm(group, generator=generator) for g in kv])
        q = attention.q_proj.weight.reshape(n_heads, d, n)[queries]
        k = attention.k_proj.weight.reshape(n_kv, d, n)[kv]
        v = attention.v_proj.weight.reshape(n_kv, d, n)[kv]
        o = attention.o_proj.weight.T.reshape(n_heads, d, n)[queries]
        turn_k, turn_q = _plane_turns(n_kv, d, generator, signs_only=hasattr(attention, "q_norm"))
        k, q = turn_k @ k, turn_q.repeat_interleave(group, dim=0) @ q
        mixing = torch.stack([haar(d, generator) for _ in range(n_kv)])
        if skewed_values:
            # singular values within a factor of about 30, so that float64 logits still agree to many digits
            stretch = torch.exp(torch.randn(n_kv, d, dtype=torch.float64, generator=generator))
            mixing = mixing * stretch[:, None, :] @ torch.stack([haar(d, generator) for _ in range(n_kv)])
        v = mixing @ v
        o = torch.linalg.inv(mixing).mT.repeat_interleave(group, dim=0) @ o
        attention.q_proj.weight.copy_(q.reshape(-1, n))
        attention.k_proj.weight.copy_(k.reshape(-1, n))
        attention.v_proj.weight.copy_(v.reshape(-1, n))
        attention.o_proj.weight.copy_(o.reshape(-1, n).T)
        neurons = torch.randperm(config.intermediate_size, generator=generator)
        drawn = torch.randn(2, len(neurons), dtype=torch.float64, generator=generator)
        signs = torch.where(drawn[0] < 0, -1.0, 1.0).double()
        scale = signs * drawn[1].exp()
        mlp.gate_proj.weight.copy_(mlp.gate_proj.weight[neurons])
        mlp.up_proj.weight.copy_(mlp.up_proj.weight[neurons] * scale[:, None])
        mlp.down_proj.weight.copy_(mlp.down_proj.weight[:, neurons] / scale)
        secrets.kv_heads.append(kv)
        secrets.q_heads.append(queries)
        secrets.neurons.append(neurons)
        secrets.signs.append(signs)
    for module in made.modules():
        # the norms before attention, before the MLP and before the head; the input of QK-norm does not change
        if hasattr(module, "variance_epsilon") and module.weight.shape == (n,):
            module.variance_epsilon *= residual_scale**2
    return made, secrets


def _plane_turns(n_heads, d, generator, *, signs_only):
    """For K and Q, (n_heads, d, d): a rotation and a scale in every plane, 1/scale on Q; only signs after QK-norm."""
    n_planes = d // 2
    if signs_only:
        sign = torch.where(torch.rand(n_heads, n_planes, generator=generator) < 0.5, -1.0, 1.0).double()
        turn = torch.diag_embed(torch.cat((sign, sign), dim=1))
        return turn, turn
    angle = 2 * torch.pi * torch.rand(n_heads, n_planes, dtype=torch.float64, generator=generator)
    scale = torch.exp(0.5 * torch.randn(n_heads, n_planes, dtype=torch.float64, generator=generator))

    def turn(factor):
        a, b = torch.diag_embed(factor * angle.cos()), torch.diag_embed(factor * angle.sin())
        return torch.cat((torch.cat((a, -b), dim=2), torch.cat((b, a), dim=2)), dim=1)

    return turn(scale), turn(1 / scale)


def language(n_tokens, seed=0):
    """Text of a language to learn: each token has four likely successors, which also depend on a persistent topic."""
    generator = torch.Generator().manual_seed(12345)  # the language is the same in every text
    successors = torch.randint(VOCABULARY, (4, VOCABULARY, 4), generator=generator)
    drawn = torch.Generator().manual_seed(seed)
    topic_changes = torch.rand(n_tokens, generator=drawn) < 0.05
    topics = torch.randint(4, (n_tokens,), generator=drawn).tolist()
    # frequent successors follow the frequencies of words
    choices = torch.multinomial(torch.tensor([0.5, 0.25, 0.15, 0.1]), n_tokens, True, generator=drawn).tolist()
    text, topic = [0], 0
    table = successors.tolist()
    for change, new_topic, choice in zip(topic_changes.tolist()[1:], topics[1:], choices[1:], strict=True):
        topic = new_topic if change else topic
        text.append(table[topic][text[-1]][choice])
    return torch.tensor(text)


def trained(model, *, steps=150, learning_rate=5e-3, seed=0, length=32, batch=8):
    """Train a copy of a model on the language with AdamW in float32; returns it in float64, and its losses."""
    model = copy.deepcopy(model).float().train()
    text = language(steps * batch * length, seed=seed).reshape(steps, batch, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    losses = []
    for step, tokens in enumerate(text):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 20) * (1 - step / steps)
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.double().eval(), losses
