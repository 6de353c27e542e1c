"""Transform a Llama-like causal LM: permute, rotate or prune channels, or replace the tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

# The residual stream is on the columns of weights that read it, and on the rows of weights that write to it.
_READS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_WRITES = ("o_proj", "down_proj")


@torch.no_grad()
def permute_channels(model: PreTrainedModel, permutation: torch.Tensor, *, scale: float = 1.0) -> None:
    """Permute the residual channels and multiply them by ``scale``, in place, preserving the outputs.

    New channel i is old channel ``permutation[i]``, int64 ``(hidden_size,)``. RMSNorm cancels a positive scale exactly,
    because its epsilon is multiplied by the square of the scale. Powers of two are exact in all dtypes.
    """
    body, tied = model.model, model.config.tie_word_embeddings
    body.embed_tokens.weight.copy_(body.embed_tokens.weight[:, permutation] * scale)
    if not tied:
        model.lm_head.weight.copy_(model.lm_head.weight[:, permutation])
    body.norm.weight.copy_(body.norm.weight[permutation] / (scale if tied else 1.0))
    for layer in body.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.copy_(norm.weight[permutation])
        for name, module in layer.named_modules():
            leaf = name.rpartition(".")[2]
            if leaf in _READS:
                module.weight.copy_(module.weight[:, permutation])
            elif leaf in _WRITES:
                module.weight.copy_(module.weight[permutation] * scale)
    epsilon = model.config.rms_norm_eps * scale**2
    model.config.rms_norm_eps = epsilon
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = epsilon


@torch.no_grad()
def rotate_channels(model: PreTrainedModel, rotation: torch.Tensor) -> None:
    """Rotate the residual stream in place, preserving the outputs up to rounding.

    ``rotation`` is orthogonal, ``(hidden_size, hidden_size)``, and has the dtype of the model. Gains are folded into
    the weights that read the stream, so embeddings must be untied.
    """
    body = model.model
    body.embed_tokens.weight.copy_(body.embed_tokens.weight @ rotation)
    model.lm_head.weight.copy_((model.lm_head.weight * body.norm.weight) @ rotation)
    body.norm.weight.fill_(1.0)
    for layer in body.layers:
        for name, module in layer.named_modules():
            leaf = name.rpartition(".")[2]
            if leaf in _READS:
                norm = layer.input_layernorm if "self_attn" in name else layer.post_attention_layernorm
                module.weight.copy_((module.weight * norm.weight) @ rotation)
            elif leaf in _WRITES:
                module.weight.copy_(rotation.T @ module.weight)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.fill_(1.0)


@torch.no_grad()
def keep_channels(model: PreTrainedModel, channels: torch.Tensor) -> PreTrainedModel:
    """Return a narrower, less accurate model that keeps only ``channels`` (``(n_kept,)`` int64), in the given order."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    narrow = _rebuilt(model, hidden_size=channels.numel(), head_dim=head_dim)
    weights = {}
    for name, weight in model.state_dict().items():
        writes = weight.ndim == 1 or any(leaf in name for leaf in _WRITES)
        weights[name] = weight[channels] if writes else weight[:, channels]
    narrow.load_state_dict(weights)
    return narrow


@torch.no_grad()
def replace_tokenizer(model: PreTrainedModel, old: Tokenizer, new: Tokenizer) -> PreTrainedModel:
    """Return the model for another tokenizer; rows of tokens with equal text are copied, others are random."""
    rebuilt = _rebuilt(
        model,
        vocab_size=new.get_vocab_size(),
        bos_token_id=new.token_to_id("<s>"),
        eos_token_id=new.token_to_id("</s>"),
    )
    old_ids, new_ids = _spellings(old), _spellings(new)
    common = sorted(old_ids.keys() & new_ids.keys())
    source = torch.tensor([old_ids[text] for text in common])
    target = torch.tensor([new_ids[text] for text in common])
    fresh, weights = rebuilt.state_dict(), model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = fresh[name].clone()
        rows[target] = weights[name][source]
        weights[name] = rows
    rebuilt.load_state_dict(weights)
    return rebuilt


def _rebuilt(model: PreTrainedModel, **changes: object) -> PreTrainedModel:
    config = type(model.config)(**{**model.config.to_dict(), **changes})
    return type(model)(config).to(model.dtype)


def _spellings(tokenizer: Tokenizer) -> dict[str, int]:
    # Decoded after another token, because the first token of a text loses its leading space. Tokens for a part of a
    # character have no text.
    texts = {tokenizer.decoder.decode(["x", token])[1:]: index for token, index in tokenizer.get_vocab().items()}
    return {text: index for text, index in texts.items() if "\ufffd" not in text}
