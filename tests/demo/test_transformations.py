import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM

from mdir_hf.demo.transformations import keep_channels, permute_channels, replace_tokenizer, rotate_channels

# Only the order of sums of at most 48 terms differs; RMSNorm always computes in float32.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}
IDS = torch.arange(24).view(2, 12)


@pytest.fixture
def make_model():
    def make(*, tied=False, vocabulary_size=300):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocabulary_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            bos_token_id=0,
            eos_token_id=1,
        )
        model = LlamaForCausalLM(config).double().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:  # gains of one would hide a gain that was not permuted
                    weight.uniform_(0.5, 2.0)
        return model

    return make


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


@pytest.mark.parametrize("scale", [1.0, 4.0, 0.3])
@pytest.mark.parametrize("tied", [False, True])
def test_permuted_and_rescaled_channels_compute_the_same(make_model, tied, scale):
    model = make_model(tied=tied)
    before = logits(model)

    permute_channels(model, torch.randperm(32), scale=scale)

    torch.testing.assert_close(logits(model), before, **ROUNDING)


def test_channels_follow_the_permutation_and_are_scaled(make_model):
    model = make_model()
    before = model.model.embed_tokens.weight.detach().clone()
    permutation = torch.randperm(32)

    permute_channels(model, permutation, scale=4.0)

    assert torch.equal(model.model.embed_tokens.weight.detach(), 4.0 * before[:, permutation])


def test_a_rotated_residual_stream_computes_the_same(make_model):
    model = make_model()
    before = logits(model)

    rotate_channels(model, torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64)).Q)

    torch.testing.assert_close(logits(model), before, **ROUNDING)


def test_cutting_channels_leaves_the_others_as_they_were(make_model):
    model = make_model()
    kept = torch.randperm(32)[:20]

    narrow = keep_channels(model, kept)

    assert narrow.config.hidden_size == 20
    assert torch.equal(narrow.model.embed_tokens.weight, model.model.embed_tokens.weight[:, kept])
    assert torch.equal(narrow.model.layers[1].mlp.down_proj.weight, model.model.layers[1].mlp.down_proj.weight[kept])
    assert torch.equal(
        narrow.model.layers[1].self_attn.q_proj.weight, model.model.layers[1].self_attn.q_proj.weight[:, kept]
    )
    assert torch.equal(narrow.model.norm.weight, model.model.norm.weight[kept])
    assert logits(narrow).shape == (2, 12, 300)


@pytest.fixture
def tokenizers():
    """Two kinds with a few tokens. Both have "map" with and without a space before it, under different ids."""
    old = Tokenizer(models.BPE({token: i for i, token in enumerate(["<s>", "</s>", "m", "map", "Ġmap", "Ã"])}, []))
    old.decoder = decoders.ByteLevel()
    pieces = ["<unk>", "<s>", "</s>", "▁map", "▁", "map", "m", "mind"]
    new = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    new.decoder = decoders.Metaspace()
    return old, new


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_rows_of_tokens_that_spell_the_same_are_carried_over(make_model, tokenizers, name):
    old, new = tokenizers
    model = make_model(vocabulary_size=6)

    retokenized = replace_tokenizer(model, old, new)

    before, after = model.state_dict()[name], retokenized.state_dict()[name]
    assert after.shape == (8, 32)
    for old_token, new_token in [("Ġmap", "▁map"), ("map", "map"), ("m", "m"), ("<s>", "<s>"), ("</s>", "</s>")]:
        assert torch.equal(after[new.token_to_id(new_token)], before[old.token_to_id(old_token)])


def test_the_layers_are_kept_under_another_tokenizer(make_model, tokenizers):
    model = make_model(vocabulary_size=6)

    retokenized = replace_tokenizer(model, *tokenizers)

    for name, weight in model.model.layers.state_dict().items():
        assert torch.equal(retokenized.model.layers.state_dict()[name], weight)


def test_ids_of_special_tokens_follow_the_new_tokenizer(make_model, tokenizers):
    config = replace_tokenizer(make_model(vocabulary_size=6), *tokenizers).config

    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (8, 1, 2)
