"""Level full reads everything, and nothing twice."""

import json
import warnings

import pytest
import torch
import transformers

from mdir_hf import HomologyChecker
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

V, N = 9000, 64
PREFETCHED = 100_000
"""Bytes read from the start of a file for its header. In such a small model they include rows, which are read again."""


def build(folder, family, n_layers, seed, base=None):
    torch.manual_seed(seed)
    common = {"vocab_size": V, "hidden_size": N, "num_hidden_layers": n_layers, "num_attention_heads": 4}
    if family == "bert":
        config = transformers.BertConfig(**common, intermediate_size=4 * N, bos_token_id=0, eos_token_id=1)
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.LlamaConfig(**common, num_key_value_heads=2, intermediate_size=3 * N, pad_token_id=None)
        config.tie_word_embeddings = True
        model = transformers.LlamaForCausalLM(config)
    if base is not None:
        known = base.state_dict()
        with torch.no_grad():
            for name, weight in model.state_dict().items():
                weight.copy_(known[name] + 0.002 * torch.randn(weight.shape) if weight.is_floating_point() else weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
    return model


@pytest.mark.parametrize(("family", "is_relative"), [("bert", True), ("llama", False)])
def test_level_full_reads_nothing_twice(tmp_path, family, is_relative):
    """The embeddings are needed sampled and whole; the values for the map, its placebos and the analysed layers."""
    base = build(tmp_path / "base", family, 6, 0)
    build(tmp_path / "other", family, 3, 1, base if is_relative else None)
    checker = HomologyChecker.from_pretrained(tmp_path / "base", use_caches=False)
    report = checker.compare(tmp_path / "other", level="full", progress=False)
    assert report.verdict.value == ("homologous" if is_relative else "no_evidence")
    assert (report.layers.related_layers_at_least == 3) is is_relative
    small = sum(file.stat().st_size for folder in tmp_path.iterdir() for file in folder.glob("*.json"))
    # The second witness reads rows of its own sample, here most rows of the MLPs, because runs are shorter than the
    # gaps. So does the table of projections. The search for moved neurons reads a whole matrix.
    assert report.io.bytes_read <= 1.6 * report.io.bytes_of_weights + small + 2 * PREFETCHED
    assert report.embedding.rows_used == V - 1  # all except the unknown token, which is special
