"""Disguises keep a model's function and hide its neurons."""

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from benchmarks.real import laundering
from benchmarks.real.bases import load, save
from benchmarks.real.laundering import DISGUISES, MOST_STORED_CHANGE, Disguise, disguised, enciphered, write_all
from benchmarks.zoo.stack import take_apart
from mdir_hf.demo.training import train_byte_level_bpe

WIDTH, NEURONS, LAYERS, HEADS, KV_HEADS = 64, 101, 2, 4, 2
TEXT = ["the cat sat on the mat and the dog ran", "a cat and a dog sat in the rain on the train"] * 20


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("laundering")
    tokenizer = train_byte_level_bpe(TEXT, vocabulary_size=300)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=True, initializer_range=0.1,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    save(transformers.LlamaForCausalLM(config), folder, folder / "base")
    return folder / "base"


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    return write_all(base, tmp_path_factory.mktemp("disguised"), tell=lambda text: None)


@pytest.mark.parametrize("name", DISGUISES)
def test_every_disguise_has_its_sizes(folders, name):
    config = json.loads((folders[name] / "config.json").read_text())
    is_laundered, n_split = "laundered" in name, round(0.4 * NEURONS)
    n_more = {"laundered": 0, "split-in-two": n_split, "split-in-three": 2 * n_split, "laundered-split": n_split}[name]
    assert config["num_hidden_layers"] == LAYERS + is_laundered
    assert config["intermediate_size"] == NEURONS + n_more
    factor = 2 if name == "laundered-split" else 1
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (factor * HEADS, factor * KV_HEADS)
    assert config["tie_word_embeddings"] is not is_laundered


def test_the_decoy_adds_nothing(base, folders):
    model = load(folders["laundered"])
    with torch.no_grad():
        x = torch.randn(1, 8, WIDTH)
        positions = model.model.rotary_emb(x, torch.arange(8)[None])
        decoy, first = (layer(x, position_embeddings=positions) for layer in model.model.layers[:2])
    decoy, first = (out[0] if isinstance(out, tuple) else out for out in (decoy, first))
    assert float((decoy - x).norm()) < 0.02 * float((first - x).norm())  # BF16 rounds to 0.4%


def test_no_part_of_a_split_neuron_is_the_neuron(base, folders):
    whole, split = (take_apart(load(folder)).blocks[0] for folder in (base, folders["split-in-three"]))
    gates, ups = (
        torch.nn.functional.normalize(x.weight) @ torch.nn.functional.normalize(y.weight).T
        for x, y in ((whole.gate, split.gate), (whole.up, split.up))
    )
    n_parts = (gates > 0.999).sum(dim=1)
    assert sorted(n_parts.tolist()) == [1] * (NEURONS - round(0.4 * NEURONS)) + [3] * round(0.4 * NEURONS)
    best = ups.abs().where(gates > 0.999, 0.0).amax(dim=1)
    assert float(best[n_parts == 3].max()) < 0.8 < 0.999 < float(best[n_parts == 1].min())


def test_the_cipher_gives_every_token_another_spelling_and_id(base, folders):
    plain, cipher = (json.loads((folder / "tokenizer.json").read_text()) for folder in (base, folders["laundered"]))
    before, after = plain["model"]["vocab"], cipher["model"]["vocab"]
    assert sorted(after.values()) == sorted(before.values())
    long = {spelling for spelling in before if len(spelling) > 3 and "<" not in spelling}
    assert long and not long & set(after)
    assert sum(before[spelling] == after.get(spelling) for spelling in before) < 0.05 * len(before)


def test_text_in_the_cipher_has_the_reordered_ids(base):
    plain = json.loads((base / "tokenizer.json").read_text())
    order = torch.randperm(len(plain["model"]["vocab"]), generator=torch.Generator().manual_seed(1))
    made = enciphered(plain, order, torch.Generator().manual_seed(2))
    # Without a pre-tokenizer, both tokenizers read the spellings of bytes.
    spelling_of = {index: spelling for spelling, index in made["model"]["vocab"].items()}
    substitution = {
        spelling: spelling_of[int(order[index])]
        for spelling, index in plain["model"]["vocab"].items()
        if len(spelling) == 1
    }
    for tokenizer in (plain, made):
        tokenizer["pre_tokenizer"] = tokenizer["decoder"] = tokenizer["post_processor"] = None
    first, second = (Tokenizer.from_str(json.dumps(tokenizer)) for tokenizer in (plain, made))
    for word in ("thecat", "train", "dogrand"):
        ids = first.encode(word, add_special_tokens=False).ids
        secret = "".join(substitution[letter] for letter in word)
        assert second.encode(secret, add_special_tokens=False).ids == order[ids].tolist()


def test_a_disguise_that_changes_the_function_is_an_error(base, tmp_path, monkeypatch):
    def halved(stack, generator):
        stack.blocks[0].down.weight = stack.blocks[0].down.weight / 2
        return stack

    with pytest.raises(ValueError, match="halved changes the logits"):
        disguised(base, Disguise("halved", "down halved", halved), tmp_path / "halved")
    monkeypatch.setattr(laundering, "MOST_CHANGE", 10.0)
    monkeypatch.setattr(laundering, "MOST_STORED_CHANGE", 10.0)
    changes = disguised(base, Disguise("halved", "down halved", halved), tmp_path / "halved-again")
    assert changes["change"] > 0.01 and changes["stored_change"] > 0.01


def test_stored_changes_are_reported(base, tmp_path):
    changes = disguised(base, DISGUISES["split-in-two"], tmp_path / "split")
    assert changes["change"] < changes["stored_change"] < MOST_STORED_CHANGE
