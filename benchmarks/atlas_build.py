"""Build an atlas of 400 repositories with realistic shapes, and measure cost, size, a kill, a resume and a query.

python -m benchmarks.atlas_build [--repositories 400]

The tests' loopback Hub serves six checkpoints with the shapes of published models (135M to 8B) and full-size tokenizers
under many names, with the documented limits of a user with a token. The files are sparse except for embeddings and the
neurons that are read: 5 GB of disk. The build is killed after a quarter of the repositories, restarted, published as a
dataset, and queried from there for a fine-tune.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch

from mdir_hf.comparison.neuron_sample import FEW_LAYERS, spread
from tests.large.llama_8b import tokenizer_of_real_size
from tests.large.sparse import fill_shards, write_sparse_checkpoint
from tests.loopback.hub import FullHub

# Width, layers, rows of the embedding, neurons, heads, key-value heads.
SHAPES = {
    "135M": (576, 30, 49_152, 1_536, 9, 3),
    "0.5B": (896, 24, 151_936, 4_864, 14, 2),
    "1B": (2_048, 16, 128_256, 8_192, 32, 8),
    "3B": (2_048, 36, 151_936, 11_008, 16, 2),
    "7B": (4_096, 32, 32_000, 14_336, 32, 8),
    "8B": (4_096, 32, 128_256, 14_336, 32, 8),
}
SHARD_BYTES = 5_000_000_000
UNIQUE_ROWS = 4_096


def drawn(n_rows: int, width: int, seed: int, noise: float = 0.0) -> torch.Tensor:
    """Return rows of a model, or of its fine-tune if there is noise."""
    rows = 0.02 * torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed))
    return rows + 0.02 * noise * torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed + 1))


def write(folder: Path, size: str, tokenizer: bytes, noise: float = 0.0) -> dict[str, str]:
    """Write a checkpoint of a given shape; return the digests of its shards."""
    width, n_layers, n_rows, mlp, heads, kv_heads = SHAPES[size]
    head = width // heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (n_rows, width), "model.norm.weight": (width,)}
    parts = {
        "input_layernorm": (width,), "post_attention_layernorm": (width,), "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width), "mlp.down_proj": (width, mlp), "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv_heads * head, width), "self_attn.v_proj": (kv_heads * head, width),
        "self_attn.o_proj": (width, width),
    }  # fmt: skip
    shapes |= {f"model.layers.{i}.{part}.weight": shape for i in range(n_layers) for part, shape in parts.items()}
    seed = 10 * list(SHAPES).index(size)
    repeated = {"model.embed_tokens.weight": partial(drawn, UNIQUE_ROWS, width, seed, noise)}
    for layer in spread(range(n_layers), FEW_LAYERS):
        at = f"model.layers.{layer}."
        repeated[f"{at}post_attention_layernorm.weight"] = partial(torch.ones, width)
        for number, name in enumerate(("gate_proj", "up_proj")):
            repeated[f"{at}mlp.{name}.weight"] = partial(drawn, mlp, width, seed + 100 * layer + 2 * number, noise)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": mlp,
        "num_attention_heads": heads, "num_hidden_layers": n_layers, "num_key_value_heads": kv_heads,
        "tie_word_embeddings": True, "vocab_size": n_rows,
    }  # fmt: skip
    shards = fill_shards({name: ("BF16", shape) for name, shape in shapes.items()}, SHARD_BYTES)
    return write_sparse_checkpoint(folder, shards, config=config, tokenizer=tokenizer, repeated_rows=repeated)


def main() -> None:
    """Build, kill, resume and query the atlas, and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=400)
    n = parser.parse_args().repositories
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # delete the gigabytes in any case
    tokenizer = tokenizer_of_real_size()
    with tempfile.TemporaryDirectory() as place, FullHub() as hub:
        folder = Path(place)
        digests = {size: write(folder / size, size, tokenizer) for size in SHAPES}
        sizes = list(SHAPES)
        names = [f"lab{at}/base-{sizes[at % len(sizes)]}" for at in range(n)]
        for at, name in enumerate(names):
            size = sizes[at % len(sizes)]
            # Files with new digests are new files to a client, so that nothing is read from its cache.
            new_digests = {
                path: hashlib.sha256(f"{name}{digest}".encode()).hexdigest() for path, digest in digests[size].items()
            }
            hub.add_repository(name, folder / size, sha256=new_digests)
        hub.add_repository("me/tuned", folder / "tuned", sha256=write(folder / "tuned", "7B", tokenizer, 0.1))
        (folder / "data").mkdir()
        (folder / "data" / "README.md").write_text("# Atlas\n")
        hub.add_repository("me/atlas", folder / "data", kind="dataset")
        listed = folder / "bases.toml"
        bases = "".join(f'"{name}" = "{name.rpartition("-")[2]}"\n' for name in names)
        listed.write_text(f'["Lab"]\nyear = 2025\nlicence = "mit"\n["Lab".bases]\n{bases}')
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": f"{folder}/home", "HF_TOKEN": hub.token}
        # The loopback Hub accepts large files only by the older protocol.
        environment |= {"MDIR_HF_CACHE": f"{folder}/cache", "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "mdir_hf", "atlas", "build", str(listed), "--output", f"{folder}/atlas"]

        def report(what: str, started: float) -> None:
            n_bytes = sum(request.bytes_sent for request in hub.requests)
            kinds = Counter(request.origin for request in hub.requests)
            waited = sum(request.status == 429 for request in hub.requests)
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            print(f"{what}: {time.perf_counter() - started:.0f} s, {n_bytes / 1e6:,.0f} MB, {counts}, {waited} refused")
            hub.requests.clear()

        hub.requests.clear()
        started = time.perf_counter()
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stderr is not None
        n_added = 0
        for line in running.stderr:
            n_added += line.startswith("added")
            if n_added == n // 4:
                running.send_signal(signal.SIGKILL)
                break
        running.wait()
        report(f"killed after {n_added} bases", started)
        started = time.perf_counter()
        publishing = [*command, "--publish", "me/atlas"]
        done = subprocess.run(publishing, env=environment, capture_output=True, text=True, check=True)
        hub.merge("datasets/me/atlas", 1)
        outcomes = Counter(line.partition(":")[0] for line in done.stderr.splitlines())
        report(f"resumed ({outcomes['known']} known, {outcomes['added']} added)", started)
        print(done.stdout.strip())
        index = folder / "atlas" / "bases.safetensors"
        environment["MDIR_HF_ATLAS"] = f"{hub.endpoint}/datasets/me/atlas/resolve/main/{index.name}"
        print(f"index: {index.stat().st_size / 1e6:.0f} MB, {index.stat().st_size / n / 1e3:.0f} kB per base")
        started = time.perf_counter()
        identification = subprocess.run(
            [*command[:3], "identify", "me/tuned", "--no-confirm", "--json"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        result = json.loads(identification.stdout)
        best = min((candidate["log10_p"] for candidate in result["candidates"]), default=math.nan)
        report(f"a query ({len(result['found'])} of its {n // len(SHAPES)} equal bases, log10 p {best:.0f})", started)


if __name__ == "__main__":
    main()
