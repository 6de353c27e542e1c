"""Measure how far fine-tuning moves a real model from its base, for a figure in the docs, and the cost of watching it.

The script fine-tunes the model of a folder (SmolLM2-135M-Instruct, as built by ``make real``) with ``Trainer`` and
``LineageCallback`` on prose that comes with Python. It stores the measurements in ``benchmarks/results/drift.json``
next to measurements at other rates, draws all of them into ``docs/images/drift.png``, and prints the callback's share
of the time. It takes about half a minute on one core.

python -m benchmarks.drift_of_a_run FOLDER [--rate 1e-3] [--steps 24]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from mdir_hf import LineageCallback
from mdir_hf.demo.training import encode, read_corpus
from mdir_hf.lineage.training import Drift

EVERY = 2
SEQUENCE_LENGTH, BATCH_SIZE = 64, 1
ROOT = Path(__file__).parent.parent
PICTURE, RESULTS = ROOT / "docs" / "images" / "drift.png", ROOT / "benchmarks" / "results" / "drift.json"


def fine_tune(folder: Path, rate: float, steps: int) -> tuple[list[Drift], float, float, str]:
    """Fine-tune the model once.

    Returns:
        The drift at each measurement, seconds in the callback's measurements, seconds of training, and the report's
        verdict with its log10 p.
    """
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = encode(Tokenizer.from_file(str(folder / "tokenizer.json")), read_corpus().prose.learnt[:6])
    whole = tokens[: tokens.numel() // SEQUENCE_LENGTH * SEQUENCE_LENGTH]
    rows = [{"input_ids": row, "labels": row} for row in whole.split(SEQUENCE_LENGTH)]
    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output_dir=output, max_steps=steps, per_device_train_batch_size=BATCH_SIZE, learning_rate=rate,
            lr_scheduler_type="cosine", warmup_steps=5, report_to=[], save_strategy="no", disable_tqdm=True,
            use_cpu=True, logging_steps=EVERY, seed=0,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.remove_callback(transformers.PrinterCallback)
        callback = Timed(trainer, base=folder, every=EVERY, layers=False)
        trainer.add_callback(callback)
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
    assert callback.watch is not None and callback.report is not None
    verdict = f"{callback.report.verdict.value}, log10 p {callback.report.log10_p:.0f}"
    return callback.watch.drifts, callback.seconds, seconds, verdict


class Timed(LineageCallback):
    """Record the seconds of its measurements."""

    seconds = 0.0

    def _measure(self, *args: object) -> None:
        started = time.perf_counter()
        super()._measure(*args)
        self.seconds += time.perf_counter() - started


def draw(runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the drift of each role, one column for each rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 3.5 * len(runs), 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(runs), sharex=True, sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        for number, (role, moved) in enumerate(run["roles"].items()):
            style = {"label": role, "color": f"C{number}", "linestyle": ("-", "--")[number % 2]}
            axes[0][column].plot([0, *run["steps"]], [0, *(100 * relative for relative, _ in moved)], **style)
            axes[1][column].plot([0, *run["steps"]], [1, *(trace for _, trace in moved)], **style)
        axes[0][column].set_title(f"learning rate {run['rate']:g}", fontsize=10)
        axes[1][column].set_xlabel("step")
    axes[0][0].set_ylabel("moved, % of the base's size")
    axes[1][0].set_ylabel("trace over rank")
    lowest = min(trace for run in runs for moved in run["roles"].values() for _, trace in moved)
    axes[1][0].set_ylim(min(0.99, lowest), 1.0005)  # differences of 0.00001 are ignored
    axes[1][0].ticklabel_format(useOffset=False)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Train at one rate, store the measurements, draw all rates and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    drifts, measuring, seconds, verdict = fine_tune(options.folder, options.rate, options.steps)
    last = drifts[-1]
    print(
        f"rate {options.rate:g}: after {last.step} steps moved {last.relative:.2%}, trace over rank "
        f"{last.trace_over_rank:.5f}; {verdict}; {len(drifts)} measurements took {measuring / seconds:.2%} of the "
        f"time, {measuring / len(drifts) / (seconds / options.steps):.3f} of a step each"
    )
    run = {
        "rate": options.rate,
        "report": verdict,
        "steps": [drift.step for drift in drifts],
        "relative": [drift.relative for drift in drifts],
        "trace_over_rank": [drift.trace_over_rank for drift in drifts],
        "roles": {
            role: [(at.relative, at.trace_over_rank) for at in (drift.by_role()[role] for drift in drifts)]
            for role in last.by_role()
        },
    }
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    runs = sorted(
        [*(earlier for earlier in known if earlier["rate"] != options.rate), run], key=lambda each: each["rate"]
    )
    RESULTS.write_text(json.dumps(runs) + "\n")
    draw(runs)


if __name__ == "__main__":
    main()
