"""Roles by value: of the families that most checkpoints are of, every weight does what we say it does."""

import pytest
import torch

from mdir_hf.model.roles import read_part
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build

FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text", "gemma", "gemma2", "gemma3_text", "phi3", "glm", "glm4"),
    *("olmo", "olmo2", "stablelm", "smollm3", "granite", "gpt2", "openai-gpt", "gpt_neox"),
)


FULL_ATTENTION = {"qwen3_5_text": {"layer_types": ["full_attention"] * 2}}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_placed_wholly(model_type, tmp_path):
    saved = build(model_type, tmp_path, **FULL_ATTENTION.get(model_type, {}))
    anatomy, tensors, module = saved.ours.anatomy, saved.ours.tensors, saved.module
    found = judge(anatomy, tensors, saved.record)
    assert (found.wrong, found.gaps) == ([], [])
    assert all(layer.missing == () for layer in anatomy.layers)
    for layer in anatomy.layers:
        anatomy.check_shapes(layer, lambda name: tensors.spec(name).shape)
    assert all("norm" in name or "ln_" in name for name in anatomy.unplaced)

    embedding, head = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    assert torch.equal(read_part(tensors, anatomy.embedding), embedding)
    assert anatomy.tied == (head is embedding)
    assert anatomy.tied or torch.equal(read_part(tensors, anatomy.unembedding), head)
    config = module.config
    sizes = (anatomy.architecture, anatomy.hidden_size, anatomy.vocabulary_size, anatomy.n_layers, anatomy.n_heads)
    heads = config.num_attention_heads
    assert sizes == (model_type, *embedding.shape[::-1], config.num_hidden_layers, heads)
    assert anatomy.n_kv_heads == getattr(config, "num_key_value_heads", heads)
    assert anatomy.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)

    # The norms of OpenAI's first stand behind the sums, and none of them can be folded; OLMo's have no scale.
    placed = [] if anatomy.final_norm is None else [read_part(tensors, anatomy.final_norm).double()]
    feeding = [] if model_type == "openai-gpt" else norms_in_front_of(head.detach().double(), saved.record)
    assert len(placed) == len(feeding)
    assert all(torch.equal(scale, norm.scale.double()) for scale, norm in zip(placed, feeding, strict=True))


def norms_in_front_of(head, record):
    """Norms whose output the head makes logits of."""
    logits = record.left[len(head)]
    made = [call for call in record.norms if len(call.made) == head.shape[1]]
    # float32, sums of a few dozen products of order 1: rounding in another order stays far below this.
    return [call for call in made if any(torch.allclose(head @ call.made, y, rtol=1e-4, atol=1e-5) for y in logits)]
