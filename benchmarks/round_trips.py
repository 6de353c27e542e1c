"""Measure how long a comparison waits for a distant Hub: requests, their longest sequence, connections, seconds.

python -m benchmarks.round_trips [--against PATH] [--round-trip-ms 100]

Two sharded models with untied heads are compared from a cold cache over the tests' loopback Hub, which delays every
request by one round trip and every new connection by two more (TCP, TLS 1.3). ``--against`` names the root of another
checkout (``git worktree add PATH COMMIT``), which compares the same models in turn. A sequence is the largest number of
requests without overlap in time; waiting is the time with at least one request under way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.loopback.hub import FullHub
from tests.loopback.traffic import LoggedRequest, in_sequence
from tests.specimens import tokenizer_json, tokens

N_ROWS, WIDTH, N_LAYERS = 8000, 256, 4
HERE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Traffic:
    """Requests and waiting time of a comparison.

    Attributes:
        n_requests: Number of requests to the Hub and its CDN.
        n_in_sequence: Largest number of requests without overlap in time.
        n_connections: Number of connections opened.
        waited_s: Seconds with at least one request under way.
        n_bytes: Bytes of content.
        verdict: Verdict of the comparison.
    """

    n_requests: int
    n_in_sequence: int
    n_connections: int
    waited_s: float
    n_bytes: int
    verdict: str

    def __str__(self) -> str:
        return (
            f"{self.n_requests:4d} requests, {self.n_in_sequence:3d} in sequence, {self.n_connections:3d} connections, "
            f"{self.waited_s:6.2f} s of waiting, {self.n_bytes / 1e6:6.2f} MB ({self.verdict})"
        )


def write_sharded(folder: Path, *, seed: int, of: Path | None = None, noise: float = 0.0) -> Path:
    """Write a Llama with two shards and an untied head, or a near copy of another one.

    Args:
        folder: Output folder.
        seed: Seed of its weights, or of the noise.
        of: The model to copy.
        noise: Strength of the noise, in units of the weights' standard deviation.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (N_ROWS, WIDTH), "lm_head.weight": (N_ROWS, WIDTH)}
    for layer in range(N_LAYERS):
        for name, shape in {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}.items():
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = shape
        for name, shape in {"gate": (512, WIDTH), "up": (512, WIDTH), "down": (WIDTH, 512)}.items():
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = shape
    known = {} if of is None else {k: v for p in of.glob("*.safetensors") for k, v in load_file(p).items()}
    tensors = {}
    for name, shape in shapes.items():
        drawn = 0.02 * torch.randn(shape, generator=generator)
        tensors[name] = (drawn if of is None else known[name].float() + noise * drawn).to(torch.bfloat16)
    shards = [{}, {}]
    for name, tensor in tensors.items():
        is_late = name == "lm_head.weight" or any(f".{late}." in name for late in range(N_LAYERS // 2, N_LAYERS))
        shards[is_late][name] = tensor
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        path = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / path)
        weight_map |= dict.fromkeys(shard, path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(N_ROWS))))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "of": seed})
    )
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "vocab_size": N_ROWS}
    config |= {"num_hidden_layers": N_LAYERS, "num_attention_heads": 8, "tie_word_embeddings": False, "seed": seed}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def waited_s(requests: Iterable[LoggedRequest]) -> float:
    """Return the seconds with at least one request under way."""
    total, until = 0.0, float("-inf")
    for request in sorted(requests, key=lambda each: each.began):
        total += max(0.0, request.ended - max(request.began, until))
        until = max(until, request.ended)
    return total


def compare_over(hub: FullHub, home: Path, tree: Path, names: tuple[str, str]) -> Traffic:
    """Compare two models of a loopback Hub in a new process, from a cold cache.

    Args:
        hub: Serves the models.
        home: An empty folder for all caches.
        tree: Checkout of the code to run.
        names: The models.
    """
    hub.requests.clear()
    hub.connections.clear()
    # Daily requests of the Hub client are not counted.
    registry = home / ".agent_harnesses.json"
    registry.write_text(json.dumps({"standardEnvVars": [], "harnesses": {}}))
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MDIR_HF_"))}
    environment = {**cleared, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "PYTHONPATH": str(tree)}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mdir_hf", "compare", *names, "--json"],
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"{tree}: {done.stderr}")
    requests = [request for request in hub.requests if request.path != "/api/agent-harnesses"]
    return Traffic(
        len(requests),
        in_sequence(requests),
        len({request.connection for request in requests}),
        waited_s(requests),
        sum(request.bytes_sent for request in requests),
        json.loads(done.stdout)["verdict"],
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="root of another checkout")
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    options = parser.parse_args()
    trees = {"this tree": HERE} | ({} if options.against is None else {"the other": options.against.resolve()})
    with tempfile.TemporaryDirectory() as folder, FullHub() as hub:
        root = Path(folder)
        original = write_sharded(root / "original", seed=1)
        hub.add_repository("a/original", original)
        hub.add_repository("b/near-copy", write_sharded(root / "copy", seed=2, of=original, noise=0.05))
        hub.add_repository("c/stranger", write_sharded(root / "stranger", seed=3))
        hub.network.round_trip_s = options.round_trip_ms / 1000
        for pair in (("a/original", "b/near-copy"), ("a/original", "c/stranger")):
            print(f"{pair[0]} against {pair[1]}, a round trip of {options.round_trip_ms:.0f} ms")
            for number, (name, tree) in enumerate(trees.items()):
                home = root / f"home-{pair[1].replace('/', '-')}-{number}"
                home.mkdir()
                print(f"  {name:10s} {compare_over(hub, home, tree, pair)}", flush=True)


if __name__ == "__main__":
    main()
