"""Every written format is read back as the same model by the package's own readers."""

import json

import pytest
import torch
import transformers

from benchmarks.evidence.tables import read_results
from benchmarks.real.bases import save
from benchmarks.real.stored import equal_to_base, stored
from benchmarks.zoo.formats import formats, store
from mdir_hf import HomologyChecker
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.slow

# One per reader; tests/model/files/quantization compares the output of each scheme with its library.
CHOSEN = ("gguf-q4_0", "gptq-4", "nf4-nested", "fp8-block")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny model, saved in the same way as the real ones, whose rows are filled by the blocks of every format."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=1000, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(1000))))
    save(transformers.LlamaForCausalLM(config), folder, folder / "base")
    return folder / "base"


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_model_in_another_format_is_found_to_be_the_model(base, tmp_path, kind):
    record = store(base, kind, tmp_path / kind)
    assert record["n_quantised"] >= 7
    report = HomologyChecker.from_pretrained(base, use_caches=False).compare(
        tmp_path / kind, level="layers", progress=False
    )
    assert report.verdict.value == "homologous"
    assert report.to_dict()["candidate"]["quantization"]
    assert len(report.to_dict()["layers"]["matches"]) == 1
    # GGUF files also quantise the embedding; the others quantise only the layers.
    assert equal_to_base(tmp_path / kind, base) == {"embedding_equal": "gguf" not in kind, "layers_equal": False}
    assert stored(tmp_path / kind)["bits_per_weight"] < 16


def test_a_copy_is_distinguished_from_a_changed_model(base):
    assert equal_to_base(base, base) == {"embedding_equal": True, "layers_equal": True}


def test_no_changed_model_of_the_evidence_is_a_copy():
    changed = [row for row in read_results()["real-models"] if "/" in row["model"]]  # not the bases
    assert changed
    assert [row["model"] for row in changed if row["embedding_equal"] and row["layers_equal"]] == []
    quantised = [row for row in changed if row["model"].partition("/")[2] in formats()]
    assert [row["model"] for row in quantised if row["layers_equal"]] == []
    plain = {"BF16", "F16", "F32"}
    assert [row["model"] for row in quantised if row["embedding_equal"] and row["embedding_type"] not in plain] == []
