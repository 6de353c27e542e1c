"""Measure the cost of the analysis of all layers: sampled rows beside all tests of whole layers, in one run.

    python -m benchmarks.layer_cost --pair FOLDER FOLDER
    python -m benchmarks.layer_cost --shapes 512x1408x2 1024x2816x2 4096x14336x2 --full-up-to 1024

``layers`` compares sampled rows of every projection; ``full`` also reads every matched layer whole and makes the tests
that level ``layers`` made before. Both are told the residual basis, so that embeddings and the second witness cost
nothing here. Shapes are width x neurons x layers of Llamas with eight key heads at most: Gaussian weights, and a copy
with noise of 30 % and channels in order. Processor seconds of this process, and bytes read.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from mdir_hf.comparison.layers import compare_layers
from mdir_hf.comparison.projections.analysis import analyse_layers
from mdir_hf.comparison.residual_maps import Attempt
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.hub import IoLedger, open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role

HEAD_ROWS = 64
LOG_ALPHA = -30.0


def measured(
    folders: tuple[Path, Path], work: Callable[[Model, Model, ResidualBasisMap], object]
) -> tuple[float, float, object]:
    """Open two models anew, and return processor seconds, megabytes read and the result."""
    ledger = IoLedger()
    models = [Model(open_repository(folder, use_caches=False, ledger=ledger)) for folder in folders]
    residual_map = ResidualBasisMap.identity(models[0].anatomy.hidden_size)
    started = time.process_time()
    result = work(models[0], models[1], residual_map)
    return time.process_time() - started, ledger.bytes_read / 1e6, result


def by_rows(device: str) -> Callable[[Model, Model, ResidualBasisMap], object]:
    """Tiers 1 and 2."""

    def work(reference: Model, candidate: Model, residual_map: ResidualBasisMap) -> object:
        analysis = analyse_layers(reference, candidate, (residual_map,), device=device)
        return {} if analysis is None else {str(key): n for key, n in analysis.table.counts().items()}

    return work


def by_whole_layers(device: str) -> Callable[[Model, Model, ResidualBasisMap], object]:
    """The layer map of whole matrices, then every test of every matched layer."""

    def work(reference: Model, candidate: Model, residual_map: ResidualBasisMap) -> object:
        attempt = Attempt(lambda _: residual_map, (Role.V, Role.K, Role.UP))
        settings = Settings(level="full", device=device)
        found = compare_layers(reference, candidate, [attempt], settings, log_alpha=LOG_ALPHA)
        return {} if found is None else {"layers": len(found.layer_map.matches), "tests": len(found.modules)}

    return work


def write_llama(folder: Path, *, width: int, n_neurons: int, n_layers: int, noise_on: Path | None) -> Path:
    """Write a Llama of Gaussian weights, or a copy of one with noise of 30 %."""
    folder.mkdir()
    n_heads = max(1, width // HEAD_ROWS)
    n_kv = min(8, n_heads)
    kv = n_kv * (width // n_heads)
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (n_neurons, width), "mlp.up_proj": (n_neurons, width),
        "mlp.down_proj": (width, n_neurons),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    other = torch.Generator().manual_seed(1)
    tensors = {"model.embed_tokens.weight": torch.randn(64, width, generator=generator).bfloat16()}
    tensors["model.norm.weight"] = torch.ones(width).bfloat16()
    for layer in range(n_layers):
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=generator)
            if noise_on is not None:
                weight += 0.3 * torch.randn(shape, generator=other)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight.bfloat16()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(width).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "vocab_size": 64,
        "intermediate_size": n_neurons, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def cases(options: argparse.Namespace, place: Path) -> Iterator[tuple[str, tuple[Path, Path], int, int]]:
    """Yield the name of each pair, its folders, its layers and its width."""
    if options.pair:
        folders = (Path(options.pair[0]), Path(options.pair[1]))
        anatomy = Model(open_repository(folders[0], use_caches=False)).anatomy
        yield folders[1].name, folders, len(anatomy.layers), anatomy.hidden_size
    for shape in options.shapes:
        width, n_neurons, n_layers = map(int, shape.split("x"))
        sizes = {"width": width, "n_neurons": n_neurons, "n_layers": n_layers}
        base = write_llama(place / f"{shape}-base", **sizes, noise_on=None)
        yield shape, (base, write_llama(place / f"{shape}-noise", **sizes, noise_on=base)), n_layers, width


def main() -> None:
    """Measure, and print a line for each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs=2, metavar="FOLDER")
    parser.add_argument("--shapes", nargs="*", default=[], metavar="WIDTHxNEURONSxLAYERS")
    parser.add_argument("--full-up-to", type=int, default=1024, help="widest model whose layers are tested whole")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for device in dict.fromkeys(("cpu", options.device)):
        with tempfile.TemporaryDirectory() as place:
            for name, folders, n_layers, width in cases(options, Path(place)):
                seconds, megabytes, counts = measured(folders, by_rows(device))
                line = f"{name} on {device}: rows {seconds:.1f} s, {seconds / n_layers:.2f} a layer, {megabytes:.0f} MB"
                print(f"{line}, {counts}", flush=True)
                if width <= options.full_up_to:
                    old, old_megabytes, found = measured(folders, by_whole_layers(device))
                    ratios = f"{old / seconds:.0f} times the seconds, {old_megabytes / megabytes:.1f} times the bytes"
                    print(f"  whole layers {old:.1f} s, {old_megabytes:.0f} MB, {found}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
