"""Zero embeddings, which the paper's table 4 starts with, learn only in a model with biases."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def gradient_of_zeros(model):
    """Return the norm of the gradient of a tied embedding of zeros."""
    embedding = model.get_input_embeddings().weight
    tokens = torch.randint(SIZES["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        embedding.zero_()
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(generator=torch.Generator().manual_seed(1))
    model(input_ids=tokens, labels=tokens).loss.backward()
    return float(embedding.grad.norm())


def test_zeros_stay_in_a_model_without_biases():
    torch.manual_seed(0)
    assert gradient_of_zeros(Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))) == 0


def test_zeros_learn_in_a_model_with_biases():
    torch.manual_seed(0)
    assert gradient_of_zeros(Qwen2ForCausalLM(Qwen2Config(**SIZES))) > 0.1
