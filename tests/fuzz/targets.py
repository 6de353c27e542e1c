"""Fuzz targets: changed valid files of each format, changed valid responses of each kind, and their readers."""

from __future__ import annotations

import io
import json
import math
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from mdir_hf import HomologyReport
from mdir_hf.errors import MdirError
from mdir_hf.lineage.bom.read import read_bom
from mdir_hf.lineage.bom.result import result_without_hub
from mdir_hf.lineage.cards.badge import make_badge
from mdir_hf.lineage.cards.front_matter import parse_card, read_metadata, with_metadata
from mdir_hf.lineage.cards.verify_badge import read_badge
from mdir_hf.lineage.policy import Condition
from mdir_hf.model.files import TensorSource, open_checkpoint
from mdir_hf.model.files.adapters.config import read_adapter_config
from mdir_hf.model.files.index import parse_index
from mdir_hf.model.files.quantization.opening import read_declared
from mdir_hf.model.roles import read_config, resolve_anatomy
from mdir_hf.model.tokens import doubts_of_vocabulary, gguf_vocabulary, read_vocabulary
from mdir_hf.render.description import describe
from mdir_hf.render.text import markdown_text
from tests.conformance_tensors import MemoryTree
from tests.fuzz.answers import ANSWERS
from tests.fuzz.mutations import (
    damaged,
    gguf_files,
    joined,
    json_files,
    line_files,
    pickles,
    safetensors_files,
    string,
)
from tests.fuzz.passed_on import PASSED_ON
from tests.fuzz.property import Target
from tests.fuzz.written import WRITTEN
from tests.lineage.cards.reports import a_report
from tests.model.files.pytorch.archives import saved, with_pickle
from tests.specimens import sentencepiece_bytes

LARGEST_READ = 1 << 20


def _numbers(source: TensorSource) -> object:
    """Return the spec of every tensor, and the sum of its numbers if they are few."""
    found = []
    for name in source.names()[:20]:
        spec = source.spec(name)
        few = math.prod(spec.shape) * 8 <= LARGEST_READ
        found.append((spec, source.read(name).double().sum().item() if few else None))
    return found, source.description, source.n_bytes


def _checkpoint(path: str) -> Callable[[bytes], object]:
    return lambda data: _numbers(open_checkpoint(MemoryTree({path: data})))


def _vocabulary(path: str, beside: Mapping[str, bytes] | None = None) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        files = {**(beside or {}), path: data}
        found = read_vocabulary(files, files.__getitem__)
        assert len(set(found.row_of.values())) == found.n_tokens > 0
        assert b"" not in found.row_of
        assert found.n_unused >= 0
        return found, dict(found.row_of), doubts_of_vocabulary(files, files.__getitem__, found)

    return read


def _gguf(data: bytes) -> object:
    source = open_checkpoint(MemoryTree({"model.gguf": data}))
    tokens = gguf_vocabulary(source.description.metadata, file="model.gguf")
    metadata = {key: str(value) for key, value in source.description.metadata.items()}
    found, description, n_bytes = _numbers(source)  # type: ignore[misc]
    return found, description.notes, n_bytes, metadata, None if tokens is None else dict(tokens.row_of)


SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (40, 16),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in {
            "self_attn.q_proj": (16, 16),
            "self_attn.k_proj": (8, 16),
            "self_attn.v_proj": (8, 16),
            "self_attn.o_proj": (16, 16),
            "mlp.gate_proj": (32, 16),
            "mlp.up_proj": (32, 16),
            "mlp.down_proj": (16, 32),
            "input_layernorm": (16,),
        }.items()
    },
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "layer_types": ["full_attention", "full_attention"],
    "tie_word_embeddings": True,
    "vocab_size": 40,
}
QUANTISED = {
    "model_type": "llama",
    "quantization_config": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "weight_block_size": [128, 128],
        "version": "0.18.1",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "block_structure": "4x4"}}},
        "transform_config": {"config_groups": {}},
        "algo_config": [{"name": "awq"}],
    },
}
ADAPTER = {
    "peft_type": "LORA",
    "base_model_name_or_path": "owner/base",
    "revision": None,
    "r": 8,
    "lora_alpha": 16,
    "rank_pattern": {"q_proj": 4},
    "alpha_pattern": {"q_proj": 8},
    "use_rslora": False,
    "trainable_token_indices": [0, 1],
    "init_lora_weights": True,
}
INDEX = {
    "metadata": {"total_size": 64},
    "weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"},
}
TOKENIZER = {
    "added_tokens": [{"id": 5, "content": "<s>", "special": True}, {"id": 6, "content": "  ", "special": False}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}]},
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {"<unk>": 0, "▁a": 1, "<0x41>": 2},
        "merges": ["a b", ["c", "d"]],
    },
}
UNIGRAM = {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}}
TEKKEN = {
    "config": {"default_vocab_size": 4, "default_num_special_tokens": 2},
    "vocab": [{"rank": 0, "token_bytes": "IQ=="}, {"rank": 1, "token_bytes": "Ig=="}],
}
VOCAB = {"a": 0, "Ġb": 1, "<|x|>": 2, "ing</w>": 3}
DECLARED = {
    "tokenizer_class": "XLMRobertaTokenizer",
    "num_image_tokens": 3,
    "offset": 2,
    "added_tokens_decoder": {"3": {"content": "<unk>", "special": True}, "9": {"content": "x", "special": False}},
}
CARD = b"""---
license: mit
base_model:
- owner/base  # a comment
tags: [a, "b"]
model-index:
- name: x
  results: []
---
# A model

```yaml
base_model: no/field
```
"""
YAML = st.lists(
    st.sampled_from(
        [
            *(b"base_model", b"base_model:", b"x: 1", b"a/b", b"null", b"~", b"'", b'"', b"|", b">"),
            *(b"? ", b": ", b":", b"- ", b"[", b"]", b"{", b"}", b",", b"&a ", b"*a", b"!!str ", b"<<: "),
            *(b" # c: d", b"---", b"...", b"%YAML 1.1", b"\n", b"\n", b"\n  ", b"\r\n", b"\r", b"\t"),
            *(b"\xc2\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf"),
        ]
    ),
    max_size=7,
).map(b"".join)
"""Front matter of random pieces."""
CARDS = st.one_of(line_files(CARD.split(b"\n"), YAML), YAML.map(lambda block: b"---\n" + block + b"\n---\n"))
PIECES = [sentencepiece_bytes([piece])[:-5] for piece in (("<unk>", 2), ("<s>", 3), ("<0x41>", 6), ("▁a", 1), ("A", 0))]
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F8_E4M3", "shape": [0, 7], "data_offsets": [32, 32]},
}
PAIRS = [
    string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama"),
    string(b"general.alignment") + struct.pack("<II", 4, 32),
    string(b"llama.rope.freq_base") + struct.pack("<If", 6, 10000.0),
    string(b"tokenizer.ggml.model") + struct.pack("<I", 8) + string(b"llama"),
    string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + b"".join(map(string, (b"<s>", b"a", b"<0x41>"))),
    string(b"tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 3, 1, 6),
    string(b"tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + string(b"a b"),
]
TENSORS = [
    string(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 3, 0, 0),
    string(b"output_norm.weight") + struct.pack("<IQIQ", 1, 8, 0, 96),
    string(b"blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 32, 2, 2, 128),
]
_HEAD = b"GGUF" + struct.pack("<IQQ", 3, len(TENSORS), len(PAIRS)) + b"".join(PAIRS) + b"".join(TENSORS)
GGUF = _HEAD + bytes(-len(_HEAD) % 32) + bytes(164)
STATE = {"a.weight": torch.arange(12.0).reshape(3, 4), "b": torch.ones(4, 3).T, "n": {"c": torch.ones(2), "d": 3}}
ZIP = saved(STATE)


def _pickle_of(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return opened.read(next(name for name in opened.namelist() if name.endswith("data.pkl")))


STORAGES = {"0": bytes(48), "1": bytes(48), "2": bytes(8)}


def _config(data: bytes) -> object:
    return repr(resolve_anatomy(read_config(data), tuple(SHAPES), SHAPES.__getitem__))


def _declared(data: bytes) -> object:
    found = read_declared(MemoryTree({"config.json": data}))
    of_module = found.of_module("model.layers.0.mlp.up_proj")
    said = (found.method, found.layout, found.algorithm, found.block, found.bits, found.group_sizes, found.is_symmetric)
    return said, found.divides_by_scale, found.packs_densely, tuple(found.notes()), repr(of_module)


def _adapter(data: bytes) -> object:
    tree = MemoryTree({"adapter_config.json": data, "adapter_model.safetensors": b""})
    found = read_adapter_config(tree)
    return found.recipe, found.method, found.scaling("model.layers.0.self_attn.q_proj", 8)


def _card(data: bytes) -> object:
    card = parse_card(data, subject="README.md")
    metadata = read_metadata(card, subject="README.md")
    changed = with_metadata(
        card, {"base_model": ["owner/base"], "base_model_relation": "finetune"}, subject="README.md"
    )
    return repr(metadata), changed


def _report(data: bytes) -> object:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "no text"
    report = HomologyReport.from_json(text)
    again = HomologyReport.from_json(report.to_json())
    assert again.to_json() == report.to_json()
    return str(report), report.details, describe(report), markdown_text(report, {}), report.to_json()


def _badge(data: bytes) -> object:
    with tempfile.NamedTemporaryFile(suffix=".svg") as file:
        Path(file.name).write_bytes(data)
        try:
            found = read_badge(file.name)
        except MdirError as exc:
            exc.subject = "badge.svg"  # the name of the folder varies
            raise
        return found.kind, found.claim, found.is_faithful


def _bom(data: bytes) -> object:
    document = read_bom(data, subject="bom.json")
    check = result_without_hub(document)
    return repr(document), None if check is None else (str(check), check.failures(frozenset(Condition)))


REPORT = a_report()
SVG = make_badge(REPORT).svg.encode()
RWKV = [b"1 '\\x00' 1", b"2 '\xc3\xa9' 2", b"3 b'\\xff' 1"]
BOM = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {"tools": {"components": [{"name": "tool", "version": "1"}]}, "component": {"type": "application"}},
    "components": [
        {
            "type": "machine-learning-model",
            "group": "me",
            "name": "tuned",
            "version": 40 * "a",
            "purl": "pkg:huggingface/me/tuned@" + 40 * "a",
            "hashes": [{"alg": "SHA-256", "content": 64 * "0"}],
            "components": [{"type": "file", "name": "model.safetensors", "hashes": [{"alg": "MD5", "content": "0"}]}],
            "modelCard": {"properties": [{"name": "base_model", "value": "owner/base, owner/other"}]},
            "pedigree": {"ancestors": [{"name": "base", "purl": "pkg:huggingface/o/b?repository_url=https://x.y"}]},
        }
    ],
    "services": [{"name": "chat", "externalReferences": [{"type": "website", "url": "https://hf.co/me/tuned"}]}],
}
LITERALS = [b"b'<s>'", b"b'a'", b'b"\'\\xff"']

TARGETS: dict[str, Target] = {
    "safetensors": Target(
        safetensors_files(HEADER, bytes(32)),
        struct.pack("<Q", len(json.dumps(HEADER))) + json.dumps(HEADER).encode() + bytes(32),
        _checkpoint("model.safetensors"),
    ),
    "pytorch": Target(damaged(ZIP), ZIP, _checkpoint("pytorch_model.bin")),
    "pickle": Target(
        pickles(_pickle_of(ZIP)).map(lambda data: with_pickle(data, STORAGES)),
        with_pickle(_pickle_of(ZIP), STORAGES),
        _checkpoint("pytorch_model.bin"),
    ),
    "gguf": Target(gguf_files(PAIRS, TENSORS, bytes(164)), GGUF, _gguf),
    "tokenizer-json": Target(json_files(TOKENIZER), json.dumps(TOKENIZER).encode(), _vocabulary("tokenizer.json")),
    "unigram-json": Target(json_files(UNIGRAM), json.dumps(UNIGRAM).encode(), _vocabulary("tokenizer.json")),
    "tekken-json": Target(json_files(TEKKEN), json.dumps(TEKKEN).encode(), _vocabulary("tekken.json")),
    "vocab-json": Target(json_files(VOCAB), json.dumps(VOCAB).encode(), _vocabulary("vocab.json")),
    "tokenizer-config": Target(
        json_files(DECLARED),
        json.dumps(DECLARED).encode(),
        _vocabulary("tokenizer_config.json", {"ice_text.model": b"".join(PIECES)}),
    ),
    "sentencepiece": Target(joined(PIECES), b"".join(PIECES), _vocabulary("tokenizer.model")),
    "rwkv": Target(line_files(RWKV), b"\n".join(RWKV), _vocabulary("rwkv_vocab_v1.txt")),
    "literals": Target(line_files(LITERALS), b"\n".join(LITERALS), _vocabulary("vocab.txt")),
    "tiktoken": Target(line_files([b"YQ== 0", b"YWI= 1"]), b"YQ== 0\nYWI= 1\n", _vocabulary("a.tiktoken")),
    "config": Target(json_files(CONFIG), json.dumps(CONFIG).encode(), _config),
    "index": Target(
        json_files(INDEX),
        json.dumps(INDEX).encode(),
        lambda data: parse_index(data, path="model.safetensors.index.json", label="index"),
    ),
    "adapter": Target(json_files(ADAPTER), json.dumps(ADAPTER).encode(), _adapter),
    "quantisation": Target(json_files(QUANTISED), json.dumps(QUANTISED).encode(), _declared),
    "card": Target(CARDS, CARD, _card),
    "report": Target(json_files(json.loads(REPORT.to_json())), REPORT.to_json().encode(), _report),
    "badge": Target(damaged(SVG), SVG, _badge),
    "bom": Target(json_files(BOM), json.dumps(BOM).encode(), _bom),
    **PASSED_ON,
    **ANSWERS,
    **WRITTEN,
}
