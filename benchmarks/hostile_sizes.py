"""Measure how long ``mdir-hf inspect`` takes on files that are as large as a repository may contain.

``python -m benchmarks.hostile_sizes [CASE…]`` creates each file, inspects its folder in a process with all imports
done, and prints processor seconds, memory growth and the answer. The targets are 512 MB, and two seconds for refusing
files that are too large. Files within the budgets of ``mdir_hf/budgets.py`` are read, in time linear in their size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.gguf_writer import gguf_bytes
from tests.model.tokens.large_files import FILES, peak_bytes
from tests.specimens import gaussian, tokenizer_json, tokens, write_model

V, N = 1200, 64
EMBEDDING = "model.embed_tokens.weight"
LLAMA = {"model_type": "llama", "hidden_size": N, "num_attention_heads": 4, "vocab_size": V}
MOST_CPU_S = 120


def named(names: Iterable[str], config: dict[str, object] | None = None) -> Callable[[Path], None]:
    """Write a checkpoint with an embedding, and empty tensors with these names."""

    def make(folder: Path) -> None:
        n_bytes = 2 * V * N
        empty = {"dtype": "BF16", "shape": [0, N], "data_offsets": [n_bytes, n_bytes]}
        header: dict[str, object] = dict.fromkeys(names, empty)
        header[EMBEDDING] = {"dtype": "BF16", "shape": [V, N], "data_offsets": [0, n_bytes]}
        text = json.dumps(header).encode()
        weights = len(text).to_bytes(8, "little") + text + bytes(n_bytes)
        _write(folder, weights, config or LLAMA)

    return make


def configured(config: dict[str, object]) -> Callable[[Path], None]:
    """Write a small checkpoint with this config."""
    return named([], LLAMA | config)


def tokenizer(file: str, data: Callable[[], bytes]) -> Callable[[Path], None]:
    """Write a small checkpoint with this tokenizer file."""

    def make(folder: Path) -> None:
        write_model(folder, gaussian(V, N, 0), words=[])
        (folder / file).write_bytes(data())

    return make


def sharded(n_shards: int, n_names: int) -> Callable[[Path], None]:
    """Write ``n_files`` files without an index, each with ``n_layers`` layers."""

    def make(folder: Path) -> None:
        named([])(folder)
        (folder / "model.safetensors").rename(folder / f"model-00001-of-{n_shards:05d}.safetensors")
        for shard in range(2, n_shards + 1):
            names = (f"model.layers.{k}.s{shard}.weight" for k in range(n_names))
            header = json.dumps({name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in names})
            file = folder / f"model-{shard:05d}-of-{n_shards:05d}.safetensors"
            file.write_bytes(len(header).to_bytes(8, "little") + header.encode())

    return make


def indexed(n_names: int) -> Callable[[Path], None]:
    """Write an index with many layers."""

    def make(folder: Path) -> None:
        named([])(folder)
        weight_map = {f"model.layers.{k}.w": "model-1.safetensors" for k in range(n_names)}
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        index = {"metadata": {}, "weight_map": weight_map | {EMBEDDING: "model-1.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")))

    return make


def gguf_of(n_tokens: int) -> Callable[[Path], None]:
    """Write a GGUF file with many tokens."""

    def make(folder: Path) -> None:
        metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [f"t{k}" for k in range(n_tokens)]}
        data = gguf_bytes({"token_embd.weight": gaussian(V, N, 0)}, metadata | {"llama.embedding_length": N})
        folder.mkdir()
        (folder / "model.gguf").write_bytes(data)

    return make


def gguf_with(n_tensors: int) -> Callable[[Path], None]:
    """Write a GGUF file of an embedding and many layers, each with one tensor of 32 numbers."""

    def make(folder: Path) -> None:
        names = ["token_embd.weight", *(f"blk.{k}.odd.weight" for k in range(n_tensors - 1))]
        entries = b"".join(
            len(name).to_bytes(8, "little") + name.encode() + struct.pack("<IQIQ", 1, 32, 0, 128 * at)
            for at, name in enumerate(names)
        )
        head = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, 0) + entries
        folder.mkdir()
        (folder / "model.gguf").write_bytes(head + bytes(-len(head) % 32) + bytes(128 * n_tensors))

    return make


def _write(folder: Path, weights: bytes, config: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))


def reserved(n_digits: int) -> bytes:
    """Write a tokenizer with one long token that looks reserved."""
    return json.dumps(tokenizer_json([*tokens(V - 1), "<reserved" + "1" * n_digits + "x"])).encode()


MANY = 94_000
"""Write as many tensors as a safetensors file may contain."""
CASES: dict[str, Callable[[Path], None]] = {
    **{f"tokenizer: {name}": tokenizer(*made) for name, made in FILES.items()},
    "tokenizer: a reserved token of 200,000 digits": tokenizer("tokenizer.json", lambda: reserved(200_000)),
    "200,000 layers": named(f"model.layers.{k}.mlp.up_proj.weight" for k in range(200_000)),
    "94,000 layers": named(f"model.layers.{k}.mlp.up_proj.weight" for k in range(MANY)),
    "94,000 unknown layers": named(f"model.layers.{k}.odd_{k}.weight" for k in range(MANY)),
    "94,000 stacks of layers": named(f"model.s{k}.0.mlp.up_proj.weight" for k in range(MANY)),
    "94,000 unknown tensors of a layer": named(f"model.layers.0.odd_{k}.weight" for k in range(MANY)),
    "94,000 experts": named(f"model.layers.0.mlp.experts.{k}.gate_proj.weight" for k in range(MANY)),
    "94,000 rests of experts": named(f"model.layers.0.mlp.experts.{k}.odd" for k in range(MANY)),
    "20,000 tensors of expert 9999": named(
        f"model.layers.{k}.mlp.experts.9999.gate_proj.weight" for k in range(20_000)
    ),
    "3,000 layers of 10,000 stacked experts": named(
        (f"model.layers.{k}.mlp.experts.{which}_proj" for k in range(3_000) for which in ("gate_up", "down")),
        LLAMA | {"model_type": "qwen3_moe", "num_experts": 10_000},
    ),
    "a name of 20,000 numbers": named(["1." * 20_000 + "\n"]),
    "350,000 layer_types": configured({"layer_types": ["sliding_attention"] * 350_000}),
    "an index of 990,000 names": indexed(990_000),
    "an index of 420,000 names": indexed(420_000),
    "10 files of 100,000 layers, no index": sharded(11, 100_000),
    "GGUF, 65,000 tensors": gguf_with(65_000),
    "GGUF, 4,000,000 tokens": gguf_of(4_000_000),
}


def main() -> int:
    """Print one line per case, with a star if it misses the target; then the status is 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_sizes", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    wanted = parser.parse_args().cases or list(CASES)

    n_missed = 0
    for name in wanted:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            _in_a_child(lambda made=folder, make=CASES[name]: make(made))  # the time for creating files does not count
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            answer_file = Path(place) / "said"
            _in_a_child(lambda made=folder, to=answer_file: _inspect(made, to))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            size = sum(path.stat().st_size for path in folder.iterdir())
            growth, answer = (
                answer_file.read_text().split("\n", 1) if answer_file.exists() else ("nan", "the process was killed")
            )
        misses = not (float(growth) <= 512e6 and (seconds <= 2.0 or answer.startswith("0:")))
        n_missed += misses
        print(
            f"{name:<48}{size / 1e6:7.1f} MB{seconds:7.1f} s{float(growth) / 1e6:8.0f} MB {'*' if misses else ' '} "
            f"{answer.strip()[:110]}",
            flush=True,
        )
    print(f"{n_missed} of {len(wanted)} miss the target")
    return int(n_missed > 0)


def _in_a_child(work: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    os.waitpid(child, 0)


def _inspect(folder: Path, answer_file: Path) -> None:
    from mdir_hf.cli import main as run

    outputs = [os.open(f"{answer_file}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")]
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    try:
        status: object = run(["inspect", str(folder)])
    except SystemExit as exc:
        status = exc.code
    sys.stdout.flush()
    sys.stderr.flush()
    words = Path(f"{answer_file}.err").read_text(errors="replace").strip().splitlines()
    output_lines = Path(f"{answer_file}.out").read_text(errors="replace").strip().splitlines()
    told = words[-1] if words else f"read: {output_lines[0] if output_lines else ''}"
    answer_file.write_text(f"{peak_bytes() - before}\n{status}: {told.replace(str(folder), 'model')}")


if __name__ == "__main__":
    raise SystemExit(main())
