"""Tensors that a model does not load never decide: they are compared, named and reported beside the verdict."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5EncoderModel,
)
from transformers import T5ForConditionalGeneration as T5

from mdir_hf import Level, Reason, Verdict, compare
from mdir_hf.cli import main
from tests.specimens import save_pretrained

WIDTH, LAYERS = 64, 6
CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=WIDTH,
    intermediate_size=192,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)


def save_llama(folder, seed):
    torch.manual_seed(seed)
    return save_pretrained(folder, LlamaForCausalLM(CONFIG))


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("victim") / "victim", 0)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("own") / "own", 1)


def layer_tensors(folder):
    tensors = load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.")}


def add(own, folder, extra, **changes):
    """Copy a model, add tensors to its file, and change its config."""
    shutil.copytree(own, folder)
    save_file({**load_file(own / "model.safetensors"), **extra}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def beyond(tensors):
    def moved(name):
        prefix, number, rest = name.split(".", 3)[0:2], int(name.split(".")[2]), name.split(".", 3)[3]
        return ".".join([*prefix, str(number + LAYERS), rest])

    return {moved(name): tensor for name, tensor in tensors.items()}


def under(prefix):
    return lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def as_experts(tensors):
    mlps = {name: tensor for name, tensor in tensors.items() if ".mlp." in name}
    return {name.replace(".mlp.", ".mlp.experts.0."): tensor for name, tensor in mlps.items()}


def as_shared_experts(tensors):
    return renamed(".experts.0.", ".shared_expert.")(as_experts(tensors))


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.arange(16)[None]).logits


def renamed(old, new):
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


KINDS = {
    "layers beyond the depth": (beyond, {}),
    "a draft model": (under("draft_model"), {}),
    "a talker": (under("talker"), {}),
    "a talker with a config that the class does not know": (under("talker"), {"talker_config": {"hidden_size": WIDTH}}),
    "multi-token prediction": (under("mtp"), {}),
    "multi-token prediction that the class does not know": (beyond, {"num_nextn_predict_layers": LAYERS}),
    "experts in a dense model": (as_experts, {}),
    "shared experts in a dense model": (as_shared_experts, {}),
    "a stack without a known name": (under("teacher"), {}),
    "compiled copies beside the model": (under("_orig_mod"), {}),
    "wrapped copies beside the model": (under("module"), {}),
    "the names of GPT-2": (renamed("model.layers", "transformer.h"), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_copies_that_the_class_does_not_load_decide_nothing_and_are_named(kind, victim, own, tmp_path):
    place, changes = KINDS[kind]
    folder = add(own, tmp_path / "own", place(layer_tensors(victim)), **changes)
    assert torch.equal(logits(folder), logits(own))  # bit for bit: the class ignores the tensors
    report = compare(victim, folder, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    copied = next(pair for pair in report.parts if pair.layers)
    assert (copied.reference_is_loaded, copied.candidate_is_loaded) == (True, False)
    assert "also contain copies of layer" in report.warning
    assert "which this model does not load" in report.warning
    entries = [entry for entry in report.coverage.candidate if entry.part == copied.candidate]
    # Gate and up were compared, and not attention and down.
    assert [(entry.is_match, entry.is_loaded) for entry in entries] == [(True, False), (None, False)]
    assert not any(entry.is_match for entry in report.coverage.reference)


def test_experts_past_the_declared_number_decide_nothing_and_are_named(tmp_path):
    size = {"num_local_experts": 4, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 3}
    sizes = size | {"vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    folders = [tmp_path / name for name in ("victim", "other")]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        save_pretrained(folder, MixtralForCausalLM(MixtralConfig(**sizes)))
    experts = {name: tensor for name, tensor in layer_tensors(folders[0]).items() if ".experts." in name}
    extra = {re.sub(r"experts\.(\d+)", lambda at: f"experts.{int(at[1]) + 4}", name): v for name, v in experts.items()}
    folder = add(folders[1], tmp_path / "own", extra)
    report = compare(folders[0], folder, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE and "(experts beyond the config), which this model does not" in (
        report.warning
    )
    ledger = [(entry.part, entry.is_match, entry.is_loaded) for entry in report.coverage.candidate]
    assert ("experts beyond the config", True, False) in ledger
    assert ("experts of the language model", False, True) in ledger
    assert ("experts of the language model", True, True) not in ledger


@pytest.mark.parametrize(
    "wrapper", ["modules_to_save.default", "original_module", "base_layer", "weight_v", "_orig_mod"]
)
def test_copies_under_wrapped_names_never_replace_the_tensors_of_the_model(wrapper, victim, own, tmp_path):
    mlps = {name: tensor for name, tensor in layer_tensors(victim).items() if ".mlp." in name}
    folder = add(own, tmp_path / "own", renamed("proj.weight", f"proj.{wrapper}.weight")(mlps))
    assert torch.equal(logits(folder), logits(own))
    assert compare(victim, folder, progress=False).verdict is Verdict.NO_EVIDENCE
    assert compare(own, folder, progress=False).verdict is Verdict.HOMOLOGOUS


def test_they_decide_nothing_from_the_other_side_and_at_level_layers(victim, own, tmp_path):
    folder = add(own, tmp_path / "own", beyond(layer_tensors(victim)))
    report = compare(folder, victim, progress=False, level=Level.LAYERS)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert "which this model does not load" in report.warning


@pytest.mark.parametrize("command", ["compare", "verify", "family"])
def test_no_command_confirms_them(command, victim, own, tmp_path, capsys):
    folder = add(own, tmp_path / "own", under("talker")(layer_tensors(victim)))
    (folder / "README.md").write_text(f"---\nbase_model: {victim}\n---\n")
    arguments = {
        "compare": ["compare", str(victim), str(folder)],
        "verify": ["verify", str(folder)],
        "family": ["family", str(folder), "--among", str(victim)],
    }[command]
    main(arguments)
    printed = capsys.readouterr().out
    assert "HOMOLOGOUS" not in printed and "confirmed" not in printed.replace("not confirmed", "")


@pytest.mark.parametrize("model_type", ["ours", None])
def test_without_a_known_class_it_cannot_be_told(model_type, victim, own, tmp_path):
    folder = add(own, tmp_path / "own", under("talker")(layer_tensors(victim)), model_type=model_type)
    report = compare(victim, folder, progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.LOADING_UNKNOWN)
    assert "it is unknown whether this model loads them" in report.warning


def test_a_declared_part_of_a_model_with_its_own_code_counts(victim, own, tmp_path):
    extra = under("talker")(layer_tensors(victim))
    folder = add(own, tmp_path / "own", extra, model_type="ours", talker_config={"hidden_size": WIDTH})
    assert compare(victim, folder, progress=False).verdict is Verdict.HOMOLOGOUS


# --- the main stack of each model


def t5(seed):
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "d_ff": 192, "d_kv": 16, "num_heads": 4, "num_layers": 4, "vocab_size": 512}
    return T5(T5Config(feed_forward_proj="gated-gelu", **sizes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "whole"
    t5(0).save_pretrained(folder)
    return folder


def test_an_encoder_is_related_to_its_encoder_decoder(whole, tmp_path):
    encoder = T5EncoderModel.from_pretrained(whole)
    encoder.save_pretrained(tmp_path / "encoder")
    report = compare(whole, tmp_path / "encoder", progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    sides = report.coverage.reference
    assert {entry.part for entry in sides if entry.is_match is False} >= {"language model"}


def test_a_foreign_encoder_is_named_with_its_share(whole, tmp_path):
    model, stranger = T5.from_pretrained(whole), t5(1)
    model.encoder = stranger.encoder
    model.save_pretrained(tmp_path / "mixed")
    report = compare(whole, tmp_path / "mixed", progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    encoder, rest = [entry for entry in report.coverage.candidate if "encoder" in entry.part and entry.layers]
    assert (encoder.is_match, rest.is_match) == (False, None)
    # Gate and up have 2 x 64 x 192 weights; down has 64 x 192, and attention 4 x 64 x 64.
    assert encoder.bytes / rest.bytes == pytest.approx(24 / 28, abs=1e-3)  # whole bytes
    share = encoder.bytes / sum(entry.bytes for entry in report.coverage.candidate)
    assert f"part of the {encoder.part} ({100 * share:.0f} %)" in report.warning


def test_family_compares_every_part_with_every_base_that_is_named(victim, own, tmp_path, capsys):
    folder = add(own, tmp_path / "both", under("teacher")(layer_tensors(victim)))
    assert main(["family", str(folder), "--among", str(own), str(victim), "--json"]) == 0
    parts = {part["part"]: part["base"] for part in json.loads(capsys.readouterr().out)["parts"]}
    assert parts == {"language model": str(own), "stack teacher.model.layers": str(victim)}


def test_inspect_says_what_is_loaded(victim, own, tmp_path, capsys):
    folder = add(own, tmp_path / "own", under("talker")(layer_tensors(victim)))
    assert main(["inspect", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "part language model, 6 layers" in printed and "not loaded by this model" in printed.partition("talker")[2]


@pytest.mark.parametrize("prefix", ["model.embed_tokens.layers", "model.layers.blocks", "model.h", "aaa.layers"])
def test_a_stack_that_the_class_does_not_load_is_never_the_main_stack(prefix, victim, own, tmp_path):
    def placed(tensors):
        return {name.replace("model.layers", prefix): tensor for name, tensor in tensors.items()}

    folder = add(own, tmp_path / "own", placed(layer_tensors(victim)))
    assert torch.equal(logits(folder), logits(own))
    report = compare(victim, folder, progress=False)
    assert report.verdict is not Verdict.HOMOLOGOUS
    assert compare(own, folder, progress=False).verdict is Verdict.HOMOLOGOUS


def test_a_new_decoder_is_not_said_to_have_no_relative_at_all(whole, tmp_path):
    model, stranger = T5.from_pretrained(whole), t5(1)
    model.decoder.block = stranger.decoder.block
    model.save_pretrained(tmp_path / "mixed")
    report = compare(whole, tmp_path / "mixed", progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no neurons of the main stacks match" in report.sentence
    assert "encoder" in report.warning
