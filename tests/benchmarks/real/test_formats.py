"""Every format that is written is read back as the model it was, by the package's own readers."""

import json

import pytest
import torch
import transformers

from benchmarks.real.bases import save
from benchmarks.zoo.formats import formats, store
from mdir_hf import HomologyChecker
from tests.specimens import tokenizer_json, tokens

# One of each reader; what each scheme writes is held against its library in tests/checkpoint/quantization.
CHOSEN = ("gguf-q4_0", "gguf-q6_k", "gptq-4", "awq", "int4", "nf4-nested", "fp8-block", "mxfp4")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny model, saved as the real ones are."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=1000, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    beside = tmp_path_factory.mktemp("tokenizer")
    (beside / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(1000))))
    folder = tmp_path_factory.mktemp("models") / "base"
    save(transformers.LlamaForCausalLM(config), beside, folder)
    return folder


def test_the_chosen_formats_are_among_those_that_can_be_written():
    assert set(CHOSEN) <= set(formats())
    assert len(formats()) > 40


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_model_in_another_format_is_found_to_be_the_model(base, tmp_path, kind):
    record = store(base, kind, tmp_path / kind)
    assert record["n_quantised"] >= 7
    report = HomologyChecker.from_pretrained(base, use_caches=False).compare(
        tmp_path / kind, level="body", progress=False
    )
    assert report.verdict.value == "homologous"
    assert report.to_dict()["candidate"]["quantization"]
    assert len(report.to_dict()["layers"]["matches"]) == 1
