"""Measure the additional cost of ``survey --layers`` for relatives.

    python -m benchmarks.survey_layers FOLDER           # a base model, such as a SmolLM2-135M
    python -m benchmarks.survey_layers --shape 135M

The first model is the base; the others are copies with noise of 10, 20, 30 … % on every matrix. A shape has Gaussian
weights (``benchmarks.layer_cost``). The script prints processor and wall-clock seconds, and the megabytes read.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.layer_cost import shape_of, write_llama
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.result_file import read_survey
from mdir_hf.lineage.survey.run import SurveyPlan, run_survey
from mdir_hf.model.hub import IoLedger
from mdir_hf.render.projection_words import drift_text
from tests.specimens import tokenizer_json, tokens


def noised_copy(base: Path, folder: Path, *, noise: float, seed: int) -> Path:
    """Copy a model with noise on every matrix, and copy its small files unchanged."""
    folder.mkdir()
    for path in base.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)
    generator = torch.Generator().manual_seed(seed)
    for path in base.glob("*.safetensors"):
        tensors = {}
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                weight = file.get_tensor(name)
                if weight.ndim == 2:
                    scale = noise * weight.float().std()
                    weight = (weight + scale * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
                tensors[name] = weight
        save_file(tensors, folder / path.name, metadata={"format": "pt"})
    return folder


def base_folder(options: argparse.Namespace, place: Path) -> Path:
    """Return the named folder of the base, or write a random base."""
    if options.folder is not None:
        return Path(options.folder)
    shape = shape_of(options.shape)
    base = write_llama(place / "base", shape, n_layers=shape.n_layers)
    n_tokens = json.loads((base / "config.json").read_text())["vocab_size"]
    (base / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(n_tokens))))
    return base


def main() -> None:
    """Measure a survey, then the description of all pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of a base model; random weights without it")
    parser.add_argument("--shape", default="135M", metavar="SHAPE")
    parser.add_argument("--models", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        base = base_folder(options, place)
        others = [noised_copy(base, place / f"noise-{at}0", noise=0.1 * at, seed=at) for at in range(1, options.models)]
        plan = SurveyPlan(tuple(map(str, (base, *others))), progress=False, n_tokens=1024)
        began = time.process_time(), time.perf_counter()
        run_survey(plan, place / "out")
        before = time.process_time() - began[0], time.perf_counter() - began[1]
        report = read_survey([place / "out" / "results.jsonl"])
        pairs = report.relatives_to_describe()
        ledger = IoLedger()
        watch = Watch(ledger, Listeners(progress=False), from_start=True)
        began = time.process_time(), time.perf_counter()
        with watch.listening():
            models = OpenModels({}, plan.reading, ledger, watch)
            described = list(describe_relatives(pairs, report.pairs, models, replace(plan.settings_with_layers)))
        after = time.process_time() - began[0], time.perf_counter() - began[1]
        print(f"{len(plan.names)} models, {len(report.pairs)} pairs: {before[0]:.1f} s of CPU, {before[1]:.1f} s")
        print(
            f"layers of {len(described)} pairs: {after[0]:.1f} s of CPU, {after[1]:.1f} s, "
            f"{ledger.bytes_read / 1e6:.0f} MB"
        )
        print(
            *(f"  {Path(each.candidate).name}: {drift_text(each.layer_drift or ())}" for each in described[:3]),
            sep="\n",
        )


if __name__ == "__main__":
    main()
