"""The zoo: its edits keep the function, and its labels follow from ancestry."""

import pytest
import torch

from benchmarks.zoo import edits
from benchmarks.zoo.members import FAMILIES, MEMBERS, Model, initialisations, models, pair, pairs
from benchmarks.zoo.stack import Shape, new_model, put_together, shape_of, take_apart

ARCHITECTURES = ("llama", "qwen3", "gpt_neox", "gpt2")


def model_of(architecture, *, tied=False):
    """A tiny float64 model whose gains are not 1 and whose biases are not 0."""
    n_kv = 2 if architecture in ("llama", "qwen3") else 4
    torch.manual_seed(0)
    model = new_model(architecture, Shape(100, 64, 160, 3, 4, n_kv, 16, tied)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.3 * torch.rand_like(weight)
    return model


@torch.no_grad()
def logits(model):
    return model.double()(torch.arange(40).reshape(2, 20)).logits


# --- edits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_taken_apart_is_put_together_again(architecture, tied):
    model = model_of(architecture, tied=tied)
    made = put_together(take_apart(model)).double()
    # Reassembled in float32: errors of 1e-7 for logits around 2.
    torch.testing.assert_close(logits(made), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_obfuscated_model_computes_the_same_from_other_numbers(architecture, tied):
    model = model_of(architecture, tied=tied)
    stack = take_apart(model)
    hidden = edits.obfuscate(stack, torch.Generator().manual_seed(1))
    torch.testing.assert_close(logits(put_together(hidden)), logits(model), rtol=0, atol=1e-5)
    before, after = stack.blocks[0], hidden.blocks[0]
    for role in ("q", "k", "v", "o", "up", "down"):
        mine, other = getattr(before, role).weight.flatten(), getattr(after, role).weight.flatten()
        assert abs(torch.corrcoef(torch.stack([mine.double(), other]))[0, 1]) < 0.1, role


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_narrower_model_keeps_the_remaining_numbers(architecture):
    stack = take_apart(model_of(architecture))
    own_heads = stack.n_kv_heads == stack.n_heads
    n_heads, width = (2, 32) if own_heads else (4, 48)
    cut = edits.cut_width(stack, n_channels=width, n_heads=n_heads, n_neurons=120)
    shape = shape_of(cut)
    assert (shape.width, shape.n_heads, shape.n_neurons, shape.head_dim) == (width, n_heads, 120, 16)
    numbers = set(stack.blocks[1].v.weight.flatten().tolist())
    assert numbers.issuperset(cut.blocks[1].v.weight.flatten().tolist())
    assert logits(edits.rebuilt(cut)).isfinite().all()


def test_upcycled_experts_compute_what_the_dense_model_does():
    dense = model_of("llama")
    mixture = edits.upcycle(take_apart(dense), "mixtral")
    with torch.no_grad():  # torch has no float64 for stacked experts
        got = mixture.eval()(torch.arange(40).reshape(2, 20)).logits.double()
    # Weights of the chosen experts sum to 1, and all experts are equal; errors are 1e-6 for logits around 2.
    torch.testing.assert_close(got, logits(dense), rtol=0, atol=1e-4)


# --- labels


def test_every_family_has_every_kind_of_member():
    for family in FAMILIES.values():
        names = {model.member for model in models((family.name,))}
        assert {name for name in MEMBERS if not MEMBERS[name].done.startswith(("stored", "every MLP"))} <= names
        assert len([name for name in names if MEMBERS[name].done.startswith("stored")]) == 2


def test_ancestry_follows_parents():
    assert initialisations("merge") == initialisations("rl") == initialisations("obfuscated") == {0}
    assert initialisations("other-data") == {0}
    assert not initialisations("distilled") & initialisations("base")


def test_only_a_shared_initialisation_makes_relatives():
    for each in pairs():
        same = each.a.family == each.b.family
        strangers = {"other-seed", "distilled"} & {each.a.member, each.b.member}
        assert each.related == (same and not strangers), each
        assert each.reason


def test_a_shared_tokenizer_is_distinguished_from_another_one():
    bpe, unigram = Model("llama", "base"), Model("llama", "retokenised")
    assert pair(bpe, Model("gpt2", "sft")).relation == "other family, same tokenizer"
    assert pair(unigram, Model("gpt2", "sft")).relation == "other family, other tokenizer"
