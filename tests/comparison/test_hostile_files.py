"""Malicious files: each ends a comparison with one line and status 1, quickly and with little memory.

Every case runs as a user would run it, in a process with limited memory and processor time. There are one or two cases
of each reader, and the costliest ones; tests/model/files has the other malicious files.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.limited import Ending, run_limited
from tests.model.files.pytorch.archives import with_pickle, zipped
from tests.specimens import gaussian, tokens, write_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits by fork and /proc")

V, N = 1200, 64
EMBEDDING = "model.embed_tokens.weight"


def safetensors_file(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype: str, shape: object, start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


class SystemCall:
    """A pickle that would run a command if it were loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


PICKLES: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip bomb": (
        lambda: zipped({"a/data.pkl": bytes(300 << 20)}, compression=zipfile.ZIP_DEFLATED),
        "compressed or encrypted",
    ),
    "many opcodes": (lambda: with_pickle(b"\x80\x02" + b"]" * (60 << 20) + b"."), "opcodes"),
    "no archive": (lambda: b"\x80\x02N." * 100, "not a file of torch.save"),
}

MANY = 10_000_000
HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "100 MB of spaces after nothing": (lambda: safetensors_file(b"{}" + b" " * 99_999_998), "embedding"),
    "absurd count of tensors": (
        lambda: safetensors_file(
            b"{"
            + b",".join(b'"%x":{"dtype":"U8","shape":[],"data_offsets":[0,0]}' % n for n in range(1_600_000))
            + b"}"
        ),
        "the limit is 850,000",
    ),
    "empty lists": (lambda: safetensors_file(b'{"a":[' + b"[]," * 33_000_000 + b"0]}"), "the limit is 850,000"),
    "zero rows": (
        lambda: safetensors_file(json.dumps({EMBEDDING: entry("F32", [0, N], 0, 0)}).encode()),
        "holds only empty placeholders",
    ),
}

INDEXES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a device": (lambda: index("/dev/zero"), "absolute"),
    "10 million tensors with long names": (
        lambda: b'{"weight_map":{' + b",".join([b'"model.layers.1234567.weight":"a"'] * MANY) + b"}}",
        "the limit .* is 67,108,864",
    ),
}


def index(path: str) -> bytes:
    return json.dumps({"weight_map": {EMBEDDING: path}}).encode()


def write_adapter(folder: Path, base: Path, factors: dict[str, torch.Tensor], **config: object) -> None:
    whole = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base), **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    save_file(factors, folder / "adapter_model.safetensors")


def embedding_factors(r: int = 2) -> dict[str, torch.Tensor]:
    name = "base_model.model.model.embed_tokens.lora_embedding"
    return {f"{name}_A": torch.ones(r, V), f"{name}_B": torch.ones(N, r)}


ADAPTERS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "rank 0": (lambda folder, base: write_adapter(folder, base, embedding_factors(0), r=0), "its r is 0"),
    "itself": (lambda folder, base: write_adapter(folder, folder, embedding_factors()), "cycle|are stacked"),
    "patterns that never end": (
        lambda folder, base: write_adapter(folder, base, embedding_factors(), alpha_pattern={"(([a-z_.]+)+)+x": 3}),
        "regular expression",
    ),
}

CONFIGS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty lists": ("config.json", lambda: b"[" + b"[]," * 20_000_000 + b"0]", "config.json"),
    "a deep adapter": ("adapter_config.json", lambda: b"[" * 1_000_000, "adapter"),
}


def layer(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """The single layer of a small Llama, with some tensors replaced."""
    shapes = {
        "self_attn.q_proj": (N, N), "self_attn.k_proj": (N, N), "self_attn.v_proj": (N, N), "self_attn.o_proj": (N, N),
        "mlp.gate_proj": (96, N), "mlp.up_proj": (96, N), "mlp.down_proj": (N, 96),
    }  # fmt: skip
    weights = {name: gaussian(*shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    weights |= {"input_layernorm": torch.ones(N), "post_attention_layernorm": torch.ones(N)}
    weights |= {name.replace("__", "."): tensor for name, tensor in changed.items()}
    return {f"model.layers.0.{name}.weight": tensor for name, tensor in weights.items()}


CONFIG = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4, "num_hidden_layers": 1}
LAYERS: dict[str, tuple[dict[str, torch.Tensor], dict[str, object]]] = {
    "NaN": ({"self_attn__v_proj": torch.full((N, N), float("nan"))}, {}),
    "infinity in an MLP": ({"mlp__up_proj": torch.full((96, N), float("inf"))}, {}),
    "a norm of NaN": ({"input_layernorm": torch.full((N,), float("nan"))}, {}),
    "zero rows": ({"self_attn__v_proj": torch.ones(0, N)}, {}),
    "no neurons": ({"mlp__up_proj": torch.ones(0, N), "mlp__down_proj": torch.ones(N, 0)}, {}),
    "all zeros": ({"self_attn__v_proj": torch.zeros(N, N), "mlp__up_proj": torch.zeros(96, N)}, {}),
    "one value": ({"self_attn__v_proj": torch.ones(N, N), "self_attn__o_proj": torch.ones(N, N)}, {}),
    "huge values": ({"self_attn__v_proj": torch.full((N, N), 3e38), "mlp__up_proj": torch.full((96, N), 3e38)}, {}),
    "tiny values": ({"self_attn__v_proj": torch.full((N, N), 1e-45), "mlp__up_proj": torch.full((96, N), 1e-45)}, {}),
    "another width": ({"self_attn__v_proj": torch.ones(N, N + 1)}, {}),
    "three axes": ({"self_attn__v_proj": torch.ones(2, N, N)}, {}),
    "a scalar": ({"self_attn__v_proj": torch.ones(())}, {}),
    "a billion layers": ({}, {"num_hidden_layers": 10**9}),
    "a billion heads": ({}, {"num_attention_heads": 10**9}),
    "heads of nothing": ({}, {"head_dim": 0}),
    "no key heads": ({}, {"num_key_value_heads": 0}),
    "negative heads": ({}, {"num_attention_heads": -4}),
    "words for numbers": ({}, {"num_attention_heads": "4", "num_key_value_heads": [4], "head_dim": {}}),
}


def build(root: Path) -> dict[str, tuple[Path, str]]:
    """Write every case; return its folder and the expected error message."""
    base = write_model(root / "base", gaussian(V, N, 0), further=layer(), config=CONFIG)
    template = write_model(root / "template", gaussian(V, N, 1), words=tokens(V))
    cases: dict[str, tuple[Path, str]] = {}

    def folder(name: str, said: str, *, kept: tuple[str, ...] = ("config.json", "tokenizer.json")) -> Path:
        made = root / str(len(cases))
        made.mkdir()
        for file in kept:
            (made / file).write_bytes((template / file).read_bytes())
        cases[name] = made, said
        return made

    witness = root / "witness"
    call = with_pickle(pickle.dumps({"w": SystemCall(f"touch {witness}")}, 2))
    (folder("pickle: os.system", "posix.system") / "pytorch_model.bin").write_bytes(call)
    (folder("pickle: os.system in an adapter", "posix.system") / "adapter_model.bin").write_bytes(call)
    config = {"r": 2, "base_model_name_or_path": str(base)}
    (cases["pickle: os.system in an adapter"][0] / "adapter_config.json").write_text(json.dumps(config))
    for name, (make, said) in PICKLES.items():
        (folder(f"pickle: {name}", said) / "pytorch_model.bin").write_bytes(make())
    for name, (make, said) in HEADERS.items():
        (folder(f"header: {name}", said) / "model.safetensors").write_bytes(make())
    for name, (make, said) in INDEXES.items():
        (folder(f"index: {name}", said) / "model.safetensors.index.json").write_bytes(make())
    for name, (write, said) in ADAPTERS.items():
        write(folder(f"adapter: {name}", said), base)
    for name, (file, make, said) in CONFIGS.items():
        made = folder(f"config: {name}", said)
        write_adapter(made, base, {})
        if file == "config.json":
            (made / "adapter_config.json").unlink()
            (made / "adapter_model.safetensors").rename(made / "model.safetensors")
        (made / file).write_bytes(make())
    infinite = torch.full((V, N), float("inf"))
    save_file({EMBEDDING: infinite}, folder("weights: infinity", "NaN or infinity") / "model.safetensors")
    for name, (changed, more) in LAYERS.items():
        made = folder(f"layers: {name}", "")
        save_file({EMBEDDING: gaussian(V, N, 1), **layer(**changed)}, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return cases


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ending, str]]:
    """The outcome of every case, and its expected message."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place:
        root = Path(place)
        cases = build(root)

        def command(name: str, folder: Path) -> list[str]:
            return ["compare", str(root / "base"), str(folder), "--quiet", "--level", level_of(name)]

        commands = [command(name, folder) for name, (folder, _) in cases.items()]
        first = [command("layers: ", root / "base"), *(command(name, cases[name][0]) for name in ONE_OF_EACH_READER)]
        ended = run_limited(commands, root / "out", first=first)
        assert not (root / "witness").exists()
    return {name: (ending, said) for (name, (_, said)), ending in zip(cases.items(), ended, strict=True)}


NAMES = [
    "pickle: os.system",
    "pickle: os.system in an adapter",
    *(f"pickle: {name}" for name in PICKLES),
    *(f"header: {name}" for name in HEADERS),
    *(f"index: {name}" for name in INDEXES),
    *(f"adapter: {name}" for name in ADAPTERS),
    *(f"config: {name}" for name in CONFIGS),
    *(f"layers: {name}" for name in LAYERS),
    "weights: infinity",
]


PATTERNS = "adapter: patterns that never end"
ONE_OF_EACH_READER = ("pickle: no archive", "header: zero rows", "index: a device", "adapter: rank 0", "layers: NaN")


def level_of(name: str) -> str:
    """Level layers reads adapters of the embedding, which neurons leave unread at level auto."""
    return "layers" if name.startswith("layers: ") or name == PATTERNS else "auto"


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"layers: {name}" for name in LAYERS])
def test_absurd_layers_end_in_one_line_or_a_verdict(endings, name):
    ending, _ = endings[name]
    assert ending.status in (0, 1), ending.err[-2000:]
    assert "Traceback" not in ending.err and "Warning" not in ending.err
    assert ending.err.count("\n") == ending.status


@pytest.mark.slow
def test_a_pattern_that_never_ends_blocks_the_weights_it_may_name(endings):
    # The pattern is not matched against any name: the embedding's factors are left out, and the layers decide.
    ending, _ = endings[PATTERNS]
    assert ending.status == 0 and ending.err == ""
    said = re.sub(r"\s+", " ", ending.out)
    assert "regular expression" in said and "HOMOLOGOUS" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("layers: ") and name != PATTERNS])
def test_a_hostile_file_ends_in_one_line(endings, name):
    ending, said = endings[name]
    assert ending.status == 1, ending.err[-2000:]
    assert ending.out == ""
    assert ending.err.count("\n") == 1 and ending.err.startswith("mdir-hf: error: ")
    assert re.search(said, ending.err)
    assert len(ending.err) < 2100
    assert ending.err.isprintable() or ending.err[:-1].isprintable()


@pytest.mark.slow
def test_every_case_was_run(endings):
    assert sorted(endings) == sorted(NAMES)
