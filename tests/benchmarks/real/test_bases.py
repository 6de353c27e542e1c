"""How a model read from GGUF is written: tied where it was, in BF16, with its tokenizer beside it."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from benchmarks.real.bases import load, save, tied_again

SIZES = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def untied(distance):
    """A model whose head is its embedding up to noise of so many times its size."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False))
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        noise = torch.randn_like(embedding) * embedding.square().mean().sqrt()
        model.lm_head.weight.copy_(embedding + distance * noise)
    return model.eval()


@pytest.mark.parametrize(("distance", "is_tied"), [(0.07, True), (0.14, True), (0.17, False), (10.0, False)])
def test_two_quantisations_of_one_matrix_become_one(tmp_path, distance, is_tied):
    model = untied(distance)
    head, ids = model.lm_head.weight.detach().clone(), torch.arange(20)[None]
    save(tied_again(model), tmp_path, tmp_path / "made")
    state = load_file(tmp_path / "made" / "model.safetensors")
    assert ("lm_head.weight" not in state) == is_tied
    assert json.loads((tmp_path / "made" / "config.json").read_text())["tie_word_embeddings"] is is_tied
    if is_tied:
        assert torch.equal(state["model.embed_tokens.weight"], head.bfloat16())
    with torch.no_grad():
        # What was written is what is in memory, rounded to BF16.
        torch.testing.assert_close(load(tmp_path / "made")(ids).logits, model(ids).logits, rtol=0, atol=0.02)


def test_what_is_written_is_bfloat16_and_whole(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    save(untied(10.0), tmp_path, tmp_path / "models" / "made")
    assert {file.name for file in (tmp_path / "models" / "made").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert list((tmp_path / "models").iterdir()) == [tmp_path / "models" / "made"]
    state = load_file(tmp_path / "models" / "made" / "model.safetensors")
    assert {weight.dtype for weight in state.values()} == {torch.bfloat16}
    assert "lm_head.weight" in state
